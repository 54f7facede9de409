"""The chart of figure 3: a model sharpening, smoothing and left alone, beside what the spectra predict."""

from __future__ import annotations

from oversmooth.report.charts.base import Drawing, Panel, Shown, chart, shown
from oversmooth.report.charts.depth import notions
from oversmooth.report.charts.pieces import by_model, depth_axis, inline, nominal, quantitative
from oversmooth.report.style import Medium


@chart(
    title="Sharpening, smoothing and left alone",
    in_page=False,
    arranged={
        "columns": 1,
        "spacing": 48,
        "resolve": {"scale": {"color": "independent", "strokeWidth": "independent"}},
    },
)
def steered(models: list[Shown], medium: Medium) -> Drawing:
    """The curves of a model sharpening, smoothing and left alone, with what the spectra predict beside them; a row a
    state of training (Dovonon et al.'s figure 3).
    """
    rows = []
    for state in dict.fromkeys(m.diagnosis.model["state"] for m in models if "state" in m.diagnosis.model):
        group = shown([m.diagnosis for m in models if m.diagnosis.model.get("state") == state], medium)
        panels = notions(group, medium) + _smoothing_shares(group, medium)
        if panels:
            row = [{**panel.spec, "title": panel.title} for panel in panels]
            rows.append(Panel("", {"hconcat": row, "spacing": 64, "bounds": "flush"}))
    return Drawing(rows)


def _smoothing_shares(models: list[Shown], medium: Medium) -> list[Panel]:
    """By layer, the share of cases in which the smoothing eigenvalue dominates."""
    rows = [
        {"model": m.key, "depth": depth, "value": layer.dominance.smoothing_share}
        for m in models
        for depth, layer in enumerate(m.diagnosis.layers)
        if layer.dominance
    ]
    if not rows:
        return []
    scale = {"domain": [-0.04, 1.04], "nice": False}
    # Shares are often the same, 0 or 1: the first line is the broadest, so that it shows under the others.
    broad = nominal("model", [m.key for m in models], [1.5 + 2 * i for i in reversed(range(len(models)))], None)
    encoding = {
        "x": depth_axis(max(len(m.diagnosis.layers) for m in models)),
        "y": quantitative("value", "smoothing cases", scale, format="~%", values=[0, 0.25, 0.5, 0.75, 1]),
        "color": by_model(models, medium),
        "strokeWidth": broad,
    }
    spec = {**medium.size(210, 190), "data": inline(rows), "mark": "line", "encoding": encoding}
    return [Panel("predicted from spectra", spec)]
