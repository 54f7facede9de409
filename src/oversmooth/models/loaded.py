"""A model that is ready to run, and what it states about its inputs."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from oversmooth.anatomy.checkpoint import read_config
from oversmooth.inputs.batches import Inputs
from oversmooth.inputs.images import image_inputs
from oversmooth.inputs.preprocessing import Preprocessing, sides
from oversmooth.inputs.text import text_inputs
from oversmooth.safety.errors import InputError, about

if TYPE_CHECKING:
    from oversmooth.models.on_disk import OnDisk

Kind = Literal["vision", "text", "other"]
DEFAULT_COUNT, DEFAULT_LENGTH, DEFAULT_BATCH = 16, 128, 8
DATA_COUNT = 64  # default number of inputs from the user's data
_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of `load`."""

    name: str
    random: bool = False
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False
    stream: bool = False
    max_memory: int | None = None
    device_map: str | None = None

    @property
    def mapping(self) -> dict[str, Any]:
        """The arguments with which accelerate distributes a model."""
        return dict(device_map=self.device_map, offload_folder=tempfile.gettempdir()) if self.device_map else {}


@dataclass
class Loaded:
    """A model ready to run."""

    model: nn.Module
    name: str
    kind: Kind
    tokenizer: Any = None
    preprocessing: Preprocessing | None = None
    argument: str = "pixel_values"
    longest: int | None = None  # the largest number of tokens of an input; None if unknown
    no_tokenizer: str = ""  # why a language model has no tokenizer
    remarks: list[str] = field(default_factory=list)
    folder: Path | None = None  # the user's directory that it was loaded from, if any
    processor: Path | None = None  # the directory with the processor files of a hub id, if any
    untrained: tuple[str, ...] = ()  # weights that the checkpoint lacks, initialised at random
    about: dict[str, Any] = field(default_factory=dict)  # facts that a diagnosis stores, such as the training recipe
    on_disk: OnDisk | None = None  # the weights of its blocks, where they are not in memory
    write: Callable[[nn.Module, Path], None] | None = None
    """Writes the model in the format it was loaded from; None: its library does."""

    def of_folder(self, folder: Path) -> Loaded:
        """This model, named after the user's directory."""
        self.name, self.folder = folder.resolve().name, folder
        return self

    def inputs(
        self,
        source: Path | str | None = None,
        *,
        count: int = DEFAULT_COUNT,
        length: int | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> Inputs:
        """Inputs from the user's data, a library's samples by name, or the package's own prose or pictures.

        Args:
            source: a file or directory, or a library's samples such as "sample:skimage"; None for the package's own.
            count: how many.
            length: tokens per text; None for the default, or the model's limit if that is less.
            batch: inputs per batch.

        Raises:
            InputError: the model does not state which inputs it takes, or they cannot be read.
        """
        if self.kind == "vision":
            assert self.preprocessing is not None
            return image_inputs(self.preprocessing, source, count=count, batch=batch, argument=self.argument)
        if self.kind == "text" and self.tokenizer is not None:
            if length is not None and self.longest is not None and length > self.longest:
                raise InputError(
                    f"length is {length}, over the limit of {self.longest} tokens of {self.name}; "
                    f"give --length {self.longest} or less"
                )
            length = min(length or DEFAULT_LENGTH, self.longest or sys.maxsize)
            return text_inputs(self.tokenizer, source, count=count, length=length, batch=batch)
        if self.kind == "text":
            why = f" that can be read ({self.no_tokenizer})" if self.no_tokenizer else ""
            raise InputError(
                f"{self.name} has no tokenizer beside its weights{why}; add its tokenizer files, or pass inputs"
            )
        how = "call oversmooth.diagnose(model, inputs) with your inputs"
        raise InputError(f"{self.name} takes neither images nor text; {how}")


def default_inputs(model: nn.Module, tokenizer: Any = None) -> Inputs:
    """The package's own prose or pictures, for a live model that states its preprocessing.

    Args:
        model: a module of transformers or timm.
        tokenizer: of a language model.

    Raises:
        InputError: the model does not state which inputs it takes.
    """
    return described(model, type(model).__name__, None, tokenizer).inputs()


def described(model: nn.Module, name: str, folder: Path | None, tokenizer: Any) -> Loaded:
    """A live model and what it states of its inputs. folder: with its configuration; None: only the model states it."""
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", None)

    def vision(preprocessing: Preprocessing, **more: Any) -> Loaded:
        remarks = [preprocessing.note] if preprocessing.note else []
        return Loaded(model, name, "vision", preprocessing=preprocessing, remarks=remarks, **more)

    if (timm_settings := _timm_settings(model)) is not None:
        # The file beside the weights describes them; a live model of the same architecture may have other settings.
        stated = read_config(folder).get("pretrained_cfg") if folder is not None else None
        return vision(
            Preprocessing.from_timm(stated if isinstance(stated, dict) else timm_settings, name), argument="x"
        )
    if main == "pixel_values":
        part = getattr(config, "vision_config", config)
        with about(name):
            size = sides(getattr(part, "image_size", 224), "image_size")
        unstated = Preprocessing.unstated(name, image_size=size)
        return vision(unstated if folder is None else Preprocessing.from_folder(folder, image_size=size, name=name))
    if main == "input_ids" or tokenizer is not None:
        longest = next((getattr(config, key) for key in _LONGEST if isinstance(getattr(config, key, None), int)), None)
        if longest is not None and getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
            longest -= 2  # its positions start at 2
        return Loaded(model, name, "text", tokenizer=tokenizer, longest=longest)
    return Loaded(model, name, "other")


def _timm_settings(model: nn.Module) -> dict[str, Any] | None:
    """The pretrained_cfg of a timm model; None for any other model."""
    settings = getattr(model, "pretrained_cfg", None)
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        settings = dataclasses.asdict(settings)
    return settings if isinstance(settings, dict) and settings else None
