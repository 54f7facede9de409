"""What the two papers claim, our figure, the published one, and whether they agree by the one rule of `agreement`.

    oversmooth reproduce claims -o claims.md

The README has this table; docs/first-paper.md has every claim of Dovonon et al. Figures are read from the cells in
results/ when the table is made; what is not there is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oversmooth_papers.tables import depth, rules, sharpening, table1, table2, table3, table_text
from oversmooth_papers.tables.agreement import MISSING, agrees, agrees_in_sign
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.case_table import CaseTable
from oversmooth_papers.tables.cells import Available, Cell, read_cells
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


@dataclass(frozen=True)
class Claim:
    """One line: what is claimed, the command that checks it, and how it turned out."""

    words: str
    command: str
    published: str
    ours: str
    verdict: str


def figure(words: str, command: str, ours: Sequence[float], published: float, spread: float | None = None) -> Claim:
    """A claimed figure in %."""
    shown = f"{published:.2f}" if spread is None else f"{published:.2f} ± {spread}"
    return Claim(words, command, shown, _over_seeds(ours), agrees(ours, published))


def gain(words: str, command: str, ours: Sequence[float], published: float | str, claimed: float) -> Claim:
    """A claimed sign: of a difference between two models, paired by seed."""
    shown = published if isinstance(published, str) else f"{published:+.2f}"
    return Claim(words, command, shown, _over_seeds(ours, "+.2f"), agrees_in_sign(ours, claimed))


def _over_seeds(values: Sequence[float], form: str = ".2f") -> str:
    return table_text.over_seeds(values, form, spread_form=".2f", count="always") if values else MISSING


def cells_of_table(table: Table, results: Path) -> Available:
    return read_cells(table.recipes(), results, table.folder)


def paired(
    available: Available, these: Sequence[Cell], those: Sequence[Cell], score: str, factor: float = 1.0
) -> list[float]:
    """Differences by seed, where both are there."""
    seeds = {id(cell): recipe.seed for recipe, cell in available.items()}
    before = {seeds[id(cell)]: cell[score] for cell in those}
    return [factor * (cell[score] - before[seeds[id(cell)]]) for cell in these if seeds[id(cell)] in before]


def headlines(results: Path) -> list[Claim]:
    """The table of the README."""
    titles = {variant: variant_title(variant) for variant in VARIANTS}
    shares = [
        figure(
            f"Table 1, 10% of CIFAR-100: smoothing share of {titles[variant]}, %",
            "table1 --trained --share 0.1",
            _PER_HEAD[variant],
            table1.PUBLISHED[f"{titles[variant]}, CIFAR-100"],
        )
        for variant in ("smooth", "sharpen", "plain")
    ]
    tenth, whole = accuracies(results, (0.1,)), accuracies(results, (1.0,))
    return [
        *shares,
        *tenth[:-1],  # sharpening's gain has seven seeds in the confirmation
        *_sharpening(results),
        *whole[-2:],
        *corruption_gains(results),
        *(claim for claim in language(results) if "WikiText" not in claim.words),
        *neutreno(results),
    ]


def accuracies(results: Path, shares: Sequence[float] = table2.SHARES) -> list[Claim]:
    """Every variant's, then smoothing and sharpening minus the unmodified model."""
    table = table2.Table2()
    available = cells_of_table(table, results)
    claims = []
    for share in shares:
        command = f"table2 --cells {percent(share).replace(' ', '')}"
        cells = {
            variant: [cell for recipe, cell in available.items() if (recipe.variant, recipe.share) == (variant, share)]
            for variant in VARIANTS
        }
        for variant in VARIANTS:
            words = f"{variant_title(variant)} on {percent(share)} of CIFAR-100, accuracy in %"
            ours = [100 * cell["accuracy"] for cell in cells[variant]]
            claims.append(figure(words, command, ours, *table.published[variant][share]))
        for variant in VARIANTS[1:]:
            words = f"{variant_title(variant)} minus ViT-Ti on {percent(share)} of CIFAR-100, points"
            theirs = table.published[variant][share][0] - table.published["plain"][share][0]
            ours = paired(available, cells[variant], cells["plain"], "accuracy", 100)
            claims.append(gain(words, command, ours, theirs, theirs))
    return claims


def _sharpening(results: Path) -> list[Claim]:
    """The arms of the confirmation that table 2 has too, on other seeds and subsets."""
    table = sharpening.Sharpening(seeds=len(sharpening.SEEDS))
    available = cells_of_table(table, results)
    published = table2.Table2.published
    theirs = published["sharpen"][0.1][0] - published["plain"][0.1][0]
    ours = paired(available, table.cells(available, "sharpen"), table.cells(available, "plain"), "accuracy", 100)
    words = "ViT-Ti⁻ minus ViT-Ti on 10 % of CIFAR-100, a subset per seed, points"
    return [gain(words, "sharpening --seeds 7", ours, theirs, theirs)]


def _corruptions() -> dict[str, table3.Table3]:
    return {
        f"table3 --frost {FROST}": table3.Table3(share=1.0, frost=FROST),
        "table3 --share 0.1": table3.Table3(share=0.1),
    }


def corruption(results: Path) -> list[Claim]:
    """Accuracy under the strongest corruption."""
    command, table = next(iter(_corruptions().items()))
    available, worst = cells_of_table(table, results), table3.INTENSITIES[-1]
    return [
        figure(
            f"{variant_title(variant)} under corruption of intensity {worst}, accuracy in %",
            command,
            [100 * share for share in table.accuracies(available, variant, worst)],
            *table.published[variant][worst],
        )
        for variant in VARIANTS
    ]


def corruption_gains(results: Path) -> list[Claim]:
    """What sharpening gains under the strongest corruption, on all of the data and on a tenth."""
    worst = table3.INTENSITIES[-1]
    claims = []
    for command, table in _corruptions().items():
        available = cells_of_table(table, results)
        sharpen, plain = (
            {recipe.seed: cell["mean"][-1] for recipe, cell in available.items() if recipe.variant == variant}
            for variant in ("sharpen", "plain")
        )
        ours = [100 * (sharpen[seed] - plain[seed]) for seed in sorted(sharpen.keys() & plain.keys())]
        theirs = table.published["sharpen"][worst][0] - table.published["plain"][worst][0]
        words = (
            f"ViT-Ti⁻ minus ViT-Ti under corruption of intensity {worst}, {percent(table.share)} of CIFAR-100, points"
        )
        claims.append(gain(words, command, ours, theirs if table.share == 1 else f"{theirs:+.2f} (100 %)", theirs))
    return claims


def smoothing_shares(results: Path) -> list[Claim]:
    """Table 1 of the models of all data under two counting rules."""
    available = cells_of_table(rules.RulesOfTable1(seeds=1), results)
    claims = []
    for variant in VARIANTS:
        published = table1.PUBLISHED[f"{variant_title(variant)}, CIFAR-100"]
        cells = [cell for recipe, cell in available.items() if recipe.variant == variant]
        for rule in ("heads", "unnormalised"):
            words = f"{variant_title(variant)}: smoothing eigenvalue dominates, % of triples, {rules.TITLES[rule]}"
            verdict = agrees([rules.smoothing(cell, rule) for cell in cells], published)
            shown = rules.share_text(cells[0], rule) if cells else MISSING
            claims.append(Claim(words, "rules", f"{published:.2f}", shown, verdict))
    return claims


def depths(results: Path) -> list[Claim]:
    """Of these, no figures were published."""
    claims = []
    by_case = depth.Depth().by_case(cells_of_table(depth.Depth(), results))
    for variant in VARIANTS:
        by_depth = [[100 * cell["accuracy"] for cell in cells] for own, _, cells in by_case if own == variant]
        shown = ", ".join(f"{table_text.mean_and_spread(values)[0]:.2f}" if values else "–" for values in by_depth)
        words = f"{variant_title(variant)} with {', '.join(map(str, depth.DEPTHS))} blocks, accuracy in %"
        verdict = MISSING if sum(map(bool, by_depth)) < 2 else "no figures were published"
        claims.append(Claim(words, "depth", "not published as numbers", shown, verdict))
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
        available = cells_of_table(table, results)
        plain, *constrained = (text.cells_of(available, name) for name in VARIANTS)
        for name, cells in zip(VARIANTS[1:], constrained, strict=True):
            words = f"{title} constrained to {name} in all layers, validation perplexity minus the plain model's"
            ours = paired(available, cells, plain, "valid_perplexity")
            claims.append(gain(words, f"text {table.name}", ours, "worse", 1.0))
    return claims


def neutreno(results: Path) -> list[Claim]:
    """What Nguyen et al. claim of NeuTRENO, on other data."""
    tables: tuple[tuple[str, str, CaseTable, str], ...] = (
        ("classification accuracy, points", "ImageNet-1k", Classification(), ""),
        ("test perplexity, Post-LN", "WikiText-103", Language(), ":post"),
        ("mIoU, points", "ADE20K", Segmentation(), ""),
    )
    claims = []
    for words, data, table, norm in tables:
        available = cells_of_table(table, results)
        ours, plain = f"neutreno{norm}", f"plain{norm}"
        gained = paired(available, table.cells(available, ours), table.cells(available, plain), *table.score)
        theirs = table.published[ours] - table.published[plain]
        command = f"neutreno {table.name}"
        claims.append(gain(f"NeuTRENO minus plain, {words}", command, gained, f"{theirs:+.2f} ({data})", theirs))
    return claims


def rows(results: Path) -> list[tuple[str, str, str, str]]:
    """Under `HEAD`."""
    return [(claim.words, claim.published, claim.ours, claim.verdict) for claim in headlines(results)]
