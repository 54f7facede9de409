"""A probe from a trainer's own data: its first examples, which the training draws again as if nobody had asked.

The loader is left alone, and so is its generator. Examples come from the data set and the collator, a copy, whose own
generators therefore stay where they are; the states of torch, Python and numpy are put back. Data that draw random
numbers from generators of their own draw others afterwards: then give probe=batch.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from oversmooth.monitor.warning import warn
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.model_state import random_states
from oversmooth.trace.valid import MASKS

_LABELS = ("label", "label_ids", "labels")


def probe_of(dataset: Any, collate: Callable[[list[Any]], Any] | None, model: nn.Module, inputs: int) -> Any:
    """The first few examples of a data set with a length and an order, as the model takes them; InputError where none
    can be made. collate: makes a batch of examples; None: a list will do.
    """
    why = "have no order"
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        try:
            return _probe_of(dataset, collate, model, inputs)
        except Exception as error:  # data sets and collators of others
            why = reason(error)
    raise InputError(f"no probe can be made of these data ({why}); give probe=batch, or use_training_batch=True")


def _probe_of(dataset: Any, collate: Callable[[list[Any]], Any] | None, model: nn.Module, inputs: int) -> Any:
    parameters = inspect.signature(model.forward).parameters
    wraps = any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and len(parameters) < 3  # it takes whatever comes

    def taken(values: Any, more: Sequence[str] = ()) -> Any:
        if wraps or not isinstance(values, Mapping):
            return values
        return {name: value for name, value in values.items() if name in parameters or name in more}

    with random_states():
        examples = [taken(dataset[index], _LABELS) for index in range(min(inputs, len(dataset)))]
        batch = examples if collate is None else copy.deepcopy(collate)(examples)
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Tensor):
        return _inputs(batch, list(parameters))
    return taken(batch)


def _inputs(batch: Sequence[Any], names: list[str]) -> Any:
    """Of (inputs, labels), as most data sets have it, the inputs; and a mask where the model takes it at its place."""
    mask = next((index for index, name in enumerate(names) if name in MASKS and index < len(batch)), None)
    if mask is not None and all(isinstance(one, Tensor) for one in batch[: mask + 1]) and batch[mask].ndim == 2:
        return tuple(batch[: mask + 1])
    for index, one in enumerate(batch[1:], 1):
        if isinstance(one, Tensor) and one.shape == batch[0].shape[:2] and bool(((one == 0) | (one == 1)).all()):
            warn(f"entry {index} of a batch looks like a mask, which the probe is made without; give probe=batch")
    return batch[0]
