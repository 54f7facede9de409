"""The two consoles, and standard output and error of libraries, all with control characters escaped."""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.file_proxy import FileProxy
from rich.segment import Segment
from rich.text import Text

from oversmooth.safety.foreign import visible


class Terminal(Console):
    """A console for which every string is plain text: styles are given as arguments or as `Text`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)
        self._width = self._width or None  # COLUMNS=0 means that the width is unknown

    def render_str(self, text: str, **options: Any) -> Text:  # strings, before they are measured and wrapped
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


out, err = Terminal(), Terminal(stderr=True)


class _Kept:
    """A stream that ignores errors of one kind: its reader may close it, as in `| head`, and the work continues."""

    def __init__(self, stream: Any, ignored: type[OSError]) -> None:
        self.stream, self.ignored = stream, ignored

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.stream, name)
        return functools.partial(self._try, method) if name in ("write", "flush") else method

    def _try(self, method: Callable[..., Any], *text: str) -> None:
        try:
            method(*text)
        except self.ignored:  # discard further output
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())


class _Printed(_Kept):
    """Standard output or error for warnings, loggers and libraries that print."""

    def __init__(self, stream: Any, ignored: type[OSError]) -> None:
        super().__init__(stream, ignored)
        self.rich_proxied_file = _Kept(stream, ignored)  # where consoles write, which clean what they show
        self.above_bar = FileProxy(err, stream)

    def write(self, text: str) -> int:
        moves = re.match(r"(\n|\x1b\[A)*\Z|\r?", text)[0]  # type: ignore[index]  # between progress bars of libraries
        writer = self.above_bar if err.is_terminal and err._render_hooks else self.rich_proxied_file
        writer.write(moves + visible(text[len(moves) :]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))


FileProxy.register(_Printed)  # which rich leaves in place when a bar starts


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Within the block, escape control characters and write UTF-8, whoever prints."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout = sys.stdout and _Printed(sys.stdout, BrokenPipeError)
    sys.stderr = sys.stderr and _Printed(sys.stderr, OSError)  # nowhere to report failures
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in filter(None, before):
            _Kept(stream, OSError).flush()  # otherwise it would fail again at exit
