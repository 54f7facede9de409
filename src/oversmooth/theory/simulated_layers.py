"""The layers that a simulation goes through: what each does to tokens, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.weights import check_weights, stack_heads, without_repeats


@dataclass(frozen=True)
class Layer:
    """One layer of the stack."""

    A: AttentionOperator
    W_V: Tensor
    W_O: Tensor
    bias: Tensor | None

    @property
    def batch_shape(self) -> torch.Size:
        return arguments.broadcast(self.A.shape[:-3], self.W_V.shape[:-3], self.W_O.shape[:-3])

    @property
    def tokens(self) -> Tensor | None:
        """The valid tokens, ``(..., n)``: the same for all heads."""
        return None if self.A.mask is None else self.A.mask[..., 0, :]

    @cached_property
    def _stacked(self) -> tuple[Tensor, Tensor]:
        """All heads side by side; values that heads share are in there once."""
        W_V = without_repeats(self.W_V) if self.W_V.ndim == 3 else self.W_V
        return stack_heads(W_V, W_V.mT)[0], stack_heads(self.W_V, self.W_O)[1]

    def values(self, X: Tensor) -> Tensor:
        """``X W_V^h``, ``(..., n, d) -> (..., heads, n, k)``."""
        V = (X @ self._stacked[0]).unflatten(-1, (-1, self.W_V.shape[-1])).transpose(-2, -3)
        return V.repeat_interleave(self.W_V.shape[-3] // V.shape[-3], dim=-3)

    def outputs(self, U: Tensor) -> Tensor:
        """``Σ_h U_h W_O^h``, ``(..., heads, n, k) -> (..., n, d)``."""
        return U.transpose(-2, -3).flatten(-2) @ self._stacked[1]

    def mix(self, X: Tensor, source: Tensor | None, strength: Tensor) -> Tensor:
        """``Σ_h (A_h V_h + λ̃ (V⁰_h − V_h)) W_O^h`` for ``V_h = X W_V^h``; without source, V⁰, that term is left out."""
        V = self.values(X)
        U = self.A @ V
        return self.outputs(U if source is None else U + strength[:, None, None] * (source - V))


def stack_of_layers(
    X: Tensor,
    A: Tensor | AttentionOperator | Sequence[Tensor | AttentionOperator],
    W_V: Tensor | Sequence[Tensor],
    W_O: Tensor | Sequence[Tensor],
    bias: Tensor | Sequence[Tensor | None] | None,
) -> list[Layer]:
    """The layers of one pass, from one or a list of each; InputError where they do not fit the tokens or each other."""

    def listed(x: Any) -> list[Any]:
        return list(x) if isinstance(x, (list, tuple)) else [x]

    given = [listed(x) for x in (A, W_V, W_O, bias)]
    depth = max(len(x) for x in given)
    if any(len(x) not in (1, depth) for x in given) or depth == 0:
        counts = f"{len(given[0])} A, {len(given[1])} W_V and {len(given[2])} W_O"
        biases = f", and {len(given[3])} biases" if len(given[3]) != 1 else ""
        raise InputError(f"the stack has {counts}{biases}; give one or as many of each")
    if isinstance(bias, (list, tuple)) and not all(b is None or isinstance(b, Tensor) for b in bias):
        raise InputError("bias is a list of numbers; give a tensor, or a list of tensors, one per layer")
    operators = [as_operator(a) for a in given[0]]
    dtype = X.dtype
    for operator in operators:
        dtype = torch.promote_types(dtype, operator.dtype)
    mask = operators[0].mask
    layers = []
    for i in range(depth):
        operator = operators[i % len(operators)].to(dtype)
        v, o, added = (x[i % len(x)] for x in given[1:])
        v, o = check_weights(v, o)
        fits = X.ndim > 1 and X.shape[-2:] == (operator.tokens, v.shape[-2]) and operator.shape[-3:-2] == v.shape[-3:-2]
        if not fits:
            raise InputError(
                f"layer {i}: tokens {tuple(X.shape)}, attention {tuple(operator.shape)} and "
                f"W_V {tuple(v.shape)} do not fit; they must be (..., n, d), (..., heads, n, n) and (heads, d, k)"
            )
        arguments.check_broadcast(
            tokens=X.shape[:-2], attention=operator.shape[:-3], W_V=v.shape[:-3], W_O=o.shape[:-3]
        )
        other = operator.mask
        differs = (mask is None) != (other is None)
        if differs or (mask is not None and other is not None and not bool((other == mask[..., :1, :]).all())):
            raise InputError(f"layer {i}: the mask differs from the first layer's, or between heads; give one for all")
        if added is not None:
            name = "bias" if len(given[3]) == 1 else f"bias of layer {i}"
            added = one_per_feature(added, X[..., :1, :].to(dtype), name)
        layers.append(Layer(operator, v.to(X.device, dtype), o.to(X.device, dtype), added))
    return layers


def one_per_feature(value: Tensor | float, X: Tensor, name: str) -> Tensor:
    """The value as finite numbers, ``()``, ``(1,)`` or ``(d,)``, in X's precision; InputError calls it by this name."""
    remedy = f"give finite numbers, one or {X.shape[-1]}, one per feature"
    numbers = arguments.numbers(value, name, remedy, dtype=X.dtype, device=X.device)
    if numbers.ndim > 1 or numbers.numel() not in (1, X.shape[-1]):
        raise InputError(f"{name} has shape {tuple(numbers.shape)}; {remedy}")
    if not numbers.isfinite().all():
        raise InputError(f"{name} has NaN or infinite entries; {remedy}")
    return numbers
