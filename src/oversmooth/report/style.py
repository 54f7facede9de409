"""How everything looks that is drawn or written: colours, fonts, axes, and how numbers are put down.

One palette serves the page, in light and dark, and files; one set of formats serves the terminal, the page and figures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oversmooth.results.facts import Number  # which needs torch, and a style does not


@dataclass(frozen=True)
class Colour:
    """One colour on a light ground, on a dark one, and on paper, where thin lines have to be darker."""

    light: str
    dark: str
    on_paper: str = ""

    @property
    def paper(self) -> str:
        return self.on_paper or self.light


# Hues are Okabe and Ito's, which readers with any kind of colour vision can tell apart; lighter on a dark ground.
_BLUE, _ORANGE, _GREEN = Colour("#0072b2", "#4aa8e0"), Colour("#d55e00", "#f08a3c"), Colour("#009e73", "#2bbf94")
_PINK, _YELLOW, _SKY = Colour("#cc79a7", "#dd97bd"), Colour("#e69f00", "#f0b73a"), Colour("#56b4e9", "#8ccff5")
_MODELS = (_BLUE, _ORANGE, _GREEN, _PINK, _YELLOW, _SKY)
# By what they mean; the page's style sheet knows them as ``--name``. Those of maps are the same on a dark ground: dark
# means more in both themes.
PALETTE: dict[str, Colour] = {
    "ground": Colour("#ffffff", "#12171d"),
    "raised": Colour("#f6f7f9", "#1a2129"),
    "ink": Colour("#1b2430", "#e6eaef"),
    "soft": Colour("#55606d", "#a5b0bc", "#3b4650"),
    "faint": Colour("#8a94a0", "#7c8792"),
    "rule": Colour("#d5dae0", "#36404b", "#9aa3ad"),
    "grid": Colour("#eceff3", "#232b34"),
    "accent": Colour("#0b5e94", "#6fbbea"),
    **{f"model-{i}": colour for i, colour in enumerate(_MODELS)},
    "attention": Colour("#56b4e9", "#6cc0ef"),
    "mlp": Colour("#e69f00", "#eeb03a"),
    "norm": Colour("#8c959f", "#8d98a3"),
    "norm-2": Colour("#117733", "#3fae6b"),
    "other": _PINK,
    "smooth": _BLUE,
    "rough": _ORANGE,
    "tie": Colour("#8a94a0", "#8d98a3"),
    "negative": Colour("#7b4ea3", "#b48adb"),
    "positive": _GREEN,
    "rate": _ORANGE,
    "alarm": Colour("#b3261e", "#ff8a80"),
    "map-alarm": Colour("#b3261e", "#b3261e"),
    "map-none": Colour("#eef2f6", "#eef2f6"),
    "map-more": Colour("#00426e", "#00426e"),
    "map-below": Colour("#a84600", "#a84600"),
    "map-negative": Colour("#5b3285", "#5b3285"),
}
COLOURS_OF_MODELS = len(_MODELS)  # as many colours can be told apart by readers with any kind of colour vision
# Smoothing blue and sharpening orange wherever that is what tells the models apart.
MODES = {"plain": "model-2", "smooth": "model-0", "sharpen": "model-1"}
_PARTS = ("attention", "mlp", "norm")
_LATER_PARTS = {"norm after attention": "norm", "norm after mlp": "norm-2"}
_PAPER_FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
_PAGE_FONT = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", Arial, sans-serif'
)


def model_colour(place: int) -> str:
    """The name of a model's colour, by its place among the models shown."""
    return f"model-{place % COLOURS_OF_MODELS}"


def plain_signs(name: str) -> str:
    """Superscript signs are not in every font, and a label half in another one looks broken."""
    return name.replace("⁺", "+").replace("⁻", "−")


def part_colour(part: str) -> str:
    """The name of the colour of a part of a block."""
    return part if part in _PARTS else _LATER_PARTS.get(part, "other")


@dataclass(frozen=True)
class Medium:
    """Where a chart is drawn. On paper it has a fixed size, legends and colours of its own; in the page it takes the
    width there is, colours are variables, so that dark mode and print need no redrawing, and it answers the mouse.
    """

    in_page: bool

    def colour(self, name: str) -> str:
        return f"var(--{name})" if self.in_page else PALETTE[name].paper

    def colours(self, names: list[str]) -> list[str]:
        return [self.colour(name) for name in names]

    def ramp(self, low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
        """The scale of a map: the darker, the more. No variables, which a browser cannot interpolate."""
        ends = [PALETTE[name].light for name in ("map-none", "map-more")]
        return {"type": "linear", "domain": [low, high], "range": ends, "interpolate": "rgb"}

    def legend(self, **settings: Any) -> dict[str, Any] | None:
        """Above the chart on paper; the page writes its own."""
        if self.in_page:
            return None
        return {"title": None, "orient": "top", "symbolOpacity": 1, "labelLimit": 240, **settings}

    def size(self, width: int, height: int, page_height: int = 0) -> dict[str, Any]:
        """width: on paper; in the page a chart takes what there is."""
        page = {"width": "container", "height": page_height or height}
        return page if self.in_page else dict(width=width, height=height)

    @property
    def config(self) -> dict[str, Any]:
        """Fonts, axes and grounds of a whole Vega-Lite description."""
        soft, ink, rule = (self.colour(name) for name in ("soft", "ink", "rule"))
        axis: dict[str, Any] = {
            "labelColor": soft,
            "titleColor": soft,
            "gridColor": self.colour("grid"),
            "domainColor": rule,
        }
        axis |= {"tickColor": rule, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"}
        if self.in_page:
            quiet = {"labelPadding": 4, "tickSize": 4, "domain": False, "ticks": False, "labelOverlap": True}
            return {
                "background": None,
                "font": _PAGE_FONT,
                "padding": {"left": 2, "right": 6, "top": 6, "bottom": 2},
                "view": {"stroke": None},
                "axis": {**axis, **quiet},
                "axisX": {"grid": False, "domain": True, "ticks": True},
            }
        title = {"fontSize": 13, "color": ink, "anchor": "start", "subtitleColor": soft, "subtitleFontSize": 11}
        return {
            "background": self.colour("ground"),
            "font": _PAPER_FONT,
            "padding": 8,
            "view": {"stroke": None},
            "axis": axis,
            "title": title,
            "legend": {"labelFontSize": 12, "labelColor": ink, "titleFontSize": 11, "titleFontWeight": "normal"},
        }


PAPER, PAGE = Medium(in_page=False), Medium(in_page=True)


def css_variables() -> str:
    """The palette and the page's font as rules of a style sheet."""
    light = " ".join(f"--{name}: {colour.light};" for name, colour in PALETTE.items())
    dark = " ".join(f"--{name}: {colour.dark};" for name, colour in PALETTE.items())
    in_the_dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return f":root {{ {light} --sans: {_PAGE_FONT}; }}\n{in_the_dark}"


UNKNOWN = "–"
_LOG_10 = math.log(10)


def number(value: Number, digits: int = 4, *, sign: bool = False) -> str:
    """In so many digits, the very small and the very large by their power of ten; a dash where it has no meaning.

    >>> number(0.98765), number(-12.0), number(4.56e-5), number(123456.0, 3), number(0.5, sign=True), number(None)
    ('0.9877', '−12', '4.56e−5', '1.2e+5', '+0.5', '–')
    """
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value += 0.0  # minus zero is zero
    size = abs(value)
    text = f"{value:.{digits}g}" if size == 0 or 1e-3 <= size < 1e4 else f"{value:.{max(digits - 2, 0)}e}"
    return _signed(re.sub(r"(?<=e[+-])0+(?=\d)", "", text), value, sign)


def number_expression(value: str, digits: int = 4) -> str:
    """`number` in Vega's words, for numbers that a chart computes itself."""
    usual = f"abs({value}) >= 1e-3 && abs({value}) < 1e4"
    power = f"replace(format({value}, '.{digits - 2}e'), 'e-', 'e−')"
    return f"({value} == 0 ? '0' : {usual} ? format({value}, '.{digits}~g') : {power})"


def fixed(value: Number, decimals: int = 2, *, sign: bool = False) -> str:
    """With so many decimals, for what lies between −1 and 1 or has to stand below its like.

    >>> fixed(0.123), fixed(-0.001), fixed(0.5, sign=True)
    ('0.12', '0.00', '+0.50')
    """
    if value is None or not math.isfinite(value):
        return number(value)
    value = round(value, decimals) + 0.0
    return _signed(f"{value:.{decimals}f}", value, sign)


def percent(share: Number, decimals: int = 1) -> str:
    """
    >>> percent(0.123), percent(0.5, 0), percent(-0.034, 0), percent(-0.001, 0), percent(None)
    ('12.3%', '50%', '−3%', '0%', '–')
    """
    return UNKNOWN if share is None else f"{round(share, decimals + 2) + 0.0:.{decimals}%}".replace("-", "−")


def ratio(log: Number, digits: int = 4) -> str:
    """A ratio from its logarithm, however small it is.

    >>> ratio(math.log(0.25)), ratio(-4605.17)
    ('0.25', '1e−2000')
    """
    if log is None or not math.isfinite(log):
        return number(log if log is None or not math.isinf(log) or log > 0 else 0.0)
    power = log / _LOG_10
    return number(10**power, digits) if abs(power) < 300 else f"1e{power:.0f}".replace("-", "−")


def arrow(values: Sequence[Number], shown: Callable[[Number], str] | None = None) -> str:
    """The first of some values and the last.

    >>> arrow([0.25, None, 1.0])
    '0.25 → 1'
    """
    return " → ".join((shown or partial(number, digits=3))(values[end]) for end in (0, -1))


def spread(value: Number) -> str:
    """What stands after a mean; nothing where it is not known."""
    return "" if value is None else f" ± {number(value, 2)}"


def sentence(text: str) -> str:
    """Begun with a capital and ended with a full stop; names of modules and code stay as they are.

    >>> sentence("not simulated: too long"), sentence("encoder.layer.1 is gated"), sentence("Done."), sentence("")
    ('Not simulated: too long.', 'encoder.layer.1 is gated.', 'Done.', '')
    """
    text = text.strip()
    word = re.match(r"[a-z]+(?=[\s,:;]|$)", text)
    text = text[:1].upper() + text[1:] if word else text
    return text if not text or text[-1] in ".!?:…" else f"{text}."


def _signed(text: str, value: float, sign: bool) -> str:
    return ("+" if sign and value > 0 else "") + text.replace("-", "−")
