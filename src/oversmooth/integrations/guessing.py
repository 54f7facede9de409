"""A probe made of a trainer's own data, without drawing any of its random numbers.

The collator is a copy, so that generators of its own stay where they are; those of a data set are put back wherever
they lie: among attributes, in lists and dicts, in what functions hold. One that lies elsewhere, in a global variable or
in another process, is not seen: then give probe=batch.
"""

from __future__ import annotations

import copy
import functools
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.monitor.warning import say
from oversmooth.observe.padding import MASKS, positions
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.untouched import random_states

_MOST = 64
"""Entries up to which a list may hold transforms, and is no data."""
_DEEP, _OBJECTS = 12, 20_000
"""How deep generators are looked for, and among how many objects."""
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
    """Generators among the attributes of a data set, put back afterwards."""
    restore: list[Callable[[], object]] = []
    known: dict[int, Any] = {}
    numpy: Any = sys.modules.get("numpy")

    def keep(value: Any, deep: int) -> None:
        if id(value) in known or isinstance(value, (Tensor, str, bytes, int, float, type, ModuleType)):
            return
        if len(known) >= _OBJECTS:
            return
        known[id(value)] = value  # held, so that no other object gets its number
        if isinstance(value, random.Random):
            state = value.getstate()
            restore.append(lambda: value.setstate(state))
        elif isinstance(value, torch.Generator):
            tensor = value.get_state()
            restore.append(lambda: value.set_state(tensor))
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            numbers = value.bit_generator.state
            restore.append(lambda: setattr(value.bit_generator, "state", numbers))
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            legacy = value.get_state()
            restore.append(lambda: value.set_state(legacy))
        elif deep:
            try:
                held = _held(value)
            except Exception:  # an object that does not want to be looked into, such as a handle that is closed
                held = []
            for one in held:
                keep(one, deep - 1)

    keep(dataset, _DEEP)
    try:
        yield
    finally:
        for back in restore:
            back()


def _held(value: Any) -> list[Any]:
    """What an object holds: entries of what is no data, attributes, and what a function closes over."""
    if isinstance(value, (list, tuple, set)):
        return list(value) if len(value) <= _MOST else []
    if isinstance(value, dict):  # other mappings may load what they give
        return list(value.values()) if len(value) <= _MOST else []
    held = list(getattr(value, "__dict__", {}).values())
    held += [getattr(value, name, None) for kind in type(value).__mro__ for name in _slots(kind)]
    if isinstance(value, functools.partial):
        held += [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        held += [value.__self__, value.__func__]
    if isinstance(value, FunctionType):
        held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        held += [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
    return held


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    private = f"_{kind.__name__.lstrip('_')}"
    return tuple(
        f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in ([slots] if isinstance(slots, str) else slots)
    )


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
