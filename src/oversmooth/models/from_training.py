"""Small ViTs that `oversmooth train` wrote, the demo's among them; what else it writes, oversmooth-papers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.models.loaded import Loaded, Wanted
from oversmooth.models.trained_file import RECIPE, TrainedFile, save_trained, trained_file
from oversmooth.models.vit import ViT
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.randomness import seeded
from oversmooth.safety.typed import typed

LIBRARY = ""
_SIZES = ("image", "patch", "channels", "classes", "width", "depth", "heads")


def accepts(name: str) -> bool:
    return trained_file(Path(name)) is not None


def load(wanted: Wanted) -> Loaded:
    path = trained_file(Path(wanted.name))
    assert path is not None, "it was accepted"
    file = TrainedFile.read(path)
    recipe = file.recipe if isinstance(file.recipe, dict) else {}
    if "task" in recipe or "shape" not in recipe:  # the task of images is the one that recipes do not name
        raise InputError(
            f"{path} was trained for {recipe.get('task', 'a task that it does not name')}; "
            "pip install oversmooth-papers, which loads it"
        )
    shape = _shape(file)
    with torch.device("meta"):  # before memory is taken
        file.check_size(sum(p.numel() for p in ViT(**shape).parameters()))
    with seeded(wanted.seed):
        model = ViT(**shape)
    try:
        mean, std = (typed(tuple[float, ...], recipe[name]) for name in ("mean", "std"))
    except (KeyError, ValueError) as error:
        raise InputError(f"the recipe of {path} is damaged ({reason(error)}); train it again") from error
    if not wanted.random:
        file.into(model)

    def write(changed: Any, to: Path) -> None:
        more = {name: text for name, text in file.metadata.items() if name == "notes"}
        save_trained(changed, file.metadata[RECIPE], to, dtype=torch.float32, more=more)

    return Loaded(
        model,
        path.stem if path.stem != "model" else path.parent.resolve().name,
        "vision",
        preprocessing=Preprocessing(size=(shape["image"],) * 2, mean=mean, std=std),
        argument="images",
        about={} if wanted.random else {"recipe": recipe},
        write=write,
    )


def _shape(file: TrainedFile) -> dict[str, Any]:
    """Of the ViT; refused where its arrays cannot be of that shape."""
    shape = file.recipe["shape"]
    held = sum(value.numel() for value in file.arrays.values())
    sizes = [shape.get(name) for name in _SIZES] if isinstance(shape, dict) else [None]
    allowed = {*_SIZES, "mlp_ratio", "qkv_bias", "eps"}
    if (
        not all(isinstance(size, int) and 0 < size <= held for size in sizes)
        or not set(shape) <= allowed
        or not all(isinstance(shape.get(name, 1.0), (int, float)) and shape.get(name, 1.0) >= 0 for name in allowed)
        or not shape.get("mlp_ratio", 4.0) <= held
        or shape["depth"] > len(file.arrays)
        or shape["width"] % shape["heads"]
        or shape["image"] % shape["patch"]
    ):
        raise InputError(f"the recipe of {file.path} has no shape of a ViT of {held:,} weights; train it again")
    return dict(shape)
