"""What a chart is: a function from diagnoses and a medium to panels, registered once under its own name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oversmooth.report.style import COLOURS_OF_MODELS, MODES, Medium, model_colour, plain_signs
from oversmooth.results.data import DiagnosisData
from oversmooth.safety.foreign import visible

Spec = dict[str, Any]  # a Vega-Lite description, or a part of one


@dataclass(frozen=True)
class Shown:
    """A diagnosis as charts name and colour it."""

    label: str
    colour: str  # a name of the palette
    key: str | int  # what rows of data call it: its label where a legend is drawn from them, its place in the page
    diagnosis: DiagnosisData


class Key(NamedTuple):
    """A sign and what it stands for, in a legend of the page or in what it shows under the mouse."""

    kind: str  # a class of the page's signs: line, line dashed, tick, round, ring, diamond; empty for a square
    colour: str
    label: str
    field: str = ""  # where a reader may hide what it stands for: rows whose `field` is `value`
    value: str | int = ""


@dataclass
class Panel:
    """One pair of axes, with what is written around it."""

    title: str
    spec: Spec  # with data and size, and without a title
    note: str = ""  # beside the title
    keys: list[Key] = field(default_factory=list)  # beside the title in the page: a legend of this panel alone
    tips: list[Key] = field(default_factory=list)
    """What a row's `tip`, ``[[place among these, text], ...]``, refers to; its `title` stands above."""
    finding: str = ""  # below it in the page, in words
    described: str = ""  # in the page, for readers who do not see it
    place: str = ""  # in the page: panels of one place stand in for each other as the reader chooses
    option: str = ""  # the choice among panels of one place, as the page lists it
    without_massive: bool | None = None  # whether it is shown without massive-activation tokens; None: with and without
    widths: tuple[int, int] | None = None
    """Pixels in the page below which it is scrolled rather than squeezed, and beyond which it grows no further."""


@dataclass
class Drawing:
    panels: list[Panel]  # None where there is no data
    legend: list[Key] = field(default_factory=list)  # of all panels, where the page writes one


Draw = Callable[[list[Shown], Medium], Drawing]


@dataclass(frozen=True)
class Chart:
    name: str
    title: str  # the page's heading
    draw: Draw
    lead: str = ""  # below the heading, in words; ``x_y`` becomes x with the index y
    missing: str = "not measured"  # what the page says where a model has no data for it
    one_model: bool = False  # the page shows one model at a time, as the reader chooses; figures show all
    under: str = ""  # the chart under whose heading it stands in the page; empty: it has its own
    in_page: bool = True
    in_files: bool = True
    arranged: Spec = field(default_factory=dict)
    """How a figure sets its panels beside each other, in Vega-Lite's words; in a row if nothing is said."""


CHARTS: dict[str, Chart] = {}  # by name, in the order in which they are shown
IN_A_ROW: Spec = {"spacing": 64, "bounds": "flush"}


def chart(**settings: Any) -> Callable[[Draw], Draw]:
    """A decorator that makes a function a chart of every page and a figure, named as the function is."""

    def known(draw: Draw) -> Draw:
        name = draw.__name__
        CHARTS[name] = Chart(name, draw=draw, **{"arranged": IN_A_ROW, **settings})
        return draw

    return known


def shown(diagnoses: Sequence[DiagnosisData], medium: Medium) -> list[Shown]:
    """Diagnoses with the names and colours that tell them apart."""
    names = [d.name if medium.in_page else visible(plain_signs(d.name)) for d in diagnoses]
    modes = [mode_of(d) for d in diagnoses]
    colours = [model_colour(index) for index in range(len(diagnoses))]
    if len(set(modes)) == len(modes) > 1 and set(modes) <= set(MODES):
        colours = [MODES[mode] for mode in modes]
    elif medium.in_page and len(diagnoses) > COLOURS_OF_MODELS:
        # More models than colours can be told apart: the page shows a few at a time, and colours those.
        colours = [f"shown-{index}" for index in range(len(diagnoses))]
    named = enumerate(zip(distinct(names), colours, diagnoses, strict=True))
    return [Shown(label, colour, index if medium.in_page else label, d) for index, (label, colour, d) in named]


def mode_of(diagnosis: DiagnosisData) -> str:
    """Whether it was made to smooth or to sharpen, or is plain; empty where that is not known."""
    model = diagnosis.model
    if known := model.get("mode") or (model.get("recipe") or {}).get("variant"):
        return str(known)
    methods = (diagnosis.steering or {}).get("methods") or []
    if not methods:
        return "plain"
    return str(methods[0].get("mode") or "") if len(methods) == 1 else ""


def assembled(title: str, panels: list[Panel], models: list[Shown], arranged: Spec = IN_A_ROW) -> Spec | None:
    """Panels beside each other under a title; one model has its name there, as no legend names it."""
    if not panels:
        return None
    alone = models[0].label if len(models) == 1 and all(panel.title != models[0].label for panel in panels) else ""
    heading = {"text": title, **({"subtitle": alone} if alone else {}), "anchor": "start", "fontSize": 16, "offset": 14}
    titles = [{"text": panel.title, **({"subtitle": panel.note} if panel.note else {})} for panel in panels]
    titled = [{"title": title} if title["text"] else {} for title in titles]
    drawn = [{**panel.spec, **title} for panel, title in zip(panels, titled, strict=True)]
    return {"title": heading, "concat": drawn, **arranged}


def distinct(names: list[str]) -> list[str]:
    """The models' names, made different where two are the same."""
    labels: list[str] = []
    for name in names:
        label, copy = name, 2
        while label in labels:
            label, copy = f"{name} ({copy})", copy + 1
        labels.append(label)
    return labels
