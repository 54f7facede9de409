"""docs/first-paper.md: what Dovonon et al. claim, beside what results/ holds, and every table behind it.

oversmooth reproduce first-paper -o docs/first-paper.md
"""

from __future__ import annotations

from pathlib import Path

from oversmooth_papers.tables import claims, depth, forms, rules, table2, table3, table_text
from oversmooth_papers.tables.base import Table
from oversmooth_papers.tables.text import glue
from oversmooth_papers.tables.text import language_models as text

_HEAD = ("claim", "command", "ours", "published", "agrees")
_INTRO = (
    "# Dovonon et al., line by line",
    "What they claim, the command that checks it, our figure, the published one, and whether they agree. Every figure "
    "is read from a cell in results/ by `oversmooth reproduce first-paper -o docs/first-paper.md`; what was not run is "
    "missing. ± is the standard deviation over seeds (n − 1), their number in brackets.",
    "Whether a figure agrees follows [the rule of all tables](results.md): yes where the 95% t interval of our "
    "difference to the published figure lies within ±1.5 points, no where it lies outside, else inconclusive, as with "
    "one seed. Differences between two models, and perplexities, are claims of a sign: yes or no where the 95% t "
    "interval of the paired differences excludes 0; one seed agrees in sign or has the opposite sign.",
)


_TABLES: tuple[tuple[str, str, Table], ...] = (
    ("Table 1 under every counting rule", "rules", rules.RulesOfTable1()),
    ("Table 2", "table2", table2.Table2()),
    (
        "Table 3, frost from the official pictures",
        f"table3 --share 1 --frost {claims.FROST}",
        table3.Table3(share=1.0, frost=claims.FROST),
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


def page(results: Path) -> str:
    """The page, in Markdown."""
    found = [
        *claims.accuracies(results),
        *claims.smoothing_shares(results),
        *claims.corruption(results),
        *claims.corruption_gains(results),
        *claims.depths(results),
        *claims.language(results),
    ]
    shown = [
        (one.words, f"`oversmooth reproduce {one.command}`", one.ours, one.published, one.verdict) for one in found
    ]
    parts = [*_INTRO, table_text.markdown(_HEAD, shown).strip()]
    for title, command, table in _TABLES:
        available, count = table.available(results), len(table.recipes())
        none = f"none of its {count} cells has been run"
        there = f"{len(available)} of {count} cells are there" if available else none
        parts += [f"## {title}", f"`oversmooth reproduce {command}`: {there}."]
        parts += [table_text.markdown(*table.rows(available), table.notes()).strip()] if available else []
    return "\n\n".join(parts) + "\n"
