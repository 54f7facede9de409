"""A probe made of a trainer's own data, without drawing any of its random numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from oversmooth.observe.untouched import random_states
from oversmooth.safety.errors import InputError, reason

_LABELS = ("label", "label_ids", "labels")


def probe_of(dataset: Any, collate: Callable[[list[Any]], Any] | None, model: nn.Module, inputs: int) -> Any:
    """The first few examples of a data set as the model takes them.

    Args:
        dataset: with a length and an order.
        collate: makes a batch of examples.
        model: whose forward takes it.
        inputs: how many examples.

    Raises:
        InputError: none can be made.
    """
    if dataset is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError("no probe can be made of these data, which have no order; give probe=batch, or passing=True")
    takes = _arguments(model)
    try:
        with random_states():
            examples = [_wanted(dataset[index], takes) for index in range(min(inputs, len(dataset)))]
            batch = examples if collate is None else collate(examples)
    except Exception as error:  # data sets and collators of others
        raise InputError(
            f"no probe can be made of these data ({reason(error)}); give probe=batch, or passing=True"
        ) from error
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if takes is None or name in takes}
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Tensor):
        return batch[0]  # (inputs, labels), as most data sets have it
    return batch


def _arguments(model: nn.Module) -> set[str] | None:
    """The names that a model's forward takes; None: any."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters) and len(list(parameters)) < 3:
        return None
    return {p.name for p in parameters}


def _wanted(example: Any, takes: set[str] | None) -> Any:
    if not isinstance(example, Mapping) or takes is None:
        return example
    return {name: value for name, value in example.items() if name in takes or name in _LABELS}
