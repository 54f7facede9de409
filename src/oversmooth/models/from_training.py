"""Small ViTs that `oversmooth train` wrote, such as the demo's; oversmooth-papers loads its other models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.models.loaded import Loaded, LoadRequest
from oversmooth.models.trained_file import RECIPE, TrainedFile, save_trained, trained_file
from oversmooth.models.vit import ViT
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.model_state import seeded
from oversmooth.safety.typed import typed

LIBRARY = ""


@dataclass
class _Shape:
    """The shape of the ViT in a recipe."""

    image: int
    patch: int
    channels: int
    classes: int
    width: int
    depth: int
    heads: int
    mlp_ratio: float = 4.0
    qkv_bias: bool = False
    eps: float = 1e-6

    def check(self, file: TrainedFile) -> None:
        """Refuse a shape that does not fit the file's arrays, before the model is built."""
        held = sum(value.numel() for value in file.arrays.values())
        sizes = (self.image, self.patch, self.channels, self.classes, self.width, self.heads, self.mlp_ratio)
        fits = all(0 < size <= held for size in sizes) and 0 < self.depth <= len(file.arrays) and self.eps > 0
        if not fits or self.width % self.heads or self.image % self.patch:
            raise InputError(
                f"{file.path} has {held:,} weights, which do not fit the ViT of its recipe; train it again"
            )


def accepts(name: str) -> bool:
    return trained_file(Path(name)) is not None


def load(wanted: LoadRequest) -> Loaded:
    path = trained_file(Path(wanted.name))
    assert path is not None, "it was accepted"
    file = TrainedFile.read(path)
    recipe = file.recipe if isinstance(file.recipe, dict) else {}
    if "task" in recipe or "shape" not in recipe:  # recipes for images name no task
        raise InputError(
            f"{path} was trained for {recipe.get('task', 'an unnamed task')}, which needs oversmooth-papers; "
            "pip install oversmooth-papers"
        )
    try:
        shape = typed(_Shape, recipe["shape"])
        mean, std = (typed(tuple[float, ...], recipe[name]) for name in ("mean", "std"))
    except (KeyError, ValueError) as error:
        raise InputError(f"the recipe of {path} is damaged ({reason(error)}); train it again") from error
    shape.check(file)
    with torch.device("meta"):  # before memory is taken
        file.check_size(sum(p.numel() for p in ViT(**vars(shape)).parameters()))
    with seeded(wanted.seed):
        model = ViT(**vars(shape))
    if not wanted.random:
        file.into(model)

    def write(changed: Any, to: Path) -> None:
        more = {name: text for name, text in file.metadata.items() if name == "notes"}
        save_trained(changed, file.metadata[RECIPE], to, dtype=torch.float32, more=more)

    return Loaded(
        model,
        path.stem if path.stem != "model" else path.parent.resolve().name,
        "vision",
        preprocessing=Preprocessing(size=(shape.image, shape.image), mean=mean, std=std),
        argument="images",
        about={} if wanted.random else {"recipe": recipe},
        write=write,
    )
