"""The report as one HTML page that holds everything it needs: data, charts and the library that draws them.

The page never asks the network for anything, and its policy would refuse it. Charts are those of `report.charts`;
beside them lies the JSON that `Diagnosis.save` writes, so what is drawn can be checked and taken away.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from oversmooth.diagnosis.facts import Number, plain
from oversmooth.diagnosis.parts import Eigenvalues, Layer
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.diagnosis.verdict import agreement
from oversmooth.metrics import METRICS
from oversmooth.report import charts
from oversmooth.report.charts.spectra import MOST_A_PLOT, outermost
from oversmooth.report.style import COLOURS_OF_MODELS, PAGE, UNKNOWN, css_variables, fixed, number, percent
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_writable, whole_file
from oversmooth.safety.foreign import READABLE, shortened
from oversmooth.safety.libraries import import_library

MOST_MODELS = COLOURS_OF_MODELS
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
    models = charts.shown(diagnoses, PAGE)
    drawn = {
        name: drawing for name, chart in charts.CHARTS.items() if chart.in_page and (drawing := _drawn(chart, models))
    }
    labels = [model.label for model in models]
    scripts = [_library(), _text("page.js")]
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["indexed"] = _indexed
    return environment.from_string(_text("page.html.j2")).render(
        models=[
            {
                "label": model.label,
                "colour": PAGE.colour(model.colour),
                "summary": _summary(diagnosis),
                "provenance": _entries({**diagnosis.model, **diagnosis.provenance}),
                "verdict": diagnosis.verdict,
                "remarks": diagnosis.remarks,
                "rows": [_row(depth, layer) for depth, layer in enumerate(diagnosis.layers)],
                "parts": _parts(diagnosis),
            }
            for model, diagnosis in zip(models, diagnoses, strict=True)
        ],
        metrics=[metric for metric in METRICS.values() if metric.label],
        sections=_sections(drawn),
        thinned=thinned,
        any_massive=any(layer.without_massive for diagnosis in diagnoses for layer in diagnosis.layers),
        beside=_beside(labels, diagnoses) if len(diagnoses) > 1 else [],
        tested=_tested(labels, diagnoses),
        links=links,
        style=Markup(f"{css_variables()}\n{_text('page.css')}"),
        scripts=[Markup(script) for script in scripts],
        hashes=[_hash(script) for script in scripts],
        payload=Markup(_json(data)),
        drawn=Markup(_json({"config": PAGE.config, "charts": drawn, "models": [_chosen_from(m) for m in models]})),
    )


def _drawn(chart: charts.Chart, models: list[charts.Shown]) -> dict[str, Any] | None:
    """What the page needs to draw a chart, of every model if it shows one at a time; None where none has data."""
    given = [[model] for model in models] if chart.one_model else [models]
    drawings = [chart.draw(each, PAGE) for each in given]
    if not any(drawing.panels for drawing in drawings):
        return None
    different = [drawing for place, drawing in enumerate(drawings) if drawing not in drawings[:place]]
    return {
        "one_model": chart.one_model,
        "missing": chart.missing,
        "of_model": [different.index(drawing) for drawing in drawings],
        "drawings": [
            {
                "legend": drawing.legend,
                "panels": [
                    {k: _packed(v) for k, v in vars(panel).items() if v not in ("", [], None)}
                    for panel in drawing.panels
                ],
            }
            for drawing in different
        ],
    }


def _packed(part: Any) -> Any:
    """A description with its rows of data as columns, which takes half the room; page.js makes rows of them again."""
    if isinstance(part, dict):
        rows = part.get("values")
        if (
            isinstance(rows, list)
            and len(rows) > 1
            and all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)
        ):
            return {"columns": {name: _column([row[name] for row in rows]) for name in rows[0]}}
        return {key: _packed(value) for key, value in part.items()}
    return [_packed(value) for value in part] if isinstance(part, list) else part


def _column(values: list[Any]) -> list[Any] | dict[str, list[Any]]:
    """As it is, or as the different values and which of them stands where, whichever is shorter."""
    texts = [json.dumps(value) for value in values]
    different = list(dict.fromkeys(texts))
    if sum(map(len, different)) + 2 * len(texts) >= sum(map(len, texts)):
        return values
    places = {text: place for place, text in enumerate(different)}
    return {"of": [json.loads(text) for text in different], "at": [places[text] for text in texts]}


def _sections(drawn: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Headings, and the charts under them with their places: those of all models first."""
    sections: dict[str, dict[str, Any]] = {}
    for name in sorted(drawn, key=lambda name: drawn[name]["one_model"]):
        chart = charts.CHARTS[name]
        of = charts.CHARTS[chart.under] if chart.under in drawn else chart
        section = sections.setdefault(
            of.name, {"name": of.name, "title": of.title, "lead": of.lead, "one_model": of.one_model, "charts": []}
        )
        places: dict[str, dict[str, Any]] = {}
        for panel in (panel for drawing in drawn[name]["drawings"] for panel in drawing["panels"]):
            place = places.setdefault(panel.get("place", name), {"title": panel.get("title", ""), "options": []})
            if (option := panel.get("option")) and option not in place["options"]:
                place["options"].append(option)
        section["charts"].append({"name": name, "places": places})
    return list(sections.values())


def _chosen_from(model: charts.Shown) -> dict[str, Any]:
    """What the page lists for a reader to choose from: layers, and their spectra by how the norm enters and by head."""
    layers: list[dict[str, Any] | None] = []
    for layer in model.diagnosis.layers:
        spectrum = layer.spectrum
        if spectrum is None:
            layers.append(None)
            continue
        share = spectrum.negative_share
        strength = 0 if share is None else round(100 * min(1, 1.6 * abs(2 * share - 1)))
        side = PAGE.colour("negative" if share is not None and share >= 0.5 else "positive")
        layers.append(
            {
                "name": shortened(layer.name, 28),
                "share": percent(share),
                "cell": f"color-mix(in srgb, {side} {strength}%, transparent)",
                "inverse_sigma": number(spectrum.inverse_sigma, 3) if spectrum.inverse_sigma is not None else None,
                "joined": {variant: _in_short(e) for variant, e in spectrum.joined.items()},
                "heads": {variant: [_in_short(e) for e in heads] for variant, heads in spectrum.heads.items()},
            }
        )
    return {"label": model.label, "layers": layers}


def _in_short(e: Eigenvalues) -> list[str]:
    return [percent(e.negative_share), number(e.mean_real, 3), number(e.rho_smooth)]


def _indexed(text: str) -> Any:
    """With indices as HTML sets them."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=\w)_(\w+)", r"<sub>\1</sub>", str(escape(text))))


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
        out.append((key.replace("_", " "), UNKNOWN if value is None or value == "" else str(value)))
    return out


def _beside(labels: list[str], diagnoses: list[Diagnosis]) -> list[tuple[str, list[str]]]:
    """A line per model: what happened to its tokens, and what its spectra say."""
    rows = []
    for label, d in zip(labels, diagnoses, strict=True):
        first, last = d.layers[0].tokens, d.layers[-1].tokens
        sums = [_total(d, part) for part in ("attention", "mlp")]
        agree, apart = agreement(d.layers[1:])
        judged = agree + len(apart)
        cells = [
            *(f"{number(first.get(m), 3)} → {number(last.get(m), 3)}" for m in ("hfc_lfc", "cos", "effective_rank")),
            *(fixed(value, sign=True) for value in sums),
            *(percent(share, 0) for share in (d.negative_share, d.smoothing_share)),
            f"{agree} of {judged}" if judged else UNKNOWN,
        ]
        rows.append((label, cells))
    return rows


def _total(diagnosis: Diagnosis, part: str) -> Number:
    known = [value for layer in diagnosis.layers if (value := layer.change(part)) is not None]
    return math.fsum(known) if known else None


def _tested(labels: list[str], diagnoses: list[Diagnosis]) -> dict[str, Any] | None:
    """The table of accuracies, clean first; None where nothing was tested."""
    tested = [(label, d.accuracy) for label, d in zip(labels, diagnoses, strict=True) if d.accuracy is not None]
    if not tested:
        return None
    most = max(len(a.corrupted) for _, a in tested)
    return {
        "how": "; ".join(dict.fromkeys(f"{a.images} images, {a.how}" for _, a in tested)),
        "intensities": list(range(1, most + 1)),
        "rows": [
            (label, [fixed(100 * v, 1) for v in (a.clean, *a.corrupted)] + [UNKNOWN] * (most - len(a.corrupted)))
            for label, a in tested
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
        "tokens": [number(layer.tokens.get(key)) for key, metric in METRICS.items() if metric.label],
        "changes": {part: number(value, sign=True) for part, value in changes.items()},
        "negative": number(spectrum.negative_share if spectrum else None),
        "rho_smooth": number(layer.rho_smooth),
        "rho_rough": number(dominance.rho_rough if dominance else None),
        "share": number(dominance.smoothing_share if dominance else None),
    }


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
