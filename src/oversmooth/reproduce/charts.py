"""Charts of tables: our figures filled, published ones hollow beside them, with error bars."""

from __future__ import annotations

from typing import Any

from oversmooth.errors import InputError

_COLOURS = ["#009E73", "#0072B2", "#D55E00"]  # plain, smoothing, sharpening


def points(panels: list[tuple[str, list[dict[str, Any]]]], label: str) -> Any:
    """A panel a title; rows have model, whose, value, low and high."""
    import altair as alt

    panels = [(title, rows) for title, rows in panels if rows]
    if not panels:
        raise InputError("there is nothing to draw: no cell of the table is there yet; run some first")
    panels = [(title, [{**row, "model": plain_signs(row["model"])} for row in rows]) for title, rows in panels]
    whose = list(dict.fromkeys(row["whose"] for _, rows in panels for row in rows))
    drawn = []
    for title, rows in panels:
        names = list(dict.fromkeys(row["model"] for row in rows))
        base = alt.Chart(alt.Data(values=rows)).encode(
            alt.X("model:N", sort=names, title=None, axis=alt.Axis(labelAngle=0, grid=False)),
            alt.XOffset("whose:N", sort=whose, scale=alt.Scale(paddingOuter=0.8)),
            alt.Color("model:N", sort=names, scale=alt.Scale(domain=names, range=_COLOURS), legend=None),
        )
        scale = alt.Scale(zero=False, nice=True, padding=8)
        bars = base.mark_rule(strokeWidth=1.5).encode(alt.Y("low:Q", title=label, scale=scale), alt.Y2("high:Q"))
        marks = base.mark_point(size=70, strokeWidth=1.5, opacity=1).encode(
            alt.Y("value:Q", title=label, scale=scale),
            alt.Fill("model:N", sort=names, scale=alt.Scale(domain=names, range=_COLOURS), legend=None),
            alt.FillOpacity(
                "whose:N",
                sort=whose,
                scale=alt.Scale(domain=whose, range=[float(not word.startswith("published")) for word in whose]),
                legend=None,
            ),
        )
        said = ", ".join(f"{'hollow' if word.startswith('published') else 'filled'}: {word}" for word in whose)
        named = alt.Title(title, subtitle=said)
        drawn.append(alt.layer(bars, marks).properties(width=190, height=190, title=named))
    return alt.hconcat(*drawn, spacing=40).resolve_scale(y="independent")


def lines(panels: list[tuple[str, list[dict[str, Any]], str]], x: str) -> Any:
    """A panel a title, rows and label: a line a model and a source. Rows have model, whose, x, value, low and high."""
    import altair as alt

    panels = [
        (title, [{**row, "model": plain_signs(row["model"])} for row in rows], label)
        for title, rows, label in panels
        if rows
    ]
    if not panels:
        raise InputError("there is nothing to draw: no cell of the table is there yet; run some first")
    every = [row for _, rows, _ in panels for row in rows]
    names = list(dict.fromkeys(row["model"] for row in every))
    whose = list(dict.fromkeys(row["whose"] for row in every))
    dashes = [[1, 0], [5, 3], [2, 2], [8, 3, 2, 3]]
    drawn = []
    for title, rows, label in panels:
        at = sorted({row["x"] for row in rows})
        base = alt.Chart(alt.Data(values=rows)).encode(
            alt.X("x:Q", title=x, axis=alt.Axis(values=at, format="d", grid=False), scale=alt.Scale(zero=False)),
            alt.Color("model:N", sort=names, scale=alt.Scale(domain=names, range=_COLOURS), legend=_legend(alt)),
        )
        y = alt.Y("value:Q", title=label, scale=alt.Scale(zero=False))
        dash = alt.StrokeDash(
            "whose:N",
            sort=whose,
            scale=alt.Scale(domain=whose, range=dashes[: len(whose)]),
            legend=_legend(alt) if len(whose) > 1 else None,
        )
        line = base.mark_line(strokeWidth=2).encode(y, dash)
        bars = base.mark_rule(strokeWidth=1.2).encode(alt.Y("low:Q"), alt.Y2("high:Q"))
        dots = base.mark_circle(size=30, opacity=1).encode(y)
        width = 420 if len(panels) == 1 else 250
        drawn.append(alt.layer(line, bars, dots).properties(width=width, height=260, title=title))
    return alt.hconcat(*drawn, spacing=40)


def _legend(alt: Any) -> Any:
    return alt.Legend(title=None, orient="top", columns=3, labelLimit=240, symbolOpacity=1)


def plain_signs(name: str) -> str:
    """Superscript signs are not in every font, and a label half in another one looks broken."""
    return name.replace("⁺", "+").replace("⁻", "−")
