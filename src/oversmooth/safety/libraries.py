"""Libraries that only some inputs need, imported when they are needed and asked for by name when they are missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import traceback
from typing import Any

from oversmooth.safety.errors import InputError

_PACKAGES = {"PIL": "pillow", "vl_convert": "vl-convert-python"}
_OF_MODELS = ("transformers", "tokenizers", "huggingface_hub", "safetensors", "PIL", "pyarrow")
# What to install for libraries of an extra, or with another package name.
_EXTRAS = {
    **dict.fromkeys(_OF_MODELS, "oversmooth[models]"),
    "timm": "oversmooth[timm]",
    "gguf": "oversmooth[gguf]",
    "torchvision": "oversmooth-papers[imagenet]",
    "pytorch_lightning": "lightning",
}


def import_library(module: str, purpose: str, extra: str = "") -> Any:
    """Import a module; `InputError` names its purpose and how to install it, by the extra if one is given."""
    top = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:  # incompatible libraries raise anything
        if isinstance(error, ModuleNotFoundError) and (error.name or top).split(".")[0] == top:
            named = _PACKAGES.get(top, top)
            wanted = extra or _EXTRAS.get(top, named)
            raise InputError(f"{purpose} needs {named}, which is not installed; install {wanted}") from error
        raise unusable(top, purpose, error) from error


def unusable(module: str, purpose: str, error: BaseException) -> InputError:
    """For an installed library that does not import: the innermost reason, and the remedy."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())[:160].rstrip(". ")
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    remedy = f"fix or reinstall {_PACKAGES.get(module, module)}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        remedy = f"install {error.name.split('.')[0]}"
    elif "torchvision" in text or any("torchvision" in path_entry for path_entry in places):
        remedy = f"install the torchvision that belongs to torch {importlib.metadata.version('torch')}, or remove it"
    return InputError(
        f"{purpose} needs {_PACKAGES.get(module, module)}, which cannot be imported "
        f"({type(error).__name__}: {text}); {remedy}"
    )
