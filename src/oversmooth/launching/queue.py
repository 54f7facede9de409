"""Which cells were sent to which job: plain JSON, beside submitit's own files, in a folder that is the user's alone.

submitit pickles the jobs that it sends and what they return, and unpickling runs code. `check_private` is called before
any of these files are written or read; jobs on SLURM check again, before they read theirs.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TypedDict

from oversmooth.safety.errors import InputError
from oversmooth.safety.files import has_ended, read_json, write_text
from oversmooth.safety.foreign import json_text

NOT_QUEUED = "not in the queue"
_REMEDY = "remove it, and the cell is sent again"


class Sent(TypedDict):
    """One cell's last job."""

    title: str
    cell: str  # the file that the job makes
    launcher: str
    job: str


def check_private(folder: Path) -> None:
    """Make the folder with mode 700; raise `InputError` if it is another user's, a link, or open to others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another place") from error
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        what = f"{folder} holds pickled jobs, whose content is run, and others may write to it"
        raise InputError(f"{what} (owner {found.st_uid}, mode {found.st_mode & 0o777:o}); remove it or make it private")


def record(folder: Path, sent: Sent) -> None:
    write_text(_path(folder, sent["cell"]), json_text(sent) + "\n")


def forget(folder: Path, sent: Sent) -> None:
    """The record of a cell and what submitit wrote for its job."""
    for path in (*folder.glob(f"{sent['job']}_*"), _path(folder, sent["cell"])):
        path.unlink(missing_ok=True)


def recorded(folder: Path, cell: str) -> Sent | None:
    path = _path(folder, cell)
    return read_json(path, _REMEDY) if path.is_file() else None


def queued(folder: Path) -> list[tuple[Sent, str]]:
    """Cells that were sent and are not there yet, with the states of their jobs, as `slurm_states` has them."""
    if not folder.exists():
        return []
    check_private(folder)
    every: list[Sent] = [read_json(path, _REMEDY) for path in sorted(folder.glob("cell-*.json"))]
    missing = [sent for sent in every if not Path(sent["cell"]).is_file()]
    states = slurm_states() if any(sent["launcher"] == "slurm" for sent in missing) else {}
    return [(sent, state_of(sent, states)) for sent in missing]


def state_of(sent: Sent, states: dict[str, str] | None) -> str:
    if sent["launcher"] == "local":
        return NOT_QUEUED if has_ended(int(sent["job"])) else "RUNNING"
    return "UNKNOWN" if states is None else states.get(sent["job"], NOT_QUEUED)


def slurm_states() -> dict[str, str] | None:
    """SLURM's states of this user's jobs that wait, with the reason, or run; None if SLURM does not answer."""
    try:
        command = ["squeue", "--noheader", "--me", "--array", "--format=%i|%T|%r"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = (line.strip().split("|", 2) for line in said.splitlines() if line.count("|") >= 2)
    return {job: f"{name} ({waits_for})" if name == "PENDING" else name for job, name, waits_for in rows}


def most_in_array() -> int:
    """The most jobs that SLURM takes in one array."""
    said = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", said)
    return max(1, int(found[1]) if found else 1000)


def _path(folder: Path, cell: str) -> Path:
    path = Path(cell)
    return folder / f"cell-{path.parent.name}-{path.stem}.json"
