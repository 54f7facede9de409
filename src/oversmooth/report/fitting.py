"""Data as a page contains it: deflated, and without what is too much for it."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from oversmooth.report.charts.spectra import MOST_A_PLOT, outermost
from oversmooth.report.style import COLOURS_OF_MODELS
from oversmooth.results.facts import plain

MOST_EIGENVALUES = 120_000  # of all spectra together. BERT-base has 55,296.


def embedded(value: Any) -> str:
    """JSON, deflated, in letters that no element ends at; charts.js reads it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(text.encode("utf-8", "surrogatepass")) + packer.flush()).decode()


def fit(data: list[dict[str, Any]]) -> list[str]:
    """Remove what is too much for a page: the tokens of many models, and eigenvalues that no plot can show, an equal
    share of every plot. A sentence for each removal.
    """
    spectra = [[layer["spectrum"] for layer in entry["layers"] if layer["spectrum"]] for entry in data]
    # By the plot they share: each variant joined, and the heads of each.
    plots = [[p for s in of for p in (*([e] for e in s["joined"].values()), *s["heads"].values())] for of in spectra]
    before = [sum(len(e["real"]) for plot in of_model for e in plot) for of_model in plots]
    share = MOST_EIGENVALUES // max(1, sum(map(len, plots))) if sum(before) > MOST_EIGENVALUES else MOST_A_PLOT
    removed = []
    if len(data) > COLOURS_OF_MODELS and any(entry["one_input"] for entry in data):
        for entry in data:
            entry["one_input"] = None
        removed.append(f"This page lacks tokens; one of up to {COLOURS_OF_MODELS} models contains them.")
    for entry, of_model, count in zip(data, plots, before, strict=True):
        for plot in (plot for plot in of_model if sum(len(e["real"]) for e in plot) > min(share, MOST_A_PLOT)):
            for e in plot:
                most = min(share, MOST_A_PLOT) // len(plot)
                kept = outermost(e["real"], e["imag"], most) if most else []
                e["real"], e["imag"] = ([plain(e[part][i], 4) for i in kept] for part in ("real", "imag"))
        after = sum(len(e["real"]) for plot in of_model for e in plot)
        if after < count:
            removed.append(
                f"{entry['model']['name']}: this page contains {after:,} of {count:,} eigenvalues, to four digits: "
                "those with the largest |1\u00a0+\u00a0λ| and an even sample of the rest. Shares, means and radii are "
                "computed from all of them. A saved diagnosis contains all of them."
            )
    return removed
