"""What callbacks for every trainer have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from oversmooth.integrations.guessing import probe_of
from oversmooth.monitor import History, Monitor
from oversmooth.monitor.history import FILE
from oversmooth.monitor.names import keys
from oversmooth.monitor.settings import check_callback
from oversmooth.monitor.warning import say
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


class Watching:
    """A callback with a monitor, once the training has begun."""

    monitor: Monitor | None = None

    def _settle(
        self,
        every: int,
        probe: Any,
        passing: bool,
        inputs: int,
        history: str | Path | bool | None,
        settings: dict[str, Any],
    ) -> None:
        """What every callback is given, checked before a training begins."""
        self.every = arguments.whole(every, "every", least=1)
        self.inputs = arguments.whole(inputs, "inputs", least=1)
        check_callback(type(self).__name__, every, passing, settings)
        if probe is not None and passing:
            raise InputError("there is a probe and the passing batch is to be watched; choose one of them")
        if not isinstance(history, (bool, type(None))):
            arguments.path(history, "history", "give the path of a file as text, or False")
        self.probe, self.passing, self._history, self.settings = probe, passing, history, settings

    def _watch(
        self, model: Callable[[], nn.Module], data: Callable[[], tuple[Any, Any]], start: int, **known: Any
    ) -> None:
        """Make the monitor; a warning says why there is none. data: the data set and its collator. known: settings
        that the trainer knows and the user's own come before.
        """
        try:
            watched, probe = model(), self.probe
            if probe is None and not self.passing:
                probe = probe_of(*data(), watched, self.inputs)
            settings = {**known, **self.settings}
            self.monitor = Monitor(watched, probe, self.every, passing=self.passing, start=start, **settings)
        except (InputError, OSError, AttributeError) as error:
            self.monitor = None
            say(f"smoothing is not watched: {error}")

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
            say(f"what is seen is kept in memory alone: {error}")

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
        """What was seen so far."""
        return History() if self.monitor is None else self.monitor.history

    def to_html(self, path: str | Path, *others: History) -> None:
        """Write the film.

        Args:
            path: of the page, .html.
            others: histories of other runs, laid over this one.
        """
        if self.monitor is None:
            raise InputError("nothing was watched yet; train first")
        self.monitor.to_html(path, *others)
