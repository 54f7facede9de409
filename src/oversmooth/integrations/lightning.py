"""Smoothing monitored in Lightning, logged to the loggers that the trainer has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from oversmooth.integrations.callback import Monitoring
from oversmooth.safety.libraries import import_library

# The same classes under two names: whoever uses one cannot use the callbacks of the other.
_LIBRARY = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
_callbacks: Any = import_library(f"{_LIBRARY}.callbacks", "a callback for Lightning")


class LightningSmoothing(Monitoring, _callbacks.Callback):  # type: ignore[misc]
    """A callback that records smoothing every so many steps and hands it to every logger of the trainer.

    It is written at the step it belongs to, whatever ``log_every_n_steps`` says, and is among ``callback_metrics``, so
    that EarlyStopping and ModelCheckpoint can go by it.

    Args:
        every: steps between snapshots: batches after which an optimiser stepped.
        probe: a batch as the module's ``forward`` takes it; None: the first examples of the training data. Data that
            draw random numbers from generators of their own need one.
        inputs: examples of the probe that is made.
        model: the name of the module to monitor inside the LightningModule; None: the LightningModule itself.
        history: where to write snapshots; None: the trainer's log directory; False: nowhere.
        **settings: fields of `oversmooth.monitor.MonitorConfig`, such as ``use_training_batch=True``.
    """

    def __init__(
        self,
        every: int = 100,
        *,
        probe: Any = None,
        inputs: int = 8,
        model: str | None = None,
        history: str | Path | bool | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._configure(every, probe, inputs, history, settings)
        self.model = model
        self._last = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before anything is wrapped: the time to put hooks on."""
        if stage == "fit" and self.config.use_training_batch:
            self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins, or goes on."""
        self._last = trainer.global_step
        # Asked in every process, whatever becomes of its monitor: the first tells the others.
        folder = (trainer.log_dir or trainer.default_root_dir) if self._history in (None, True) else ""
        if not self.config.use_training_batch:
            self._begin(trainer, pl_module)
        if self.monitor is not None and self.monitor.is_open:
            self._restart(folder, _steps_of(trainer))

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        def data() -> tuple[Any, Any]:
            loader = trainer.train_dataloader
            return getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)

        self._begin_monitor(
            lambda: pl_module if self.model is None else pl_module.get_submodule(self.model),
            data,
            _steps_of(trainer),
            together=trainer.world_size > 1 or None,
            scaler=getattr(trainer.precision_plugin, "scaler", None) or False,
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """A batch is done, and with accumulation perhaps a step."""
        if self.monitor is None or trainer.global_step == self._last:
            return
        self._last = trainer.global_step
        if values := self._step():
            # To the loggers at once, which write on the first process alone; log() would wait for log_every_n_steps,
            # and throw away what comes between.
            for logger in trainer.loggers:
                logger.log_metrics(dict(values), step=self.monitor.steps)
            # On every process alike: averaging over them here would make those wait that have nothing to say.
            pl_module.log_dict(values, logger=False, on_step=True, on_epoch=False, sync_dist=False, batch_size=1)
        if self.monitor.should_stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Training ends: hooks come off."""
        self._end()


def _steps_of(trainer: Any) -> int:
    """Batches after which an optimiser stepped, which is what Lightning logs by; ``global_step`` counts every optimiser
    of a module that has several.
    """
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))
