"""Which eigenvalue dominates: per head, and for all heads jointly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from oversmooth.report.charts.base import Drawing, Key, Shown, Spec, chart
from oversmooth.report.charts.pieces import BY_LAYER, answering, by_layer, marks, nominal, quantitative, tip, titled
from oversmooth.report.style import Medium, number
from oversmooth.results.parts import Layer, LayerDominance

_WORDS = ("smooth", "rough", "tie", "undecided")
_SHAPES = {"ρ smooth": ("smooth", "circle", "round"), "ρ rough": ("rough", "diamond", "diamond")}
_BOTH = {"minExtent": 40, "maxExtent": 40}  # axes of the two charts, one below the other in the page


@chart(
    title="Which eigenvalue dominates",
    lead="Top: per head, the share of inputs whose spectrum predicts smoothing. Bottom: all heads jointly. Attention, "
    "repeated, makes tokens equal if ρ_smooth exceeds ρ_rough.",
    missing="The attention of this model was not observed.",
    one_model=True,
    arranged=BY_LAYER,
)
def dominance(models: list[Shown], medium: Medium) -> Drawing:
    """The share of inputs in which the smoothing eigenvalue dominates, by layer and head, a panel per model."""

    def draw(m: Shown, x: Spec, size: Callable[..., Spec]) -> Spec | None:
        layers = [(depth, layer, layer.dominance) for depth, layer in enumerate(m.diagnosis.layers)]
        rows = [cell for depth, layer, found in layers if found for cell in _cells(depth, layer, found, medium)]
        if not rows:
            return None
        x["axis"] |= {"domain": False, "ticks": False} if medium.in_page else {}
        legend = {"title": "smoothing share", "format": "~%", "gradientLength": 90, "values": [0, 0.5, 1]}
        axis = {"labelOverlap": True, **(_BOTH if medium.in_page else {})}
        colour = {"field": "share", "type": "quantitative", "scale": medium.ramp()}
        y = {"field": "head", "type": "ordinal", "title": "head", "axis": axis}
        title, key = (None, None) if medium.in_page else ("depth", legend)
        at = {"x": {**x, "title": title}, "y": y, "color": {**colour, "legend": key}}
        heads = max(row["head"] for row in rows) + 1
        on_paper, in_page = heads * max(6, min(18, 200 // heads)), max(2, heads) * max(9, min(26, 300 // heads))
        edge: Spec = {"aria": False, "stroke": medium.colour("ground"), "strokeWidth": 0.75}
        return {**size(on_paper, in_page), **marks("rect", at, rows, **edge, **answering(medium))}

    tips = [Key("", medium.colour("tie" if word == "undecided" else word), word) for word in _WORDS]
    tips += [Key("", "", word) for word in ("ρ smooth", "ρ rough, mean", "head")]
    described = "Share of inputs in which smoothing dominates a head"
    return Drawing(by_layer(models, medium, draw, described, "dominance", tips=tips))


def _cells(depth: int, layer: Layer, found: LayerDominance, medium: Medium) -> list[Spec]:
    cells, count = [], len(found.verdict_heads)
    heads = found.rho_smooth_heads, zip(*found.verdict_heads, strict=True), zip(*found.rho_rough_heads, strict=True)
    for head, (smooth, verdicts, rough) in enumerate(zip(*heads, strict=False)):  # none, where no input was measured
        said, known = Counter(verdicts), [value for value in rough if value is not None]
        words = [(6, str(head))]
        words += [(i, f"{said[word]} of {count}") for i, word in enumerate(_WORDS) if i < 2 or said[word]]
        words += [(4, number(smooth)), (5, number(sum(known) / len(known) if known else None))]
        more = tip(medium, titled(depth, layer.name), words, layer=depth)
        cells.append({"depth": depth, "head": head, "share": round(said["smooth"] / count, 4), **more})
    return cells


@chart(
    title="Spectral radii",
    missing="The radii of this model are unknown.",
    one_model=True,
    under="dominance",
    arranged=BY_LAYER,
)
def radii(models: list[Shown], medium: Medium) -> Drawing:
    """ρ smooth and ρ rough of all heads jointly, by layer, a panel per model."""
    keys = [Key(sign, medium.colour(colour), name, "kind", name) for name, (colour, _, sign) in _SHAPES.items()]
    names, legend = list(_SHAPES), medium.legend()

    def draw(m: Shown, x: Spec, size: Callable[..., Spec]) -> Spec | None:
        points, links = _radii(m, medium)
        if not points:
            return None
        y = quantitative("value", "ρ", {"zero": False}, tickCount=5, **(_BOTH if medium.in_page else {}))
        link = nominal("verdict", [*_WORDS[:3]], medium.colours([*_WORDS[:3]]), None)
        between = {"x": x, "y": {**y, "field": "smooth"}, "y2": {"field": "rough"}, "stroke": link}
        at = {
            "x": x,
            "y": y,
            "shape": nominal("kind", names, [shape for _, shape, _ in _SHAPES.values()], legend),
            "color": nominal("kind", names, medium.colours([colour for colour, _, _ in _SHAPES.values()]), legend),
            "fill": nominal("kind", names, medium.colours(["smooth", "ground"]), legend),
        }
        layers = [
            marks("rule", between, links, strokeWidth=5, opacity=0.4, **answering(medium)),
            marks("point", at, points, size=62, opacity=1, strokeWidth=2, **answering(medium)),
        ]
        return {**size(160, 190), "layer": layers}

    tips = [*keys, Key("", "", "over inputs"), Key("", "", "dominates")]
    return Drawing(by_layer(models, medium, draw, "Smoothing and rough spectral radius", "radii", tips=tips), keys)


def _radii(m: Shown, medium: Medium) -> tuple[list[Spec], list[Spec]]:
    """Points, and what links the two of a layer."""
    points, links = [], []
    for depth, layer in enumerate(m.diagnosis.layers):
        found, smooth = layer.dominance, layer.rho_smooth
        rough = found.rho_rough if found else None
        if smooth is None and rough is None:
            continue
        said = Counter(found.joined_verdict if found else [])
        counts = [(said[word], word) for word in _WORDS if said[word]]
        verdict = counts[0][1] if len(counts) == 1 and counts[0][1] != "undecided" else "tie"
        sample = [value for value in found.joined_rho_rough if value is not None] if found else []
        words = [(0, number(smooth)), (1, number(rough))]
        if len(sample) > 1:
            words.append((2, f"{number(min(sample), 3)} to {number(max(sample), 3)}"))
        words.append((3, ", ".join(f"{word} {n}" if len(counts) > 1 else word for n, word in counts) or "–"))
        more = tip(medium, titled(depth, layer.name), words, layer=depth)
        known = [(name, value) for name, value in zip(_SHAPES, (smooth, rough), strict=True) if value is not None]
        points += [{"depth": depth, "kind": name, "value": value, **more} for name, value in known]
        if len(known) == 2:
            links.append({"depth": depth, "smooth": smooth, "rough": rough, "verdict": verdict, **more})
    return points, links
