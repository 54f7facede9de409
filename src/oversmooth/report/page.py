"""The report as one HTML page that holds everything it needs: data, charts and the library that draws them.

The page never asks the network for anything, and its policy would refuse it. Charts are those of `report.charts`;
beside them lies the JSON that `Diagnosis.save` writes, so what is drawn can be checked and taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oversmooth.metrics import METRICS
from oversmooth.report import headline, shell
from oversmooth.report.charts import base as charts
from oversmooth.report.charts.accuracy import error_of
from oversmooth.report.charts.changes import stages
from oversmooth.report.fitting import embedded, fit
from oversmooth.report.shell import check as check
from oversmooth.report.style import COLOURS_OF_MODELS, PAGE, UNKNOWN, arrow, fixed, number, percent, sentence
from oversmooth.results import verdict
from oversmooth.results.data import DiagnosisData
from oversmooth.results.findings import agreement
from oversmooth.results.parts import Accuracy, Eigenvalues, Layer
from oversmooth.safety.errors import InputError
from oversmooth.safety.foreign import shortened

MOST_MODELS = 24  # of one page, which shows `COLOURS_OF_MODELS` of them at a time
_AFTER_TOKENS = ("eigenvalues", "plane", "dominance", "extrapolation")  # charts that come after the tokens of one input
_LIBRARIES = ("oversmooth", "torch", "transformers", "timm")


Links = Sequence[tuple[str, str]]  # other pages: what they show, and where they are from here


def save(diagnoses: Sequence[DiagnosisData], path: Path, links: Links = ()) -> None:
    """The page as a file, there whole or not at all."""
    shell.write(render(diagnoses, links), path)


def render(diagnoses: Sequence[DiagnosisData], links: Links = ()) -> str:
    """The page of one model, or of several laid over each other."""
    if not 1 <= len(diagnoses) <= MOST_MODELS:
        raise InputError(f"a page shows 1 to {MOST_MODELS} models and {len(diagnoses)} were given; choose among them")
    models = charts.shown(diagnoses, PAGE)
    in_page = {name: _drawn(chart, models) for name, chart in charts.CHARTS.items() if chart.in_page}
    found = {name: drawing for name, drawing in in_page.items() if drawing}
    chosen = [_chosen_from(m) for m in models]
    drawn = embedded({"config": PAGE.config, "charts": found, "models": chosen, "at_once": COLOURS_OF_MODELS})
    data = [diagnosis.to_dict() for diagnosis in diagnoses]
    left_out = fit(data, len(drawn))
    return shell.rendered(
        "page.html.j2",
        ("charts.js", "tokens.js", "page.js"),
        len(models),
        payload=embedded(data),
        drawn=drawn,
        left_out=left_out,
        **_values(models, diagnoses, found, links, any(entry["one_input"] for entry in data)),
    )


def _values(
    models: list[charts.Shown],
    diagnoses: Sequence[DiagnosisData],
    drawn: dict[str, dict[str, Any]],
    links: Links,
    has_tokens: bool,
) -> dict[str, Any]:
    """What the template writes out."""
    labels = [model.label for model in models]
    sections = _sections(drawn, len(models) > 1, has_tokens)
    return {
        "models": [
            {
                "label": model.label,
                "colour": PAGE.colour(model.colour),
                "summary": _summary(diagnosis),
                "provenance": _entries({**diagnosis.model, **diagnosis.provenance}),
                "name": diagnosis.name,
                "answer": (answer := verdict.headline(diagnosis)),
                "cosine": headline.cosine(diagnosis),
                "verdict": [words for words in diagnosis.verdict if words != answer],
                "remarks": [sentence(remark) for remark in diagnosis.remarks],
                "rows": [_row(depth, layer) for depth, layer in enumerate(diagnosis.layers)],
                "parts": list(dict.fromkeys(part for layer in diagnosis.layers for part in stages(layer))),
            }
            for model, diagnosis in zip(models, diagnoses, strict=True)
        ],
        "finding": headline.finding(models),
        "differences": headline.differences(models),
        "many": len(models) > COLOURS_OF_MODELS,
        "at_once": COLOURS_OF_MODELS,
        "metrics": [metric for metric in METRICS.values() if metric.label],
        "sections": sections,
        "first_of_one": next((of["name"] for of in sections if of["one_model"]), ""),
        "any_massive": any(layer.without_massive for diagnosis in diagnoses for layer in diagnosis.layers),
        "beside": _beside(labels, diagnoses) if len(diagnoses) > 1 else [],
        "tested": _tested(labels, diagnoses),
        "links": links,
    }


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
        "drawings": [{"legend": d.legend, "panels": [vars(panel) for panel in d.panels]} for d in different],
    }


def _sections(drawn: dict[str, dict[str, Any]], several: bool, has_tokens: bool) -> list[dict[str, Any]]:
    """Headings, and the charts under them with their places; of several models, charts of all of them come first."""
    sections: dict[str, dict[str, Any]] = {}
    for name in drawn:
        if has_tokens and (name in _AFTER_TOKENS or name == list(drawn)[-1]):
            sections.setdefault("tokens", {"name": "tokens", "one_model": True})
        chart = charts.CHARTS[name]
        of = charts.CHARTS[chart.under] if chart.under in drawn else chart
        section = sections.setdefault(
            of.name, {"name": of.name, "title": of.title, "lead": of.lead, "one_model": of.one_model, "charts": []}
        )
        places: dict[str, dict[str, Any]] = {}
        for panel in (panel for drawing in drawn[name]["drawings"] for panel in drawing["panels"]):
            place = places.setdefault(panel["place"] or name, {"title": panel["title"], "options": []})
            if (option := panel["option"]) and option not in place["options"]:
                place["options"].append(option)
        section["charts"].append({"name": name, "places": places})
    return sorted(sections.values(), key=lambda of: several and of["one_model"])


def _chosen_from(model: charts.Shown) -> dict[str, Any]:
    """What the page lists for a reader to choose from: layers, and their spectra by how the norm enters and by head."""
    layers: list[dict[str, Any] | None] = []
    for layer in model.diagnosis.layers:
        spectrum = layer.spectrum
        if spectrum is None:
            layers.append(None)
            continue
        share = spectrum.negative_share
        dark = round(100 * (share or 0))
        cell = f"color-mix(in srgb, var(--map-negative) {dark}%, var(--map-none))"
        on, sigma = "white" if dark > 72 else "black", spectrum.inverse_sigma
        found: dict[str, Any] = {"name": shortened(layer.name, 28), "share": percent(share), "cell": cell, "on": on}
        found |= {"inverse_sigma": None if sigma is None else number(sigma, 3)}
        found |= {"joined": {variant: _in_short(e) for variant, e in spectrum.joined.items()}}
        found |= {"heads": {variant: [_in_short(e) for e in heads] for variant, heads in spectrum.heads.items()}}
        layers.append(found)
    return {"label": model.label, "layers": layers}


def _in_short(e: Eigenvalues) -> list[str]:
    return [percent(e.negative_share), number(e.mean_real, 3), number(e.rho_smooth)]


def _summary(diagnosis: DiagnosisData) -> str:
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


def _beside(labels: list[str], diagnoses: Sequence[DiagnosisData]) -> list[tuple[str, list[str]]]:
    """A line per model: what happened to its tokens, and what its spectra say."""
    rows = []
    for label, d in zip(labels, diagnoses, strict=True):
        agree, apart = agreement(d.layers[1:])
        judged, blocks = agree + len(apart), len(d.layers) - 1
        # The blocks that could not be judged are said, since a reader would count all.
        others = f", {blocks - judged} undecided" if judged < blocks else ""
        cells = [
            *(arrow(d.curve(metric)) for metric in ("cos", "hfc_lfc", "effective_rank")),
            *(fixed(d.change(part), sign=True) for part in ("attention", "mlp")),
            *(percent(share, 0) for share in (d.negative_share, d.smoothing_share)),
            f"{agree} of {judged}{others}" if judged else UNKNOWN,
        ]
        rows.append((label, cells))
    return rows


def _tested(labels: list[str], diagnoses: Sequence[DiagnosisData]) -> dict[str, Any] | None:
    """The table of accuracies, clean first; None where nothing was tested."""
    tested = [(label, d.accuracy) for label, d in zip(labels, diagnoses, strict=True) if d.accuracy is not None]
    if not tested:
        return None
    most = max(len(a.corrupted) for _, a in tested)
    return {
        "how": "; ".join(dict.fromkeys(f"{a.images} images, {a.how}" for _, a in tested)),
        "intensities": list(range(1, most + 1)),
        "rows": [(label, _shares(a) + [(UNKNOWN, "")] * (most - len(a.corrupted))) for label, a in tested],
    }


def _shares(a: Accuracy) -> list[tuple[str, str]]:
    """Clean first, with standard errors."""
    values = enumerate((a.clean, *a.corrupted))
    return [(fixed(100 * value, 1), fixed(100 * error_of(a, at), 1)) for at, value in values]


def _row(depth: int, layer: Layer) -> dict[str, Any]:
    """A line of the table."""
    changes = zip(stages(layer), layer.changes, strict=True)
    spectrum, dominance = layer.spectrum, layer.dominance
    return {
        "depth": depth,
        "name": layer.name,
        "short": shortened(layer.name, 28),
        "tokens": [number(layer.tokens.get(key)) for key, metric in METRICS.items() if metric.label],
        "changes": {part: number(c.log_hfc_lfc, sign=True) for part, c in changes if c.log_hfc_lfc is not None},
        "negative": number(spectrum.negative_share if spectrum else None),
        "rho_smooth": number(layer.rho_smooth),
        "rho_rough": number(dominance.rho_rough if dominance else None),
        "share": number(dominance.smoothing_share if dominance else None),
    }
