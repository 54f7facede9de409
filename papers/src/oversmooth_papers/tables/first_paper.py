"""docs/first-paper.md: what Dovonon et al. claim, beside what results/ holds.

    oversmooth reproduce first-paper -o docs/first-paper.md

Every figure is read from a cell when the page is written; what is not there is said to be missing. A line agrees where
ours lies as the claim says; a figure agrees where it is within three standard deviations of the published one, the
larger spread of the two, and at least one point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oversmooth_papers.tables import depth, forms, rules, table1, table2, table3, table_text
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.cells import Kept, read_kept
from oversmooth_papers.tables.text import glue
from oversmooth_papers.tables.text import language_models as text
from oversmooth_papers.tasks.images.recipe import VARIANTS, percent, variant_title

MISSING = "missing"
_FROST = Path("imagenet-c-frost")
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


_TABLES: tuple[tuple[str, str, Table], ...] = (
    ("Table 1 under every counting rule", "rules", rules.RulesOfTable1()),
    ("Table 2", "table2", table2.Table2()),
    (
        "Table 3, frost from the official pictures",
        f"table3 --share 1 --frost {_FROST}",
        table3.Table3(share=1.0, frost=_FROST),
    ),
    ("Table 3 of the 10 % models, frost of our own", "table3 --share 0.1", table3.Table3(share=0.1)),
    ("More layers", "depth", depth.Depth()),
    (
        "More layers: the three notions, and prediction beside measurement",
        "rules --depths",
        rules.RulesOfTable1(depths=True),
    ),
    ("Mixtures: ViT*", "mixtures", forms.Mixtures()),
    ("Forms of sharpening", "forms", forms.Forms()),
    ("Sharpening or its form? Controls", "controls", forms.Controls()),
    ("Text, causal", "text causal", text.Causal()),
    ("Text, causal, WikiText-2", "text wikitext", text.Wikitext()),
    ("Text, masked", "text masked", text.Masked()),
    ("Text, masked, fine-tuned", "text glue", glue.Glue()),
)
"""Titles of sections, what is typed after `oversmooth reproduce`, and the tables."""
Line = tuple[str, str, str, str, str]
"""One claim: its words, the command, our figure, the published one, and whether they agree."""


def page(results: Path) -> str:
    """The page, in Markdown."""
    lines = [*_accuracies(results), *_table1(results), *_corruption(results), *_depth(results), *_text(results)]
    shown = [(claim, f"`oversmooth reproduce {command}`", *others) for claim, command, *others in lines]
    parts = [*_INTRO, table_text.markdown(_HEAD, shown).strip()]
    for title, command, table in _TABLES:
        kept, count = _kept(table, results), len(table.recipes())
        there = f"{len(kept)} of {count} cells are there" if kept else f"none of its {count} cells has been run"
        parts += [f"## {title}", f"`oversmooth reproduce {command}`: {there}."]
        parts += [table_text.markdown(*table.rows(kept), table.notes()).strip()] if kept else []
    return "\n\n".join(parts) + "\n"


def _kept(table: Table, results: Path) -> Kept:
    return read_kept(table.recipes(), results, table.folder)


def agrees(ours: Sequence[float], published: float, spread: float) -> str:
    """Of figures in %, over seeds."""
    if not ours:
        return MISSING
    mean, own = table_text.mean_and_spread(ours)
    return "yes" if abs(mean - published) <= max(1.0, 3 * max(spread, own or 0.0)) else "no"


def _accuracy(claim: str, command: str, ours: Sequence[float], published: float, spread: float) -> Line:
    """A line of accuracies over seeds, which are shares."""
    verdict = agrees([100 * share for share in ours], published, spread)
    shown = table_text.percent_over_seeds(ours) if ours else MISSING
    return f"{claim}, accuracy in %", command, shown, f"{published:.2f} ± {spread}", verdict


def _accuracies(results: Path) -> list[Line]:
    """Every variant's, then smoothing and sharpening beside plain, in points of the means."""
    table = table2.Table2()
    kept = _kept(table, results)
    lines = []
    for share in table2.SHARES:
        command = f"table2 --cells {percent(share).replace(' ', '')}"
        ours = {variant: table.accuracies(kept, variant, share) for variant in VARIANTS}
        published = {variant: table.published[variant][share] for variant in VARIANTS}
        for variant in VARIANTS:
            claim = f"{variant_title(variant)} on {percent(share)} of CIFAR-100"
            lines.append(_accuracy(claim, command, ours[variant], *published[variant]))
        for variant in VARIANTS[1:]:
            claim = f"{variant_title(variant)} less ViT-Ti on {percent(share)} of the data, in points"
            theirs = published[variant][0] - published["plain"][0]
            shown = verdict = MISSING
            if ours[variant] and ours["plain"]:
                one, plain = (100 * table_text.mean_and_spread(ours[name])[0] for name in (variant, "plain"))
                shown, verdict = f"{one - plain:+.2f}", "in sign" if (one > plain) == (theirs > 0) else "no"
            lines.append((claim, command, shown, f"{theirs:+.2f}", verdict))
    return lines


def _table1(results: Path) -> list[Line]:
    kept = _kept(rules.RulesOfTable1(seeds=1), results)
    lines = []
    for variant in VARIANTS:
        published = table1.PUBLISHED[f"{variant_title(variant)}, CIFAR-100"]
        cells = [cell for recipe, cell in kept.items() if recipe.variant == variant]
        for rule in ("heads", "unnormalised"):
            claim = f"{variant_title(variant)}: smoothing eigenvalue dominates, % of cases, {rules.TITLES[rule]}"
            # What is open may lie on either side: the published figure is held against the nearest it allows.
            spans = [(share := rules.smoothing(cell, rule), share + rules.undecided(cell, rule)) for cell in cells]
            verdict = agrees([min(max(published, low), high) for low, high in spans], published, 0.0)
            shown = rules.share_text(cells[0], rule) if cells else MISSING
            lines.append((claim, "rules", shown, f"{published:.2f}", verdict))
    return lines


def _corruption(results: Path) -> list[Line]:
    table = table3.Table3(share=1.0, frost=_FROST)
    kept, worst = _kept(table, results), table3.INTENSITIES[-1]
    return [
        _accuracy(
            f"{variant_title(variant)} under corruption of intensity {worst}",
            f"table3 --frost {_FROST}",
            table.accuracies(kept, variant, worst),
            *table.published[variant][worst],
        )
        for variant in VARIANTS
    ]


def _depth(results: Path) -> list[Line]:
    lines = []
    by_case = depth.Depth().by_case(_kept(depth.Depth(), results))
    for variant in VARIANTS:
        by_depth = [[100 * cell["accuracy"] for cell in cells] for own, _, cells in by_case if own == variant]
        shown = ", ".join(f"{table_text.mean_and_spread(values)[0]:.2f}" if values else "–" for values in by_depth)
        claim = f"{variant_title(variant)} with {', '.join(map(str, depth.DEPTHS))} blocks, accuracy in %"
        verdict = MISSING if sum(map(bool, by_depth)) < 2 else "no figures were published"
        lines.append((claim, "depth", shown, "not published as numbers", verdict))
    return lines


def _text(results: Path) -> list[Line]:
    tables: dict[str, Table] = {
        "Causal language model": text.Causal(),
        "Causal language model of WikiText-2": text.Wikitext(),
        "Masked language model": text.Masked(),
    }
    lines = []
    for title, table in tables.items():
        kept = _kept(table, results)
        plain, *forced = ([cell["valid_perplexity"] for cell in text.cells_of(kept, name)] for name in VARIANTS)
        for name, values in zip(VARIANTS[1:], forced, strict=True):
            how = f"forced to {name} in all layers, begun near the plain one's weights"
            claim = f"{title} {how}: validation perplexity beside the plain model's"
            shown = verdict = MISSING
            if plain and values:
                ours, beside = (table_text.mean_and_spread(each)[0] for each in (values, plain))
                shown, verdict = f"{ours:.2f} against {beside:.2f}", "yes" if ours > beside else "no"
            lines.append((claim, f"text {table.name}", shown, "worse", verdict))
    return lines
