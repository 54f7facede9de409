"""What callbacks for every trainer have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oversmooth.monitor import History, Monitor
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

    def _restart(self, path: Path | None, step: int) -> None:
        """The history goes on in this file, or in memory alone."""
        assert self.monitor is not None
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self.monitor.restart(path, step)
        except (InputError, OSError) as error:
            say(f"what is seen is kept in memory alone: {error}")

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
