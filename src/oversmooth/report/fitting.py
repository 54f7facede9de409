"""Data as a page contains it: deflated, and without what is least missed if many large models do not fit."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from oversmooth.report.charts.spectra import MOST_A_PLOT, outermost
from oversmooth.results.facts import plain

MOST_BYTES = 8_000_000  # of a whole page
_APART = 2_000_000  # of these for what is not data: the library that draws, and the tables
MOST_EIGENVALUES = 120_000  # of all spectra together. BERT-base has 55,296.


def embedded(value: Any) -> str:
    """JSON, deflated, in letters that no element ends at; charts.js reads it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(text.encode("utf-8", "surrogatepass")) + packer.flush()).decode()


def fit(data: list[dict[str, Any]], taken: int) -> list[str]:
    """Remove what does not fit in a page beside charts of so many bytes; a sentence for each removal."""
    removed = _fewer_eigenvalues(data)
    tokens = [(entry, entry["one_input"]) for entry in data if entry["one_input"]]
    for entry, _ in tokens:
        entry["one_input"] = None
    space = MOST_BYTES - _APART - taken
    size = len(embedded(data))
    if size > space:
        for layer in (layer for entry in data for layer in entry["layers"] if layer["dominance"]):
            layer["dominance"] |= {"rho_rough_heads": [], "verdict_heads": []}
        removed.append("The JSON download of this page lacks ρ rough and the verdicts of single inputs.")
        size = len(embedded(data))
    lost = []
    for entry, one in tokens:
        more = len(embedded(one))
        if size + more <= space:
            entry["one_input"] = one
            size += more
        else:
            lost.append(entry["model"]["name"])
    if lost:
        whose = ", ".join(lost) if len(lost) <= 3 else f"{len(lost)} of {len(data)} models"
        removed.append(f"The tokens of {whose} do not fit in this page; a page of fewer models contains them.")
    return removed


def _fewer_eigenvalues(data: list[dict[str, Any]]) -> list[str]:
    """An equal share for every plot where all are too many; a sentence for each model that lost some."""
    spectra = [[layer["spectrum"] for layer in entry["layers"] if layer["spectrum"]] for entry in data]
    # By the plot they share: each variant joined, and the heads of each.
    plots = [[p for s in of for p in (*([e] for e in s["joined"].values()), *s["heads"].values())] for of in spectra]
    before = [sum(len(e["real"]) for plot in of_model for e in plot) for of_model in plots]
    share = MOST_EIGENVALUES // max(1, sum(map(len, plots))) if sum(before) > MOST_EIGENVALUES else MOST_A_PLOT
    removed = []
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
