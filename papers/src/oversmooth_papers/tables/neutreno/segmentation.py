"""The segmentation table of Nguyen et al.: Segmenter on DeiT-Tiny, NeuTRENO in encoder and decoder, mIoU on CamVid.

    oversmooth reproduce neutreno segmentation --seeds 1
    oversmooth reproduce neutreno segmentation --quick        painted shapes, minutes on a CPU

Published on ADE20K (150 classes, 512 px), whose images users have (`oversmooth train --task segmentation --data
ADE20K`); here CamVid's street scenes, 11 classes at 360 × 480, in crops of 352. The encoder was trained without
NeuTRENO, so what it does from the first step on stands beside a strength that rises over the first half of the steps
and one that is learned from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from oversmooth_papers.tables.base import Case, Table, last_snapshot, percent
from oversmooth_papers.tasks.segmentation.recipe import PAPER, QUICK

_NEUTRENO = "neutreno:strength=0.6"


@dataclass(frozen=True, kw_only=True)
class Segmentation(Table):
    """Make the segmentation table of Nguyen et al.: Segmenter on DeiT-Tiny, the baseline and NeuTRENO, on CamVid."""

    name = "segmentation"
    group = "neutreno"
    default_data = "camvid"
    quick_data = "shapes"
    data_help = "camvid where OVERSMOOTH_DATA has it, or its folder."
    full = replace(
        PAPER, data="camvid", crop=352, stride=234, shorter=0, shape=replace(PAPER.shape, image=352, classes=11)
    )
    """What `Recipe.fitted` makes of the published recipe for CamVid and DeiT-Tiny."""
    small = QUICK
    case_by_name: ClassVar = {
        name: Case(title, {"variant": variant, "ramp": ramp})
        for name, title, variant, ramp in (
            ("plain", "baseline", "plain", 0.0),
            ("neutreno", "NeuTRENO, λ̃ = 0.6 from the start", _NEUTRENO, 0.0),
            ("ramp", "NeuTRENO, λ̃ from 0 to 0.6 over half of the steps", _NEUTRENO, 0.5),
            ("learned", "NeuTRENO, λ̃ learned per head, from 0", "neutreno:strength=0,learned,per=head", 0.0),
        )
    }
    column_by_heading: ClassVar = {
        "mIoU, %": percent("miou"),
        "multi-scale": percent("miou_multiscale"),
        "pixels right, %": percent("pixel_accuracy"),
        "HFC/LFC, last": last_snapshot(1),
    }
    published: ClassVar = {"plain": {"mIoU, %": 35.72}, "neutreno": {"mIoU, %": 37.24}}
    published_by = "published, ADE20K"
    score = ("miou", 100)
    label = "mIoU, %"
    title = "CamVid"
    note = (
        "mIoU in % over the 11 classes of CamVid's 233 test images, windows of 352 pixels; multi-scale: six scales, "
        "each with its mirror image; mean ± standard deviation over seeds (their number). Equal budgets: every row has "
        "the same encoder, recipe, steps and seeds, and none was tuned. Published: ADE20K, 150 classes; only signs "
        "compare."
    )
