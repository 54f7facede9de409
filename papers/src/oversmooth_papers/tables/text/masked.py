"""Dovonon et al. on text, masked: a BERT on a budget, plain and forced, with one number of tokens for all.

    oversmooth reproduce text masked --seeds 1
    oversmooth reproduce text masked --quick          the package's own prose, minutes on a CPU

12 layers of width 256, sequences of 128, BPE of 8,192 tokens: `train.tasks.language.recipe.MASKED`. What is kept in
results/models is what `oversmooth reproduce text glue` fine-tunes.
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth_papers.tables.base import register
from oversmooth_papers.tables.text.variants import TRAINING, TextTable
from oversmooth_papers.tasks.language.recipe import MASKED, QUICK_MASKED


@register
@dataclass(frozen=True, kw_only=True)
class Masked(TextTable):
    """A BERT on a budget, plain and forced to smooth or to sharpen: perplexity of masked tokens."""

    name = "masked"
    default_data = "text"
    data_help = "text where OVERSMOOTH_DATA has it, or a folder or file of text, as oversmooth train takes them."
    base = MASKED
    quick_base = QUICK_MASKED
    note = (
        "Perplexity of the BPE tokens that are asked for after the last epoch, 15 % of all and the same for every "
        "model; as BERT has it, 8 of 10 are hidden, one is replaced and one stays visible, so that hidden ones alone "
        f"have a higher one. Mean ± standard deviation over seeds (their number). {TRAINING}"
        "HFC/LFC of what leaves the last block, of 8 windows of the validation text; asymmetry "
        "of H, ‖H − Hᵀ‖/‖H‖, the mean over heads and blocks, at the first look and at the last. Every row saw the same "
        "number of tokens, with the same recipe and seeds; none was tuned."
    )
