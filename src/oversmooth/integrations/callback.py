"""What callbacks for every trainer have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from oversmooth.integrations.data import probe_of
from oversmooth.monitor import History, Monitor
from oversmooth.monitor.config import configured
from oversmooth.monitor.history import FILE
from oversmooth.monitor.names import keys
from oversmooth.monitor.warning import warn
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


class Monitoring:
    """A callback with a monitor, once the training has begun."""

    monitor: Monitor | None = None

    def _configure(
        self, every: int, probe: Any, inputs: int, history: str | Path | bool | None, settings: dict[str, Any]
    ) -> None:
        """What every callback is given, checked before a training begins."""
        self.config = configured(type(self).__name__, None, {"every": every, **settings})
        self.inputs = arguments.whole(inputs, "inputs", least=1)
        if probe is not None and self.config.use_training_batch:
            raise InputError("there is a probe and the training batch is to be recorded; choose one of them")
        if not isinstance(history, (bool, type(None))):
            arguments.path(history, "history", "give the path of a file as text, or False")
        self.probe, self._history = probe, history

    def _begin_monitor(
        self, model: Callable[[], nn.Module], data: Callable[[], tuple[Any, Any]], start: int, **known: Any
    ) -> None:
        """Make the monitor; a warning says why there is none.

        data: gives the data set and its collator. start: steps done already. known: settings that the trainer knows,
        where the user gave none.
        """
        try:
            module, probe = model(), self.probe
            if probe is None and not self.config.use_training_batch:
                probe = probe_of(*data(), module, self.inputs)
            unset = {name: value for name, value in known.items() if getattr(self.config, name) is None}
            self.monitor = Monitor(module, probe, config=replace(self.config, **unset), start=start)
        except (InputError, OSError, AttributeError) as error:
            self.monitor = None
            warn(f"smoothing is not monitored: {error}")

    def _restart(self, folder: str, step: int) -> None:
        """The history goes on in its file, which the first process writes, or in memory alone."""
        if self.monitor is None:
            return
        path = Path(folder) / FILE if self._history in (None, True) else Path(str(self._history))
        try:
            if self._history is not False:
                path.parent.mkdir(parents=True, exist_ok=True)
            self.monitor.restart(None if self._history is False else path, step)
        except (InputError, OSError) as error:
            warn(f"snapshots are kept in memory alone: {error}")

    def _step(self) -> dict[str, float]:
        """Count a step; what is to be logged of it."""
        if self.monitor is None or not self.monitor.step() or not self.monitor.history.rows:
            return {}
        row = self.monitor.history.rows[-1]
        return keys(row) if row["step"] == self.monitor.steps else {}

    def _end(self) -> None:
        """Hooks come off."""
        if self.monitor is not None:
            self.monitor.close()

    @property
    def history(self) -> History:
        """The snapshots so far."""
        return History() if self.monitor is None else self.monitor.history

    def to_html(self, path: str | Path, *others: History) -> None:
        """Write the training report, a page (.html), with histories of other runs laid over this one."""
        if self.monitor is None:
            raise InputError("nothing was monitored yet; train first")
        self.monitor.to_html(path, *others)
