"""Figures for papers, from diagnoses alone: every chart of `report.charts` as PDF, SVG or PNG, without a browser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oversmooth.metrics import METRICS
from oversmooth.report.charts import base as charts
from oversmooth.report.charts.depth import of_metric
from oversmooth.report.style import PAPER
from oversmooth.results.data import DiagnosisData
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_folder, check_writable, whole_file

FORMATS = ("pdf", "svg", "png")
_ENDINGS = tuple(f".{name}" for name in FORMATS)
_PIXELS_AN_INCH = 220


def check(path: Path, also: tuple[str, ...] = ()) -> None:
    """Raise InputError if the path cannot become a figure, before the work that it shows. also: other endings."""
    check_writable(path, (*also, *_ENDINGS))


@dataclass(frozen=True)
class Figure:
    """A Vega-Lite description that notebooks show and that writes itself."""

    spec: dict[str, Any] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The description, in the package's fonts, axes and colours."""
        return {**self.spec, "config": PAPER.config}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, whole or not at all.

        Args:
            path: of a .pdf, .svg or .png file.

        Raises:
            InputError: it cannot be written.
        """
        import vl_convert  # heavy, and only charts need it

        file = arguments.path(path)
        check(file)
        ending = file.suffix.lower()
        settings: dict[str, Any] = {"ppi": _PIXELS_AN_INCH} if ending == ".png" else {}
        made = getattr(vl_convert, f"vegalite_to_{ending[1:]}")(self.to_dict(), **settings)
        with whole_file(file) as temporary:
            temporary.write_bytes(made.encode() if isinstance(made, str) else made)

    def _repr_svg_(self) -> str:
        """In a notebook."""
        import vl_convert

        return str(vl_convert.vegalite_to_svg(self.to_dict()))


def names() -> list[str]:
    """The charts that are written as files."""
    return [name for name, chart in charts.CHARTS.items() if chart.in_files]


def drawn(diagnoses: Sequence[DiagnosisData], name: str) -> Figure | None:
    """A chart, or a metric over depth; None where there is no data."""
    models = charts.shown(diagnoses, PAPER)
    if name in METRICS:
        spec = charts.assembled(f"{METRICS[name].label} over depth", of_metric(models, name, PAPER), models)
    else:
        chart = charts.CHARTS[name]
        spec = charts.assembled(chart.title, chart.draw(models, PAPER).panels, models, chart.arranged)
    return None if spec is None else Figure(spec)


def save(diagnoses: Sequence[DiagnosisData], folder: Path, format: str) -> list[Path]:
    """Every figure there is data for, as ``folder/<name>.<format>``."""
    if format not in FORMATS:
        raise InputError(f"figures cannot be written as {format!r}; choose one of {', '.join(FORMATS)}")
    if not diagnoses:
        raise InputError("there are no diagnoses to plot; give at least one")
    made = {folder / f"{name}.{format}": figure for name in names() if (figure := drawn(diagnoses, name))}
    check_folder(folder)
    for path, figure in made.items():
        figure.save(path)
    return list(made)


def save_one(diagnoses: Sequence[DiagnosisData], name: str, path: Path) -> None:
    """One figure, by the name of its chart or metric, in the format of the path's ending."""
    figure = drawn(diagnoses, name)
    if figure is None:
        raise InputError(f"these diagnoses have no data for {name}, so {path} was not written; choose another figure")
    figure.save(path)


def write(chart: Any, path: Path) -> None:
    """What has a Vega-Lite description, such as an altair chart, in the package's style."""
    Figure(chart.to_dict()).save(path)
