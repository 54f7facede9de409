"""What callbacks for every trainer have in common."""

from __future__ import annotations

from pathlib import Path

from oversmooth.monitor import History, Monitor
from oversmooth.safety.errors import InputError


class Watching:
    """A callback with a monitor, once the training has begun."""

    monitor: Monitor | None = None

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
