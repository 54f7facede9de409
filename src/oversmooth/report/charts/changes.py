"""What each sublayer of a block does."""

from __future__ import annotations

from collections.abc import Callable

from oversmooth.report.charts.base import Drawing, Key, Shown, Spec, chart
from oversmooth.report.charts.pieces import BY_LAYER, answering, by_layer, marks, nominal, quantitative, tip, titled
from oversmooth.report.style import Medium, number, part_colour, spread
from oversmooth.results.parts import Layer

_SIGNED = "datum.value == 0 ? '0' : format(datum.value, '+~g')"


@chart(
    title="Which sublayer does it",
    lead="The change of log HFC/LFC by sublayer and block. Bars below zero make tokens more similar, bars above zero "
    "less similar. The horizontal mark is the whole block: the sum of its sublayers.",
    missing="The sublayers of this model were not observed.",
    one_model=True,
    arranged=BY_LAYER,
)
def changes(models: list[Shown], medium: Medium) -> Drawing:
    """What attention, MLP and norm add to log HFC/LFC, layer by layer, a panel per model."""
    parts = list(dict.fromkeys(part for m in models for layer in m.diagnosis.layers for part in stages(layer)))
    colours = medium.colours([part_colour(part) for part in parts])
    keys = [Key("", colour, part, "part", part) for part, colour in zip(parts, colours, strict=True)]
    keys.append(Key("tick", medium.colour("ink"), "whole block"))

    def draw(m: Shown, x: Spec, size: Callable[..., Spec]) -> Spec | None:
        bars, sums = _rows(m, parts, medium)
        if not bars:
            return None
        x["scale"] |= {"paddingInner": 0.28 if medium.in_page else 0.1}
        y = quantitative("value", "Δ log HFC/LFC", {}, tickCount=6, labelExpr=_SIGNED)
        # The page has room that a few bars should not fill.
        width = 64 if medium.in_page and len(sums) < 6 else {"band": 1}
        colour = nominal("part", parts, colours, medium.legend())
        at, mark = {"x": x, "y": y}, {"width": width, **answering(medium)}
        layers = [
            marks("bar", {**at, "color": colour, "order": {"field": "place"}}, bars, **mark),
            marks("rule", {"y": {"datum": 0}}, [{}], color=medium.colour("faint"), aria=False),
            marks("tick", at, sums, thickness=2.5, color=medium.colour("ink"), **mark),
        ]
        return {**size(190, 250), "layer": layers}

    note, described = "" if medium.in_page else "black: whole block", "Change of log HFC/LFC by sublayer"
    return Drawing(by_layer(models, medium, draw, described, "changes", note=note, tips=keys), keys if parts else [])


def stages(layer: Layer) -> list[str]:
    """The sublayers of a block in order. A second one of the same name is called after the one before it."""
    names: list[str] = []
    for place, change in enumerate(layer.changes):
        name = change.part
        if sum(c.part == name for c in layer.changes) > 1 and place:
            name = f"{name} after {layer.changes[place - 1].part}"
        while name in names:
            name += " again"
        names.append(name)
    return names


def _rows(m: Shown, parts: list[str], medium: Medium) -> tuple[list[Spec], list[Spec]]:
    """Bars, and their sums."""
    bars, sums = [], []
    for depth, layer in enumerate(m.diagnosis.layers):
        named = list(zip(stages(layer), layer.changes, strict=True))
        found = [(part, c.log_hfc_lfc) for part, c in named if c.log_hfc_lfc is not None]
        if not found:
            continue
        total = sum(value for _, value in found)
        said = [(parts.index(part), number(c.log_hfc_lfc, 3, sign=True) + spread(c.spread)) for part, c in named]
        said.append((len(parts), number(total, 3, sign=True)))
        more = tip(medium, titled(depth, layer.name), said, layer=depth)
        placed = ((part, parts.index(part), value) for part, value in found)
        bars += [
            {"depth": depth, "part": part, "place": place, "value": value, **more} for part, place, value in placed
        ]
        sums.append({"depth": depth, "value": total, **more})
    return bars, sums
