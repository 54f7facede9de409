"""Where the command line's words go: the two consoles, and standard output and error as others write to them.

The one place through which foreign text reaches a terminal. Markup is never read, control characters are shown as
escapes, what the terminal's encoding lacks is replaced, and a reader that has gone away (`| head`) stops nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderHook
from rich.segment import Segment
from rich.text import Text

from oversmooth.safety.foreign import READABLE, visible

_MOVES = re.compile(r"(\n|\x1b\[A)*")  # how progress bars of others move between their lines


class Terminal(Console):
    """A console for which every string is plain text: styles are given apart from it, as arguments or as `Text`."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False, **options)
        if self._width == 0:  # COLUMNS=0 says that there is no telling, not that nothing fits
            self._width = 80

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string on its way to be measured and wrapped."""
        return super().render_str(visible(text, self.encoding), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything on its way to be written; what did not come as a string too."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, self.encoding))

    @property  # type: ignore[misc]
    def file(self) -> IO[str]:  # nothing sets it
        """The stream itself, under whatever stands in its place for others."""
        stream = super().file
        while (inner := getattr(stream, "rich_proxied_file", stream)) is not stream:
            stream = inner
        return stream

    def push_render_hook(self, hook: RenderHook) -> None:
        """A bar begins, which has just put itself in the place of standard output and error."""
        super().push_render_hook(hook)
        _clean_standard_streams()


out, err = Terminal(), Terminal(stderr=True)


class _Kept:
    """A stream whose reader may go away, as in `| head`: then what is written goes nowhere, and the work goes on. So it
    does where standard error fails: there is no other place to say it.
    """

    def __init__(self, stream: Any, allowed: type[OSError] = BrokenPipeError) -> None:
        self.stream, self.allowed = stream, allowed

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except self.allowed:
            _discard(self.stream)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except self.allowed:
            _discard(self.stream)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Cleaned(_Kept):
    """Standard output or error for whoever is no console: warnings, loggers, libraries that print."""

    @property
    def rich_proxied_file(self) -> Any:
        return self.stream  # to which consoles, who clean what they show, write directly

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""
        super().write(text if _MOVES.fullmatch(text) else start + visible(text.removeprefix("\r")))
        return len(text)


def _clean_standard_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Cleaned):
            setattr(sys, name, _Cleaned(stream))


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Within the block nothing that anyone writes is obeyed by a terminal, or fails to be encoded or read."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=READABLE)
    kept = _Kept(sys.stdout), _Kept(sys.stderr, OSError)
    sys.stdout, sys.stderr = (one if one.stream is not None else None for one in kept)
    _clean_standard_streams()
    try:
        yield
    finally:
        for one in kept:  # what cannot be written by now would fail once more as the interpreter ends
            with contextlib.suppress(AttributeError):
                _Kept(one.stream, OSError).flush()
        sys.stdout, sys.stderr = before


def _discard(stream: Any) -> None:
    """What is written from here on, and what has not been written yet, goes nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
