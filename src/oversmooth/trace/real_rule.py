"""Dominance per head by the real parts of both spectra alone: one reading of Dovonon et al.'s table 1."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.radii import TIE
from oversmooth.theory.spectrum import attention_spectrum
from oversmooth.theory.weights import head_spectrum


def real_rule(A: AttentionOperator, W_V: Tensor, W_O: Tensor, keep: float) -> tuple[Tensor, Tensor, list[list[str]]]:
    """Radii per head as if both spectra were real: ``|1 + λ t|`` is convex in t, so its ends decide (THEORY §3).

    Args:
        A: ``(b, heads, n, n)``: attention.
        W_V: ``(heads, d, k)``, or one per input, ``(b, heads, d, k)``.
        W_O: ``(heads, k, d)``
        keep: what multiplies the stream.

    Returns:
        ρ_smooth and ρ_rough, ``(b, heads)`` each, and the verdicts in the same rows and columns.
    """
    t = attention_spectrum(A, method="dense").values.real
    lam = head_spectrum(W_V, W_O).real.to(t).expand(*t.shape[:-1], -1)
    low, high = t.nan_to_num(nan=torch.inf).amin(-1, keepdim=True), t.nan_to_num(nan=-torch.inf).amax(-1, keepdim=True)
    smooth = (keep + lam).abs().amax(-1)
    rough = torch.maximum((keep + lam * low).abs(), (keep + lam * high).abs()).amax(-1)
    tie = TIE[t.dtype] * torch.maximum(smooth, rough).clamp(min=1)
    words = [
        ["tie" if abs(m) <= few else "smooth" if m > 0 else "rough" for m, few in zip(row, near, strict=True)]
        for row, near in zip((smooth - rough).tolist(), tie.tolist(), strict=True)
    ]
    return smooth, rough, words
