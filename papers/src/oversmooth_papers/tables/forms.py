"""What of Dovonon et al.'s sharpening matters: its form, its signs, or the blocks that it is in.

    oversmooth reproduce forms --seeds 1 --at-once 3
    oversmooth reproduce controls --seeds 1 --at-once 3
    oversmooth reproduce mixtures --cells front-6,back-6

Three tables of table 2's recipe on 10 % of the data; cells that are table 2's own are kept there. The paper's figures
for ViT* are of other data, and nothing else of this was published: none stands beside these. What was reached is in
docs/first-paper.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from oversmooth_papers.tables import depth
from oversmooth_papers.tables.base import Case, Column, Table, minutes
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images.recipe import VARIANTS, Recipe

_THETA = "Θ (scale without effect), ψ"
_PLAIN = Case("plain (ViT-Ti)", {"variant": "plain"}, "W_V, W_O")
_COLD = "spectral:mode=sharpen,start=cold"
CASES = {
    "plain": _PLAIN,
    "sharpen": Case("symmetric, QR, cold (ViT-Ti⁻)", {"variant": "sharpen"}, _THETA),
    "general": Case("general VΛV⁻¹, clipped", {"variant": f"{_COLD},form=general"}, "V (scale without effect), λ"),
    "cayley": Case("symmetric, Cayley", {"variant": f"{_COLD},orthogonal=cayley"}, "S, towards V₀; ψ"),
    "bounded": Case("symmetric, QR, |λ| < 1", {"variant": f"{_COLD},bounded"}, _THETA),
    "warm": Case("symmetric, QR, warm", {"variant": "sharpen", "start": "warm"}, _THETA),
    "code": Case("symmetric, QR, the code's wiring", {"variant": "sharpen", "wiring": "code"}, _THETA),
}


@dataclass(frozen=True, kw_only=True)
class SharpeningTable(Table):
    """Subclasses say their cases."""

    small = replace(depth.QUICK_BASE, shape=replace(depth.QUICK_BASE.shape, depth=4))
    cells_from: ClassVar = dict.fromkeys(VARIANTS, Table2)
    note = (
        "10 % of CIFAR-100, table 2's recipe, steps and seeds in every row; none was tuned. Accuracy in % of the "
        "10,000 test images after the last epoch, mean ± standard deviation over seeds (their number); HFC/LFC and "
        "mean |cos| of what leaves the last block, of the first 8 test images."
    )

    def folder(self, recipe: Recipe) -> str:
        """The quick version's models are no table's but its own."""
        return self.folder_of(type(self)) if self.quick else super().folder(recipe)


@dataclass(frozen=True, kw_only=True)
class Forms(SharpeningTable):
    """Forms of sharpening: accuracy, how smooth tokens end, parameters, where weight decay acts, minutes."""

    # Table 2's ViT-Ti⁻ (symmetric, V by QR of Θ, λ = −ψ², cold start, the paper's wiring) beside the general form
    # VΛV⁻¹ with ψ clipped to [−1, 0], V by Cayley's map, |λ| bounded by 1, a warm start from the plain model's initial
    # weights, and the wiring of the authors' early code.
    name = "forms"
    case_by_name = CASES
    column_by_heading: ClassVar[Mapping[str, Column]] = {
        **Table.column_by_heading,
        "parameters": lambda row: f"{parameters(row.recipe):,}",
        "decays": lambda row: row.case.decays,
        "minutes": minutes,
    }


@dataclass(frozen=True, kw_only=True)
class Controls(Forms):
    """Controls of sharpening: its form with random signs, with free eigenvalues, and its initial weights alone."""

    # Does the gain come from sharpening, or from the form? All controls have ViT-Ti⁻'s seed, Θ₀ and ψ₀: (a) λ = sψ²
    # with random signs s that stay; (b) λ free, begun at (a); (c) plain weights begun at W_V = V, W_O = ΛVᵀ of
    # ViT-Ti⁻, and then free. ViT-Ti⁺ is the same form with the other sign. Weight decay pulls ψ, and so H, towards 0
    # in the constrained models, where Θ's scale has no effect; in (c) and in the plain model it pulls both weights,
    # and H with the square.
    name = "controls"
    case_by_name: ClassVar = {
        "plain": _PLAIN,
        "sharpen": Case("λ = −ψ² (ViT-Ti⁻)", {"variant": "sharpen"}, _THETA),
        "smooth": Case("λ = ψ² (ViT-Ti⁺)", {"variant": "smooth"}, _THETA),
        "fixed-signs": Case("(a) λ = sψ², random signs s", {"variant": "spectral:signs=fixed,start=cold"}, _THETA),
        "free-signs": Case(
            "(b) λ free, begun at (a)", {"variant": "spectral:signs=free,start=cold"}, "Θ (scale without effect), λ"
        ),
        "freed": Case("(c) plain weights, begun at ViT-Ti⁻'s", {"variant": "sharpen", "freed": True}, _PLAIN.decays),
    }


@dataclass(frozen=True, kw_only=True)
class Mixtures(SharpeningTable):
    """Dovonon et al.'s ViT*: sharpening in a quarter, a half and three quarters of the blocks, front or back."""

    # Blocks 0 to 2, 0 to 5 and 0 to 8 of 12, as many counted from the back, and none and all of them.
    name = "mixtures"
    cells_help = "The cells to run: plain, front-3, front-6, front-9, back-3, back-6, back-9, sharpen; by default all."

    def cases(self) -> Mapping[str, Case]:
        depth = self.base().shape.depth
        cases = {"plain": Case("no block sharpens (ViT-Ti)", {"variant": "plain"})}
        for where in ("front", "back"):
            for quarters in (1, 2, 3):
                count = quarters * depth // 4
                first = 0 if where == "front" else depth - count
                layers = f"{first}-{first + count - 1}"
                title = f"blocks {first} to {first + count - 1} of {depth} sharpen"
                cases[f"{where}-{count}"] = Case(title, {"variant": "sharpen", "layers": layers})
        return {**cases, "sharpen": Case("all blocks sharpen (ViT-Ti⁻)", {"variant": "sharpen"})}


def parameters(recipe: Recipe) -> int:
    """Numbers that training changes, of models constrained in all blocks or in none: in a constrained block Θ, or the
    entries of a rotation, and ψ in place of W_V and W_O.
    """
    constrained = [method for method in recipe.methods() if method.place == "weights"]
    if not constrained or recipe.freed:
        return recipe.parameters
    width = recipe.shape.width
    rotated = getattr(constrained[0], "orthogonal", "qr") != "qr"
    free = width * (width - 1) // 2 if rotated else width**2
    return recipe.parameters + recipe.shape.depth * (free + width - 2 * width**2)
