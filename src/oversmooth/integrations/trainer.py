"""Smoothing monitored in `transformers.Trainer`, logged through the trainer itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from oversmooth.anatomy.live import unwrapped
from oversmooth.integrations.callback import Monitoring
from oversmooth.monitor.names import in_one_line
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth.safety.processes import are_joined, rank_and_world

_callbacks: Any = import_library("transformers.trainer_callback", "a callback for transformers.Trainer")


class SmoothingCallback(Monitoring, _callbacks.TrainerCallback):  # type: ignore[misc]
    """A callback that records smoothing every so many steps and logs it with the trainer's own logging.

    Snapshots reach ``log_history`` and every reporter, under ``train/oversmooth/…`` as Trainer names it; the console
    shows one line of each. The history is ``smoothing.jsonl`` in the output directory; a resumed training continues it.

    Args:
        every: steps between snapshots.
        probe: a batch as the model takes it; None: the first examples of the training data, through the trainer's own
            collator. Data that draw random numbers from generators of their own need one.
        inputs: examples of the probe that is made.
        history: where to write snapshots; None: the output directory; False: nowhere.
        **settings: fields of `oversmooth.monitor.MonitorConfig`, such as ``use_training_batch=True``.
    """

    def __init__(
        self,
        every: int = 100,
        *,
        probe: Any = None,
        inputs: int = 8,
        history: str | Path | bool | None = None,
        **settings: Any,
    ) -> None:
        self._configure(every, probe, inputs, history, settings)
        self.trainer: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """The trainer is ready, and nothing is compiled yet: the time to put hooks on."""
        if self.config.use_training_batch:
            self._begin(0, kwargs.get("model"))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Training begins, or goes on."""
        self.trainer = _trainer_of(self) or self.trainer
        model, monitor = kwargs.get("model"), self.monitor if self.config.use_training_batch else None
        if monitor is not None and model is not None and unwrapped(model) is not monitor.model.module:
            monitor.close()  # a trainer with model_init has made another
        if monitor is None or not monitor.is_open:
            self._begin(state.global_step, model)
        elif monitor.recorder is not None and monitor.recorder.scaler is None:
            monitor.recorder.scaler = self._scaler
        self._restart(args.output_dir, state.global_step)

    def _begin(self, step: int, model: Any) -> None:
        several = are_joined() and rank_and_world()[1] > 1
        self._begin_monitor(lambda: model, self._data, step, together=several or None, scaler=self._scaler)

    def _data(self) -> tuple[Any, Any]:
        if self.trainer is None:
            raise InputError("the trainer is not known to the callback; give probe=batch, or use_training_batch=True")
        return self.trainer.train_dataset, self.trainer.data_collator

    @property
    def _scaler(self) -> Any:
        """The GradScaler of the trainer; False: it has none; None: the trainer is not known yet."""
        return None if self.trainer is None else self.trainer.accelerator.scaler or False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """A step of the optimiser is done."""
        if self.monitor is None:
            return control
        self.monitor.steps = state.global_step - 1
        values = self._step()
        if values and self.trainer is not None:
            # Logging says that what was to be logged is logged; the loss of this step is not.
            before = control.should_log
            self._log(values)
            control.should_log = self.trainer.control.should_log = before
        if self.monitor.should_stop:
            control.should_training_stop = True
        return control

    def _log(self, values: dict[str, float]) -> None:
        """To ``log_history`` and every reporter; the console has one line in place of every number."""
        handler = self.trainer.callback_handler
        every, consoles = handler.callbacks, (_callbacks.PrinterCallback, _callbacks.ProgressCallback)
        printing = [callback for callback in every if type(callback) in consoles]
        handler.callbacks = [callback for callback in every if callback not in printing]
        try:
            self.trainer.log(values)
        finally:
            handler.callbacks = every
        if printing and self.trainer.state.is_world_process_zero:
            line = f"oversmooth, {in_one_line(self.history.rows[-1])}"
            bar = getattr(printing[0], "training_bar", None)
            print(line) if bar is None else bar.write(line)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Training ends: hooks come off."""
        self._end()


def _trainer_of(callback: Any) -> Any:
    """The trainer that is calling: Trainer does not pass itself to callbacks, and only its own log reaches all
    reporters and ``log_history``.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        one = frame.f_locals.get("self")
        handler = getattr(one, "callback_handler", None)
        if handler is not None and callback in getattr(handler, "callbacks", ()) and hasattr(one, "log"):
            return one
        frame = frame.f_back
    return None
