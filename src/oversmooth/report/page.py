"""The report as one HTML page that holds everything it needs: data, charts and the library that draws them.

The page never asks the network for anything, and its policy would refuse it. Charts are Vega-Lite specifications made
in the browser (page_charts.js) from the same JSON that `Diagnosis.save` writes, so what is drawn can be checked and
taken away.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from oversmooth.diagnosis.facts import Number, plain
from oversmooth.diagnosis.parts import Layer
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.diagnosis.verdict import agreement
from oversmooth.metrics import METRICS
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_writable, whole_file
from oversmooth.safety.foreign import READABLE, shortened
from oversmooth.safety.libraries import import_library

MOST_MODELS = 6
"""As many colours can be told apart by readers with any kind of colour vision."""
MOST_A_PLOT = 2_000
"""Eigenvalues of one plot in the page; more cannot be told apart in a plot of this size."""
MOST_A_PAGE = 120_000
"""Of all spectra together, about 2.5 MB at most. BERT-base has 55,296, and a page of 2.2 MB."""

_LIBRARIES = ("oversmooth", "torch", "transformers", "timm")


Links = Sequence[tuple[str, str]]
"""Other pages: what they show, and where they are from here."""


def check(path: Path) -> None:
    """Refuse what cannot become a page, before the work is done that it is to show."""
    check_writable(path, (".html", ".htm"))
    for library in ("jinja2", "vl_convert"):
        import_library(library, "writing a page")


def save(diagnoses: list[Diagnosis], path: Path, links: Links = ()) -> None:
    """The page as a file, there whole or not at all."""
    text = render(diagnoses, links)
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", READABLE))  # names of files may have halves of letters


def render(diagnoses: list[Diagnosis], links: Links = ()) -> str:
    """The page of one model, or of several laid over each other."""
    import jinja2  # only pages need it
    from markupsafe import Markup

    if not 1 <= len(diagnoses) <= MOST_MODELS:
        raise InputError(f"a page shows 1 to {MOST_MODELS} models and {len(diagnoses)} were given; choose among them")
    data = [diagnosis.to_dict() for diagnosis in diagnoses]
    thinned = _thin(data)
    shown = [metric for metric in METRICS.values() if metric.label]
    labels = distinct([diagnosis.name for diagnosis in diagnoses])
    scripts = [_library(), _text("page_charts.js"), _text("page.js")]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_text("page.html.j2")).render(
        models=[
            {
                "label": label,
                "summary": _summary(diagnosis),
                "provenance": _entries({**diagnosis.model, **diagnosis.provenance}),
                "verdict": diagnosis.verdict,
                "remarks": diagnosis.remarks,
                "rows": [_row(depth, layer) for depth, layer in enumerate(diagnosis.layers)],
                "parts": _parts(diagnosis),
            }
            for label, diagnosis in zip(labels, diagnoses, strict=True)
        ],
        metrics=shown,
        ranks=[metric for metric in shown if metric.notion not in ("input convergence", "angle convergence")],
        thinned=thinned,
        any_massive=any(layer.without_massive for diagnosis in diagnoses for layer in diagnosis.layers),
        any_tokens=any(value is not None for d in diagnoses for layer in d.layers for value in layer.tokens.values()),
        any_changes=any(layer.changes for diagnosis in diagnoses for layer in diagnosis.layers),
        any_spectra=any(layer.spectrum for diagnosis in diagnoses for layer in diagnosis.layers),
        any_dominance=any(layer.dominance for diagnosis in diagnoses for layer in diagnosis.layers),
        any_extrapolation=any(diagnosis.extrapolation for diagnosis in diagnoses),
        beside=_beside(labels, diagnoses) if len(diagnoses) > 1 else [],
        tested=_tested(labels, diagnoses),
        links=links,
        style=Markup(_text("page.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=[_hash(script) for script in scripts],
        payload=Markup(_json(data)),
        settings=Markup(_json({"labels": labels})),
    )


def _thin(data: list[dict[str, Any]]) -> list[str]:
    """Take eigenvalues out where there are more than a page can hold; a sentence for each model that lost some."""
    plots = [[p for layer in entry["layers"] if layer["spectrum"] for p in _plots(layer["spectrum"])] for entry in data]
    sizes = sorted(_size(plot) for of_model in plots for plot in of_model)
    allowed, left = MOST_A_PLOT, MOST_A_PAGE
    for i, size in enumerate(sizes):  # small plots stay whole, and leave what they do not need to the large ones
        fair = left // (len(sizes) - i)
        if size > fair:
            allowed = min(allowed, fair)
            break
        left -= size
    said = []
    for entry, of_model in zip(data, plots, strict=True):
        before = sum(_size(plot) for plot in of_model)
        for plot in of_model:
            for e in plot if _size(plot) > allowed else []:
                kept = _kept(e["real"], e["imag"], allowed // len(plot))
                e["real"], e["imag"] = ([plain(e[part][i], 4) for i in kept] for part in ("real", "imag"))
        after = sum(_size(plot) for plot in of_model)
        if after < before:
            said.append(
                f"{entry['model']['name']}: this page keeps {after:,} of {before:,} eigenvalues, to four digits: "
                "those with the largest |1\u00a0+\u00a0λ| and an even sample of the rest. Shares, means and radii are "
                "of all; the JSON that the diagnosis itself saves has them all."
            )
    return said


def _plots(spectrum: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Spectra by the plot they share: each variant joined, and the heads of each."""
    return [[e] for e in spectrum["joined"].values()] + [heads for heads in spectrum["heads"].values() if heads]


def _size(plot: list[dict[str, Any]]) -> int:
    return sum(len(e["real"]) for e in plot)


def _kept(real: list[float], imag: list[float], count: int) -> list[int]:
    """Places of the eigenvalues to keep: the largest |1 + λ|, which decide, and an even sample of the rest. What is
    conjugate stays together.
    """
    if len(real) <= count:
        return list(range(len(real)))
    pairs: dict[tuple[float, float], list[int]] = {}
    for i, (re, im) in enumerate(zip(real, imag, strict=True)):
        pairs.setdefault((re, abs(im)), []).append(i)
    order = sorted(pairs.values(), key=lambda pair: -math.hypot(1 + real[pair[0]], imag[pair[0]]))
    wanted = max(1, count * len(order) // len(real))
    decisive = max(1, wanted // 20)
    outer, rest = order[:decisive], order[decisive:]
    wanted -= decisive
    return sorted(i for pair in outer + [rest[j * len(rest) // wanted] for j in range(wanted)] for i in pair)


def distinct(names: list[str]) -> list[str]:
    """The models' names, made different where two are the same."""
    labels: list[str] = []
    for name in names:
        label, copy = name, 2
        while label in labels:
            label, copy = f"{name} ({copy})", copy + 1
        labels.append(label)
    return labels


def _summary(diagnosis: Diagnosis) -> str:
    """Where the numbers come from, in one line."""
    known: dict[str, Any] = {**diagnosis.model, **diagnosis.provenance}
    tokens = known.get("tokens")
    if isinstance(tokens, list):  # the fewest and the most of any input
        tokens = "–".join(str(n) for n in dict.fromkeys(tokens))
    words = [
        known.get("data"),
        _counted(known.get("inputs"), "input"),
        _counted(tokens, "token"),
        known.get("dtype"),
        *(f"{library} {known[library]}" for library in _LIBRARIES if known.get(library)),
        str(known.get("created") or "")[:10],
    ]
    return " · ".join(str(word) for word in words if word)


def _counted(count: Any, noun: str) -> str:
    return "" if count is None else f"{count} {noun}{'' if str(count) == '1' else 's'}"


def _entries(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Every entry as words, nested ones in one line."""
    out = []
    for key, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(str(v) for v in value)
        out.append((key.replace("_", " "), "–" if value is None or value == "" else str(value)))
    return out


def _beside(labels: list[str], diagnoses: list[Diagnosis]) -> list[tuple[str, list[str]]]:
    """A line a model: what happened to its tokens, and what its spectra say."""
    rows = []
    for label, d in zip(labels, diagnoses, strict=True):
        first, last = d.layers[0].tokens, d.layers[-1].tokens
        sums = [_total(d, part) for part in ("attention", "mlp")]
        agree, apart = agreement(d.layers[1:])
        judged = agree + len(apart)
        cells = [
            *(f"{_short(first.get(m))} → {_short(last.get(m))}" for m in ("hfc_lfc", "cos", "effective_rank")),
            *(_number(value if value is None else round(value, 2), sign=True) for value in sums),
            *("–" if share is None else f"{share:.0%}" for share in (d.negative_share, d.smoothing_share)),
            f"{agree} of {judged}" if judged else "–",
        ]
        rows.append((label, cells))
    return rows


def _short(value: Number) -> str:
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _total(diagnosis: Diagnosis, part: str) -> Number:
    known = [value for layer in diagnosis.layers if (value := layer.change(part)) is not None]
    return math.fsum(known) if known else None


def _tested(labels: list[str], diagnoses: list[Diagnosis]) -> dict[str, Any] | None:
    """The table of accuracies, clean first; None where nothing was tested."""
    found = [(label, d.accuracy) for label, d in zip(labels, diagnoses, strict=True) if d.accuracy is not None]
    if not found:
        return None
    most = max(len(a.corrupted) for _, a in found)
    return {
        "how": "; ".join(dict.fromkeys(f"{a.images} images, {a.how}" for _, a in found)),
        "intensities": list(range(1, most + 1)),
        "rows": [
            (label, [f"{100 * v:.1f}" for v in (a.clean, *a.corrupted)] + ["–"] * (most - len(a.corrupted)))
            for label, a in found
        ],
    }


def _parts(diagnosis: Diagnosis) -> list[str]:
    """The parts that changed anything, in the order in which they come."""
    return list(dict.fromkeys(change.part for layer in diagnosis.layers for change in layer.changes))


def _row(depth: int, layer: Layer) -> dict[str, Any]:
    """A line of the table."""
    changes: dict[str, float] = {}
    for change in layer.changes:
        if change.log_hfc_lfc is not None:
            changes[change.part] = changes.get(change.part, 0.0) + change.log_hfc_lfc
    spectrum, dominance = layer.spectrum, layer.dominance
    return {
        "depth": depth,
        "name": layer.name,
        "short": shortened(layer.name, 28),
        "tokens": [_number(layer.tokens.get(key)) for key, metric in METRICS.items() if metric.label],
        "changes": {part: _number(value, sign=True) for part, value in changes.items()},
        "negative": _number(spectrum.negative_share if spectrum else None),
        "rho_smooth": _number(layer.rho_smooth),
        "rho_rough": _number(dominance.rho_rough if dominance else None),
        "share": _number(dominance.smoothing_share if dominance else None),
    }


def _number(value: Number, sign: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{value:.3g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4g}"
    return ("+" if sign and value > 0 else "") + ("0" if value == 0 else text.replace("-", "−"))


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed in one script, with nothing in it that ends a script element."""
    import vl_convert  # heavy, and only charts need it

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return "(()=>{" + bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--") + "})();"


@cache
def _text(name: str) -> str:
    return files("oversmooth.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(script: str) -> str:
    """As a content security policy names the scripts it lets run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
