"""Data as a page holds it: columns for rows, fewer eigenvalues than a file has, and JSON that is safe in HTML."""

from __future__ import annotations

import json
from typing import Any

from oversmooth.diagnosis.facts import plain
from oversmooth.report.charts.spectra import MOST_A_PLOT, outermost

MOST_EIGENVALUES = 120_000
"""Of all spectra together, about 2.5 MB at most. BERT-base has 55,296."""
_FEW = 6
"""Models whose spectra may fill the page; of more, other things do."""


def packed(part: Any) -> Any:
    """A description with its rows of data as columns, which takes half the room; page.js makes rows of them again."""
    if isinstance(part, dict):
        rows = part.get("values")
        if (
            isinstance(rows, list)
            and len(rows) > 1
            and all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)
        ):
            return {"columns": {name: _column([row[name] for row in rows]) for name in rows[0]}}
        return {key: packed(value) for key, value in part.items()}
    return [packed(value) for value in part] if isinstance(part, list) else part


def _column(values: list[Any]) -> list[Any] | dict[str, list[Any]]:
    """As it is, or as the different values and which of them stands where, whichever is shorter."""
    texts = [json.dumps(value) for value in values]
    different = list(dict.fromkeys(texts))
    if sum(map(len, different)) + 2 * len(texts) >= sum(map(len, texts)):
        return values
    places = {text: place for place, text in enumerate(different)}
    return {"of": [json.loads(text) for text in different], "at": [places[text] for text in texts]}


def thin(data: list[dict[str, Any]]) -> list[str]:
    """Take eigenvalues out where there are more than a page can hold; a sentence for each model that lost some."""
    plots = [[p for layer in entry["layers"] if layer["spectrum"] for p in _plots(layer["spectrum"])] for entry in data]
    sizes = sorted(_size(plot) for of_model in plots for plot in of_model)
    allowed, left = MOST_A_PLOT, MOST_EIGENVALUES * _FEW // max(_FEW, 2 * len(data) - _FEW)
    for i, size in enumerate(sizes):  # small plots stay whole, and leave what they do not need to the large ones
        fair = left // (len(sizes) - i)
        if size > fair:
            allowed = min(allowed, fair)
            break
        left -= size
    sentences = []
    for entry, of_model in zip(data, plots, strict=True):
        before = sum(_size(plot) for plot in of_model)
        for plot in of_model:
            for e in plot if _size(plot) > allowed else []:
                kept = outermost(e["real"], e["imag"], allowed // len(plot))
                e["real"], e["imag"] = ([plain(e[part][i], 4) for i in kept] for part in ("real", "imag"))
        after = sum(_size(plot) for plot in of_model)
        if after < before:
            sentences.append(
                f"{entry['model']['name']}: this page keeps {after:,} of {before:,} eigenvalues, to four digits: "
                "those with the largest |1\u00a0+\u00a0λ| and an even sample of the rest. Shares, means and radii are "
                "of all; the JSON that the diagnosis itself saves has them all."
            )
    return sentences


def _plots(spectrum: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Spectra by the plot they share: each variant joined, and the heads of each."""
    return [[e] for e in spectrum["joined"].values()] + [heads for heads in spectrum["heads"].values() if heads]


def _size(plot: list[dict[str, Any]]) -> int:
    return sum(len(e["real"]) for e in plot)


def json_in_html(value: Any) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
