"""Loggers for a plain loop: TensorBoard, W&B, JSON lines, or any function. Libraries are imported when needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from oversmooth.monitor.warning import warn
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import append_line, check_folder
from oversmooth.safety.foreign import json_text

Logger = Callable[[int, dict[str, float]], object]
"""Receives the step, and plain floats by key."""


class TensorBoard:
    """Writes for TensorBoard.

    Args:
        to: a SummaryWriter that is used already, or the folder for a new one.
    """

    def __init__(self, to: Any) -> None:
        self._own = not hasattr(to, "add_scalar")
        self.writer = self._opened(to) if self._own else to

    @staticmethod
    def _opened(to: Any) -> Any:
        folder = arguments.path(to, "TensorBoard's folder", "give a folder, or a SummaryWriter")
        try:
            from torch.utils.tensorboard import SummaryWriter

            return SummaryWriter(str(folder))
        except ImportError as error:
            raise InputError(
                "writing for TensorBoard needs tensorboard, which is not installed; pip install tensorboard"
            ) from error
        except OSError as error:
            raise InputError(f"TensorBoard cannot write to {folder} ({reason(error)}); name another folder") from error

    def __call__(self, step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        if self._own:
            self.writer.close()


class WandB:
    """Logs to a run of Weights & Biases, against the step of the training.

    A snapshot stands in the line that the user logs next; the last one has its own when the monitor is closed.

    Args:
        run: the run; None: the one that ``wandb.init`` began.
        own_lines: whether a snapshot has a line of its own where the user logs none before the next. W&B counts that as
            a step of the run, and then drops lines that are logged with a smaller ``step=``. Otherwise such a snapshot
            is not in W&B, of which there is one warning.
    """

    def __init__(self, run: Any = None, *, own_lines: bool = False) -> None:
        self.own_lines = arguments.flag(own_lines, "own_lines")
        if run is None:
            try:
                import wandb
            except ImportError as error:
                raise InputError("logging to W&B needs wandb, which is not installed; pip install wandb") from error
            run = wandb.run
        if run is None:
            raise InputError("no W&B run has begun; call wandb.init first, or give WandB(run)")
        self.run, self._warned = run, False
        self._waits: int | None = None
        """The number of the run's line that holds a snapshot and is not finished."""
        # Not the run's own count of lines, which the user's lines move on.
        run.define_metric("oversmooth/step")
        run.define_metric("oversmooth/*", step_metric="oversmooth/step")

    def __call__(self, step: int, values: dict[str, float]) -> None:
        if self.own_lines:
            self.close()
        elif self._waits == self.run.step and not self._warned:
            self._warned = True
            warn(
                "W&B receives fewer lines than there are snapshots, and those without a line are not in it (the "
                "history has all); log as often, or give WandB(own_lines=True)"
            )
        self._waits = self.run.step
        self.run.log({**values, "oversmooth/step": step}, commit=False)

    def close(self) -> None:
        """Finish the line of the last snapshot, where the user has not."""
        if self._waits is not None and self._waits == self.run.step:
            self.run.log({}, commit=True)
        self._waits = None


class JSONLines:
    """Writes one JSON object per snapshot, with "step" and the keys of other loggers.

    Args:
        path: the file, which is appended to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = arguments.path(path, "the file of JSON lines", "give its path as text")
        check_folder(self.path.parent)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        append_line(self.path, json_text({"step": step, **values}))


def checked(sinks: Any) -> list[Logger]:
    """A list of loggers, of one or several; a SummaryWriter or a W&B run will do as it is."""
    several = isinstance(sinks, Iterable) and not isinstance(sinks, (str, bytes)) and not callable(sinks)
    found: list[Logger] = []
    for sink in sinks if several else [sinks]:
        if hasattr(sink, "add_scalar"):
            sink = TensorBoard(sink)
        elif hasattr(sink, "log") and hasattr(sink, "define_metric"):
            sink = WandB(sink)
        elif not callable(sink):
            raise InputError(
                f"a logger is {arguments.shown(sink)}; give TensorBoard(folder), WandB(), JSONLines(path) or a function"
            )
        found.append(sink)
    return found
