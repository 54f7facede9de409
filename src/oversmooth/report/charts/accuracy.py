"""How many labels are found, clean and corrupted."""

from __future__ import annotations

from oversmooth.report.charts.base import Drawing, Panel, Shown, chart
from oversmooth.report.charts.pieces import (
    by_model,
    depth_axis,
    dots,
    hover_columns,
    inline,
    model_legend,
    quantitative,
    tip,
)
from oversmooth.report.style import Look, percent


@chart(
    title="Accuracy, clean and corrupted",
    lead="How many labels are found, in %, against the intensity of corruption; intensity 0 is the clean image.",
    missing="not tested",
)
def accuracy(models: list[Shown], look: Look) -> Drawing:
    """Accuracy against the intensity of corruption, a line per model."""
    tested = [(m, [found.clean, *found.corrupted]) for m in models if (found := m.diagnosis.accuracy)]
    if not tested:
        return Drawing([])
    rows = [
        {"model": m.key, "depth": at, "value": round(100 * value, 3)}
        for m, values in tested
        for at, value in enumerate(values)
    ]
    drawn = [m for m, _ in tested]
    most = max(len(values) for _, values in tested)
    x, colour = depth_axis(most, "intensity of corruption"), by_model(drawn, look)
    y = quantitative("value", "accuracy, %", {"zero": False, "nice": True}, tickCount=5)
    stops = [
        (
            float(at),
            tip(
                look,
                f"intensity {at}" if at else "clean",
                [(i, percent(values[at] if at < len(values) else None)) for i, (_, values) in enumerate(tested)],
            ),
        )
        for at in range(most)
    ]
    spec = {
        **look.size(260, 190, 220),
        "data": inline(rows),
        "layer": [
            *hover_columns(look, stops, x),
            {
                "mark": {"type": "line", "strokeWidth": 2, "strokeJoin": "round"},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                "mark": {"type": "circle", "opacity": 1, "aria": False},
                "encoding": {"x": x, "y": y, "color": colour, "size": dots(look, 30, 60)},
            },
        ],
    }
    named = ", ".join(m.label for m in drawn)
    described = f"Accuracy of {named} against the intensity of corruption; the table beside it has the values"
    legend = model_legend(drawn, look)
    return Drawing([Panel("", spec, tips=legend, described=described, place="accuracy")], legend)
