"""Whether attention hides tokens from one another, by running it: masks are made in more ways than can be read.

A copy of the module runs again, without hooks, on tokens that are all alike: no score is then far below another, so a
weight vanishes only where a mask makes it. The values are ours, first zero, then one token's are not: wherever that
changes what the output projection gets, the token is seen. The module itself, its buffers and caches, and the random
numbers that follow stay as they were.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.steering.methods.base import repeat_heads
from oversmooth.steering.open_attention import VALUES, OpenedAttention

# So far below the largest, what is added to a score hides: e⁻⁵⁰ is nothing beside 1 in float32.
_HIDDEN = 50.0
# Small, so that rotary positions do not spread the scores; not zero, which some modules take for padding.
_CONTENT = 2.0**-6
# Large, so that a small weight times it is no zero in half precision.
_MARK = 1024.0
_LARGE = 64.0
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_LOOKS = 16


class UnclearError(Exception):
    """Running the module did not show whether it hides tokens."""


class PaddingError(Exception):
    """Nobody sees some tokens, and nothing said that they are padding."""


def points(modules: dict[str, nn.Module], layer: AttentionLayer) -> tuple[nn.Module, nn.Module, bool]:
    """The module that gives values, the one that gets them mixed, and whether this is torch's own attention, opened."""
    attention = modules[layer.name]
    opened = isinstance(attention, OpenedAttention)
    value = getattr(attention, VALUES) if opened else modules[layer.value_module[0]]
    return value, modules[layer.output_module[0]], opened


def hides(
    module: nn.Module,
    name: str,
    layer: AttentionLayer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mask: Tensor | None,
) -> bool | None:
    """Whether a call of the module hides tokens for other reasons than padding.

    Args:
        module: the layer's attention, or one around it.
        name: the module's.
        layer: the attention layer.
        args, kwargs: of the call.
        mask: ``(batch, n)``: tokens that count; None: unknown.

    Returns:
        None where there is no second token.

    Raises:
        UnclearError: running the module does not show it.
        PaddingError: there is padding that the mask does not know of.
    """
    for alike in (True, False):  # the real tokens where nothing passes a module whose tokens are all alike
        again = _Again(module, name, layer, args, kwargs, alike)
        try:
            return _hides(again, mask)
        except UnclearError:
            if not alike:
                raise
    return None


def distance_from_equal_values(
    module: nn.Module, layer: AttentionLayer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """How far what the output projection gets is from values that are equal for all tokens, relative to them, by token.

    Where values of elsewhere come in too, such as those of earlier tokens, ours have a share; it must be of one size.

    Args:
        module: the layer's attention.
        layer: that layer.
        args, kwargs: of the call; caches of earlier tokens are left out.

    Returns:
        ``(tokens,)`` of all inputs, but for those that get nothing or no finite numbers, as padding may.
    """
    args = tuple(None if _is_cache(value) else value for value in args)
    kwargs = {key: None if _is_cache(value) else value for key, value in kwargs.items()}
    U = []
    for equal in (False, True):  # each with caches as they were
        again = _Again(module, layer.name, layer, args, kwargs, alike=False)
        again.equal = equal
        U.append(again.run().unflatten(-1, (layer.heads, layer.head_dim)).double())
    others, ours = U[0], U[1] - U[0]
    wanted = repeat_heads(_different(layer, ours), layer.heads)
    if bool((others.nan_to_num() != 0).any()):
        share = (ours * wanted).sum(-1, keepdim=True) / wanted.square().sum(-1, keepdim=True)
        wanted = wanted * share.clamp(0, 1)
    apart = (ours - wanted).flatten(-2).norm(dim=-1) / wanted.flatten(-2).norm(dim=-1)
    return apart[apart.isfinite() & (ours != 0).flatten(-2).any(-1)]


def _different(layer: AttentionLayer, like: Tensor) -> Tensor:
    """``(kv_heads, k)``: large numbers, no two alike, so that neither a norm, a limit nor another head leaves them."""
    count = torch.arange(layer.kv_heads * layer.head_dim, device=like.device)
    return (_LARGE * (1 + count).sin()).to(like.dtype).unflatten(0, (layer.kv_heads, layer.head_dim))


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") and not isinstance(value, (Tensor, nn.Module))


def _hides(again: _Again, mask: Tensor | None) -> bool | None:
    again.begin()
    shape = again.tokens
    tokens, known = torch.ones(shape, dtype=torch.bool, device=again.device), False
    if mask is not None and mask.shape == shape:
        tokens, known = mask.to(again.device), True
    if shape[-1] < 2 or int(tokens.sum(-1).max()) < 2:
        return None
    seen: list[tuple[Tensor, Tensor]] = []
    for nth in _looked_at(tokens):
        one = _nth(tokens, nth)
        seen.append((one, again.who_sees(one)))
    if not any(bool(who.any()) for _, who in seen):
        raise UnclearError("no token's values reached the output projection")
    among = seen[0][1].shape == shape
    if among and not any(bool((who & ~one).any()) for one, who in seen):
        return True  # each token sees itself alone
    for one, who in seen:
        lost = ~who & who.any(-1, keepdim=True)  # tokens that nobody sees are padding
        lost = lost & tokens if among else lost
        if not bool(lost.any()):
            continue
        if known or not among:
            return True
        # Which tokens count is unknown: those that do not see this one may be padding, which nobody sees.
        for nth in (torch.zeros_like(lost.sum(-1)), lost.sum(-1) - 1):
            other = _nth(lost, nth)
            pair = _counts(one, who, seen) & _counts(other, again.who_sees(other), seen)
            if bool(pair.any()):
                return True
    if among and not known:
        unseen = torch.stack([one.any(-1) & ~(who & ~one).any(-1) for one, who in seen])
        if bool(unseen.any()):  # by another; padding may see itself
            raise PaddingError
    return False


def _counts(one: Tensor, who: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Whether a token, one at most of each item, is seen by another or sees one: padding does neither."""
    sees = [(one & others & ~other).any(-1) for other, others in seen]
    return (who & ~one).any(-1) | (who & one).any(-1) & torch.stack(sees).any(0)


def _looked_at(tokens: Tensor) -> list[Tensor]:
    """Which tokens to test, by their rank among those that count: all of a few, else some from end to end, and those
    next to the ends.

    Any token that does not see one of them is noticed: what is missed is a mask that shows all of these to everyone.
    """
    n = tokens.sum(-1)
    if tokens.shape[-1] <= _LOOKS:
        return [torch.full_like(n, nth) for nth in range(tokens.shape[-1])]
    evenly = [(n - 1) * step // (_LOOKS - 1) for step in range(_LOOKS)]
    return [*evenly, torch.ones_like(n), n - 2]


def _nth(tokens: Tensor, nth: Tensor) -> Tensor:
    """The nth of those that are True, per item; none where there are fewer."""
    return tokens & (tokens.cumsum(-1) == nth[..., None] + 1)


class _Again:
    """A call that can be repeated, with values of ours and, with ``alike``, with tokens that are all alike."""

    def __init__(
        self,
        module: nn.Module,
        name: str,
        layer: AttentionLayer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        alike: bool,
    ) -> None:
        self.layer = layer
        x = stream(args, kwargs, layer.width)
        self.device = x.device
        content = torch.full_like(x, _CONTENT) if alike else x.detach().clone()
        self.args = tuple(content if _is_same(value, x) else _copied(value) for value in args)
        self.kwargs = {key: content if _is_same(value, x) else _copied(value) for key, value in kwargs.items()}
        self.shell = _shell(module, {})
        value, output, self.opened = points(dict(self.shell.named_modules(prefix=name, remove_duplicate=False)), layer)
        value.register_forward_hook(self._values)
        output.register_forward_pre_hook(self._mixed)
        self.marked: Tensor | None = None
        self.equal = False
        """Whether all tokens get the same values, which are not zero."""
        self.tokens = torch.Size()
        """Of the values, without heads and features: ``(batch, n)``."""
        self.plain = torch.empty(0)
        self.mixed: Tensor | None = None

    def begin(self) -> None:
        """With no token marked."""
        self.plain = self.run()
        if self.plain.ndim != len(self.tokens) + 1 or self.plain.shape[:-2] != self.tokens[:-1]:
            raise UnclearError(f"values of {tuple(self.tokens)} tokens come out as {tuple(self.plain.shape)}")

    def who_sees(self, marked: Tensor) -> Tensor:
        """The tokens whose output changes with the values of the marked tokens."""
        mixed = self.run(marked)
        same = (mixed == self.plain) | (mixed.isnan() & self.plain.isnan())
        return ~same.all(-1)

    def run(self, marked: Tensor | None = None) -> Tensor:
        """What the output projection gets."""
        self.marked, self.mixed = marked, None
        with _quietly(self.device):
            self.shell(*self.args, **self.kwargs)
        if self.mixed is None or not self.tokens:
            raise UnclearError("its projections were not called")
        return self.mixed

    def _values(self, _module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        if self.opened:
            rest, V = None, out.unflatten(-1, (self.layer.kv_heads, self.layer.head_dim))
        else:
            rest, V = self.layer.split(out, -1)
        self.tokens = V.shape[:-2]
        ours = _different(self.layer, V).expand_as(V).contiguous() if self.equal else torch.zeros_like(V)
        if self.marked is not None:
            # No two features alike: a norm that centres values must not remove the mark.
            mark = _MARK * (1 + torch.arange(V.shape[-1], device=V.device)).sin().to(V.dtype)
            ours = torch.where(self.marked[..., None, None], mark, ours)
        return ours.flatten(-2) if self.opened else self.layer.join(rest, ours, -1)

    def _mixed(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        self.mixed = args[0]


def stream(args: tuple[Any, ...], kwargs: dict[str, Any], width: int) -> Tensor:
    """The tokens among what a module got: the first array of their width that is no mask."""
    named = [value for key, value in kwargs.items() if "mask" not in key and "bias" not in key]
    arrays = [v for v in (*args, *named) if isinstance(v, Tensor) and v.is_floating_point() and v.ndim >= 2]
    arrays = [v for v in arrays if v.shape[-1] == width] or arrays
    if not arrays:
        raise UnclearError("it got no tokens")
    return arrays[0]


def pair_masks(args: tuple[Any, ...], kwargs: dict[str, Any], x: Tensor, n: int) -> list[Tensor]:
    """Arguments with one number per pair of tokens, but not those that are one row for all queries in memory too, as
    padding may be.

    Args:
        args, kwargs: of the call.
        x: the tokens among them.
        n: how many they are.
    """
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v is not x and v.ndim >= 2]
    return [v for v in given if v.shape[-1] == v.shape[-2] == n and v.stride(-2) != 0]


@torch.no_grad()
def may_hide(args: tuple[Any, ...], kwargs: dict[str, Any], x: Tensor, n: int) -> bool:
    """Whether an argument may be a mask of tokens that hides some of them.

    Args:
        args, kwargs: of the call.
        x: the tokens among them.
        n: how many they are.
    """
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v is not x and 2 <= v.ndim <= 4]
    for v in given:
        if v.shape[-1] != n:
            continue
        if v.is_floating_point():
            if bool((v < v.amax(-1, keepdim=True) - _HIDDEN).any()):
                return True
        elif bool(((v == 0) | (v == 1)).all() & (v != 0).any() & (v == 0).any()):
            return True
    return False


@torch.no_grad()
def tells_apart(mask: Tensor) -> bool:
    """Whether a mask of pairs hides from some tokens what it shows to others, whichever way it is meant."""
    if mask.is_floating_point():
        low = mask < mask.amax(-1, keepdim=True) - _HIDDEN
        low = low.all(-3, keepdim=True) if mask.ndim == 4 else low  # of every head
    elif mask.dtype == torch.bool:
        low = mask
    else:
        low = mask != 0
    rows = low.any(-1, keepdim=True) & ~low.all(-1, keepdim=True)  # padding may see all, or nothing
    rows = torch.ones_like(rows) if mask.shape[-1] == 2 else rows
    return bool(((low & rows).any(-2) & (~low & rows).any(-2)).any())


def _is_same(value: Any, x: Tensor) -> bool:
    if value is x:
        return True
    return isinstance(value, Tensor) and value.shape == x.shape and value.dtype == x.dtype and torch.equal(value, x)


def _copied(value: Any) -> Any:
    """A copy of what a call may write to, such as a cache of keys."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, nn.Module):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value  # holds a graph, or a system handle


def _shell(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """The module with the same parameters and settings; hooks, buffers and what is set on it are its own.

    Its own modules too: others may be running the real ones, in another thread or with hooks that listen.
    """
    if id(module) in made:
        return made[id(module)]
    made[id(module)] = new = type(module).__new__(type(module))
    state: dict[str, Any] = dict(module.__dict__)
    for key, value in state.items():
        if key.startswith(("_forward_", "_backward_")) and isinstance(value, dict):
            state[key] = OrderedDict()
        elif key not in _OF_EVERY_MODULE:
            state[key] = _own(value)
    state["_buffers"] = {key: None if b is None else b.detach().clone() for key, b in module._buffers.items()}
    state["_modules"] = {key: None if m is None else _shell(m, made) for key, m in module._modules.items()}
    state.update(training=False, _compiled_call_impl=None)
    own = state.get("forward")
    if own is not None and module._modules:
        # Wrapped on this one object, as accelerate does: what it wraps calls modules of its own.
        inner = inspect.unwrap(own)
        if getattr(inner, "__self__", None) is module:
            state["forward"] = types.MethodType(inner.__func__, new)
    new.__dict__.update(state)
    return new


def _own(value: Any, depth: int = 4) -> Any:
    """What a module may write to, such as a cache that it keeps in an object: copied, but for modules in it."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if depth == 0 or isinstance(value, (nn.Module, type, types.ModuleType)) or callable(value):
        return value
    if type(value) in (list, tuple, set):
        return type(value)(_own(one, depth - 1) for one in value)
    if type(value) is dict:
        return {key: _own(one, depth - 1) for key, one in value.items()}
    if not hasattr(value, "__dict__"):
        return value
    try:
        new = copy.copy(value)
        vars(new).update({key: _own(one, depth - 1) for key, one in vars(value).items()})
    except Exception:
        return value  # holds a system handle
    return new


class _NoDropout(TorchFunctionMode):
    """Switches off dropout that modules apply in eval mode as well."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (F.dropout, torch.dropout):
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            kwargs = {key: value for key, value in kwargs.items() if key != "dropout_p"}
        return func(*args, **kwargs)


@contextmanager
def _quietly(device: torch.device) -> Iterator[None]:
    """A run that leaves no trace: no graph, generators as before, nothing for modes that count or keep operations.

    Nor in autocast's cache: weights that it casts without a graph would then be used where one is wanted.
    """
    devices = [device] if device.type == "cuda" else []
    caches = torch.is_autocast_cache_enabled()
    with torch.no_grad(), _disable_current_modes(), torch.random.fork_rng(devices=devices), _NoDropout():
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(caches)
