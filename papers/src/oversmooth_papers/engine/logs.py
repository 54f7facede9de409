"""What happened, line by line: JSONL files that are cut back to the checkpoint when a run resumes, and TensorBoard."""

from __future__ import annotations

import errno
import importlib.util
import os
from pathlib import Path
from typing import Any, TypedDict

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import append_line, parse_json
from oversmooth.safety.foreign import json_text
from oversmooth.safety.typed import typed
from oversmooth_papers.engine.checkpoint import Retry

EPOCHS, SMOOTHING, MACHINES = "log.jsonl", "smoothing.jsonl", "machines.jsonl"
"""A line per epoch, and one each time a run went back or found a checkpoint damaged; a line each time smoothing was
looked at; a line for each process that advanced the run: from which step, and on what.
"""
_BEGIN = tuple(f'{{"{key}"'.encode() for key in ("epoch", "retry", "damaged", "step", "from_step"))
"""How their lines begin."""


class _Epoch(TypedDict):
    """What others take from an epoch's line."""

    epoch: int
    step: int


class Log:
    """A file of JSON objects, one per line, each written whole."""

    def __init__(self, path: Path, length: int = 0) -> None:
        """length: in bytes, of what belongs to the run that goes on; what comes after it is run again."""
        self.path = path
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no plain file, and the run's log goes there; move it away")
        if not length and not _is_ours(path):
            raise InputError(f"{path} is not the log of a run, and the run's log goes there; move it away")
        self.lost = self.length < length
        """Whether lines that belong to the run are not there."""
        self.cut(length)

    def cut(self, length: int) -> None:
        """Drop what comes after so many bytes, and half a line: the next one would be glued to it."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                kept = file.read(max(0, length))
            whole = kept.rfind(b"\n") + 1
            if whole < self.length:
                os.truncate(self.path, whole)
        self.rows = read(self.path)

    def write(self, row: dict[str, Any]) -> None:
        try:
            append_line(self.path, json_text(row))
        except OSError as error:
            remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "make it writable"
            raise InputError(
                f"{self.path} cannot be written ({error.strerror or error}); {remedy}, and go on with --resume"
            ) from error
        self.rows.append(row)

    def sync(self) -> None:
        """To the disk, before a checkpoint says how long it is."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    @property
    def length(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0


def _is_ours(path: Path) -> bool:
    """Or empty, or not there: what a run that was killed early leaves may be written over, half a line too."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        begins = file.read(max(map(len, _BEGIN)))
    return any(begins.startswith(ours) or ours.startswith(begins) for ours in _BEGIN)


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines, up to one that was cut off or is none of ours."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            row = parse_json(line, "no line", "remove it")
            kind = _Epoch if "epoch" in row else Retry if "retry" in row else dict[str, Any]
            rows.append(typed(kind, row))
        except (ValueError, TypeError):
            break
    return rows


def check_board() -> None:
    """Refuse before the work is done whose numbers could not be written."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("writing for TensorBoard needs tensorboard, which is not installed; pip install tensorboard")


class Board:
    """The same numbers for TensorBoard, where it is wanted."""

    def __init__(self, folder: Path, step: int) -> None:
        check_board()
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def write(self, step: int, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, list):
                for depth, one in enumerate(value):
                    if one is not None:
                        self.writer.add_scalar(f"{name}/{depth:02d}", one, step)
            elif isinstance(value, (int, float)) and name not in ("step", "epoch"):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()
