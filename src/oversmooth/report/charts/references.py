"""A model beside the gallery's models of its kind."""

from __future__ import annotations

from oversmooth.report.charts.base import Drawing, Key, Panel, Shown, Spec, chart
from oversmooth.report.charts.pieces import answering, caption, inline, log_axis, marks, nominal, quantitative, tip
from oversmooth.report.style import Medium, number, percent
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number
from oversmooth.results.references import Reference, references_for

_FIELDS = {
    "hfc_lfc_ratio": "HFC/LFC, end over start",
    "cosine": "mean cosine at the end",
    "smoothing_share": "smoothing share",
}
_KINDS = ("this model", "reference", "constrained reference")


@chart(
    title="Beside other models of its kind",
    lead="Reference values are single models of the gallery, measured on other inputs. Constrained ones were trained "
    "to smooth or to sharpen.",
    missing="There is no reference for this kind of model.",
    one_model=True,
    in_files=False,
)
def references(models: list[Shown], medium: Medium) -> Drawing:
    """A strip for each of three figures: this model, and reference models of the same kind."""
    panels = []
    for m in models:
        known = references_for(m.diagnosis)
        for field, value in figures_of(m.diagnosis).items() if known else ():
            if value is not None and (value > 0 or field != "hfc_lfc_ratio"):
                panels.append(_strip(m, field, value, known, medium))
    return Drawing(panels)


def figures_of(diagnosis: DiagnosisData) -> dict[str, Number]:
    """What a reference has, of a diagnosis."""
    begin, end = (diagnosis.layers[place].tokens.get("hfc_lfc") for place in (0, -1))
    ratio = end / begin if begin and end is not None else None
    cosine = diagnosis.layers[-1].tokens.get("cos")
    return {"hfc_lfc_ratio": ratio, "cosine": cosine, "smoothing_share": diagnosis.smoothing_share}


def _strip(m: Shown, field: str, value: float, known: list[Reference], medium: Medium) -> Panel:
    values = [("this model", value, 0), *((r.name, float(getattr(r, field)), 2 if r.constrained else 1) for r in known)]
    rows = [
        {"name": f"{place}", "value": one, "kind": _KINDS[kind], **tip(medium, name, [(0, _said(field, one))])}
        for place, (name, one, kind) in enumerate(values)
    ]
    ends = [one for _, one, _ in values]
    low, high = min(ends) / 1.3, max(ends) * 1.3
    air = 0.06 * (max(ends) - min(ends)) or 0.05
    x = quantitative("value", None, {"domain": [min(ends) - air, max(ends) + air], "nice": False}, tickCount=4)
    if field == "hfc_lfc_ratio":
        x = quantitative("value", None, {"type": "log", "domain": [low, high], "nice": False}, **log_axis(low, high))
    elif field == "smoothing_share":
        x = quantitative("value", None, {"domain": [-0.04, 1.04], "nice": False}, format="~%", values=[0, 0.5, 1])
    names = [name for name, *_ in values]
    axis = {"labelExpr": f"{names!r}[datum.value]", "labelLimit": 130, "grid": True, "labelFontSize": 11}
    y: Spec = {"field": "name", "type": "ordinal", "sort": None, "title": None, "axis": axis}
    colours = medium.colours([m.colour, "soft", "ground"])
    fill, stroke = (nominal("kind", list(_KINDS), of, None) for of in (colours, [*colours[:2], colours[1]]))
    at = {"x": x, "y": y, "fill": fill, "stroke": stroke}
    dots = marks("circle", at, size=90, opacity=1, strokeWidth=1.5, **answering(medium))
    spec = {**medium.size(200, 20 * len(rows)), "data": inline(rows), "layer": [dots]}
    title = caption(medium, _FIELDS[field])
    described = f"{title}: {_said(field, value)}; " + ", ".join(f"{n} {_said(field, v)}" for n, v, _ in values[1:])
    return Panel(
        title,
        spec,
        note=_said(field, value),
        tips=[Key("", "", _FIELDS[field])],
        described=described,
        place=field.replace("_", "-"),
    )


def _said(field: str, value: float) -> str:
    return percent(value, 0) if field == "smoothing_share" else number(value, 3)
