"""What the gallery's table says of each model: figures of its diagnosis, as JSON, Markdown and a page of links."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from oversmooth.demo.gallery import Entry
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report.style import css_variables, fixed, number, percent
from oversmooth.results.facts import Number, plain

Figures = dict[str, Any]
HEAD = (
    "model",
    "what it is",
    "blocks × width",
    "HFC/LFC, first → last",
    "cosine, first → last",
    "effective rank, first → last",
    "attention",
    "MLPs",
    "norms",
    "Re λ < 0",
    "smoothing cases",
    "undecided",
    "last block 24 times",
)
NOTES = (
    "HFC/LFC: how much tokens differ, relative to what they share. Attention, MLPs, norms: what each adds to log "
    "HFC/LFC over all blocks; below 0 it smooths, and norms count only where they stand on the stream (Post-LN).",
    "Smoothing cases: of all inputs, layers and heads, where the smoothing eigenvalue dominates, the norm left out. "
    "Undecided: rounding could turn the verdict, or no theorem covers the layer.",
    "Last block 24 times: HFC/LFC of the first input before and after its last block, MLP and norms included, was run "
    "24 times more.",
)


def figures(entry: Entry, diagnosis: Diagnosis) -> Figures:
    """The figures of one model, as they are kept."""
    model, provenance = diagnosis.model, diagnosis.provenance
    again = next((e.real for e in diagnosis.extrapolation if e.what == "last block" and e.real is not None), None)
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
        **{metric: _ends(diagnosis.curve(metric)) for metric in ("hfc_lfc", "cos", "effective_rank")},
        "log_hfc_lfc_by_part": {part: _total(diagnosis, part) for part in sorted(parts)},
        "negative_share": _short(diagnosis.negative_share),
        "smoothing_share": _short(diagnosis.smoothing_share),
        "undecided_share": _short(diagnosis.undecided_share),
        "massive_input_share": _short(_massive(diagnosis)),
        "last_block_again": None if again is None else [_exp(again.log_hfc_lfc[0]), _exp(again.log_hfc_lfc[-1])],
    }


def _ends(curve: Sequence[Number]) -> list[Number]:
    return [_short(curve[0]), _short(curve[-1])]


def _total(diagnosis: Diagnosis, part: str) -> Number:
    values = [value for layer in diagnosis.layers if (value := layer.change(part)) is not None]
    return _short(math.fsum(values)) if values else None


def _massive(diagnosis: Diagnosis) -> Number:
    shares = [layer.massive["input_share"] for layer in diagnosis.layers if layer.massive]
    return max((share for share in shares if share is not None), default=0.0)


def _exp(value: Number) -> Number:
    return None if value is None else _short(math.exp(value))


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
        _arrow(one["hfc_lfc"], lambda v: number(v, 3)),
        _arrow(one["cos"], fixed),
        _arrow(one["effective_rank"], lambda v: number(v, 3)),
        *(fixed(by_part.get(part), sign=True) for part in ("attention", "mlp", "norm")),
        percent(one["negative_share"], decimals=0),
        percent(one["smoothing_share"]),
        percent(one["undecided_share"]),
        "–" if again is None else _arrow(again, lambda v: number(v, 2)),
    ]


def _arrow(ends: Sequence[Number], shown: Any) -> str:
    return f"{shown(ends[0])} → {shown(ends[1])}"


def markdown(table: Sequence[Figures]) -> str:
    """The table with what its columns mean, as Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    lines += [f"| {' | '.join(row(one))} |" for one in table]
    return "\n".join([*lines, "", *(f"{note}\n" for note in NOTES)])


def index(table: Sequence[Figures]) -> str:
    """A page that links to each model's own."""
    cells = [
        f"<tr><td><a href='{html.escape(one['key'])}.html'>{html.escape(one['model'])}</a></td>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row(one)[1:])
        + "</tr>"
        for one in table
    ]
    heads = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in HEAD)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in NOTES)
    return _PAGE.format(variables=css_variables(), heads=heads, rows="\n".join(cells), notes=notes)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Gallery of diagnosed models</title>
<style>{variables}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 84rem; padding: 0 1rem;
  background: Canvas; color: CanvasText; color-scheme: light dark; }}
.scrolls {{ overflow-x: auto; }} table {{ border-collapse: collapse; font-size: .82rem; }}
th, td {{ padding: .4rem .45rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }}
th {{ white-space: normal; vertical-align: bottom; }} td:nth-child(-n+2), th:nth-child(-n+2) {{ text-align: left; }}
td:nth-child(-n+2) {{ white-space: normal; min-width: 7rem; }}
a {{ color: LinkText; }}</style></head>
<body><main><h1>Gallery of diagnosed models</h1>
<div class="scrolls" tabindex="0" role="region" aria-label="The models"><table><thead><tr>{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>{notes}</main></body></html>
"""
