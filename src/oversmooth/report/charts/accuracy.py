"""How many labels are found, clean and corrupted."""

from __future__ import annotations

import math

from oversmooth.report.charts.base import Drawing, Panel, Shown, chart
from oversmooth.report.charts.pieces import (
    by_model,
    depth_axis,
    dots,
    hover_columns,
    inline,
    marks,
    model_legend,
    quantitative,
    tip,
)
from oversmooth.report.style import UNKNOWN, Medium, fixed, percent
from oversmooth.results.parts import Accuracy, standard_error


@chart(
    title="Accuracy, clean and corrupted",
    lead="Share of images classified correctly, by intensity of corruption. Intensity 0 is the clean image. Bars show "
    "one standard error.",
    missing="Accuracy was not tested.",
)
def accuracy(models: list[Shown], medium: Medium) -> Drawing:
    """Accuracy against the intensity of corruption, a line per model."""
    tested = [(m, [found.clean, *found.corrupted]) for m in models if (found := m.diagnosis.accuracy)]
    if not tested:
        return Drawing([])
    drawn = [m for m, _ in tested]
    rows = []
    for place, (m, values) in enumerate(tested):
        for intensity, value in enumerate(values):
            error = error_of(m.diagnosis.accuracy, intensity)
            # Beside each other, so that bars of models that are as good as one another can be told apart.
            shifted = intensity + 0.07 * (place - (len(tested) - 1) / 2) / max(1, len(tested) / 3)
            ends = {"low": round(100 * (value - error), 3), "high": round(100 * (value + error), 3)}
            rows.append({"model": m.key, "depth": round(shifted, 3), "value": round(100 * value, 3), **ends})
    most = max(len(values) for _, values in tested)
    x = depth_axis(most, "intensity of corruption")
    y = quantitative("value", "accuracy, %", {"zero": False, "nice": True}, tickCount=5)
    at = {"x": x, "y": y, "color": by_model(drawn, medium)}
    stops = []
    for intensity in range(most):
        said = [(i, _said(m, values, intensity)) for i, (m, values) in enumerate(tested)]
        stops.append((float(intensity), tip(medium, f"intensity {intensity}" if intensity else "clean", said)))
    spec = {
        **medium.size(260, 190, 220),
        "data": inline(rows),
        "layer": [
            *hover_columns(medium, stops, x),
            marks("rule", {**at, "y": {**y, "field": "low"}, "y2": {"field": "high"}}, strokeWidth=1.5, opacity=0.55),
            marks("line", at, strokeWidth=2, strokeJoin="round"),
            marks("circle", {**at, "size": dots(medium, 30, 60)}, opacity=1, aria=False),
        ],
    }
    named = ", ".join(m.label for m in drawn)
    described = f"Accuracy of {named} against the intensity of corruption; the table beside it has the values"
    legend = model_legend(drawn, medium)
    return Drawing([Panel("", spec, tips=legend, described=described, place="accuracy")], legend)


def _said(m: Shown, values: list[float], intensity: int) -> str:
    if intensity >= len(values):
        return UNKNOWN
    return f"{percent(values[intensity])} ± {fixed(100 * error_of(m.diagnosis.accuracy, intensity), 1)}"


def error_of(accuracy: Accuracy | None, intensity: int) -> float:
    """The standard error of a share at an intensity of corruption, 0 for clean."""
    assert accuracy is not None
    share = accuracy.corrupted[intensity - 1] if intensity else accuracy.clean
    error = standard_error(share, accuracy.corrupted_images if intensity else accuracy.images)
    return 0.0 if math.isnan(error) else error
