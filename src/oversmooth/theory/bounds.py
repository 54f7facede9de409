"""What the weights of a head prove about any attention, rounding included (THEORY §3, verdicts from weights alone)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.small_matrices import eigenvalues_and_conditions
from oversmooth.theory.weights import check_weights, head_spectrum, smaller_product

Words: TypeAlias = Any
"""A str for one case, nested lists of them for a batch; which of the two depends on the shape of the arguments."""
_SQUARINGS = 6
_EPS = torch.finfo(torch.float64).eps


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
    error = len(M) * kappa * (8 * max(d, k) * _EPS * size)  # Gershgorin's discs
    return _decide(lam, error, k < d, causal)


def _believed(kappa: Tensor) -> bool:
    """Whether condition numbers are known to a few digits."""
    return bool(kappa.isfinite().all()) and float(kappa.norm()) * _EPS <= 1e-3 / len(kappa)


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
