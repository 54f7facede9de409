"""Spectra of H, from the value and output weights alone (THEORY §3 and §4).

Row vectors throughout: a head maps a token x to ``x W_V W_O`` with W_V ``(..., heads, d, k)`` and W_O ``(..., heads,
k, d)``. The papers' H is the transpose of that product, so its eigenvalues are the product's.
"""

from typing import Literal

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth.theory.small_matrices import eigenvalues

_WORTH_ASKING = 1 << 27  # above this many entries it is checked whether they fit in memory


def check_weights(W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float32 or better, checked for shape and for entries that are not finite."""
    W_V = arguments.tensor(W_V, "W_V", "(..., heads, d, k)", least=3)
    W_O = arguments.tensor(W_O, "W_O", "(..., heads, k, d)", least=3)
    fits = W_V.shape[-3:] == (W_O.shape[-3], W_O.shape[-1], W_O.shape[-2])
    if not fits or 0 in (*W_V.shape, *W_O.shape):
        raise InputError(
            f"W_V has shape {tuple(W_V.shape)} and W_O {tuple(W_O.shape)}; "
            "they must be (..., heads, d, k) and (..., heads, k, d), and not empty"
        )
    for name, W in (("W_V", W_V), ("W_O", W_O)):
        if not all_finite(W):
            bad = int((~W.isfinite()).sum())
            raise InputError(
                f"{name} has {bad:,} of {W.numel():,} entries that are NaN or infinite; fix the weights first"
            )
    dtype = torch.promote_types(torch.promote_types(W_V.dtype, W_O.dtype), torch.float32)
    return W_V.to(dtype), W_O.to(dtype)


def all_finite(W: Tensor) -> bool:
    """Whether no entry is NaN or infinite; the sum shows it in one quick pass, unless it overflows."""
    return bool(W.sum().isfinite()) or bool(W.isfinite().all())


def one_per_head(value: Tensor | float, like: Tensor, name: str) -> Tensor:
    """One number for all heads, or one per head, as ``(heads,)``, like weights ``(..., heads, d, k)``. name: of the
    argument, for messages.
    """
    return _one_or_each(value, like.shape[-3], "head", like, name)


def one_per_feature(value: Tensor | float, like: Tensor, name: str) -> Tensor:
    """One number for all features, or one per feature, as ``(d,)``, like tokens ``(..., n, d)``."""
    return _one_or_each(value, like.shape[-1], "feature", like, name)


def _one_or_each(value: Tensor | float, count: int, each: str, like: Tensor, name: str) -> Tensor:
    remedy = f"give one finite number, or {count}, one per {each}"
    if isinstance(value, str):
        raise InputError(f"{name} is {arguments.shown(value)}; {remedy}")
    numbers = arguments.numbers(value, name, remedy, dtype=like.dtype, device=like.device)
    if numbers.ndim > 1 or numbers.numel() not in (1, count) or not numbers.isfinite().all():
        raise InputError(f"{name} is {arguments.shown(value)}; {remedy}")
    return numbers.expand(count)


def head_spectrum(W_V: Tensor, W_O: Tensor) -> Tensor:
    """The eigenvalues of each head's H that can differ from zero.

    ``W_V W_O`` is d by d of rank k; its nonzero eigenvalues are those of the k by k matrix ``W_O W_V``, and the other
    d − k are zero. For d < k the d by d product is the smaller one and is used instead.

    Args:
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.

    Returns:
        ``(..., heads, min(d, k))`` complex.
    """
    W_V, W_O = check_weights(W_V, W_O)
    return eigenvalues(smaller_product(W_V, W_O))


def asymmetry(W_V: Tensor, W_O: Tensor) -> Tensor:
    """``‖H − Hᵀ‖/‖H‖`` per head, in the Frobenius norm: 0 where H is symmetric, 2 where it is skew.

    H is never formed: ``‖H − Hᵀ‖² = 2‖H‖² − 2 tr H²``, and both are of k by k products.

    Args:
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.

    Returns:
        ``(..., heads)`` in float64, NaN where H is zero.

    >>> asymmetry(torch.eye(2)[None], torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]))
    tensor([1.1547], dtype=torch.float64)
    """
    V, O = (weight.double() for weight in check_weights(W_V, W_O))  # noqa: E741
    product = O @ V
    size = ((V.mT @ V) * (O @ O.mT)).sum((-2, -1))
    trace = (product * product.mT).sum((-2, -1))
    return (2 - 2 * trace / size).clamp(min=0).sqrt()


def smaller_product(V: Tensor, O: Tensor) -> Tensor:  # noqa: E741
    """``O V`` or ``V O``, whichever is smaller; both have the same nonzero eigenvalues."""
    return V @ O if V.shape[-2] < V.shape[-1] else O @ V


def joined_spectrum(W_V: Tensor, W_O: Tensor) -> Tensor:
    """The eigenvalues of all heads jointly, ``W = Σ_h W_V^h W_O^h``.

    If heads·k < d the remaining d − heads·k eigenvalues are zero.

    Args:
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.

    Returns:
        ``(..., min(d, heads·k))`` complex.
    """
    W_V, W_O = check_weights(W_V, W_O)
    return eigenvalues(smaller_product(*stack_heads(W_V, W_O)))


def joined_asymmetry(W_V: Tensor, W_O: Tensor) -> Tensor:
    """``‖H − Hᵀ‖/‖H‖`` of all heads jointly.

    Args:
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.

    Returns:
        ``(...)`` in float64, NaN where H is zero.
    """
    V, O = stack_heads(*check_weights(W_V, W_O))  # noqa: E741
    return asymmetry(V[..., None, :, :], O[..., None, :, :])[..., 0]


def stack_heads(W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor]:
    """All heads side by side: ``(..., d, heads·k)`` and ``(..., heads·k, d)``."""
    heads, d, k = W_V.shape[-3:]
    V = W_V.movedim(-3, -2).reshape(*W_V.shape[:-3], d, heads * k)
    O = W_O.reshape(*W_O.shape[:-3], heads * k, d)  # noqa: E741
    return V, O


def repeat_shared_heads(W_V: Tensor, heads: int) -> Tensor:
    """Value weights with one slice per query head, for grouped queries: shared slices are repeated.

    Args:
        W_V: ``(..., kv_heads, d, k)``, one slice per value head.
        heads: the number of query heads, a multiple of kv_heads.

    Returns:
        ``(..., heads, d, k)``, one slice per query head.
    """
    W_V = arguments.tensor(W_V, "W_V", "(..., kv_heads, d, k)", least=3, floating=False)
    heads, shared = arguments.whole(heads, "heads", least=1), W_V.shape[-3]
    if shared < 1 or heads % shared:
        raise InputError(f"{heads} query heads cannot share {shared} value heads evenly; give a multiple")
    if W_V.numel() // shared * heads > _WORTH_ASKING and W_V.device.type == "cpu":
        size = W_V.numel() // shared * heads * W_V.element_size()
        check_fits(size, f"repeating W_V for {heads:,} heads", "give fewer heads")
    return W_V.repeat_interleave(heads // shared, dim=-3)


def without_repeats(W_V: Tensor) -> Tensor:
    """``(heads, d, k)`` without the repeats of `repeat_shared_heads`: one slice per value head, evenly shared."""
    changes = (W_V[1:] != W_V[:-1]).flatten(1).any(-1).tolist()
    starts = [0, *(h for h, new in enumerate(changes, start=1) if new)]
    group = len(W_V) // len(starts)
    return W_V[::group] if starts == list(range(0, len(W_V), group)) else W_V


def on_constant_arrays(W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor]:
    """W_V ``(d, m)`` and W_O ``(m, d)`` of all heads side by side, for arrays whose tokens are equal.

    Heads that share their values add up there.
    """
    V = without_repeats(W_V)
    return stack_heads(V, W_O.unflatten(0, (len(V), -1)).sum(1))


def centre_features(W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor]:
    """The weights on tokens of zero mean over features, as after a LayerNorm, for Post-LN.

    ``Bᵀ W_V`` and ``W_O B``, the columns of B an orthonormal basis of such tokens: all but the first of the reflection
    that maps constant features to the first axis (THEORY §4).

    Args:
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.

    Returns:
        ``(..., heads, d − 1, k)`` and ``(..., heads, k, d − 1)``, W_V and W_O.
    """
    W_V, W_O = check_weights(W_V, W_O)
    d = W_V.shape[-2]
    if d < 2:
        raise InputError("tokens of 1 feature have nothing left without their mean; give 2 features or more")
    v = torch.full((d, 1), d**-0.5, dtype=W_V.dtype, device=W_V.device)
    v[0] += 1
    v = v * (2**0.5 / torch.linalg.vector_norm(v))
    return (W_V - v @ (v.mT @ W_V))[..., 1:, :], (W_O - (W_O @ v) @ v.mT)[..., 1:]


def fold_norm(
    W_V: Tensor,
    gamma: Tensor | float = 1.0,
    *,
    kind: Literal["layer", "rms"] = "layer",
    inverse_sigma: float = 1.0,
) -> Tensor:
    """W_V with the norm before it folded in, ``C diag(γ) W_V / σ`` (THEORY §4).

    LayerNorm also removes the mean over features, ``C = I − 11ᵀ/d``; RMSNorm does not. β does not enter: with the value
    bias it is a constant offset, `dominance`'s ``bias``.

    Args:
        W_V: ``(..., heads, d, k)``, value weights.
        gamma: ``()``, ``(d,)`` or ``(..., d)``, γ, the same for all heads.
        kind: LayerNorm or RMSNorm.
        inverse_sigma: the mean of 1/σ over tokens, where it was observed.

    Returns:
        ``(..., heads, d, k)``, like W_V.
    """
    W_V = arguments.tensor(W_V, "W_V", "(..., heads, d, k)")
    d = W_V.shape[-2]
    remedy = f"give one number, or {d}, one per feature"
    gamma = arguments.numbers(gamma, "γ", remedy, dtype=W_V.dtype, device=W_V.device)
    inverse_sigma = arguments.number(inverse_sigma, "1/σ")
    arguments.choice(kind, "norm kind", ("layer", "rms"))
    if gamma.ndim and gamma.shape[-1] not in (1, d):
        raise InputError(f"γ has {gamma.shape[-1]} entries but W_V takes {d} features; give one, or one per feature")
    if not gamma.isfinite().all():
        raise InputError("γ has NaN or infinite entries; fix the norm first")
    if gamma.ndim:  # one per feature, and the same for all heads of a layer
        gamma = gamma[:, None] if gamma.ndim == 1 else gamma[..., None, :, None]
    arguments.check_broadcast(W_V=W_V.shape, γ=gamma.shape)
    folded = W_V * gamma * inverse_sigma
    return folded - folded.mean(-2, keepdim=True) if kind == "layer" else folded
