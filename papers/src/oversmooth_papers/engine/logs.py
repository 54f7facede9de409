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

    def sync(self) -> int:
        """To the disk, before a checkpoint says how long it is; its length, as `cut` takes it."""
        if self.path is None:
            return len(self.rows)
        if not self.path.is_file():
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size


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


class RunLogs:
    """All logs of a run, and TensorBoard's; a process without a folder keeps the rows in memory only."""

    def __init__(self, folder: Path | None, lengths: Mapping[str, int], *, board_from: int | None) -> None:
        """lengths: those of the checkpoint, by name. board_from: the first step for TensorBoard, or None."""
        self.epochs, self.smoothing, self.machines = self.all = [
            Log(folder, name, lengths.get(name, 0)) for name in (EPOCHS, SMOOTHING, MACHINES)
        ]
        self.board_folder = None if board_from is None or folder is None else folder / "tensorboard"
        self.board: Any = None
        self._open_board(board_from)

    def _open_board(self, step: int | None) -> None:
        if self.board_folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.close()
            self.board = SummaryWriter(str(self.board_folder), purge_step=step)

    def record(self, log: Log, row: dict[str, Any]) -> None:
        """A row with its step, into a log and TensorBoard's: by depth where there is a number for each."""
        log.write(row)
        for name, value in row.items() if self.board is not None else ():
            for depth, one in enumerate(value if isinstance(value, list) else []):
                if one is not None:
                    self.board.add_scalar(f"{name}/{depth:02d}", one, row["step"])
            if isinstance(value, (int, float)) and name not in ("step", "epoch"):
                self.board.add_scalar(name, value, row["step"])

    def epoch_rows(self) -> list[dict[str, Any]]:
        """Without the lines that record a return to a checkpoint."""
        return [row for row in self.epochs.rows if "epoch" in row]

    def sync(self) -> dict[str, int]:
        """All of them to the disk; their lengths by name."""
        return {log.name: log.sync() for log in self.all}

    def go_back(self, lengths: Mapping[str, int], step: int) -> None:
        """Drop what was logged after a checkpoint at this step; the log of machines stays whole."""
        for log in (self.epochs, self.smoothing):
            log.cut(lengths[log.name])
        self._open_board(step)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
