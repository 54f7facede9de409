"""The segmentation table of Nguyen et al.: Segmenter on DeiT-Tiny, NeuTRENO in encoder and decoder, mIoU on CamVid.

    oversmooth reproduce neutreno segmentation --seeds 1
    oversmooth reproduce neutreno segmentation --quick        painted shapes, minutes on a CPU

Published on ADE20K (150 classes, 512 px), whose images users have (`oversmooth train --task segmentation --data
ADE20K`); here CamVid's street scenes, 11 classes at 360 × 480, in crops of 352. The encoder was trained without
NeuTRENO, so what it does from the first step on stands beside a strength that rises over the first half of the steps
and one that is learned from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Rows, register
from oversmooth_papers.tables.cells import Kept
from oversmooth_papers.tables.variants import Case, VariantTable, ends
from oversmooth_papers.tasks.segmentation.recipe import PAPER, QUICK

CAMVID = replace(
    PAPER,
    data="camvid",
    crop=352,
    stride=234,
    shorter=0,
    shape=replace(PAPER.shape, image=352, classes=11),
)
"""What `Recipe.fitted` makes of the published recipe for CamVid and DeiT-Tiny."""
CASES = {
    "plain": Case("baseline", {"variant": "plain", "ramp": 0.0}),
    "neutreno": Case("NeuTRENO, λ̃ = 0.6 from the start", {"variant": "neutreno:strength=0.6", "ramp": 0.0}),
    "ramp": Case("NeuTRENO, λ̃ from 0 to 0.6 over half of the steps", {"variant": "neutreno:strength=0.6", "ramp": 0.5}),
    "learned": Case(
        "NeuTRENO, λ̃ learned per head, from 0", {"variant": "neutreno:strength=0,learned,per=head", "ramp": 0.0}
    ),
}
_NOTE = (
    "mIoU in % over the 11 classes of CamVid's 233 test images, windows of 352 pixels; multi-scale: six scales, each "
    "with its mirror image; mean ± standard deviation over seeds (their number). Equal budgets: every row has the same "
    "encoder, recipe, steps and seeds, and none was tuned. Published: ADE20K, 150 classes; only signs compare."
)
_QUICK_NOTE = (
    "quick: a small ViT from scratch on painted shapes. These figures compare with each other and with nothing that is "
    "published."
)


@register
@dataclass(frozen=True, kw_only=True)
class Segmentation(VariantTable):
    """Make the segmentation table of Nguyen et al.: Segmenter on DeiT-Tiny, the baseline and NeuTRENO, on CamVid."""

    name = "segmentation"
    group = "neutreno"
    default_data = "camvid"
    quick_data = "shapes"
    data_help = "camvid where OVERSMOOTH_DATA has it, or its folder."
    cells_help = f"Which: {', '.join(CASES)}; by default all."
    published: ClassVar = {"plain": 35.72, "neutreno": 37.24}
    """Single-scale mIoU on ADE20K, in %."""

    def cases(self) -> Mapping[str, Case]:
        return CASES

    def base(self) -> Any:
        return QUICK if self.quick else CAMVID

    def rows(self, kept: Kept) -> Rows:
        rows = []
        for name, case in CASES.items():
            cells = self.cells(kept, name)
            scores = [
                table_text.percent_over_seeds([cell[score] for cell in cells if score in cell])
                for score in ("miou", "miou_multiscale", "pixel_accuracy")
            ]
            rows.append([case.title, *scores, ends(cells)[0], self.whose()])
            if not self.quick and name in self.published:
                rows.append([case.title, f"{self.published[name]:.2f}", "–", "–", "–", "published, ADE20K"])
        return ["", "mIoU, %", "multi-scale", "pixels right, %", "HFC/LFC, last", "whose"], rows

    def chart(self, kept: Kept) -> Any:
        points = []
        for name, case in CASES.items():
            if values := [100 * cell["miou"] for cell in self.cells(kept, name)]:
                points.append(table_charts.point(case.title, "ours", *table_text.mean_and_spread(values)))
        return table_charts.bars("painted shapes" if self.quick else "CamVid", points, "mIoU, %")

    def notes(self) -> list[str]:
        return [_QUICK_NOTE if self.quick else _NOTE]
