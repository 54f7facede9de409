"""What leaving out and repeating spans of blocks does."""

from __future__ import annotations

from oversmooth.report.charts.base import Drawing, Key, Panel, Shown, Spec, chart
from oversmooth.report.charts.pieces import answering, marks, tip
from oversmooth.report.style import Medium, number, spread
from oversmooth.results.spans import EFFECTS, Spans

_WAYS = {"drop": "left out", "repeat": "run twice"}
_ROWS = ("effect", "block influence", "angular distance")


@chart(
    title="Blocks left out or run twice",
    lead="Each cell is a span of blocks: where it begins, and how many there are. Dark spans cost more: both maps "
    "share one scale, which begins at 0 and goes by square roots.",
    missing="Spans of this model were not measured.",
    one_model=True,
)
def spans(models: list[Shown], medium: Medium) -> Drawing:
    """The measured effect by first block and length, a panel for each way."""
    found = [(m, m.diagnosis.spans, way) for m in models if m.diagnosis.spans for way in _WAYS]
    several = len({m.key for m, _, _ in found}) > 1
    panels = []
    for m, spans, way in found:
        rows = _rows(spans, way, medium)
        if not rows:
            continue
        lengths = max(row["length"] for row in rows)
        both = (getattr(span, name) for span in spans.spans for name in _WAYS)
        most = max(0.0, *(effect for effect in both if effect is not None))
        legend = None if medium.in_page else {"title": None, "gradientLength": 90, "tickCount": 3}
        colour: Spec = {"field": "effect", "type": "quantitative", "legend": legend}
        colour["scale"] = {**medium.ramp(0, most or 1), "type": "sqrt", "clamp": True}
        x = {"field": "first", "type": "ordinal", "title": "first block", "axis": {"labelAngle": 0}}
        y = {"field": "length", "type": "ordinal", "title": "blocks", "sort": "descending"}
        edge: Spec = {"aria": False, "stroke": medium.colour("ground"), "strokeWidth": 0.75}
        blocks = len({row["first"] for row in rows})
        size = medium.size(max(120, min(300, 22 * blocks)), 16 * max(lengths, 3), 20 * max(lengths, 3))
        spec = {**size, **marks("rect", {"x": x, "y": y, "color": colour}, rows, **edge, **answering(medium))}
        title = f"{m.label}: {_WAYS[way]}" if several and not medium.in_page else _WAYS[way].capitalize()
        panel = Panel(title, spec, EFFECTS[spans.effect], place=f"spans-{way}", widths=(14 * blocks + 60, 60 * blocks))
        panel.tips = [Key("", "", name) for name in _ROWS]
        panel.described = f"Effect of spans of {m.label}, {_WAYS[way]}"
        panel.finding = f"The darkest colour is {number(most, 3)}."
        panels.append(panel)
    return Drawing(panels)


def _rows(found: Spans, way: str, medium: Medium) -> list[Spec]:
    rows = []
    for span in found.spans:
        effect, error = getattr(span, way), getattr(span, f"{way}_error")
        if effect is not None:
            said = [number(effect, 3) + spread(error), number(span.influence, 3), number(span.angle, 3)]
            word = "block" if span.length == 1 else "blocks"
            told = tip(medium, f"{word} {span.blocks} {_WAYS[way]}", list(enumerate(said)))
            rows.append({"first": span.first, "length": span.length, "effect": effect, **told})
    return rows
