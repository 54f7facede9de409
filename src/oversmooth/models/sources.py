"""What a name refers to: a path, and of what kind, or a name on the hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.safety.errors import InputError


def check_there(name: str) -> None:
    """Refuse a name that looks like a path and does not exist."""
    if not Path(name).exists() and _looks_like_path(name):
        raise InputError(f"{name} does not exist; give a checkpoint's directory or file, a hub id, or a timm name")


def folder_of(path: Path) -> Path:
    if path.is_dir():
        if not (path / "config.json").is_file():
            Checkpoint(path)  # says what is missing, if there are no weights either
            raise InputError(
                f"{path} has weights but no config.json, so there is no telling what to run them in; "
                "use oversmooth spectrum, or oversmooth.diagnose(model) with the live model"
            )
        return path
    folder = path.parent
    if (folder / "config.json").is_file():
        used = Checkpoint(folder).files
        if path.resolve() not in {file.resolve() for file in used} and not path.name.endswith(".index.json"):
            raise InputError(
                f"{path} is not what would be run: {folder} loads {', '.join(file.name for file in used)}; give that, "
                "or put this file into a directory of its own with its config.json"
            )
        return folder
    raise InputError(
        f"{path} has no config.json beside it, so there is no telling what to run it in; "
        "use oversmooth spectrum, or oversmooth.diagnose(model) with the live model"
    )


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or (os.sep != "/" and os.sep in name)
        or bool(re.search(r"\.(safetensors|bin|pt|pth|ckpt|json)$", name))
    )


def is_timm(folder: Path) -> bool:
    return "architecture" in read_config(folder)
