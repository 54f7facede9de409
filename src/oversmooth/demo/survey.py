"""Many checkpoints, listed in a TOML file (docs/clusters.md), in one table of the gallery's format.

Each checkpoint is one cell: a saved diagnosis, named by the checkpoint, its files and the settings. A checkpoint that
was written again is another cell.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oversmooth.demo import gallery_table
from oversmooth.demo.gallery import Listed
from oversmooth.demo.gallery_table import Figures
from oversmooth.results.findings import DEFINITIONS
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import whole_file
from oversmooth.safety.libraries import import_library
from oversmooth.safety.typed import read_toml

PARTS = ("attention", "mlp", "norm")


@dataclass(frozen=True)
class SurveyFile:
    """What a survey's file holds."""

    spectrum: list[str] = field(default_factory=list)
    diagnose: list[str] = field(default_factory=list)
    data: str | None = None
    inputs: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        if any(number is not None and number < 1 for number in (self.inputs, self.length)):
            raise ValueError("inputs and length are 1 or more")
        if not self.spectrum and not self.diagnose:
            raise ValueError("it names no checkpoint")


@dataclass(frozen=True)
class Checkpoint(Listed):
    """One of a survey: its source is a path, a hub id or a timm name."""

    on_inputs: bool


def read_survey(path: Path) -> SurveyFile:
    return read_toml(SurveyFile, path, "give spectrum = [...], diagnose = [...], or both")


def checkpoints(file: SurveyFile) -> list[Checkpoint]:
    """Those to diagnose first, and each once."""
    settings = [file.data, file.inputs, file.length]
    found = {name: (True, "on inputs") for pattern in file.diagnose for name in _expanded(pattern)}
    found |= {n: (False, "weights alone") for pattern in file.spectrum for n in _expanded(pattern) if n not in found}
    return [Checkpoint(_key(name, settings if on else []), name, what, name, on) for name, (on, what) in found.items()]


def _expanded(pattern: str) -> list[str]:
    """The paths that a pattern names; what has no stars is a name."""
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [pattern]
    if not (paths := sorted(glob.glob(pattern, recursive=True))):
        raise InputError(f"no path is like {pattern}; name others, or leave it out")
    return paths


def _key(name: str, settings: list[Any]) -> str:
    path = Path(name)
    files = [path] if path.is_file() else sorted(one for one in path.glob("*") if one.is_file())
    facts = [(file.name, (found := file.stat()).st_size, found.st_mtime_ns) for file in files]
    where = str(path.resolve()) if path.exists() else name
    digest = hashlib.sha256(json.dumps([where, facts, settings]).encode()).hexdigest()[:8]
    words = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip("-.")
    return f"{words[-80:]}-{digest}"


def write(table: Sequence[Figures], output: Path) -> list[Path]:
    """The table as JSON, Markdown and a page of links; as parquet too, if pyarrow is installed."""
    written = gallery_table.write(table, output, "survey")
    if importlib.util.find_spec("pyarrow") is not None:
        pyarrow = import_library("pyarrow", "survey.parquet")
        parquet = import_library("pyarrow.parquet", "survey.parquet")
        with whole_file(output / "survey.parquet") as temporary:
            parquet.write_table(pyarrow.Table.from_pylist([flat(row) for row in table]), temporary)
        written.append(output / "survey.parquet")
    return written


def flat(row: Figures) -> dict[str, Any]:
    """A row with one value per column: of first and last two columns, of sublayers one each."""
    plain = {name: value for name, value in row.items() if not isinstance(value, (list, dict))}
    for name in (*DEFINITIONS, "last_block_again"):
        first, last = row[name] or (None, None)
        plain |= {f"{name}_first": first, f"{name}_last": last}
    return plain | {f"log_hfc_lfc_{part}": row["log_hfc_lfc_by_part"].get(part) for part in PARTS}
