"""What the gallery's table says of each model: figures of its diagnosis, as JSON, Markdown and a page of links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from oversmooth.demo.gallery import Listed
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report import shell
from oversmooth.report.style import arrow, css_variables, fixed, number, percent
from oversmooth.results.facts import Number, plain
from oversmooth.results.findings import DEFINITIONS
from oversmooth.safety.files import write_text
from oversmooth.safety.foreign import json_text

Figures = dict[str, Any]
HEAD = (
    "model", "what it is", "blocks × width", "HFC/LFC, first → last", "cosine, first → last",
    "effective rank, first → last", "attention", "MLPs", "norms", "Re λ < 0", "smoothing share", "undecided",
    "last block 16 times",
)  # fmt: skip
NOTES = (
    "HFC/LFC: how much tokens differ, relative to their common mean. Attention, MLPs, norms: what each adds to log "
    "HFC/LFC over all blocks; a negative sum smooths. Norms are listed where they act on the residual stream "
    "(Post-LN).",
    "Smoothing share: the fraction of (input, layer, head) triples in which the smoothing eigenvalue dominates, "
    "without the norm. Undecided: the numerical error exceeds the margin, or no theorem covers the layer.",
    "Last block 16 times: HFC/LFC of the first input before and after its last block, MLP and norms included, ran 16 "
    "more times.",
)


def figures(entry: Listed, diagnosis: Diagnosis) -> Figures:
    """The figures of one model, as they are kept."""
    model, provenance = diagnosis.model, diagnosis.provenance
    courses = (e.real.log_hfc_lfc for e in diagnosis.extrapolation if e.what == "last block" and e.real is not None)
    again = next(courses, None)
    massive = [layer.massive["input_share"] or 0.0 for layer in diagnosis.layers if layer.massive]
    parts = {change.part for layer in diagnosis.layers for change in layer.changes}
    return {
        "key": entry.key,
        "model": entry.title,
        "what": entry.what,
        "source": entry.source,
        "data": provenance["data"],
        "inputs": provenance["inputs"],
        "tokens": provenance.get("tokens"),
        "seconds": provenance["seconds"],
        **{name: model.get(name) for name in ("layers", "width", "heads", "parameters", "causal", "norm")},
        **{name: [_short(diagnosis.curve(name)[end]) for end in (0, -1)] for name in DEFINITIONS},
        "log_hfc_lfc_by_part": {part: _short(diagnosis.change(part)) for part in sorted(parts)},
        **{name: _short(getattr(diagnosis, name)) for name in ("negative_share", "smoothing_share", "undecided_share")},
        "massive_input_share": _short(max(massive, default=0.0)),
        "last_block_again": again and [_short(None if log is None else math.exp(log)) for log in (again[0], again[-1])],
    }


def _short(value: Number) -> Number:
    return None if value is None else plain(value, digits=4)


def row(one: Figures) -> list[str]:
    """The cells of one model."""
    by_part: Mapping[str, Number] = one["log_hfc_lfc_by_part"]
    again = one["last_block_again"]
    return [
        one["model"],
        one["what"],
        f"{one['layers']} × {one['width']}",
        arrow(one["hfc_lfc"]),
        arrow(one["cos"], fixed),
        arrow(one["effective_rank"]),
        *(fixed(by_part.get(part), sign=True) for part in ("attention", "mlp", "norm")),
        percent(one["negative_share"], decimals=0),
        percent(one["smoothing_share"]),
        percent(one["undecided_share"]),
        "–" if again is None else arrow(again, partial(number, digits=2)),
    ]


def markdown(table: Sequence[Figures]) -> str:
    """The table with what its columns mean, as Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    lines += [f"| {' | '.join(row(one))} |" for one in table]
    return "\n".join([*lines, "", *(f"{note}\n" for note in NOTES)])


def index(table: Sequence[Figures]) -> str:
    """A page that links to each model's own."""
    text: str = shell.template("gallery.html.j2").render(
        style=css_variables(), head=HEAD, rows=[(one["key"], row(one)) for one in table], notes=NOTES
    )
    return text + "\n"


def write(table: Sequence[Figures], folder: Path, name: str) -> list[Path]:
    """The table as NAME.json, NAME.md and index.html."""
    texts = {f"{name}.json": json_text(list(table), indent=1) + "\n", f"{name}.md": markdown(table)}
    for file, text in {**texts, "index.html": index(table)}.items():
        write_text(folder / file, text)
    return [folder / file for file in (*texts, "index.html")]
