"""Does the sharpening model's gain come from sharpening, or from the form?

    oversmooth reproduce controls --seeds 1 --at-once 3

Controls of table 2's ViT-Ti⁻, all of the same seed, Θ₀ and ψ₀: (a) λ = sψ² with random signs s that stay; (b) λ free,
begun at (a); (c) plain weights begun at W_V = V, W_O = ΛVᵀ of ViT-Ti⁻, and then free. ViT-Ti⁺ is the same form with the
other sign. Weight decay pulls ψ, and so H, towards 0 in the constrained models, where Θ's scale has no effect; in (c)
and in the plain model it pulls both weights, and H with the square.
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth_papers.tables.variants import WEIGHTS, Case, VariantTable

CASES = {
    "plain": Case("plain (ViT-Ti)", {"variant": "plain"}, WEIGHTS),
    "sharpen": Case("λ = −ψ² (ViT-Ti⁻)", {"variant": "sharpen"}),
    "smooth": Case("λ = ψ² (ViT-Ti⁺)", {"variant": "smooth"}),
    "fixed-signs": Case("(a) λ = sψ², random signs s", {"variant": "spectral:signs=fixed,start=cold"}),
    "free-signs": Case(
        "(b) λ free, begun at (a)", {"variant": "spectral:signs=free,start=cold"}, "Θ (scale without effect), λ"
    ),
    "freed": Case("(c) plain weights, begun at ViT-Ti⁻'s", {"variant": "sharpen", "freed": True}, WEIGHTS),
}


@dataclass(frozen=True, kw_only=True)
class Controls(VariantTable):
    """Controls of sharpening: its form with random signs, with free eigenvalues, and its initial weights alone."""

    name = "controls"
    own_cases = CASES
    cells_help = f"Which: {', '.join(CASES)}; by default all."
