"""What the two papers claim, our figure, the published one, and whether they agree by the one rule of `agreement`.

The README has this table; docs/first-paper.md has every claim of Dovonon et al. Figures are read from the cells in
results/ when the table is made; what is not there is missing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from oversmooth_papers.tables import depth, rules, sharpening, table1, table2, table3, table_text
from oversmooth_papers.tables.agreement import MISSING, agrees, agrees_in_sign
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.cells import paired
from oversmooth_papers.tables.neutreno.language import Language
from oversmooth_papers.tables.neutreno.methods import Classification
from oversmooth_papers.tables.neutreno.segmentation import Segmentation
from oversmooth_papers.tables.text import language_models as text
from oversmooth_papers.tasks.images.recipe import VARIANTS, percent, variant_title

FROST = Path("imagenet-c-frost")
HEAD = ("claim", "published", "ours", "agrees")
NOTE = (
    "Ours: mean ± standard deviation over seeds (their number). *yes*: the 95% t interval of our difference to the "
    "published figure lies within ±1.5 points (±3% of a perplexity); *no*: it lies outside; else *inconclusive*, as "
    "with one seed. Where the claim is a sign or the data differ, *yes* and *no* are about the sign, and one seed "
    "agrees *in sign* or has the *opposite sign*."
)
_PER_HEAD = {"plain": (91.19, 93.14, 93.97), "smooth": (99.52, 100.0, 99.87), "sharpen": (0.0, 0.0, 0.0)}
"""Smoothing share of three seeds in %, by `oversmooth reproduce table1 --trained --share 0.1 --data … --inputs 64`
(docs/table1.md); the models are not in the repository."""


class Claim(NamedTuple):
    """One line: what is claimed, the published figure, ours, how it turned out, and the command that checks it."""

    words: str
    published: str
    ours: str
    verdict: str
    command: str


def figure(words: str, command: str, ours: Sequence[float], published: float, spread: float | None = None) -> Claim:
    """A claimed figure in %."""
    shown = f"{published:.2f}" if spread is None else f"{published:.2f} ± {spread}"
    return Claim(words, shown, _over_seeds(ours), agrees(ours, published), command)


def gain(words: str, command: str, ours: Sequence[float], published: float | str, claimed: float) -> Claim:
    """A claimed sign: of a difference between two models, paired by seed."""
    shown = published if isinstance(published, str) else f"{published:+.2f}"
    return Claim(words, shown, _over_seeds(ours, "+.2f"), agrees_in_sign(ours, claimed), command)


def _over_seeds(values: Sequence[float], form: str = ".2f") -> str:
    return table_text.counted(values, form) if values else MISSING


def headlines(results: Path) -> list[Claim]:
    """The table of the README."""
    shares = [
        figure(
            f"Table 1, 10% of CIFAR-100: smoothing share of {variant_title(variant)}, %",
            "table1 --trained --share 0.1",
            _PER_HEAD[variant],
            table1.PUBLISHED[f"{variant_title(variant)}, CIFAR-100"],
        )
        for variant in ("smooth", "sharpen", "plain")
    ]
    tenth, whole = accuracies(results, (0.1,)), accuracies(results, (1.0,))
    return [
        *shares,
        *tenth[:-1],  # sharpening's gain has seven seeds in the confirmation
        _sharpening(results),
        *whole[-2:],
        *corruption_gains(results),
        *(claim for claim in language(results) if "WikiText" not in claim.words),
        *neutreno(results),
    ]


def accuracies(results: Path, shares: Sequence[float] = table2.SHARES) -> list[Claim]:
    """Every variant's, then smoothing and sharpening minus the unmodified model."""
    table = table2.Table2()
    available = table.available(results)
    claims = []
    for share in shares:
        command, of = f"table2 --cells {percent(share).replace(' ', '')}", f"on {percent(share)} of CIFAR-100"
        published = {variant: table.published[variant][table2.heading(share)] for variant in VARIANTS}
        column = {recipe: cell for recipe, cell in available.items() if recipe.share == share}
        for variant in VARIANTS:
            ours = table.accuracies(table.cells(column, variant), share)
            claims.append(figure(f"{variant_title(variant)} {of}, accuracy in %", command, ours, *published[variant]))
        for variant in VARIANTS[1:]:
            theirs = published[variant][0] - published["plain"][0]
            ours = table.gains(column, variant, "plain")
            claims.append(gain(f"{variant_title(variant)} minus ViT-Ti {of}, points", command, ours, theirs, theirs))
    return claims


def _sharpening(results: Path) -> Claim:
    """The arms of the confirmation that table 2 has too, on other seeds and subsets."""
    table = sharpening.Sharpening(seeds=len(sharpening.SEEDS))
    sharpen, plain = (table2.Table2.published[variant][table2.heading(0.1)][0] for variant in ("sharpen", "plain"))
    ours = table.gains(table.available(results), "sharpen", "plain")
    words = "ViT-Ti⁻ minus ViT-Ti on 10 % of CIFAR-100, a subset per seed, points"
    return gain(words, "sharpening --seeds 7", ours, sharpen - plain, sharpen - plain)


_CORRUPTIONS = {
    f"table3 --frost {FROST}": table3.Table3(share=1.0, frost=FROST),
    "table3 --share 0.1": table3.Table3(share=0.1),
}
_WORST = table3.INTENSITIES[-1]


def corruption(results: Path) -> list[Claim]:
    """Accuracy under the strongest corruption."""
    command, table = next(iter(_CORRUPTIONS.items()))
    available = table.available(results)
    return [
        figure(
            f"{variant_title(variant)} under corruption of intensity {_WORST}, accuracy in %",
            command,
            table.accuracies(table.cells(available, variant), _WORST),
            *table.published[variant][str(_WORST)],
        )
        for variant in VARIANTS
    ]


def corruption_gains(results: Path) -> list[Claim]:
    """What sharpening gains under the strongest corruption, on all of the data and on a tenth."""
    claims = []
    for command, table in _CORRUPTIONS.items():
        worst = {recipe: {"worst": cell["mean"][-1]} for recipe, cell in table.available(results).items()}
        ours = paired(table.cells(worst, "sharpen"), table.cells(worst, "plain"), "worst", 100)
        theirs = table.published["sharpen"][str(_WORST)][0] - table.published["plain"][str(_WORST)][0]
        of = f"under corruption of intensity {_WORST}, {percent(table.share)} of CIFAR-100, points"
        shown = theirs if table.share == 1 else f"{theirs:+.2f} (100 %)"
        claims.append(gain(f"ViT-Ti⁻ minus ViT-Ti {of}", command, ours, shown, theirs))
    return claims


def smoothing_shares(results: Path) -> list[Claim]:
    """Table 1 of the models of all data under two counting rules."""
    available = rules.RulesOfTable1(seeds=1).available(results)
    claims = []
    for variant in VARIANTS:
        published = table1.PUBLISHED[f"{variant_title(variant)}, CIFAR-100"]
        cells = [cell for recipe, cell in available.items() if recipe.variant == variant]
        for rule in ("heads", "unnormalised"):
            words = f"{variant_title(variant)}: smoothing eigenvalue dominates, % of triples, {rules.TITLES[rule]}"
            verdict = agrees([rules.smoothing(cell, rule) for cell in cells], published)
            shown = rules.share_text(cells[0], rule) if cells else MISSING
            claims.append(Claim(words, f"{published:.2f}", shown, verdict, "rules"))
    return claims


def depths(results: Path) -> list[Claim]:
    """Of these, no figures were published."""
    table, claims = depth.Depth(), []
    available = table.available(results)
    for variant in VARIANTS:
        found = [table.charted(available, f"{variant}:depth{blocks}") for blocks in depth.DEPTHS]
        shown = ", ".join(f"{statistics.fmean(values):.2f}" if values else "–" for values in found)
        words = f"{variant_title(variant)} with {', '.join(map(str, depth.DEPTHS))} blocks, accuracy in %"
        verdict = MISSING if sum(map(bool, found)) < 2 else "no figures were published"
        claims.append(Claim(words, "not published as numbers", shown, verdict, "depth"))
    return claims


def language(results: Path) -> list[Claim]:
    """Constrained language models have the higher perplexity."""
    tables: dict[str, Table] = {
        "Causal language model": text.Causal(),
        "Causal language model of WikiText-2": text.Wikitext(),
        "Masked language model": text.Masked(),
    }
    claims = []
    for title, table in tables.items():
        available = table.available(results)
        for name in VARIANTS[1:]:
            words = f"{title} constrained to {name} in all layers, validation perplexity minus the plain model's"
            claims.append(gain(words, f"text {table.name}", table.gains(available, name, "plain"), "worse", 1.0))
    return claims


def neutreno(results: Path) -> list[Claim]:
    """What Nguyen et al. claim of NeuTRENO, on other data."""
    tables: tuple[tuple[str, Table, str], ...] = (
        ("classification accuracy, points", Classification(), ""),
        ("test perplexity, Post-LN", Language(), ":post"),
        ("mIoU, points", Segmentation(), ""),
    )
    claims = []
    for words, table, norm in tables:
        names = f"neutreno{norm}", f"plain{norm}"
        ours = table.gains(table.available(results), *names)
        (steered,), (plain,) = (table.published[name].values() for name in names)
        shown = f"{steered - plain:+.2f} ({table.published_by.removeprefix('published, ')})"
        claims.append(gain(f"NeuTRENO minus plain, {words}", f"neutreno {table.name}", ours, shown, steered - plain))
    return claims


def rows(results: Path) -> list[tuple[str, str, str, str]]:
    """Under `HEAD`."""
    return [claim[:4] for claim in headlines(results)]
