"""Checks of a model's size before memory is allocated: in its configuration, and while it is built."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from oversmooth.anatomy.locate import MOST_LAYERS
from oversmooth.safety.arguments import shown
from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import free_memory, in_words

# Keys of configurations: num_hidden_layers, n_layer, encoder_layers, depths; hidden_size, n_embd, n_positions.
_MOST = {
    re.compile(r"(^|_)(layers?|blocks?|depths?|groups?|group_num)$"): MOST_LAYERS,
    re.compile(r"(^|_)(size|dim|embd|d_model|d_ff|inner|positions?|embeddings|heads?|experts|channels|width)$"): 2**27,
    re.compile(r"(^|_)(labels|classes)$"): 10**6,
}
_LONGEST = 200_000  # entries of a list or table, such as names of classes
_REFUSED = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")  # torch, on a CPU


def check_numbers(config: dict[str, Any], name: str) -> None:
    """Refuse a configuration whose layers or sizes would take forever to build."""
    for key, value in config.items():
        if isinstance(value, (list, tuple, dict)) and len(value) > _LONGEST:
            raise InputError(
                f"{name}: {key} in its configuration has {len(value):,} entries, over the limit of {_LONGEST:,}; fix it"
            )
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, dict):
                check_numbers(part, name)
            elif type(part) is int:
                most = min((most for pattern, most in _MOST.items() if pattern.search(str(key))), default=part)
                if part > most:
                    found = f"{part:,}" if part < 10**30 else shown(part)
                    raise InputError(
                        f"{name}: {key} in its configuration is {found}, over the limit of {most:,}; fix it"
                    )


@contextmanager
def watched(name: str) -> Iterator[None]:
    """Stop building a model as soon as its parameters exceed the free memory.

    Parameters are counted when modules register them, before anything is written to them. Libraries build on the meta
    device and fill another one afterwards, so only those on the first device count.
    """
    free, builder = free_memory(), threading.get_ident()
    device: str | None = None
    size = 0

    def take(_module: nn.Module, _key: str, value: Tensor | None) -> None:
        nonlocal device, size
        if value is None or threading.get_ident() != builder:
            return
        device = device or value.device.type
        size += value.numel() * value.element_size() if value.device.type == device else 0
        if size > free:
            raise too_large(size)

    def too_large(size: int) -> InputError:
        return InputError(
            f"{name} needs over {in_words(size)} of memory for its weights, but {in_words(free)} are free; "
            "check the sizes in its configuration, or read it block by block (--stream)"
        )

    hooks = [register_module_parameter_registration_hook(take), register_module_buffer_registration_hook(take)]
    try:
        yield
    except RuntimeError as error:
        # Some systems overcommit memory; others refuse before a module has the weight.
        refused = _REFUSED.search(str(error))
        if refused is None:
            raise
        raise too_large(size + int(refused[1])) from error
    finally:
        for hook in hooks:
            hook.remove()
