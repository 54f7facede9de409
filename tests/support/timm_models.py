"""timm: installed as users have it, or, where torchvision would not load, in the environment's folder ``timm``."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

FOLDER = Path(sys.prefix) / "timm"
# torchvision without its compiled part registers fake kernels for operators that nobody defined; these stand in.
_OPERATORS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []


def available() -> bool:
    return installed() or FOLDER.is_dir()


def installed() -> bool:
    """Whether any interpreter finds it, without being shown where it is."""
    return find_spec("timm") is not None


def timm() -> ModuleType:
    """The library, imported the first time it is asked for."""
    if not installed():
        import transformers  # noqa: F401 (looks for torchvision once: before it can be seen, it does without)

        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + _OPERATORS)
        _kept.append(library)  # the operators go when it goes
        sys.path.append(str(FOLDER))
    import timm

    return timm
