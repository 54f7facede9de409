"""What a name refers to: a path of some kind, or a name on the hub."""

from __future__ import annotations

import os
from pathlib import Path

from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.safety.errors import InputError

_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".json", ".gguf")


def check_there(name: str) -> None:
    """Refuse a name that looks like a path and does not exist."""
    separated = name.count("/") > 1 or (os.sep != "/" and os.sep in name)
    looks_like_path = name.startswith((".", "/", "~")) or separated or name.endswith(_ENDINGS)
    if looks_like_path and not Path(name).exists():
        raise InputError(f"{name} does not exist; give a checkpoint's directory or file, a hub id, or a timm name")


def folder_of(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file():
        if path.is_dir():
            Checkpoint(path)  # reports missing weights
        raise InputError(
            f"{path} has no config.json beside its weights, so its architecture is unknown; "
            "use oversmooth spectrum, or oversmooth.diagnose(model) with the live model"
        )
    used = [] if path.is_dir() or path.name.endswith(".index.json") else Checkpoint(folder).files
    if used and path.resolve() not in {file.resolve() for file in used}:
        raise InputError(
            f"{path} would not be used: {folder} loads {', '.join(file.name for file in used)}; give that file, "
            "or put this one into its own directory with a config.json"
        )
    return folder


def is_timm(folder: Path) -> bool:
    return "architecture" in read_config(folder)
