"""Shared by the tasks: finding data, decoding images, initial models, shuffled batches."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import data_folder, data_place
from oversmooth.safety.libraries import import_library
from oversmooth.safety.randomness import seeded
from oversmooth.steering import steer
from oversmooth.steering.layer_names import layers_named
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import BaseRecipe
from oversmooth_papers.engine.task import Task

WATCHED = 8
"""The number of examples on which smoothing is recorded."""
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # one of ImageNet's is a PNG that is called JPEG
_Model = TypeVar("_Model", bound=nn.Module)
_Recipe = TypeVar("_Recipe", bound=BaseRecipe)
_Data = TypeVar("_Data")


def data_home(what: str | Path, names: Sequence[str], remedy: str) -> Path:
    """The folder of a data set: this path, or else, for a data set known by name, its folder in OVERSMOOTH_DATA."""
    home = Path(what) if Path(what).is_dir() else data_folder(*names)
    if home is None:
        where = f"not in {data_place()}" if names else "no folder and no known data set"
        raise InputError(f"{what} is {where}; {remedy}")
    return home


def decoded_image(source: Path | bytes, what: str) -> Any:
    """One of Pillow's images, read from a file or from its bytes."""
    pil = import_library("PIL.Image", "decoding images")
    try:
        with pil.open(source if isinstance(source, Path) else io.BytesIO(source), formats=_FORMATS) as image:
            image.load()
            return image
    except Exception as error:  # decoders raise whatever they like on broken files
        # Pillow names a file that it does not know by the address of a buffer.
        why = "no known image format" if isinstance(error, pil.UnidentifiedImageError) else reason(error)
        raise InputError(f"{what} does not decode ({why}); fetch it again") from error


def begun(recipe: Any, build: Callable[[], _Model], parts: Sequence[str] = ("",), layers: str = "all") -> _Model:
    """The initial model on the CPU; its seed gives the same weights on any machine.

    The caller's random state does not change. parts: names of the modules that the recipe's methods steer.
    """
    with seeded(recipe.seed):
        model = build()
        if methods := recipe.methods():
            for part in parts:
                steer(model.get_submodule(part), methods, layers_named(layers))
    return model


class DataTask(Task, Generic[_Recipe, _Data]):
    """A recipe with data that it fits."""

    plain_model_of: ClassVar[staticmethod[[Any], nn.Module]]
    """A recipe's model, unsteered, on the CPU, with random weights."""
    model_of: ClassVar[staticmethod[[Any], nn.Module]]
    """A recipe's model as training begins."""
    recipe: _Recipe
    copies = 4
    """Of the weights, while training: themselves, gradients and AdamW's two moments."""

    def __init__(self, recipe: _Recipe, dataset: _Data) -> None:
        checked: Any = recipe
        checked.check_fits(dataset)
        self.recipe, self.dataset = recipe, dataset

    def plain_model(self) -> nn.Module:
        return type(self).plain_model_of(self.recipe)

    def model(self) -> nn.Module:
        return type(self).model_of(self.recipe)

    def has_data_of(self, other: Task) -> bool:
        return type(other) is type(self) and other.dataset is self.dataset

    def check_memory(self, device: torch.device) -> None:
        self.recipe.shape.check_fits(self.copies, 4 * self.activations() if device.type == "cpu" else 0)

    def activations(self) -> int:
        """A lower bound on the numbers that a step stores for its backward pass, to check a CPU's memory."""
        raise NotImplementedError


class ShuffledFeed:
    """Data on the device, in a new order every epoch: `rows` are the examples of a step."""

    def __init__(self, recipe: Any, examples: int, device: torch.device, ranks: Ranks) -> None:
        self.recipe, self.examples, self.device, self.ranks = recipe, examples, device, ranks
        self.units_per_step: int = recipe.batch
        self.places = ranks.places(recipe.batch).to(device)
        self.order = torch.zeros(examples, dtype=torch.int64, device=device)

    def reorder(self, generator: torch.Generator) -> None:
        self.order.copy_(torch.randperm(self.examples, generator=generator, device=self.device))

    def draw(self, generator: torch.Generator) -> None:
        """Nothing, where only the model draws."""

    def rows(self, step: Tensor, places: Tensor | None = None) -> Tensor:
        """``(b,)``: those at these places of the step's batch; by default at this process's."""
        return self.order.index_select(0, step * self.recipe.batch + (self.places if places is None else places))
