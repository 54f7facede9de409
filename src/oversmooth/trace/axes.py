"""Finds blocks that take (n, batch, d) and do not say so, by what the model around them is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth.trace.layout import own_word, telling
from oversmooth.trace.watch import first_tensor


def around(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The modules that hold all blocks, from the model inwards."""
    modules = dict(model.named_modules(remove_duplicate=False))
    return [
        module
        for name, module in modules.items()
        if all(one != name and (not name or one.startswith(f"{name}.")) for one in names)
        and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
    ]


def says_nothing(block: nn.Module) -> bool:
    """Whether neither a block nor a module inside it says how its arrays lie."""
    return own_word(block) is None and not telling(block)


def shapes_of(args: Iterable[Any], kwargs: dict[str, Any] | None) -> list[torch.Size]:
    """Of the arrays among a model's arguments."""
    return [value.shape for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]


def check_axes(name: str, given: Iterable[torch.Size], stream: torch.Size) -> None:
    """Refuse an array that enters a block where it lies the other way round than what the model was given.

    Args:
        name: of the block.
        given: the shapes of the model's arguments: (batch, n), (batch, n, d) or pictures.
        stream: of what enters the block.
    """
    if len(stream) == 3 and _turned(list(given), *stream[:2]):
        raise InputError(
            f"{name} gets an array of shape {tuple(stream)}, in which tokens seem to come before the batch; say on "
            "every block whether they do: block.batch_first = False, or True"
        )


def _turned(given: list[torch.Size], first: int, second: int) -> bool:
    if first in (1, second) or any(shape[:2] == (first, second) for shape in given):
        return False
    if any(len(shape) == 4 and shape[0] == first for shape in given):  # as many pictures, beside texts
        return False
    if any(len(shape) in (2, 3) and shape[:2] == (second, first) for shape in given):
        return True
    # Of pictures the batch alone is known; windows are more sequences, in multiples of it.
    return any(len(shape) == 4 and shape[0] == second and (second == 1 or first % second > 0) for shape in given)


@contextmanager
def axes_checked(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> Iterator[None]:
    """Passes of the model inside raise where its first block gets (n, batch, d) and nothing says so.

    Args:
        model: the model.
        blocks: of it, by name.
    """
    (name, block), given = blocks[0], list[torch.Size]()

    def begin(_: nn.Module, args: Any, kwargs: Any = None) -> None:
        if not given:  # the outermost that is called
            given.extend(shapes_of(args, kwargs))

    def enter(_: nn.Module, args: Any, kwargs: Any = None) -> None:
        x = first_tensor(args, kwargs or {}, needed=False)
        if x is not None:
            check_axes(name, given, x.shape)

    with ExitStack() as stack:
        if says_nothing(block):
            for module in around(model, [name for name, _ in blocks]):
                stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
        yield
