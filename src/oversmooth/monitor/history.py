"""Snapshots by step: in memory, and as JSON lines on disk that a restarted training goes on with."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oversmooth.monitor.alarm import replayed
from oversmooth.monitor.names import LABELS, Row, depth_of
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import append_line, check_folder, parse_json, read_bytes, write_text
from oversmooth.safety.foreign import json_text
from oversmooth.safety.libraries import import_library

if TYPE_CHECKING:
    import pandas

FILE = "smoothing.jsonl"
"""The name under which a run's directory has it; that of our own trainer, too."""
_MOST = 2**30


class History:
    """The snapshots of one run, in the order of their steps, no step twice.

    Args:
        path: the file of JSON lines that each snapshot is added to; None: memory alone.
        resume: whether to go on with what the file holds. Otherwise a file that is there is kept, under another name.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, resume: bool = False) -> None:
        self.path = None if path is None else arguments.path(path, "history", "give the path of a file as text")
        self.rows: list[Row] = []
        self.about: dict[str, Any] = {}
        """What is known of the run: its name, the model's class and the names of its blocks."""
        self._resumed = resume
        if self.path is None:
            return
        self.path = self.path / FILE if self.path.is_dir() else self.path
        check_folder(self.path.parent)
        if self.path.is_file() and resume:
            self.rows, self.about = _read(self.path)
        elif self.path.is_file():
            _put_aside(self.path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """What a run has written so far.

        Args:
            path: the file, or the directory it lies in.
        """
        place = arguments.path(path, "the run", "give its directory, or the file of JSON lines")
        file = place / FILE if place.is_dir() else place
        if not file.is_file():
            raise InputError(f"{place} has no {FILE}; give the directory of a run that is or was monitored")
        history = cls()
        history.rows, history.about = _read(file)
        if not history.rows and not history.about and b"\n" in read_bytes(file, "give the file of a run", _MOST):
            raise InputError(f"{file} holds no snapshots of a training; give the directory of a run, or its {FILE}")
        history.path, history._resumed = file, True
        return history

    @property
    def name(self) -> str:
        """Of the run: as it was set, or after its directory, with its file where that has a name of its own."""
        name = str(self.about.get("name") or "")
        if name or self.path is None:
            return name or "this run"
        folder = self.path.resolve().parent.name
        return folder if self.path.name == FILE else f"{folder}/{self.path.stem}"

    @property
    def metrics(self) -> list[str]:
        """The names of all that was recorded, in the order in which they are shown."""
        seen = {name for row in self.rows for name in row if name != "step"}
        return [*(name for name in LABELS if name in seen), *sorted(seen - set(LABELS))]

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """The alarms that were set on the run, with their limits and what set them off."""
        return replayed(self.about.get("alarms") or [], self.rows)

    @property
    def steps(self) -> list[int]:
        """The steps of the snapshots."""
        return [row["step"] for row in self.rows]

    def add(self, row: Row) -> None:
        """Append a snapshot, which replaces those at the same or later steps, left from before a restart. OSError where
        it could not be written; it is in memory all the same.
        """
        earlier = [one for one in self.rows if one["step"] < row["step"]]
        # A file that is gone on with may end in half a line, which nothing may be added to.
        appends = bool(earlier) and len(earlier) == len(self.rows) and not self._resumed
        self.rows = [*earlier, row]
        if self.path is not None and appends:
            append_line(self.path, json_text(row))
        else:
            self._rewrite()

    def cut(self, step: int) -> None:
        """Drop snapshots after a step."""
        kept = [row for row in self.rows if row["step"] <= step]
        if len(kept) < len(self.rows):
            self.rows = kept
            self._rewrite()

    def _rewrite(self) -> None:
        if self.path is None:
            return
        lines = [{"about": self.about}, *self.rows] if self.about else self.rows
        write_text(self.path, "".join(json_text(line) + "\n" for line in lines))
        self._resumed = False

    def curve(self, metric: str, step: int | None = None) -> list[float | None]:
        """A metric by depth.

        Args:
            metric: its name, such as "cos".
            step: of the snapshot; None: the last that has it.
        """
        for row in reversed(self.rows):
            if metric in row and step in (None, row["step"]):
                return list(row[metric]) if isinstance(row[metric], list) else [row[metric]]
        at = "" if step is None else f" at step {step}"
        known = ", ".join(self.metrics) or "nothing yet"
        raise InputError(f"{arguments.shown(metric)} was not recorded{at}; there is {known}")

    def to_pandas(self) -> pandas.DataFrame:
        """One row per snapshot and depth, with a column for each metric.

        What is one number for the whole model stands in every row of its snapshot; what belongs to blocks is missing at
        depth 0.
        """
        pandas = import_library("pandas", "a table of snapshots")
        names = ["embedding", *(self.about.get("blocks") or [])]
        table = []
        for row in self.rows:
            cells: dict[int, dict[str, Any]] = defaultdict(dict)
            for name, value in row.items():
                for index, one in enumerate(value if isinstance(value, list) else ()):
                    cells[depth_of(name, index)][name] = one
            single = {name: value for name, value in row.items() if not isinstance(value, list)}
            for depth in sorted(cells) or [0]:
                layer = names[depth] if depth < len(names) else f"layer {depth}"
                table.append({"depth": depth, "layer": layer, **single, **cells[depth]})
        return pandas.DataFrame(table, columns=["step", "depth", "layer", *self.metrics])

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        span = f", steps {self.rows[0]['step']} to {self.rows[-1]['step']}" if self.rows else ""
        return f"<History of {self.name}: {len(self.rows)} snapshots{span}>"


def _read(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """All whole lines, up to one that was cut off or is of another kind; of a step that is there twice the last."""
    rows: dict[int, Row] = {}
    about: dict[str, Any] = {}
    for line in read_bytes(path, "give the file of a run", _MOST).split(b"\n")[:-1]:
        try:
            row = parse_json(line, "no line", "remove it")
        except InputError:
            break
        if not isinstance(row, dict):
            break
        if isinstance(row.get("about"), dict):
            about = row["about"]
        elif isinstance(row.get("step"), int):
            rows = {step: seen for step, seen in rows.items() if step < row["step"]}
            rows[row["step"]] = {name: value for name, value in row.items() if _is_plain(value)}
        else:
            break
    return list(rows.values()), about


def _is_plain(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(one is None or (isinstance(one, (int, float)) and not isinstance(one, bool)) for one in values)


def _put_aside(path: Path) -> None:
    """What an earlier run wrote there stays, under the first number that is free."""
    if path.stat().st_size == 0:
        return
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))
    other = next(other for other in others if not other.exists())
    try:
        path.rename(other)
    except OSError as error:
        raise InputError(f"{path} cannot be kept as {other.name} ({reason(error)}); name another file") from error
