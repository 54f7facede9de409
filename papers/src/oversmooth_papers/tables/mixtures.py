"""Dovonon et al.'s ViT*: some blocks sharpen, the rest are plain. How does the ratio matter, and which blocks?

    oversmooth reproduce mixtures --seeds 1 --at-once 3
    oversmooth reproduce mixtures --cells front-6,back-6

Sharpening blocks 0 to 2, 0 to 5 and 0 to 8 of 12, as many counted from the back, and table 2's plain and sharpening
models, which are none and all of them. The paper's figures for ViT* are of other data; none stands beside these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oversmooth_papers.tables.variants import Case, VariantTable


@dataclass(frozen=True, kw_only=True)
class Mixtures(VariantTable):
    """Dovonon et al.'s ViT*: sharpening in a quarter, a half and three quarters of the blocks, front or back."""

    name = "mixtures"
    cells_help = "Which: plain, front-3, front-6, front-9, back-3, back-6, back-9, sharpen; by default all."
    shows_cost = False

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
