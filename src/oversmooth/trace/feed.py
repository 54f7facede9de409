"""Inputs in whatever form they come, brought to the model: on its device, in its precision, one batch at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from oversmooth.anatomy.calls import PAIRS, USE_CACHE
from oversmooth.anatomy.layer import Anatomy
from oversmooth.inputs.batches import Batch
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import says_batch_first
from oversmooth.trace.valid import Padding, decodes

_HALF = (torch.float16, torch.bfloat16)

# Tracing replaces forward functions and settings of torch, which all threads share: threads that trace take turns.
ONE_AT_A_TIME = threading.RLock()
ModelInput = Tensor | Mapping[str, Tensor] | Batch
SHORT = 64
"""Tokens of a text that show where the stream is."""
OnProgress = Callable[[float, int | None, str], None]
"""Called with (inputs done, inputs in all if known, the current step)."""


def class_count(model: nn.Module) -> int | None:
    """How many classes a model states that it knows."""
    return getattr(getattr(model, "config", None), "num_labels", getattr(model, "num_classes", None))


def device_of(model: nn.Module) -> torch.device:
    """Where a model's inputs go: where its first weight is, or, if accelerate keeps that elsewhere between calls, where
    the module that holds it computes.
    """
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
                return parameter.device if device is None or not parameter.is_meta else torch.device(device)
    return torch.device("cpu")


class Runner:
    """Calls the model on inputs of any supported form."""

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        self.model, self.anatomy = model, anatomy
        self.call: Any = model
        both = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        if both and "decoder" not in anatomy.stack and hasattr(model, "get_encoder"):
            self.call = cast(Any, model).get_encoder()  # the decoder would need inputs of its own
        self._needs_targets = both and self.call is model
        self._padding = Padding(self.call, decodes([layer.block for layer in anatomy]))
        modules = dict(model.named_modules(remove_duplicate=False))
        self._block = modules[anatomy.layers[0].block]
        # A key cache would be filled and never used.
        self.settings = {USE_CACHE: False} if USE_CACHE in self._padding.names else {}
        self.classes = class_count(model)  # features of another size are not scores of classes
        if device_of(model).type == "meta":
            raise InputError("the model's weights are not in memory (meta device or offloaded); load them first")

    def batches(self, inputs: ModelInput | Iterable[ModelInput]) -> Iterator[Batch | Tensor]:
        return batches_for(self.model, inputs)

    def short_input(self, batch: Batch | Tensor) -> Batch | Tensor:
        """The first tokens of the first input, where it is ids and begins with valid ones; else all of that input."""
        one = self.first_input(batch)
        arrays = {"": one} if isinstance(one, Tensor) else one.inputs
        ids = next((x for name, x in arrays.items() if name in ("", "input_ids") and x.ndim == 2), None)
        if ids is None or ids.is_floating_point() or len(ids) != 1 or ids.shape[1] <= SHORT:
            return one
        mask, plain = self.mask(one), all(x.shape == ids.shape for x in arrays.values())
        if not plain or (mask is not None and not bool(mask[:, :SHORT].all())):
            return one
        return _each(one, lambda x: x[:, :SHORT])

    def first_input(self, batch: Batch | Tensor) -> Batch | Tensor:
        """The first input of a batch, or all of it where blocks may take (n, batch, d): the model may transpose on the
        way there, so that it is unclear which axis is the batch.
        """
        if isinstance(batch, Batch) and not batch.inputs:
            raise InputError("an input is an empty dict; give the model's arguments")
        if not says_batch_first(self._block):
            return _each(batch, Tensor.clone)  # a model may add to its input in place
        if isinstance(batch, Tensor):
            return (batch[:1] if batch.ndim > 2 or not batch.is_floating_point() else batch).clone()
        # How many inputs, where the arguments show it: float arrays of two axes may be one input's tokens, too.
        sure = (x for x in batch.inputs.values() if x.ndim > 2 or (x.ndim == 2 and not x.is_floating_point()))
        size = next((len(x) for x in sure), None)

        def first(name: str, x: Tensor) -> Tensor:
            return x if name in PAIRS else (x[:1] if x.ndim and len(x) == size else x).clone()

        return Batch({name: first(name, x) for name, x in batch.inputs.items()})

    def mask(self, batch: Batch | Tensor) -> Tensor | None:
        """The tokens that are not padding, by the name of an argument."""
        return None if isinstance(batch, Tensor) else self._padding.of((), batch.inputs)

    def __call__(self, batch: Batch | Tensor) -> Any:
        try:
            return called(self.call, batch, self.settings)
        except InputError as error:
            given = set() if isinstance(batch, Tensor) else {*batch.inputs}
            if self._needs_targets and not given & {"decoder_input_ids", "decoder_inputs_embeds", "labels"}:
                raise InputError(
                    f"{error} (its decoder needs tokens of its own: {{'input_ids': ids, 'decoder_input_ids': targets}})"
                ) from error
            raise


def mover(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Brings arrays to a model's device and, where they are no whole numbers, into the precision of its first weights
    in one that models run in: weights in fewer bits may come before them. 16 bits that it has elsewhere stay.
    """
    device = device_of(model)
    runs = [p.dtype for p in model.parameters() if p.dtype in (*_HALF, torch.float32, torch.float64)]

    def moved(x: Tensor) -> Tensor:
        stays = not runs or not x.is_floating_point() or (x.dtype in _HALF and x.dtype in runs)
        return x.to(device, x.dtype if stays else runs[0])

    return moved


def first_of(batches: Iterator[Batch | Tensor]) -> tuple[Batch | Tensor, Iterator[Batch | Tensor]]:
    """The first batch, and all of them; InputError where there is none."""
    first = next(batches, None)
    if first is None:
        raise InputError("there are no inputs; give at least one")
    return first, itertools.chain([first], batches)


def batches_for(model: nn.Module, inputs: ModelInput | Iterable[ModelInput]) -> Iterator[Batch | Tensor]:
    """Inputs of any supported form, one batch at a time, on the model's device and in its precision."""
    moved = mover(model)
    # Tokenizers give mappings that are no dict.
    several = [inputs] if isinstance(inputs, (Tensor, Mapping, Batch)) else inputs
    if isinstance(several, tuple) and len(several) == 2:
        _check_no_mask_beside(several)
    try:
        items = iter(several)
    except TypeError:
        kind = arguments.kind(inputs)
        raise InputError(f"inputs are {kind}; give a tensor, a dict, or an iterable of them") from None
    for item in items:
        if isinstance(item, (list, tuple)) and item and isinstance(item[0], Tensor):
            _check_no_mask_beside(item)
            item = item[0]  # (images, labels), as data loaders give
        if isinstance(item, Tensor):
            yield moved(_tensor("the input", item))
        elif isinstance(item, Batch):
            yield Batch({k: moved(v) for k, v in item.inputs.items()}, item.special, item.labels, item.names)
        elif isinstance(item, Mapping):
            yield Batch({str(k): moved(_tensor(str(k), v)) for k, v in item.items() if v is not None})
        else:
            raise InputError(f"an input is {arguments.kind(item)}; give a tensor, or a dict of the model's arguments")


def called(model: Any, batch: Batch | Tensor, settings: Mapping[str, Any]) -> Any:
    """What a model returns for a batch; see `runs_on`."""
    with runs_on("this input"):
        return model(batch, **settings) if isinstance(batch, Tensor) else model(**{**settings, **batch.inputs})


@contextmanager
def runs_on(what: str) -> Iterator[None]:
    """Around a call of a model: an InputError, caused by the model's own error, where it does not run on that."""
    try:
        yield
    except InputError:
        raise
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise InputError(f"the model does not run on {what} ({message}); give inputs that it takes") from error


def _each(batch: Batch | Tensor, make: Callable[[Tensor], Tensor]) -> Batch | Tensor:
    return make(batch) if isinstance(batch, Tensor) else Batch({name: make(x) for name, x in batch.inputs.items()})


def _check_no_mask_beside(arrays: Sequence[Any]) -> None:
    """Refuse (ids, mask): by position nothing says that the second is a mask, and without it padding would count."""
    if len(arrays) < 2 or not all(isinstance(one, Tensor) and not one.is_meta for one in arrays[:2]):
        return
    ids, other = arrays[:2]
    whole = not (ids.is_floating_point() or other.is_floating_point())
    if whole and ids.ndim == 2 and ids.shape == other.shape and set(other.unique().tolist()) == {0, 1}:
        raise InputError(
            f"an input is ids {tuple(ids.shape)} with an array of zeros and ones beside them, which may be their mask; "
            "give a dict, {'input_ids': ids, 'attention_mask': mask}, or the ids alone"
        )


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputError(f"{name} is {arguments.kind(value)}; give tensors (tokenizers do with return_tensors='pt')")
    if value.device.type == "meta":
        raise InputError(f"{name} is on the meta device, which holds no numbers; give a tensor in memory")
    bad = int((value.isnan() | (value == torch.inf)).sum()) if value.is_floating_point() else 0  # masks have −∞
    if bad:
        raise InputError(f"{name} has {bad:,} of {value.numel():,} numbers that are NaN or infinite; leave them out")
    if value.numel() == 0:
        raise InputError(f"{name} has shape {tuple(value.shape)}; give at least one input of at least one token")
    return value
