"""Finished parts of a long computation on disk, one per line, so that a stopped one resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

from oversmooth._version import __version__
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import parse_json, read_bytes
from oversmooth.safety.typed import typed

T = TypeVar("T")
_MOST = 2**30


def question(files: Iterable[Path], *settings: object) -> bytes:
    """What is asked of these files, as they are now, with these settings."""
    facts = [(str(f.resolve()), (s := f.stat()).st_size, s.st_mtime_ns) for f in files]
    return json.dumps([__version__, facts, [str(setting) for setting in settings]]).encode()


class Finished(Generic[T]):
    """A file whose name is derived from what was asked, with one result per line.

    Args:
        folder: of the file.
        kind: of computation; the name begins with it.
        question: what tells it from all others.
        of: the type of a result.
    """

    def __init__(self, folder: Path, kind: str, question: bytes, of: Any) -> None:
        self.path, self._of = folder / f"{kind}-{hashlib.sha256(question).hexdigest()[:24]}.jsonl", of

    def read(self) -> dict[str, T]:
        """Results by name, but for lines that cannot be read, such as one that a stop cut short."""
        found: dict[str, T] = {}
        with contextlib.suppress(InputError):  # as a rule there is no such file
            for line in read_bytes(self.path, "computing it again", _MOST).splitlines():
                with contextlib.suppress(ValueError):
                    found |= typed(dict[str, self._of], parse_json(line, "this is no result", "computing it again"))  # type: ignore[name-defined]
        return found

    def add(self, name: str, result: T) -> None:
        """Append a result; where that is impossible it is computed again another time."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as lines:
                lines.write("\n" + json.dumps({name: result}, default=dataclasses.asdict) + "\n")

    def forget(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
