"""The logs of a run: JSONL files that are cut back to the checkpoint when a run resumes, and TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import append_line, parse_json
from oversmooth.safety.foreign import json_text
from oversmooth.safety.typed import typed

EPOCHS, SMOOTHING, MACHINES = "log.jsonl", "smoothing.jsonl", "machines.jsonl"
"""One line per epoch, and per return to a checkpoint; one per snapshot of smoothing; one per process that advanced the
run, with its first step and its hardware.
"""
_OURS = re.compile(rb'\{"(epoch|retry|step|from_step)"|\Z')


class Log:
    """A file of JSON objects, one per line, each written whole; without a folder, the objects alone."""

    def __init__(self, folder: Path | None, name: str, length: int = 0) -> None:
        """length: bytes that belong to the checkpoint; later lines are dropped, as their steps are run again."""
        self.name, self.path = name, None if folder is None else folder / name
        self.rows: list[dict[str, Any]] = []
        if self.path is not None and self.path.exists():
            if not (self.path.is_file() and (length or _OURS.match(self.path.read_bytes()))):
                raise InputError(f"{self.path} is not the log of a run, and the run's log goes there; move it away")
            self.cut(length)

    def cut(self, length: int) -> None:
        """Drop everything after this length, in bytes (without a file, rows), and an incomplete last line."""
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
            raise InputError(f"{self.path} cannot be written ({why}); free space, and go on with --resume") from error
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
    """All whole lines, up to the first that is incomplete or not an object."""
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else ():
        try:
            rows.append(typed(dict[str, Any], parse_json(line, "no line", "remove it")))
        except ValueError:
            break
    return rows


def check_board() -> None:
    """Raise `InputError` if TensorBoard is not installed, before training begins."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("writing for TensorBoard needs tensorboard, which is not installed; pip install tensorboard")


class Board:
    """The same numbers for TensorBoard."""

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


class RunLogs:
    """All logs of a run; a process without a folder keeps the rows in memory only."""

    def __init__(self, folder: Path | None, lengths: Mapping[str, int], *, board_from: int | None) -> None:
        """lengths: those of the checkpoint, by name. board_from: the first step for TensorBoard, or None."""
        self.folder = folder
        self.epochs, self.smoothing, self.machines = self.all = [
            Log(folder, name, lengths.get(name, 0)) for name in (EPOCHS, SMOOTHING, MACHINES)
        ]
        self.board = None if board_from is None or folder is None else Board(folder, board_from)

    def record(self, log: Log, row: dict[str, Any]) -> None:
        log.write(row)
        if self.board is not None:
            self.board.write(row["step"], row)

    def epoch_rows(self) -> list[dict[str, Any]]:
        """Without the lines that record a return to a checkpoint."""
        return [row for row in self.epochs.rows if "epoch" in row]

    def lengths(self) -> dict[str, int]:
        return {log.name: log.length for log in self.all}

    def go_back(self, lengths: Mapping[str, int], step: int) -> None:
        """Drop what was logged after a checkpoint at this step; the log of machines stays whole."""
        for log in (self.epochs, self.smoothing):
            log.cut(lengths[log.name])
        if self.board is not None and self.folder is not None:
            self.board.close()
            self.board = Board(self.folder, step)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
