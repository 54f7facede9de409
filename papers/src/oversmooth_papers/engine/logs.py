"""What happened, line by line: JSONL files that are cut back to the checkpoint when a run resumes, and TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import append_line, parse_json
from oversmooth.safety.foreign import json_text
from oversmooth.safety.typed import typed

EPOCHS, SMOOTHING, MACHINES = "log.jsonl", "smoothing.jsonl", "machines.jsonl"
"""A line per epoch, and one each time a run went back; a line for each snapshot of smoothing; a line for each process
that advanced the run: from which step, and on what.
"""
_OURS = re.compile(rb'\{"(epoch|retry|step|from_step)"|\Z')


class Log:
    """A file of JSON objects, one per line, each written whole; without a folder, the objects alone."""

    def __init__(self, folder: Path | None, name: str, length: int = 0) -> None:
        """length: in bytes, of what belongs to the run that goes on; what comes after it is run again."""
        self.name, self.path = name, None if folder is None else folder / name
        self.rows: list[dict[str, Any]] = []
        if self.path is not None and self.path.exists():
            if not (self.path.is_file() and (length or _OURS.match(self.path.read_bytes()))):
                raise InputError(f"{self.path} is not the log of a run, and the run's log goes there; move it away")
            self.cut(length)

    def cut(self, length: int) -> None:
        """Drop what comes after so many bytes, and half a line: the next one would be glued to it. Rows if no file."""
        if self.path is None:
            del self.rows[length:]
        elif self.path.is_file():
            os.truncate(self.path, self.path.read_bytes()[: max(0, length)].rfind(b"\n") + 1)
            self.rows = read(self.path)

    def write(self, row: dict[str, Any]) -> None:
        try:
            if self.path is not None:
                append_line(self.path, json_text(row))
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"{self.path} cannot be written ({why}); make room, and go on with --resume") from error
        self.rows.append(row)

    def sync(self) -> None:
        """To the disk, before a checkpoint says how long it is."""
        if self.path is not None and self.path.is_file():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    @property
    def length(self) -> int:
        """As `cut` takes it."""
        if self.path is None:
            return len(self.rows)
        return self.path.stat().st_size if self.path.is_file() else 0


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines, up to one that was cut off or is none of ours."""
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else ():
        try:
            rows.append(typed(dict[str, Any], parse_json(line, "no line", "remove it")))
        except ValueError:
            break
    return rows


def check_board() -> None:
    """Raise `InputError` before the work is done whose numbers could not be written."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("writing for TensorBoard needs tensorboard, which is not installed; pip install tensorboard")


class Board:
    """The same numbers for TensorBoard, where it is wanted."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def write(self, step: int, row: dict[str, Any]) -> None:
        for name, value in row.items():
            for depth, one in enumerate(value if isinstance(value, list) else []):
                if one is not None:
                    self.writer.add_scalar(f"{name}/{depth:02d}", one, step)
            if isinstance(value, (int, float)) and name not in ("step", "epoch"):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()
