"""Which file on disk is a model that `oversmooth train` wrote; told without building anything."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from oversmooth.safety.signals import held_back

RECIPE = "recipe"
"""Of the recipe, in the file's metadata."""


def trained_file(path: Path) -> Path | None:
    """The file that `train.engine.saved_model.save_model` wrote: this one, or in this run's folder; None otherwise."""
    file = path / "model.safetensors" if path.is_dir() and not (path / "config.json").is_file() else path
    if file.suffix != ".safetensors" or not file.is_file():
        return None
    try:
        with held_back(), safe_open(file, framework="pt") as opened:
            return file if RECIPE in (opened.metadata() or {}) else None
    except (SafetensorError, OSError):
        return None  # whoever reads it says what is wrong
