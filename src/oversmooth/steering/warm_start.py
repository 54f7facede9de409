"""Initial values of reparametrized weights: near the model's own weights, or as the paper initialises (THEORY §5)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import about
from oversmooth.steering.methods import orthogonal
from oversmooth.steering.methods.spectral import Spectral
from oversmooth.theory.small_matrices import finite, one_core_each

# Above this width a layer is worth all cores, and its arrays too large to hold those of several layers.
_WIDE = 1024


@dataclass(frozen=True)
class Start:
    """Initial V ``(d, m)``, Θ that V is made of, Λ ``(heads, k)``, and how far each head moved."""

    V: Tensor
    theta: Tensor
    eigenvalues: Tensor
    moved: Tensor
    """``‖H' − H‖ / ‖H‖`` per head."""


def starts(method: Spectral, layers: Sequence[AttentionLayer], generator: torch.Generator) -> Iterator[Start]:
    """Where the reparametrized weights of each layer begin, in the order of the layers."""
    # Weights are read and numbers drawn in the caller's thread, in the order of the layers.
    sources = (
        (layer, layer.W_V.double().cpu(), layer.raw_W_O.double().cpu(), _drawn(method, layer, generator))
        for layer in layers
    )
    in_threads = one_core_each if all(layer.width <= _WIDE for layer in layers) else map
    yield from in_threads(lambda source: _start(method, *source), sources)


def _start(
    method: Spectral, layer: AttentionLayer, W_V: Tensor, W_O: Tensor, drawn: tuple[Tensor, Tensor] | None
) -> Start:
    group = layer.heads // layer.kv_heads
    with about(layer.name):
        if drawn is not None:
            theta, eigenvalues = drawn
            V = theta if method.form == "general" else orthogonal.orthonormal(theta)
        elif method.wiring == "code":
            V, eigenvalues = _as_code(W_V, W_O)
            eigenvalues, theta = method.with_gradient(method.nearest(eigenvalues, 1), 1), V
        else:
            V = nearest_basis(method, W_V[::group], W_O, group)
            eigenvalues = method.with_gradient(method.nearest(_rayleigh(V, W_V, W_O, group), group), group)
            theta = V
        return Start(V, theta, eigenvalues, _moved(method, V, eigenvalues, W_V, W_O, group))


def placeholder(layer: AttentionLayer) -> Start:
    """Arrays of the right shapes, for parameters that are loaded afterwards."""
    V = torch.eye(layer.width, layer.kv_heads * layer.head_dim)
    return Start(V, V, torch.zeros(layer.heads, layer.head_dim), torch.zeros(layer.heads))


def _drawn(method: Spectral, layer: AttentionLayer, generator: torch.Generator) -> tuple[Tensor, Tensor] | None:
    """Θ and Λ of a cold start; None for a warm one."""
    if method.start == "warm":
        return None
    group = layer.heads // layer.kv_heads
    theta = orthogonal.kaiming(layer.width, layer.kv_heads * layer.head_dim, generator).double()
    uniform = torch.empty(layer.heads, layer.head_dim, dtype=torch.float64).uniform_(0, 1, generator=generator)
    if method.form == "general":
        low, high = method.ends
        return theta, (low + (high - low) * uniform) / group
    if method.signs != "one":
        return theta, random_signs(method.seed, layer) * uniform.square() / group
    return theta, method.eigenvalues(uniform / group**0.5, group)


def random_signs(seed: int, layer: AttentionLayer) -> Tensor:
    """``(heads, k)`` of +1 and −1. Of a generator of their own: Θ and |λ| begin as without them, in every layer."""
    words = f"{seed} {layer.name}".encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(words, digest_size=7).digest(), "little"))
    return 2.0 * torch.randint(2, (layer.heads, layer.head_dim), generator=generator).double() - 1


def nearest_basis(method: Spectral, W_V: Tensor, W_O: Tensor, group: int) -> Tensor:
    """One V for all heads.

    Of each value head's H, summed over the query heads that share it, the symmetric part; of its eigenvectors those
    with the largest clipped eigenvalues; then the orthonormal columns nearest to all of them (Procrustes), each
    weighted by its eigenvalue. W_V ``(kv_heads, d, k)``, W_O ``(heads, k, d)``; group: query heads per value head.
    """
    shared, d, k = W_V.shape
    back = W_O.unflatten(0, (shared, group)).sum(1)
    # The symmetric part has rank 2k at most: its eigenvectors lie where W_V and W_Oᵀ do.
    basis = torch.linalg.qr(finite(torch.cat([W_V, back.mT], dim=-1))).Q
    product = (basis.mT @ W_V) @ (back @ basis)
    values, vectors = torch.linalg.eigh(finite((product + product.mT) / 2))
    low, high = method.ends
    clipped = values.clamp(min=low, max=high)
    chosen = clipped.abs().argsort(dim=-1, descending=True)[:, :k]
    columns = basis @ vectors.gather(-1, chosen[:, None].expand(-1, vectors.shape[-2], -1))
    weight = clipped.abs().gather(-1, chosen)
    # Columns that clipping left at zero may point anywhere; they only fill the space.
    weight = weight + 1e-3 * weight.max().clamp(min=1e-12)
    weighted = (columns * weight[:, None]).movedim(0, 1).reshape(d, shared * k)
    U, _, Vh = torch.linalg.svd(finite(weighted), full_matrices=False)
    return U @ Vh


def _rayleigh(V: Tensor, W_V: Tensor, W_O: Tensor, group: int) -> Tensor:
    """``v_jᵀ H_h v_j``: the best Λ beside a given V. ``(heads, k)``."""
    by_head = V.unflatten(-1, (-1, W_V.shape[-1])).movedim(1, 0).repeat_interleave(group, dim=0)
    return ((by_head.mT @ W_V) * (W_O @ by_head).mT).sum(-1)


def _as_code(W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor]:
    """For x Vᵀ, then (·) V Λ: Vᵀ nearest to W_V, and Λ the best beside it."""
    heads, d, k = W_V.shape
    U, _, Vh = torch.linalg.svd(finite(W_V.movedim(0, 1).reshape(d, heads * k)))
    V = (U @ Vh).mT
    return V, (V * W_O.reshape(heads * k, d)).sum(0).view(heads, k)


def _moved(method: Spectral, V: Tensor, eigenvalues: Tensor, W_V: Tensor, W_O: Tensor, group: int) -> Tensor:
    shared = W_V.shape[0] // group
    rows, back = (W.double() for W in method.weights(V, eigenvalues, shared))
    new_V = rows.mT.repeat_interleave(group, dim=0)
    # Products of d by d matrices of rank k, through their k by k factors: never formed.
    size = _inner(W_V, W_O, W_V, W_O)
    distance = size + _inner(new_V, back, new_V, back) - 2 * _inner(new_V, back, W_V, W_O)
    return (distance.clamp(min=0) / size.clamp(min=1e-300)).sqrt()


def _inner(V: Tensor, O: Tensor, W: Tensor, P: Tensor) -> Tensor:  # noqa: E741
    """``⟨V O, W P⟩`` by head, for V, W ``(heads, d, k)`` and O, P ``(heads, k, d)``."""
    return ((V.mT @ W) * (O @ P.mT)).sum((-2, -1))
