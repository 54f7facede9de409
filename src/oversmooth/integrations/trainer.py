"""Smoothing watched in `transformers.Trainer`, logged through the trainer itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from oversmooth.anatomy.live import unwrapped
from oversmooth.integrations.guessing import probe_of
from oversmooth.integrations.watching import Watching
from oversmooth.monitor import Monitor
from oversmooth.monitor.history import FILE
from oversmooth.monitor.names import keys
from oversmooth.monitor.warning import say
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library

_callbacks: Any = import_library("transformers.trainer_callback", "a callback for transformers.Trainer")


class SmoothingCallback(Watching, _callbacks.TrainerCallback):  # type: ignore[misc]
    """A callback that looks at smoothing every so many steps and logs it with the trainer's own logging.

    What is seen reaches ``log_history`` and every reporter, under ``train/oversmooth/…`` as Trainer names it; the whole
    history lies in ``smoothing.jsonl`` in the output directory, and goes on where a training is resumed.

    Args:
        every: steps between looks.
        probe: a batch as the model takes it; None: the first examples of the training data, through the trainer's own
            collator, drawing none of their random numbers but those of generators that lie hidden in a function.
        passing: watch the training batch as it passes, in place of a probe.
        inputs: examples of the probe that is made.
        history: where to write what is seen; None: the output directory; False: nowhere.
        **settings: for `oversmooth.Monitor`: what to see, alarms, sinks.
    """

    def __init__(
        self,
        every: int = 100,
        *,
        probe: Any = None,
        passing: bool = False,
        inputs: int = 8,
        history: str | Path | bool | None = None,
        **settings: Any,
    ) -> None:
        self._settle(every, probe, passing, inputs, history, settings)
        self.trainer: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """The trainer is ready, and nothing is compiled yet: the time to put hooks on.

        Args:
            args: the training arguments.
            state: the trainer's.
            control: the trainer's.
            kwargs: the model among them.
        """
        if self.passing:
            self._begin(args, 0, kwargs.get("model"))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Training begins, or goes on.

        Args:
            args: the training arguments.
            state: the trainer's.
            control: the trainer's.
            kwargs: the model among them.
        """
        self.trainer = _trainer_of(self) or self.trainer
        model = kwargs.get("model")
        watching = self.passing and self.monitor is not None and self.monitor.is_open
        if watching and self.monitor is not None and model is not None:
            watching = unwrapped(model) is self.monitor.eyes.model  # a trainer with model_init has made another
            if not watching:
                self.monitor.close()
        if watching and self.monitor is not None:
            if self.monitor.gauge is not None and self.monitor.gauge.scaler is None:
                self.monitor.gauge.scaler = _scaler_of(self.trainer)
            self._restart(self._path(args), state.global_step)
        else:
            self._begin(args, state.global_step, model)

    def _path(self, args: Any) -> Path | None:
        if self._history is False or getattr(args, "process_index", 0) != 0:
            return None
        return Path(args.output_dir) / FILE if self._history in (None, True) else Path(str(self._history))

    def _begin(self, args: Any, step: int, model: Any) -> None:
        try:
            probe = self.probe
            if probe is None and not self.passing:
                trainer = self.trainer
                if trainer is None:
                    raise InputError("the trainer is not known to the callback; give probe=batch, or passing=True")
                probe = probe_of(trainer.train_dataset, trainer.data_collator, model, self.inputs)
            several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
            late = self.passing and self.trainer is None  # on_train_begin knows whether it is resumed
            self.monitor = Monitor(
                model,
                probe,
                self.every,
                passing=self.passing,
                start=step,
                **{"together": several or None, "scaler": _scaler_of(self.trainer), **self.settings},
            )
            if not late:
                self._restart(self._path(args), step)
        except (InputError, OSError) as error:
            self.monitor = None
            say(f"smoothing is not watched: {error}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """A step of the optimiser is done.

        Args:
            args: the training arguments.
            state: the trainer's.
            control: the trainer's.
            kwargs: the model among them.
        """
        monitor = self.monitor
        if monitor is None:
            return control
        monitor.steps = state.global_step - 1
        if monitor.step() and monitor.history.rows:
            row = monitor.history.rows[-1]
            if row["step"] == state.global_step:
                self._log(keys(row), control)
        if monitor.should_stop:
            control.should_training_stop = True
        return control

    def _log(self, values: dict[str, float], control: Any) -> None:
        if self.trainer is None or not values:
            return
        # Logging says that what was to be logged is logged; the loss of this step is not.
        before = control.should_log
        self.trainer.log(dict(values))
        control.should_log = self.trainer.control.should_log = before

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Training ends: hooks come off.

        Args:
            args: the training arguments.
            state: the trainer's.
            control: the trainer's.
            kwargs: the model among them.
        """
        self._end()


def _scaler_of(trainer: Any) -> Any:
    """The GradScaler of a trainer that has one."""
    return getattr(getattr(trainer, "accelerator", None), "scaler", None)


def _trainer_of(callback: Any) -> Any:
    """The trainer that is calling: no callback is told who it is, and only the trainer's own log reaches all reporters
    and ``log_history``.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        one = frame.f_locals.get("self")
        handler = getattr(one, "callback_handler", None)
        if handler is not None and callback in getattr(handler, "callbacks", ()) and hasattr(one, "log"):
            return one
        frame = frame.f_back
    return None
