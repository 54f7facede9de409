"""Where a figure comes from: command, commit, data, checkpoint, machine and day, as a cell records them."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import oversmooth
from oversmooth.safety.files import check_plain
from oversmooth.safety.machine import hardware_name
from oversmooth_papers.engine.loop import device_named

COMMIT = "OVERSMOOTH_COMMIT"
"""Names the commit where the code runs without its repository, as in a container."""


def provenance(device: str | None = None) -> dict[str, Any]:
    """Versions, hardware, the day, and the commit where it is known."""
    hardware = hardware_name(device_named(device))
    versions = {"oversmooth": oversmooth.__version__, "torch": torch.__version__, "python": platform.python_version()}
    known = {"commit": _BEGUN_WITH} if _BEGUN_WITH else {}
    return {"hardware": hardware, "versions": versions, "day": time.strftime("%Y-%m-%d", time.gmtime()), **known}


def commit_of(folder: Path | None = None) -> str:
    """Of the code that runs, with ``+`` where it was changed since; empty where nothing says it."""
    if given := os.environ.get(COMMIT, "").strip():
        return given[:64]

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder or Path(oversmooth.__file__).parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "."):  # a package installed into someone else's repository is not that repository's
            return ""
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def data_hash(parts: Iterable[Tensor | str]) -> str:
    """SHA-256 of arrays, their shapes and kinds, and of texts; empty where there are none."""
    digest, empty = hashlib.sha256(), True
    for part in parts:
        empty = False
        if isinstance(part, str):
            digest.update(f"text {len(part)} ".encode() + part.encode())
            continue
        array = part.detach().cpu().contiguous()
        digest.update(f"{array.dtype} {tuple(array.shape)} ".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return "" if empty else digest.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    check_plain(path, "give a file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# As this is imported: by the time that a long run is over, someone may have committed more.
_BEGUN_WITH = commit_of()
