"""The eigenvalues of attention that compete with 1 (THEORY §3: centring, causal attention, matrix-free)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from oversmooth.safety import arguments
from oversmooth.theory.krylov import Arnoldi
from oversmooth.theory.operators import AttentionOperator, as_operator
from oversmooth.theory.reducible import Parts, fallen_apart
from oversmooth.theory.small_matrices import complex_of, eigenpairs, eigenvalues
from oversmooth.theory.tokens import centre_tokens

Method = Literal["auto", "dense", "arnoldi"]
METHODS = get_args(Method)
DENSE_TOKENS = 64
"""Up to this many tokens all eigenvalues are computed; above, the extremal ones, unless asked otherwise."""
DEFAULT_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Residual below which a Ritz pair has converged."""
_MATERIALISE = 1 << 26  # entries: up to here forming A once is cheaper than repeating q kᵀ at every step


@dataclass(frozen=True)
class AttentionSpectrum:
    """Eigenvalues of A without its eigenvalue 1 (one of them, if it is repeated)."""

    values: Tensor
    """``(..., m)`` complex, padded with NaN for tokens that the mask hides."""
    residuals: Tensor
    """``(..., m)``, ‖A x − t x‖ of each pair on centred vectors; zero where the method is direct."""
    method: Literal["dense", "causal", "arnoldi"]
    """How the values were computed."""
    tolerance: float
    """The residual required of the extremal values (in 16 directions of the plane). The error of a value is at most
    about its residual times its condition number, which is 1 for symmetric attention.
    """

    @property
    def radius(self) -> Tensor:
        """``(...)``, the largest modulus; zero where no eigenvalue competes with 1."""
        if self.values.shape[-1] == 0:
            return self.values.real.sum(-1)
        return self.values.abs().nan_to_num(nan=0.0).amax(-1)


class CentredAttention:
    """Attention on centred vectors, one item per head: the `LinearSystem` whose eigenvalues are A's without the 1."""

    def __init__(self, flat: AttentionOperator) -> None:
        self.operator = flat
        self.items, self.size = flat.shape[0], flat.tokens
        self.rank = flat.valid_count() - 1
        self.dtype, self.device = flat.dtype, flat.device

    def apply(self, v: Tensor) -> Tensor:
        return self.project((self.operator @ v[..., None])[..., 0])

    def project(self, v: Tensor) -> Tensor:
        if self.operator.mask is None:
            return v - v.mean(-1, keepdim=True)
        return centre_tokens(v[..., None], self.operator.mask)[..., 0]

    def select(self, index: Tensor) -> CentredAttention:
        return CentredAttention(self.operator.select(index))


@torch.no_grad()
def attention_spectrum(
    A: Tensor | AttentionOperator,
    *,
    method: Method = "auto",
    tolerance: float | None = None,
    steps: int = 128,
    seed: int = 0,
) -> AttentionSpectrum:
    """The eigenvalues of A other than 1.

    For causal attention the diagonal without its first entry, exact. Otherwise all n − 1 of them up to 64 tokens, or
    with method="dense"; above that, or with method="arnoldi", the extremal ones, by Arnoldi on centred vectors. The
    vertices of the spectrum's convex hull decide about smoothing, and Arnoldi finds these first.

    Args:
        A: ``(..., n, n)``, attention, or an operator of that shape.
        method: "dense", "arnoldi" or "auto".
        tolerance: residual at which the outermost Ritz values in 16 directions have converged.
        steps: Arnoldi steps at most.
        seed: of the random start of Arnoldi.

    >>> A = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    >>> attention_spectrum(A).values
    tensor([0.2500+0.j])
    """
    A = as_operator(A)
    arguments.choice(method, "method", METHODS)
    tolerance = check_tolerance(tolerance, A.dtype)
    steps, seed = arguments.whole(steps, "steps", least=1), arguments.seed(seed)
    if A.causal and method == "auto":
        values = causal_values(A)
        return AttentionSpectrum(values.to(complex_of(A.dtype)), torch.zeros_like(values), "causal", tolerance)
    flat = materialise_if_small(A).flatten()
    system = CentredAttention(flat)
    parts = {} if method == "arnoldi" else fallen_apart(flat)
    if method == "dense" or (method == "auto" and A.tokens <= DENSE_TOKENS) or A.tokens <= 2 or parts:
        values = dense_values(flat, parts).reshape(*A.batch_shape, -1)
        return AttentionSpectrum(values, torch.zeros_like(values.real), "dense", tolerance)
    values, residuals = _extremal_values(system, tolerance, steps, seed)
    shape = (*A.batch_shape, -1)
    return AttentionSpectrum(values.reshape(shape), residuals.reshape(shape), "arnoldi", tolerance)


def _extremal_values(system: CentredAttention, tolerance: float, most: int, seed: int) -> tuple[Tensor, Tensor]:
    if bool((system.rank != system.rank[0]).any()):
        # Items hide different numbers of tokens: each is computed alone, padded with NaN where it has fewer values.
        each = [system.select(torch.tensor([i], device=system.device)) for i in range(system.items)]
        per_item = [_extremal_values(one, tolerance, most, seed) for one in each]
        width = max(values.shape[-1] for values, _ in per_item)
        padded = [pad(v, (0, width - v.shape[-1]), value=torch.nan) for v, _ in per_item]
        return torch.cat(padded), torch.cat([pad(r, (0, width - r.shape[-1])) for _, r in per_item])
    rank = int(system.rank[0])
    if rank == 0:
        empty = torch.zeros(system.items, 0, dtype=system.dtype, device=system.device)
        return empty.to(complex_of(system.dtype)), empty
    most = min(most, rank)
    basis = Arnoldi(system, seed)
    angles = torch.arange(16, device=system.device) * (2 * math.pi / 16)
    directions = torch.polar(torch.ones_like(angles), -angles).to(complex_of(system.dtype))
    while True:
        basis.extend(min(most, basis.steps + 16))
        theta, y = eigenpairs(basis.H[:, : basis.steps])
        residuals = (basis.H[:, basis.steps, :, None].to(y.dtype) * y).sum(-2).abs()
        outermost = (theta[:, None, :] * directions[:, None]).real.argmax(-1)
        if basis.steps >= rank:
            return theta, torch.zeros_like(residuals)
        if basis.steps >= most or bool((residuals.gather(1, outermost) <= tolerance).all()):
            return theta, residuals


def flip_threshold(A: Tensor | AttentionOperator) -> Tensor:
    """The negative λ below which a real eigenvalue of H smooths again, ``−max_t 2 (1 − Re t)/(1 − |t|²)``.

    t runs over the eigenvalues of A other than 1 (THEORY §3). For a real spectrum with smallest eigenvalue a this is
    −2/(1 + a).

    Args:
        A: ``(..., n, n)``, attention, or an operator of that shape.

    Returns:
        ``(...)``, −∞ where no λ does; that is where 1 is repeated, as with several closed components, or where nothing
        competes with it.
    """
    t = attention_spectrum(A).values
    if not t.shape[-1]:
        return torch.full(t.shape[:-1], -torch.inf, dtype=t.real.dtype, device=t.device)
    bound = 2 * (1 - t.real) / (1 - t.abs().square()).clamp(min=0)
    bound = torch.where(t == 1, torch.inf, bound).nan_to_num(nan=-torch.inf, posinf=torch.inf)
    highest = bound.amax(-1)
    return torch.where(highest == -torch.inf, -torch.inf, -highest)


def causal_values(A: AttentionOperator) -> Tensor:
    """The diagonal of causal attention without its first counted entry, the 1, ``(..., n − 1)``; NaN if hidden."""
    diagonal = A.diagonal()
    if A.mask is None:
        return diagonal[..., 1:]
    counted = torch.where(A.mask, diagonal, torch.nan)
    # The first counted token is moved to the front and dropped; a stable sort keeps the order of the others.
    is_first = A.mask & (A.mask.cumsum(-1) == 1)
    order = torch.argsort((~is_first).to(torch.int8), dim=-1, stable=True)
    return counted.gather(-1, order)[..., 1:]


def dense_values(flat: AttentionOperator, parts: dict[int, Parts]) -> Tensor:
    """All eigenvalues but the 1, ``(items, n − 1)``; NaN for hidden tokens. Those of `parts` are taken block by block.

    Computed from A itself, whose rows and columns LAPACK balances: centring would mix entries of very different size.
    Its eigenvalue 1 is well-conditioned, and the one nearest to 1 is removed.
    """
    A = flat.dense().A
    values = eigenvalues(A.double() if flat.tokens <= DENSE_TOKENS else A).to(complex_of(flat.dtype))
    order = torch.argsort((values - 1).abs(), dim=-1, stable=True)
    values = values.gather(-1, order)[..., 1:]
    if flat.mask is not None:
        # Each hidden token adds a zero that is not A's. It does not matter which zeros go: remove the smallest values.
        hidden = flat.tokens - flat.valid_count()
        rank = values.abs().argsort(-1).argsort(-1)
        values = torch.where(rank < hidden[:, None], torch.nan, values)
    for item, own in parts.items():
        known = torch.cat([block for _, block in own.blocks])
        values[item] = torch.nan
        values[item, : len(known)] = known.to(values)
    return values


def materialise_if_small(A: AttentionOperator) -> AttentionOperator:
    """A as a matrix where that is small, since an operator repeats q kᵀ at every product."""
    return A.dense() if A.shape.numel() <= _MATERIALISE else A


def check_tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    """The residual at which an eigenvalue has converged, as given, or by default that of this precision."""
    return DEFAULT_TOLERANCE[dtype] if tolerance is None else arguments.fraction(tolerance, "tolerance")
