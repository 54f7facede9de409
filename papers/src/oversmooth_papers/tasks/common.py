"""Shared by the tasks: finding and keeping data, decoding images, initial models, shuffled batches."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import cache_folder, data_folder, data_place, whole_file
from oversmooth.safety.libraries import import_library
from oversmooth.safety.model_state import in_eval_mode, seeded
from oversmooth.safety.signals import delay_signals
from oversmooth.steering import steer
from oversmooth.steering.layer_names import layers_named
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import BaseRecipe

WATCHED = 8  # examples on which smoothing is recorded
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # one of ImageNet's is a PNG that is called JPEG
_Model = TypeVar("_Model", bound=nn.Module)
_T = TypeVar("_T")
Kept = tuple[dict[str, Tensor], dict[str, str]]  # arrays and words, as a safetensors file has them


def data_home(what: str | Path, names: Sequence[str], remedy: str) -> Path:
    """The folder of a data set: this path, or else, for a data set known by name, its folder in OVERSMOOTH_DATA."""
    home = Path(what) if Path(what).is_dir() else data_folder(*names)
    if home is None:
        where = f"not in {data_place()}" if names else "no folder and no known data set"
        raise InputError(f"{what} is {where}; {remedy}")
    return home


def remembered(
    kind: str,
    question: list[Any],
    files: Sequence[Path],
    make: Callable[[], _T],
    to_file: Callable[[_T], Kept],
    from_file: Callable[..., _T],
) -> _T:
    """What is made of these files, kept in the user's cache directory under a name that changes when they do.

    CIFAR-100 takes 6 s to decode and no time to map. What cannot be kept or read back is made: never a reason to stop.
    """
    facts = [(str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    key = hashlib.sha256(json.dumps([*question, facts]).encode()).hexdigest()[:24]
    path = cache_folder() / f"{kind}-{key}.safetensors"
    # Any of these means a file that is not there, not whole, or not ours.
    with contextlib.suppress(OSError, SafetensorError, InputError, KeyError, ValueError, TypeError, RecursionError):
        with delay_signals(), safe_open(path, "pt") as opened:
            kept = {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
        return from_file(*kept)
    made = make()
    with contextlib.suppress(OSError, InputError), whole_file(path) as temporary:
        arrays, words = to_file(made)
        save_file(arrays, temporary, words)
    return made


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


@contextmanager
def tested(model: nn.Module, recipe: BaseRecipe, device: torch.device) -> Iterator[None]:
    """In eval mode, without gradients, in the precision of the recipe."""
    with torch.no_grad(), in_eval_mode(model), recipe.autocast(device):
        yield


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
