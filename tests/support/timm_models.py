"""timm, which is installed apart from everything else: in the folder ``timm`` of the environment, or not at all."""

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
    return FOLDER.is_dir() or installed()


def installed() -> bool:
    """Whether any interpreter finds it, without being shown where it is."""
    return find_spec("timm") is not None


def timm() -> ModuleType:
    """The library, imported the first time it is asked for."""
    if "timm" not in sys.modules:
        import transformers  # noqa: F401 (looks for torchvision once: before it can be seen, it does without)

        if FOLDER.is_dir():
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(name + _OPERATORS)
            _kept.append(library)  # the operators go when it goes
            sys.path.append(str(FOLDER))
    import timm

    return timm
