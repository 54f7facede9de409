"""Dovonon et al. on text, masked: a BERT on a budget, plain and forced, with one number of tokens for all.

    oversmooth reproduce text masked --seeds 1
    oversmooth reproduce text masked --quick          the package's own prose, minutes on a CPU

12 layers of width 256, sequences of 128, BPE of 8,192 tokens: `train.tasks.language.recipe.MASKED`. What is kept in
results/models is what `oversmooth reproduce text glue` fine-tunes.
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth_papers.tables.text.variants import LOOKS, TRAINING, TextTable
from oversmooth_papers.tasks.language.recipe import MASKED, QUICK_MASKED


@dataclass(frozen=True, kw_only=True)
class Masked(TextTable):
    """A BERT on a budget, plain and forced to smooth or to sharpen: perplexity of masked tokens."""

    name = title = "masked"
    quick_title = "masked, quick"
    full = MASKED
    small = QUICK_MASKED
    note = (
        "Perplexity of the BPE tokens that are asked for after the last epoch, 15 % of all and the same for every "
        "model; as BERT has it, 8 of 10 are hidden, one is replaced and one stays visible, so that hidden ones alone "
        f"have a higher one. Mean ± standard deviation over seeds (their number). {TRAINING}{LOOKS}Every row saw the "
        "same number of tokens, with the same recipe and seeds; none was tuned."
    )
