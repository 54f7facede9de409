"""How arrays lie: which one is the stream, and which of its axes is the batch, by what modules say and shapes show.

torch's own attention takes (n, batch, d) unless ``batch_first`` says otherwise, and a block around it may transpose for
it: then the block's axes are not those of its attention.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError


def first_tensor(args: Any, kwargs: dict[str, Any], needed: bool = True) -> Any:
    """The first floating tensor of two or more dimensions among arguments or results: the stream, by convention."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2:
            return value
        if isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
            return value[0]
        if hasattr(value, "last_hidden_state"):
            return value.last_hidden_state
    if needed:
        raise InputError(
            "a block takes or returns no tensor of tokens; give a model whose blocks pass (batch, n, d) on"
        )
    return None


def tensors_in(out: Any) -> list[Tensor]:
    """The arrays that a block or a model returned."""
    parts = out if isinstance(out, (tuple, list)) else out.values() if isinstance(out, Mapping) else [out]
    return [part for part in parts if isinstance(part, Tensor)]


def tensors_like(x: Tensor, out: Any) -> list[Tensor]:
    """The arrays of x's shape among what a block returned, the stream first; some return attention weights, too."""
    return [part for part in tensors_in(out) if part.is_floating_point() and part.shape == x.shape]


def results_like(x: Tensor, out: Any, block: str) -> list[Tensor]:
    """The same; InputError where a block, by its name, returned nothing of that shape."""
    if alike := tensors_like(x, out):
        return alike
    raise InputError(
        f"{block} takes tokens of shape {tuple(x.shape)} and returns nothing of that shape; blocks must pass tokens on"
    )


def with_stream(given: Any, old: object, new: Any) -> Any:
    """What a block takes or returns, with another stream in it: new in every place of old."""
    if given is old:
        return new
    if isinstance(given, Mapping):
        changed: Any = copy.copy(given)
        for name, value in given.items():
            if value is old:
                changed[name] = new
        return changed
    if isinstance(given, (tuple, list)) and any(value is old for value in given):
        return getattr(given, "_make", type(given))(new if value is old else value for value in given)
    return given


def as_tokens(x: Tensor, batch_first: bool) -> Tensor:
    """As ``(batch, n, d)``: an array as a block passes it on, or that of a single input."""
    return x[None] if x.ndim == 2 else x if batch_first else x.transpose(0, 1)


def declared_layout(block: nn.Module) -> bool | None:
    """Whether a block takes (batch, n, d), and not (n, batch, d), where it says so itself; None where it does not.
    torch's own layers hand their word to their attention.
    """
    own = block.self_attn if isinstance(block, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)) else block
    return bool(own.batch_first) if hasattr(own, "batch_first") else None


def layout_modules(block: nn.Module) -> list[nn.Module]:
    """The modules inside a block that say how their arrays lie; none where the block speaks for itself."""
    return [] if declared_layout(block) is not None else [one for one in block.modules() if hasattr(one, "batch_first")]


def says_batch_first(block: nn.Module) -> bool | None:
    """Whether a block takes (batch, n, d), and not (n, batch, d); None where only a module inside it says the latter,
    which the block may transpose for.
    """
    own = declared_layout(block)
    return own if own is not None else True if all(module.batch_first for module in layout_modules(block)) else None


def seen_batch_first(name: str, block: torch.Size, inner: torch.Size | None, says: bool) -> bool:
    """Whether a block takes (batch, n, d), from shapes: a module inside, which says whether it does, received
    (``inner``; None: it did not run) the block's own axes or those transposed.
    """
    if inner is None or inner[:2] not in (block[:2], block[:2][::-1]):
        return True
    if block[0] == block[1] and not says:
        raise InputError(
            f"{name} receives an array of shape {tuple(block)}, and its first axis may be the batch or the tokens; "
            "give another number of inputs, or say it: block.batch_first = True"
        )
    return says if inner[:2] == block[:2] else not says


@contextmanager
def received(modules: Iterable[nn.Module]) -> Iterator[list[tuple[torch.Size, bool]]]:
    """The shape of what each call of these modules receives, and whether the module says that the batch comes first."""
    seen: list[tuple[torch.Size, bool]] = []

    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        if (x := first_tensor(args, kwargs, needed=False)) is not None:
            seen.append((x.shape, bool(getattr(module, "batch_first", True))))

    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def around(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The modules that hold all blocks, from the model inwards."""
    return [
        module
        for name, module in model.named_modules(remove_duplicate=False)
        if all(one != name and (not name or one.startswith(f"{name}.")) for one in names)
        and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
    ]


def check_axes(name: str, arguments: Iterable[torch.Size], stream: torch.Size) -> None:
    """Refuse an array that enters a block where it lies the other way round than the model's arguments, which are
    (batch, n), (batch, n, d) or pictures; all by their shapes.
    """
    if len(stream) == 3 and _turned(list(arguments), *stream[:2]):
        raise InputError(
            f"{name} receives an array of shape {tuple(stream)}, in which tokens seem to come before the batch; say on "
            "every block whether they do: block.batch_first = False, or True"
        )


def _turned(arguments: list[torch.Size], first: int, second: int) -> bool:
    if first in (1, second) or any(shape[:2] == (first, second) for shape in arguments):
        return False
    if any(len(shape) == 4 and shape[0] == first for shape in arguments):  # as many pictures, beside texts
        return False
    if any(len(shape) in (2, 3) and shape[:2] == (second, first) for shape in arguments):
        return True
    # Of pictures the batch alone is known; windows are more sequences, in multiples of it.
    return any(len(shape) == 4 and shape[0] == second and (second == 1 or first % second > 0) for shape in arguments)
