"""What the attention of a steered layer did: which tokens it hid from which, and whether it only weighed values.

Hooks around attention record each call that mixes tokens. A method that averages over tokens acts where the recorded
masks show every valid token to every other. Where nothing was recorded, it is refused. Compiled code and CUDA graphs
cannot read masks: there such a method acts where an eager pass showed all tokens before, or where attention is known to
be bidirectional.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

from oversmooth.anatomy.calls import PADDING_HIDDEN, PADDING_SHOWN
from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering.methods.arrays import repeat_heads
from oversmooth.steering.passes import Passes, mask_of_attention

_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
# So far below the largest of its row, a score hides, as do masks of −100: e⁻⁵⁰ is nothing beside 1 in float32.
_HIDDEN = 50.0
_ROOM = 0.02  # for half precision, which models use inside where they return float32
_SHARE = 0.9  # of the tokens that must agree
_TRIES = 3


class MaskGuard:
    """The checks of one layer.

    Args:
        index: of the layer in the stack.
        layer: its attention.
        passes: of the steered model.
    """

    def __init__(self, index: int, layer: AttentionLayer, passes: Passes) -> None:
        self.index, self.layer, self.passes = index, layer, passes
        self.averaging = ""
        """The methods that average over tokens, in words."""
        self.inside = ""
        """The methods that rely on attention being a weighted mean of values, in words."""
        self.projections: dict[str, tuple[nn.Module, nn.Module]] = {}
        """The modules of its values and its output where methods rely on them, by name, with those that hold them."""
        self.seen: dict[str, int] = {}
        """Ways of calling attention that hid nothing, each with the most tokens."""
        self.tries = 0
        """How many passes were compared with a weighted mean; `_TRIES` when that is settled."""

    def hook(self, modules: dict[str, nn.Module]) -> list[Any]:
        """Put the hooks on, after those of the methods, and return their handles.

        Args:
            modules: every module of the model by name.
        """
        attention = modules[self.layer.name]
        value, output = self.layer.value_module[0], self.layer.output_module[0]
        if self.inside:
            self.projections = {n: (modules[n.rpartition(".")[0]], modules[n]) for n in (value, output)}
        # What only holds projections is never called.
        runs = modules[self.layer.block] if type(attention).forward is nn.Module.forward else attention
        handles = [runs.register_forward_pre_hook(self._enter, with_kwargs=True)]
        handles.append(runs.register_forward_hook(self._leave, always_call=True))
        if self.inside:
            handles.append(modules[value].register_forward_hook(self._values))
            handles.append(modules[output].register_forward_pre_hook(self._mixed, prepend=True))
        return handles

    def check_projections(self) -> None:
        """Refuse projections that are other modules by now, as adapters put one around them."""
        for name, (holder, module) in self.projections.items():
            now = holder._modules.get(name.rpartition(".")[2])
            if now is not module:
                raise InputError(
                    f"{name} was steered and is another module now ({type(now).__module__}.{type(now).__name__}), "
                    f"which {self.inside} does not know of; unsteer the model, add what is new and merge it, and steer "
                    "after that"
                )

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        running, kwargs = self.passes.current(), kwargs or {}
        if self.averaging and running is not None and not running.told:
            running.mask = mask_of_attention(module, kwargs)  # the model around it may have another name for it
        if cannot_look():
            if self.averaging:
                self._check_unseen(module, args, kwargs)
            return
        self.check_projections()
        if self.averaging or self.tries < _TRIES:
            _Calls(self, *_way(module, args, kwargs)[:2]).__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, *_: Any) -> None:
        if not cannot_look() and (calls := self._calls()) is not None:
            calls.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _calls(self) -> _Calls | None:
        """What was recorded in the run of this layer that this thread is in."""
        modes = reversed(_get_current_function_mode_stack())
        return next((mode for mode in modes if isinstance(mode, _Calls) and mode.guard is self), None)

    def averaged_over(self, x: Tensor, tokens: torch.Size) -> Tensor | None:
        """``(batch, n)``: the valid tokens, over which methods average; None: all.

        Args:
            x: what is to be averaged.
            tokens: its ``(batch, n)``, or ``(n,)``.

        Raises:
            InputError: attention hid some of them from others, or there is no record of what it did.
        """
        running, n = self.passes.current(), tokens[-1]
        mask = None if running is None else running.counted(tokens)
        if n < 2 or x.is_meta or isinstance(x, FakeTensor):  # which have shapes but no values
            return mask
        if cannot_look():
            if not self.seen and self.layer.causal is not False:
                raise self._unclear("it is compiled")
            return mask
        calls = self._calls()
        if calls is None or not calls.made or any(call.shape[-2:] != (n, n) for call in calls.made):
            raise self._unclear("no softmax over its tokens, and no scaled_dot_product_attention")
        settled = not calls.masked and self.seen.get(calls.way, 0) >= n
        known = None if running is None else running.open_mask  # most models use one mask for all layers
        for call in calls.made:
            read = call.mask is None or settled or (call.A is None and call.mask is known)
            if call.causal or not read:
                with torch.no_grad(), _disable_current_modes():
                    self._check_pairs(call.pairs(tokens[:-1].numel(), x.device), mask)
                if running is not None:
                    running.open_mask = call.mask
        if self.seen.get(calls.way, 0) < n:
            self.seen[calls.way] = n
        return mask

    def _check_pairs(self, pairs: Tensor | None, mask: Tensor | None) -> None:
        """Pairs ``(batch, n, n)``: who sees whom; mask ``(batch, n)``: the valid tokens, None: not known."""
        if pairs is None:
            raise self._unclear("its inputs are not those of its values")

        def hidden(valid: Tensor | None) -> bool:
            lost = ~pairs if valid is None else ~pairs & valid[..., None, :] & valid[..., :, None]
            return bool(lost.any())

        if not hidden(mask):
            return
        if mask is None and not hidden(pairs.any(-2)):
            hides = f"some from all others, as padding is, which no {PADDING_SHOWN} or {PADDING_HIDDEN} tells"
            raise self._refused(hides, "name the mask so where the blocks are run,")
        raise self._hides()

    def _check_unseen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiled code runs with masks whose entries cannot be read."""
        if isinstance(module, nn.MultiheadAttention) and kwargs.get("attn_mask") is not None:
            raise self._hides()
        way, masked, n = _way(module, args, kwargs)
        seen, known = self.seen.get(way, 0), self.layer.causal is False and not getattr(module, "is_causal", False)
        # Of longer inputs a window, where there may be one, hides more.
        if seen < n and not (known and (seen or not masked)):
            raise self._unclear("it is compiled")

    def _refused(self, hides: str, remedy: str) -> InputError:
        where = f"layer {self.index} ({self.layer.name})"
        return InputError(
            f"{self.averaging} averages over all tokens, and {where} hides {hides}; {remedy} or use NeuTRENO, "
            "ValueResidual or Laplacian"
        )

    def _hides(self) -> InputError:
        hides = "some of them from others, as causal and windowed attention do"
        return self._refused(hides, "leave such layers out,")

    def _unclear(self, why: str) -> InputError:
        remedy = "run one batch through the model as it is, before it is compiled or wrapped,"
        return self._refused(f"what could not be seen ({why})", remedy)

    def _values(self, _module: nn.Module, _args: Any, out: Tensor) -> None:
        if isinstance(out, Tensor) and not cannot_look() and (calls := self._calls()) is not None:
            calls.V = self.layer.split(out, -1)[1]

    def _mixed(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        """Compare what enters the output projection with values weighed by attention, until that is settled."""
        if not args or cannot_look() or self.tries >= _TRIES or (calls := self._calls()) is None:
            return
        V, U = calls.V, args[0].unflatten(-1, (self.layer.heads, self.layer.head_dim))
        if V is None or V.shape[:-2] != U.shape[:-2] or U.is_meta or isinstance(U, FakeTensor):
            return
        self.tries += 1
        with torch.no_grad(), _disable_current_modes():
            V, U = (x.reshape(-1, *x.shape[-3:]) for x in (V, U))
            found = [call.distance(V, U) for call in calls.made if call.A is None or not calls.drops]
        apart = [distance for distance in found if distance is not None]
        if not apart:
            return
        self.tries = _TRIES
        if min(apart) > _ROOM:
            self.tries = 0
            raise InputError(
                f"{self.inside} cannot act on layer {self.index} ({self.layer.name}): attention there is no weighted "
                f"mean of values, so it does more than weigh them ({min(apart):.2g} off, where up to {_ROOM} is "
                "rounding); unsteer the model"
            )


class _Calls(TorchFunctionMode):
    """What attention calls while it runs, in one thread."""

    def __init__(self, guard: MaskGuard, way: str, masked: bool) -> None:
        super().__init__()
        self.guard, self.way, self.masked = guard, way, masked
        self.made: list[_Call] = []
        self.drops = False
        """Whether dropout took weights away."""
        self.V: Tensor | None = None
        """``(..., n, kv_heads, k)``: the values, as methods leave them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self.made.append(_fused(out, *args, **kwargs))
        elif func in _SOFTMAX and isinstance(out, Tensor) and out.ndim > 2 and out.shape[-1] == out.shape[-2]:
            self.made.append(_Call(out.shape, args[0] if args else kwargs["input"], A=out.detach()))
        elif func is F.dropout:
            self.drops |= _drops(*args, **kwargs)
        return out


@dataclass
class _Call:
    """One call that mixes tokens."""

    shape: torch.Size
    """Of its scores, ``(..., queries, keys)``."""
    mask: Tensor | None
    """True where a query sees a key, or scores, or what is added to them."""
    causal: bool = False
    A: Tensor | None = None
    """The weights, where it returned these."""
    value: Tensor | None = None
    out: Tensor | None = None
    """The values it got and what it made of them, else."""

    def pairs(self, batch: int, device: torch.device) -> Tensor | None:
        """``(batch or 1, n, n)``: who sees whom in any head; None: it ran on other inputs."""
        if self.causal:
            return torch.ones(1, *self.shape[-2:], dtype=torch.bool, device=device).tril()
        mask = self.mask
        assert mask is not None
        pairs = mask if mask.dtype == torch.bool else ~(mask < mask.amax(-1, keepdim=True) - _HIDDEN)
        pairs = pairs.reshape((1,) * (len(self.shape) - pairs.ndim) + pairs.shape)
        if pairs.ndim == 3:  # heads are among the inputs
            pairs = pairs[:, None] if len(pairs) % batch else pairs.unflatten(0, (batch, -1))
        pairs = pairs.flatten(1, -3).any(1).to(device)
        return pairs if len(pairs) in (1, batch) else None

    def distance(self, V: Tensor, U: Tensor) -> float | None:
        """How far U ``(b, n, heads, k)`` is from V ``(b, n, kv_heads, k)`` weighed; None: not comparable."""
        if self.A is not None:
            if self.A.numel() != U.shape[0] * U.shape[2] * U.shape[1] ** 2:
                return None
            A = self.A.reshape(U.shape[0], U.shape[2], U.shape[1], U.shape[1])
            return _apart((A.to(V.dtype) @ repeat_heads(V, U.shape[2]).transpose(1, 2)).transpose(1, 2), U)
        value, out = (None if x is None else _by_token(x, U) for x in (self.value, self.out))
        if value is None or out is None or value.shape[2] % V.shape[2] or out.shape != U.shape:
            return None
        return max(_apart(value, repeat_heads(V, value.shape[2])) or 0.0, _apart(out, U) or 0.0)


def _fused(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001  torch's own signature
    is_causal: bool = False,
    scale: float | None = None,  # noqa: ARG001
    enable_gqa: bool = False,  # noqa: ARG001
) -> _Call:
    shape = torch.Size([*query.shape[:-1], key.shape[-2]])
    return _Call(shape, attn_mask, is_causal, value=value.detach(), out=out.detach())


def _drops(_x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:  # noqa: ARG001
    return training and p > 0


def _by_token(x: Tensor, U: Tensor) -> Tensor | None:
    """``(b, n, heads, k)`` of ``(..., n, k)``; None where it is of other tokens or features."""
    b, n, _, k = U.shape
    return x.reshape(b, -1, n, k).transpose(1, 2) if x.shape[-2:] == (n, k) and x.numel() % (b * n * k) == 0 else None


def _apart(a: Tensor, b: Tensor) -> float | None:
    """The relative distance of most tokens ``(b, n, heads, k)``; None where none has finite numbers."""
    a, b = (x.flatten(2).double() for x in (a, b))
    apart = (a - b).norm(dim=-1) / b.norm(dim=-1)
    apart = apart[apart.isfinite()]
    return float(apart.quantile(_SHARE)) if len(apart) else None


def cannot_look() -> bool:
    """Whether there are no numbers to read: compiled, traced, mapped over, or captured in a CUDA graph."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _way(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, bool, int]:
    """How a module is called: its switches and the arrays passed; whether some may be masks; and the number of tokens.

    A call with others may hide what this one does not.
    """
    given = [("", value) for value in args] + list(kwargs.items())
    words, masked, x = [], False, None
    for name, value in given + [(name, getattr(module, name, None)) for name in ("is_causal", "causal")]:
        if isinstance(value, Tensor):
            words.append(f"{name}:{value.ndim}{value.is_floating_point()}")
            x = value if x is None and value.ndim > 1 and value.is_floating_point() else x
            masked = masked or (value.ndim > 1 and value is not x)
        else:
            words.append(f"{name}:{value if value is None or isinstance(value, (bool, str)) else type(value).__name__}")
            masked = masked or not (value is None or isinstance(value, (bool, int, float, str)))
    if x is None or x.ndim != 3:
        return " ".join(words), masked, sys.maxsize
    return " ".join(words), masked, x.shape[-2] if getattr(module, "batch_first", True) else x.shape[0]
