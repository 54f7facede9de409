"""Which form of Dovonon et al.'s sharpening trains best, and at what cost?

    oversmooth reproduce forms --seeds 1 --at-once 3

Table 2's ViT-Ti⁻ (symmetric, V by QR of Θ, λ = −ψ², cold start, the paper's wiring) beside the general form VΛV⁻¹ with
ψ clipped to [−1, 0], V by Cayley's map, |λ| bounded by 1, a warm start from the plain model's initial weights, and the
wiring of the authors' early code. Nothing of this was published.

What it reached with seed 0 (an H200): 34.31 % with Cayley's map, 35.28 bounded and 35.38 with the code's wiring, where
table 2's ViT-Ti⁻ has 34.42; 31.62 begun warm, and 29.02 in the general form, where ViT-Ti has 33.00.
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth_papers.tables.variants import WEIGHTS, Case, VariantTable

_COLD = "spectral:mode=sharpen,start=cold"
CASES = {
    "plain": Case("plain (ViT-Ti)", {"variant": "plain"}, WEIGHTS),
    "sharpen": Case("symmetric, QR, cold (ViT-Ti⁻)", {"variant": "sharpen"}),
    "general": Case("general VΛV⁻¹, clipped", {"variant": f"{_COLD},form=general"}, "V (scale without effect), λ"),
    "cayley": Case("symmetric, Cayley", {"variant": f"{_COLD},orthogonal=cayley"}, "S, towards V₀; ψ"),
    "bounded": Case("symmetric, QR, |λ| < 1", {"variant": f"{_COLD},bounded"}),
    "warm": Case("symmetric, QR, warm", {"variant": "sharpen", "start": "warm"}),
    "code": Case("symmetric, QR, the code's wiring", {"variant": "sharpen", "wiring": "code"}),
}


@dataclass(frozen=True, kw_only=True)
class Forms(VariantTable):
    """Forms of sharpening: accuracy, how smooth tokens end, parameters, where weight decay acts, minutes."""

    name = "forms"
    own_cases = CASES
    cells_help = f"Which: {', '.join(CASES)}; by default all."
