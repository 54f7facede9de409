"""Verdicts that are proven, rounding included: for attention at hand, and from weights alone.

*Attention at hand* is known up to the rounding of its entries, a matrix of norm ε. Whether all eigenvalues t of A that
compete with 1 lie in the region ``S = {z : |base + λ_j (z − s)| ≤ ρ for all j}`` is certain where no z on the edge of S
is an eigenvalue of any A within ε: then all of these A have the same number of eigenvalues outside S. Two proofs are
tried, by `one_head` where the error model (`errors`) leaves doubt: discs about the computed eigenvalues, and
σ_min(z − B) on the edge itself, which is 1-Lipschitz in z, so that finitely many points are enough (THEORY, what is
certain).

*Weights alone.* `head_verdicts` has what holds for any attention (THEORY §3, verdicts from weights alone).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.reducible import components
from oversmooth.theory.small_matrices import eigenvalues_and_conditions, finite, inverse, one_core_each
from oversmooth.theory.weights import check_weights, head_spectrum, smaller_product

Words: TypeAlias = Any
"""A str for one case, nested lists of them for a batch; which of the two depends on the shape of the arguments."""
CERTIFY_TOKENS = 512
"""A proof is tried up to this many tokens."""
_POINTS = 128  # at most this many inverses for one proof
_AT_ONCE = 8  # of them, on one core
_SQUARINGS = 6
_CRITICAL = 16  # at most this many eigenvalues near the edge, for discs to be scaled
_EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Region:
    """S, in float64: the eigenvalues t of A for which ``|base + λ_j (t − shift)|`` is at most ρ for all j."""

    lam: Tensor  # (k,) complex, closed under conjugation
    base: float
    shift: float
    rho: float
    slack: Tensor  # (k,): how far ρ and each λ may be off, as a change of |μ|

    def score(self, z: Tensor) -> Tensor:
        """``max_j |base + λ_j (z − shift)|``, of the shape of z."""
        return (self.base + self.lam * (z[..., None] - self.shift)).abs().amax(-1)


def certified(B: Tensor, region: Region, eps: float) -> bool:
    """Whether all matrices within eps of B ``(m, m)`` provably have equally many eigenvalues outside the region."""
    if len(B) == 0:
        return True
    size = float(torch.linalg.matrix_norm(finite(B), 2))
    eps = eps + 8 * len(B) * _EPS * size  # the error of computing eigenvalues and inverses
    by_discs = _by_discs(B, region, eps)
    return _by_the_edge(B, region, eps, size) if by_discs is None else by_discs


def _by_discs(B: Tensor, region: Region, eps: float) -> bool | None:
    """Gershgorin's theorem for ``V⁻¹(B + E)V``: entries in row i are at most κ_i ε, κ_i the length of row i of V⁻¹.

    Eigenvalues near the edge are separated from the others by scaling: with their columns divided by m, their own discs
    have radius (c + 1) κ_i ε for c of them, and all others' grow. False where an eigenvalue crosses the edge to first
    order already, None where the discs do not decide.
    """
    values, kappa = eigenvalues_and_conditions(B)
    m = len(B)
    if not _believed(kappa):
        return None
    mu = (region.base + region.lam * (values[:, None] - region.shift)).abs()

    def sides(radius: Tensor) -> tuple[Tensor, Tensor]:
        blur = radius[:, None] * region.lam.abs() + region.slack
        return (mu + blur < region.rho).all(-1), (mu - blur > region.rho).any(-1)

    inside, outside = sides(kappa * eps)
    if not bool((inside | outside).all()):
        return False
    radius = m * kappa * eps
    inside, outside = sides(radius)
    critical = ~(inside | outside)
    c = int(critical.sum())
    if 0 < c <= _CRITICAL:
        radius = torch.where(critical, c + 1, m * (c + 1)) * kappa * eps
        inside, outside = sides(radius)
    if bool(inside.all()):
        return True
    # Each connected part of the discs' union has as many eigenvalues as discs: one part wholly outside is enough.
    near = (values[:, None] - values).abs() <= radius[:, None] + radius
    return True if any(bool(outside[tokens].all()) for tokens, _ in components(near)) else None


def _believed(kappa: Tensor) -> bool:
    """Whether condition numbers are known to a few digits."""
    return bool(kappa.isfinite().all()) and float(kappa.norm()) * _EPS <= 1e-3 / len(kappa)


def _by_the_edge(B: Tensor, region: Region, eps: float, size: float) -> bool:
    """Arcs of the circles ``|base + λ_j (z − shift)| = ρ`` are halved until a point of each clears the whole arc.

    σ_min(z − B) is at least 1/‖(z − B)⁻¹‖ in the Frobenius norm, a tenth of the work of singular values.
    """
    half = (region.lam.imag >= 0) & (region.lam.abs() > 0)  # B is real: the other half mirrors this one
    lam, slack = region.lam[half], region.slack[half]
    if region.rho <= 0:
        return False
    centre, radius = region.shift - region.base / lam, region.rho / lam.abs()
    blur = eps + slack / lam.abs()
    # Circles that pass outside the disc of radius ‖B‖ pass all eigenvalues by.
    near = (centre.abs() - radius).abs() <= size + blur
    centre, radius, blur = centre[near], radius[near], blur[near]
    steep = float(region.lam.abs().max()) if len(region.lam) else 0.0
    at = torch.arange(len(centre)).repeat_interleave(8)
    begin = (torch.arange(8, dtype=torch.float64) * (math.pi / 4)).repeat(len(centre))
    width = torch.full_like(begin, math.pi / 4)
    eye = torch.eye(len(B), dtype=torch.complex128, device=B.device)

    def size_of_inverse(z: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(inverse(z[:, None, None] * eye - B))

    left = _POINTS
    while len(at):
        z = centre[at] + torch.polar(radius[at], begin + width / 2)
        needed = 2 * radius[at] * torch.sin(width / 4)
        over = region.score(z) - region.rho
        open_ = torch.maximum(over / steep, z.abs() - size - blur[at]) < needed
        at, begin, width, z, needed, over = (x[open_] for x in (at, begin, width, z, needed, over))
        if not len(at):
            return True
        left -= len(at)
        if left < 0:
            return False
        inverses = torch.cat(list(one_core_each(size_of_inverse, z.split(_AT_ONCE))))
        sigma = (1 / inverses).nan_to_num(nan=0.0) - blur[at]
        if bool(((sigma <= 0) & (over <= _EPS * region.rho)).any()):
            return False
        open_ = torch.maximum(sigma, over / steep) < needed
        at, begin, width = (x[open_] for x in (at, begin, width))
        at, width = at.repeat(2), (width / 2).repeat(2)
        begin = torch.cat([begin, begin + width[: len(begin)]])
    return True


def head_verdicts(W_V: Tensor, W_O: Tensor, causal: bool = False, values: Tensor | None = None) -> Words:
    """What the weights alone decide, for each head alone and any attention.

    Holds for two tokens or more, without biases, with softmax attention: every weight that no mask hides is positive.
    "smooth" and "rough" are proven, rounding included; "rough" excludes input convergence. "open" depends on attention,
    or needs more digits (THEORY §3, verdicts from weights alone).

    Args:
        W_V: ``(..., heads, d, k)``, value weights.
        W_O: ``(..., heads, k, d)``, output weights.
        causal: whether attention is causal, which decides more.
        values: ``(..., heads, min(d, k))``, the result of `head_spectrum`, where it is known already; it says where a
            proof is worth trying.

    Returns:
        ``(..., heads)`` as nested lists of "smooth", "rough" and "open".

    >>> W, values = torch.eye(2)[None], torch.tensor([0.5, 0.3])
    >>> head_verdicts(W, -values * W), head_verdicts(W, values * W), head_verdicts(W, -3 * W, causal=True)
    (['rough'], ['smooth'], ['smooth'])
    """
    W_V, W_O = check_weights(W_V, W_O)
    causal = arguments.flag(causal, "causal")
    about = head_spectrum(W_V, W_O) if values is None else values
    if not isinstance(about, Tensor) or about.shape[:-1] != W_V.shape[:-2] or not about.shape[-1]:
        raise InputError(f"values is {arguments.shown(values)}; give what head_spectrum gives")
    flat = (x.reshape(-1, *x.shape[-n:]).cpu() for x, n in ((W_V, 2), (W_O, 2), (about, 1)))
    words = [_weights_alone(V, output, lam, causal) for V, output, lam in zip(*flat, strict=True)]
    return nested(words, W_V.shape[:-2])


def nested(words: Sequence[str], shape: Sequence[int]) -> Words:
    """The words of a batch, in the order of its flattened entries, nested as a tensor's `tolist` would nest them.

    >>> nested(["rough", "smooth"], (2, 1)), nested(["tie"], ())
    ([['rough'], ['smooth']], 'tie')
    """
    return numpy.array(words, dtype=object).reshape(shape).tolist()


def _weights_alone(V: Tensor, O: Tensor, about: Tensor, causal: bool) -> str:  # noqa: E741
    """One head's verdict, the cheapest proof first; about: its approximate eigenvalues."""
    d, k = V.shape
    near = 1e-3 * about.abs().max()
    if _decide(about, -near.expand(len(about)), k < d, causal) == "open":
        return "open"  # nothing to prove
    V, O = V.double(), O.double()  # noqa: E741
    size = float(torch.linalg.vector_norm(V) * torch.linalg.vector_norm(O))
    # If the mean of 1 + λ exceeds 1, so does some |1 + λ|.
    if causal and float((V * O.mT).sum()) > V.numel() * _EPS * size:
        return "smooth"
    M = smaller_product(V, O)
    if causal and _some_power_grows(M, max(d, k) * _EPS * size):
        return "smooth"
    lam, kappa = eigenvalues_and_conditions(M)
    if not _believed(kappa):
        return "open"
    error = len(M) * kappa * (8 * max(d, k) * _EPS * size)  # Gershgorin's discs, as above
    return _decide(lam, error, k < d, causal)


def _some_power_grows(M: Tensor, error: float) -> bool:
    """Whether ``|tr (I + M)^p|`` exceeds the dimension for some p = 2, 4, …: then some ``|1 + λ|`` exceeds 1.

    error: of M, in the Frobenius norm.
    """
    m = len(M)
    B = torch.eye(m, dtype=M.dtype) + M
    for _ in range(_SQUARINGS):
        size = float(torch.linalg.vector_norm(B))
        B, error = B @ B, (2 * size + error) * error + m * _EPS * size**2
        if abs(float(B.trace())) > m + (m**0.5 + m * _EPS) * (error + m * _EPS * size**2):
            return True
        if not error < size**2:  # nothing is left, or all is infinite
            return False
    return False


def _decide(lam: Tensor, error: Tensor, has_zeros: bool, causal: bool) -> str:
    """What discs of radius `error` around the eigenvalues prove.

    Squares minus 1 are compared, since 1 + λ drops the digits of a small λ: ``|1 + λ|² − 1 = 2 Re λ + |λ|²``.
    """
    square = lam.real.square() + lam.imag.square()
    excess, rounding = 2 * lam.real + square, 8 * _EPS * (2 * lam.real.abs() + square)
    outer = torch.where(error > -1, error * (2 + error), -1.0)  # (1 + error)² − 1
    if causal and bool((excess - rounding > outer).any()):
        return "smooth"
    distinct = bool((lam.abs() > error).all())
    # |λ + ½| + error <= ½, squared; the omitted error² only helps.
    if distinct and bool((excess - lam.real + rounding + error <= 0).all()):
        return "rough"
    if has_zeros and bool((excess + rounding + 2 * error < 0).all()):
        return "rough"  # features that the head does not write to stay as they are, and all others shrink
    first = lam.abs().argmax()
    others = torch.arange(len(lam)) != first
    leads = bool((lam.abs() + error)[others].lt(lam.abs()[first] - error[first]).all())
    # Alone at its modulus, an eigenvalue of a real matrix is real.
    if leads and float(lam.imag[first].abs()) <= abs(float(error[first])) and float(lam.real[first]) > error[first]:
        return "smooth"
    return "open"
