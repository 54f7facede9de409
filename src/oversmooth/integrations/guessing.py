"""A probe made of a trainer's own data, without drawing any of its random numbers.

The collator is a copy, so that generators of its own stay where they are; those of a data set are put back wherever
they lie: among attributes, in lists and dicts, in what functions hold. One in another process, or behind thousands of
other objects, is not seen: then give probe=batch.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.monitor.warning import say
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.untouched import random_states
from oversmooth.trace.valid import MASKS, positions

_MOST = 64
"""Entries up to which a list may hold transforms, and is no data."""
_OBJECTS = 20_000
"""Among how many objects generators are looked for."""
_NO_HOLDERS = (Tensor, str, bytes, int, float, type, ModuleType, BuiltinFunctionType, CodeType)
_LABELS = ("label", "label_ids", "labels")


def probe_of(dataset: Any, collate: Callable[[list[Any]], Any] | None, model: nn.Module, inputs: int) -> Any:
    """The first few examples of a data set, one with a length and an order, as the model takes them; InputError where
    none can be made. collate: makes a batch of examples.
    """
    if dataset is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError("no probe can be made of these data, which have no order; give probe=batch, or passing=True")
    takes = _arguments(model)
    try:
        with random_states(), _own_generators(dataset):
            collate = copy.deepcopy(collate)
            examples = [_wanted(dataset[index], takes) for index in range(min(inputs, len(dataset)))]
            batch = examples if collate is None else collate(examples)
    except Exception as error:  # data sets and collators of others
        raise InputError(
            f"no probe can be made of these data ({reason(error)}); give probe=batch, or passing=True"
        ) from error
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if takes is None or name in takes}
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Tensor):
        return _inputs(batch, positions(model))
    return batch


def _inputs(batch: tuple[Any, ...] | list[Any], names: list[str]) -> Any:
    """Of (inputs, labels), as most data sets have it, the inputs; and a mask where the model takes it at its place."""
    mask = next((index for index, name in enumerate(names) if name in MASKS and index < len(batch)), None)
    if mask is not None and all(isinstance(one, Tensor) for one in batch[: mask + 1]) and batch[mask].ndim == 2:
        return tuple(batch[: mask + 1])
    for index, one in enumerate(batch[1:], 1):
        if isinstance(one, Tensor) and one.shape == batch[0].shape[:2] and bool(((one == 0) | (one == 1)).all()):
            say(f"entry {index} of a batch looks like a mask, which the probe is made without; give probe=batch")
    return batch[0]


@contextmanager
def _own_generators(dataset: Any) -> Iterator[None]:
    """Generators that a data set holds, put back afterwards."""
    numpy: Any = sys.modules.get("numpy")
    restore: list[Callable[[], object]] = []
    for value in _held(dataset):
        if isinstance(value, random.Random):
            restore.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, torch.Generator) or (numpy is not None and isinstance(value, numpy.random.RandomState)):
            restore.append(functools.partial(value.set_state, value.get_state()))
        elif numpy is not None and isinstance(value, numpy.random.BitGenerator):
            restore.append(functools.partial(setattr, value, "state", value.state))
    try:
        yield
    finally:
        for back in restore:
            back()


def _held(one: Any) -> Iterator[Any]:
    """Everything that an object refers to, the nearest first, found without running code of its own."""
    known, waiting = {id(one)}, deque([one])
    while waiting and len(known) < _OBJECTS:
        value = waiting.popleft()
        yield value
        if isinstance(value, (list, tuple, set, dict)) and len(value) > _MOST:
            continue
        for inside in gc.get_referents(value):
            if id(inside) not in known and not isinstance(inside, _NO_HOLDERS):
                known.add(id(inside))
                waiting.append(inside)


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
