"""Dovonon et al. on text, causal: a decoder of GPT-2's form, plain and forced, on novels and articles.

    oversmooth reproduce text causal --seeds 1                       a folder called text in OVERSMOOTH_DATA
    oversmooth reproduce text causal --data FOLDER                   any other text
    oversmooth reproduce text causal --quick                         the package's own prose, minutes on a CPU

12 layers of width 256, BPE of 8,192 tokens, windows of 256: `train.tasks.language.recipe.CAUSAL`.
"""

from __future__ import annotations

from dataclasses import dataclass

from oversmooth_papers.tables.text.variants import LOOKS, TRAINING, TextTable
from oversmooth_papers.tasks.language.recipe import CAUSAL, QUICK


@dataclass(frozen=True, kw_only=True)
class Causal(TextTable):
    """A decoder of GPT-2's form, plain and forced to smooth or to sharpen: perplexity on novels and articles."""

    name = title = "causal"
    quick_title = "causal, quick"
    full = CAUSAL
    small = QUICK
    note = (
        "Perplexity per BPE token after the last epoch, windows of 256 side by side; mean ± standard deviation over "
        f"seeds (their number). {TRAINING}{LOOKS}Every row has the same recipe, steps and seeds; none was tuned."
    )
