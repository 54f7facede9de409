"""docs/first-paper.md: what Dovonon et al. claim, beside what results/ holds.

    oversmooth reproduce first-paper -o docs/first-paper.md

Every figure is read from a cell when the page is written; what is not there is said to be missing. A line agrees where
ours lies as the claim says; a figure agrees where it is within three standard deviations of the published one, the
larger spread of the two, and at least one point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oversmooth_papers.tables import controls, depth, forms, mixtures, rules, table1, table2, table3, table_text
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.cells import Kept, read_kept
from oversmooth_papers.tables.text import causal, glue, masked, wikitext
from oversmooth_papers.tables.text.variants import cells_of
from oversmooth_papers.tasks.images.recipe import VARIANTS, percent, variant_title

MISSING = "missing"
_HEAD = ("claim", "command", "ours", "published", "agrees")
_INTRO = (
    "# Dovonon et al., line by line",
    "What they claim, the command that checks it, our figure, the published one, and whether they agree. Every figure "
    "is read from a cell in results/ by `oversmooth reproduce first-paper -o docs/first-paper.md`; what was not run is "
    "said to be missing. ± is the standard deviation over seeds (n − 1), their number in brackets.",
    "A figure agrees where it lies within three standard deviations of the published one (the larger spread of the "
    "two), or within one point. A difference between two models is as uncertain as both together, which was not "
    "published: it agrees in sign, or not. Of a share of cases, those that are open count for the side where "
    "they bring it nearest.",
)


@dataclass(frozen=True)
class Line:
    """One claim."""

    claim: str
    command: str
    ours: str
    published: str
    agrees: str

    @property
    def row(self) -> tuple[str, ...]:
        return self.claim, f"`{self.command}`", self.ours, self.published, self.agrees


def page(results: Path) -> str:
    """The page, in Markdown."""
    lines = [*_accuracies(results), *_table1(results), *_corruption(results), *_depth(results), *_text(results)]
    parts = [*_INTRO, table_text.markdown(_HEAD, [line.row for line in lines]).strip()]
    for title, table in _tables():
        kept = read_kept(table.recipes(), results, table.folder)
        parts.append(f"## {title}")
        command = " ".join(["oversmooth reproduce", *filter(None, (table.group, table.name)), *_options(table)])
        if not kept:
            parts.append(f"`{command}`: none of its {len(table.recipes())} cells has been run.")
            continue
        parts.append(f"`{command}`: {len(kept)} of {len(table.recipes())} cells are there.")
        parts.append(table_text.markdown(*table.rows(kept), table.notes()).strip())
    return "\n\n".join(parts) + "\n"


def _tables() -> list[tuple[str, Table]]:
    return [
        ("Table 1 under every counting rule", rules.RulesOfTable1()),
        ("Table 2", table2.Table2()),
        ("Table 3, frost from the official pictures", table3.Table3(share=1.0, frost=Path("imagenet-c-frost"))),
        ("Table 3 of the 10 % models, frost of our own", table3.Table3(share=0.1)),
        ("More layers", depth.Depth()),
        ("More layers: the three notions, and prediction beside measurement", rules.RulesOfTable1(depths=True)),
        ("Mixtures: ViT*", mixtures.Mixtures()),
        ("Forms of sharpening", forms.Forms()),
        ("Sharpening or its form? Controls", controls.Controls()),
        ("Text, causal", causal.Causal()),
        ("Text, causal, WikiText-2", wikitext.Wikitext()),
        ("Text, masked", masked.Masked()),
        ("Text, masked, fine-tuned", glue.Glue()),
    ]


def _options(table: Table) -> list[str]:
    if isinstance(table, table3.Table3):
        return ["--share", f"{table.share:g}", *(["--frost", table.frost.name] if table.frost else [])]
    return ["--depths"] if isinstance(table, rules.RulesOfTable1) and table.depths else []


def agrees(ours: Sequence[float], published: float, spread: float) -> str:
    """Of figures in %, over seeds."""
    mean, own = table_text.mean_and_spread(ours)
    return "yes" if abs(mean - published) <= max(1.0, 3 * max(spread, own or 0.0)) else "no"


def _accuracies(results: Path) -> list[Line]:
    table = table2.Table2()
    kept = read_kept(table.recipes(), results, table.folder)
    lines = []
    for share in table2.SHARES:
        command = f"oversmooth reproduce table2 --cells {percent(share).replace(' ', '')}"
        by_variant = {v: [100 * a for a in table2.accuracies(kept, v, share)] for v in VARIANTS}
        for variant, ours in by_variant.items():
            published, spread = table.published[variant][share]
            shown = table_text.percent_over_seeds([a / 100 for a in ours]) if ours else MISSING
            verdict = agrees(ours, published, spread) if ours else MISSING
            claim = f"{variant_title(variant)} on {percent(share)} of CIFAR-100, accuracy in %"
            lines.append(Line(claim, command, shown, f"{published:.2f} ± {spread}", verdict))
        lines += _order(share, command, by_variant)
    return lines


def _order(share: float, command: str, by_variant: dict[str, list[float]]) -> list[Line]:
    """Smoothing and sharpening beside plain, in points of the means."""
    published = {variant: table2.Table2.published[variant][share][0] for variant in VARIANTS}
    lines = []
    for variant in VARIANTS[1:]:
        claim = f"{variant_title(variant)} less ViT-Ti on {percent(share)} of the data, in points"
        theirs = published[variant] - published["plain"]
        if not by_variant[variant] or not by_variant["plain"]:
            lines.append(Line(claim, command, MISSING, f"{theirs:+.2f}", MISSING))
            continue
        means = [table_text.mean_and_spread(by_variant[name])[0] for name in (variant, "plain")]
        ours = means[0] - means[1]
        verdict = "in sign" if (ours > 0) == (theirs > 0) else "no"
        lines.append(Line(claim, command, f"{ours:+.2f}", f"{theirs:+.2f}", verdict))
    return lines


def _table1(results: Path) -> list[Line]:
    table = rules.RulesOfTable1(seeds=1)
    kept = read_kept(table.recipes(), results, table.folder)
    lines = []
    for variant in VARIANTS:
        published = table1.PUBLISHED[f"{variant_title(variant)}, CIFAR-100"]
        cells = [cell for recipe, cell in kept.items() if recipe.variant == variant]
        for rule in ("heads", "unnormalised"):
            claim = f"{variant_title(variant)}: smoothing eigenvalue dominates, % of cases, {rules.TITLES[rule]}"
            # What is open may lie on either side: the published figure is held against the nearest it allows.
            ours = [
                min(
                    max(published, rules.smoothing(cell, rule)),
                    rules.smoothing(cell, rule) + rules.undecided(cell, rule),
                )
                for cell in cells
            ]
            shown = rules.share_text(cells[0], rule) if cells else MISSING
            verdict = agrees(ours, published, 0.0) if ours else MISSING
            lines.append(Line(claim, "oversmooth reproduce rules", shown, f"{published:.2f}", verdict))
    return lines


def _corruption(results: Path) -> list[Line]:
    table = table3.Table3(share=1.0, frost=Path("imagenet-c-frost"))
    kept = read_kept(table.recipes(), results, table.folder)
    lines = []
    for variant in VARIANTS:
        cells = [cell for recipe, cell in kept.items() if recipe.variant == variant]
        ours = [100 * cell["mean"][-1] for cell in cells]
        published, spread = table.published[variant][-1]
        shown = table_text.percent_over_seeds([value / 100 for value in ours]) if ours else MISSING
        verdict = agrees(ours, published, spread) if ours else MISSING
        claim = f"{variant_title(variant)} under corruption of intensity 5, accuracy in %"
        command = "oversmooth reproduce table3 --frost imagenet-c-frost"
        lines.append(Line(claim, command, shown, f"{published:.2f} ± {spread}", verdict))
    return lines


def _depth(results: Path) -> list[Line]:
    table = depth.Depth()
    kept = read_kept(table.recipes(), results, table.folder)

    def mean(variant: str, blocks: int) -> float | None:
        cells = [cell for r, cell in kept.items() if (r.variant, r.shape.depth) == (variant, blocks)]
        return table_text.mean_and_spread([100 * cell["accuracy"] for cell in cells])[0] if cells else None

    lines = []
    for variant in VARIANTS:
        values = [mean(variant, blocks) for blocks in depth.DEPTHS]
        known = [value for value in values if value is not None]
        shown = ", ".join("–" if value is None else f"{value:.2f}" for value in values)
        claim = f"{variant_title(variant)} with {', '.join(map(str, depth.DEPTHS))} blocks, accuracy in %"
        verdict = MISSING if len(known) < 2 else "no figures were published"
        lines.append(Line(claim, "oversmooth reproduce depth", shown, "not published as numbers", verdict))
    return lines


def _text(results: Path) -> list[Line]:
    lines = []
    tables: list[tuple[str, Table]] = [
        ("Causal language model", causal.Causal()),
        ("Causal language model of WikiText-2", wikitext.Wikitext()),
        ("Masked language model", masked.Masked()),
    ]
    for title, table in tables:
        kept = read_kept(table.recipes(), results, table.folder)
        for name in ("smooth", "sharpen"):
            forced = f"forced to {name} in all layers, begun near the plain one's weights"
            claim = f"{title} {forced}: validation perplexity beside the plain model's"
            lines.append(_worse(claim, f"oversmooth reproduce text {table.name}", kept, name))
    return lines


def _worse(claim: str, command: str, kept: Kept, name: str) -> Line:
    by_name = {which: [cell["valid_perplexity"] for cell in cells_of(kept, which)] for which in (name, "plain")}
    if not all(by_name.values()):
        return Line(claim, command, MISSING, "worse", MISSING)
    forced, plain = (table_text.mean_and_spread(values)[0] for values in by_name.values())
    return Line(claim, command, f"{forced:.2f} against {plain:.2f}", "worse", "yes" if forced > plain else "no")
