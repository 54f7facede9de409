"""Dovonon et al. on text: language models, plain and forced.

    oversmooth reproduce text causal --seeds 1                       a folder called text in OVERSMOOTH_DATA
    oversmooth reproduce text causal --data FOLDER                   any other text
    oversmooth reproduce text wikitext --seeds 1                     WikiText-2, a text of 2 million words
    oversmooth reproduce text masked --quick                         the package's own prose, minutes on a CPU

12 layers of width 256, BPE of 8,192 tokens, windows of 256, or of 128 where tokens are masked; the recipes are in
`tasks.language.recipe`. What masked keeps in results/models is what `oversmooth reproduce text glue` fine-tunes.

Published, in words: for text, Transformers that are forced to smooth or to sharpen generalise worse than plain ones.
Forced models begin as near to the plain model's first weights as their form allows; four rows begin as the paper
initialises. Two of these are controls, with random signs that stay and with eigenvalues that may take either sign: what
they lose is lost to the form of H and its start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Case, Column, Row, Rows, Table, last_snapshots, minutes
from oversmooth_papers.tables.cells import Available, scores
from oversmooth_papers.tasks.language.recipe import CAUSAL, CAUSAL_WIKITEXT2, MASKED, QUICK, QUICK_MASKED

CASES = {
    "plain": Case("plain", {"variant": "plain"}),
    "smooth": Case("smoothing, all layers", {"variant": "smooth", "start": "warm"}),
    "sharpen": Case("sharpening, all layers", {"variant": "sharpen", "start": "warm"}),
    "smooth-half": Case("smoothing, first half", {"variant": "smooth", "start": "warm", "layers": "first half"}),
    "sharpen-half": Case("sharpening, first half", {"variant": "sharpen", "start": "warm", "layers": "first half"}),
    "smooth-cold": Case("smoothing, the paper's start", {"variant": "smooth", "start": "cold"}),
    "sharpen-cold": Case("sharpening, the paper's start", {"variant": "sharpen", "start": "cold"}),
    "fixed-cold": Case("fixed random signs, the paper's start", {"variant": "spectral:signs=fixed,start=cold"}),
    "free-cold": Case("either sign, the paper's start", {"variant": "spectral:signs=free,start=cold"}),
}
"""Rows, by what --cells calls them."""
WARM = {name: case for name, case in CASES.items() if not name.endswith("-cold")}
"""Those that are fine-tuned."""
FORM = (
    "A forced model differs from the plain one in form too: each head's H is symmetric, with eigenvectors orthogonal "
    "to those of the other heads, and λ = ±ψ². The rows with fixed random signs, λ = sψ², and with either sign, λ = ψ, "
    "have the form and are forced neither way; without them the two cannot be told apart."
)
TRAINING = "Training: over the last epoch's batches, with dropout. "
LOOKS = (
    "HFC/LFC of what leaves the last block, of 8 windows of the validation text; asymmetry of H, ‖H − Hᵀ‖/‖H‖, the "
    "mean over heads and blocks, at the first look and at the last. "
)


def _over_seeds(values: Sequence[float]) -> str:
    huge = max(values, default=0) > 1e6  # a run that went wrong
    return table_text.over_seeds(values, ".3g" if huge else ".2f", count="always")


def _perplexity(name: str) -> Column:
    return lambda row: _over_seeds(scores(row.cells, name))


def _trained(row: Row) -> str:
    """Perplexity over the batches of the last epoch."""
    losses = [cell["epochs"][-1]["loss"] for cell in row.cells.values() if cell.get("epochs")]
    return _over_seeds([math.exp(min(loss, 700)) for loss in losses])


def _hfc_lfc(row: Row) -> str:
    return f"{fmean(lasts):#.3g}" if (lasts := last_snapshots(row.cells, 1)) else "–"


def _asymmetry(row: Row) -> str:
    """Of H, the mean over blocks, at the first look and at the last."""
    snapshots = [cell["smoothing"] for cell in row.cells.values() if cell.get("smoothing")]
    ends = [[fmean(looks[end]["asymmetry"]) for looks in snapshots if "asymmetry" in looks[end]] for end in (0, -1)]
    return " → ".join(f"{fmean(values):.3f}" if values else "–" for values in ends)


@dataclass(frozen=True, kw_only=True)
class TextTable(Table):
    """Subclasses say the recipe, its quick version and the note."""

    group = "text"
    fits_data = True
    default_data = "text"
    quick_data = "prose"
    data_help = "text where OVERSMOOTH_DATA has it, or a folder or file of text, as oversmooth train takes them."
    case_by_name = CASES
    column_by_heading: ClassVar = {
        "validation": _perplexity("valid_perplexity"),
        "test": _perplexity("test_perplexity"),
        "training": _trained,
        "HFC/LFC, last": _hfc_lfc,
        "asymmetry of H, first and last": _asymmetry,
        "minutes": minutes,
    }
    score = ("valid_perplexity", 1)
    label = "validation perplexity"

    def rows(self, available: Available) -> Rows:
        head, rows = super().rows(available)
        rows.append(["forced either way", "worse than plain", *"–––––", "published, in words"])
        tested = not available or any("test_perplexity" in cell for cell in available.values())
        return (head, rows) if tested else _without(("test",), head, rows)

    def terminal_rows(self, available: Available) -> Rows:
        """Without test, training and minutes, so that names stay whole."""
        return _without(("test", "training", "minutes"), *self.rows(available))

    def notes(self) -> list[str]:
        return [*super().notes(), *([] if self.quick else [FORM])]

    def terminal_note(self) -> str:
        return self.notes()[0].replace(TRAINING, "Perplexity in training, and minutes: with -o TABLE.md. ")


@dataclass(frozen=True, kw_only=True)
class Causal(TextTable):
    """A decoder of GPT-2's form, plain and forced to smooth or to sharpen: perplexity on novels and articles."""

    name = title = "causal"
    case_by_name: ClassVar = {
        **CASES,
        "bounded": Case("sharpening, all layers, |λ| < 1", {"variant": "spectral:mode=sharpen,start=warm,bounded"}),
    }
    full = CAUSAL
    small = QUICK
    note = (
        "Perplexity per BPE token after the last epoch, windows of 256 side by side; mean ± standard deviation over "
        f"seeds (their number). {TRAINING}{LOOKS}Every row has the same recipe, steps and seeds; none was tuned."
    )


@dataclass(frozen=True, kw_only=True)
class Wikitext(Causal):
    """The decoder of text causal on WikiText-2: perplexity, plain and forced to smooth or to sharpen."""

    name = title = "wikitext"
    case_by_name = CASES
    default_data = "wikitext-2"
    data_help = "wikitext-2 where OVERSMOOTH_DATA has it, or its folder."
    full = CAUSAL_WIKITEXT2

    def folder(self, _recipe: object) -> str:
        """Quick, it is the same model on the same prose."""
        return self.folder_of(Causal if self.quick else Wikitext)


@dataclass(frozen=True, kw_only=True)
class Masked(TextTable):
    """A BERT on a budget, plain and forced to smooth or to sharpen: perplexity of masked tokens."""

    name = title = "masked"
    full = MASKED
    small = QUICK_MASKED
    note = (
        "Perplexity of the BPE tokens that are asked for after the last epoch, 15 % of all and the same for every "
        "model; as BERT has it, 8 of 10 are hidden, one is replaced and one stays visible, so that hidden ones alone "
        f"have a higher one. Mean ± standard deviation over seeds (their number). {TRAINING}{LOOKS}Every row saw the "
        "same number of tokens, with the same recipe and seeds; none was tuned."
    )


def _without(columns: Sequence[str], head: Sequence[str], rows: list[list[str]]) -> Rows:
    places = [place for place, name in enumerate(head) if name not in columns]
    return [head[place] for place in places], [[row[place] for place in places] for row in rows]
