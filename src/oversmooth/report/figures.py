"""Figures for papers, from diagnoses alone: every chart of `report.charts` as PDF, SVG or PNG, without a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report.charts import CHARTS, figure
from oversmooth.report.style import PAPER
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_folder, check_writable, whole_file
from oversmooth.safety.libraries import import_library

FORMATS = ("pdf", "svg", "png")
ENDINGS = tuple(f".{name}" for name in FORMATS)
_PIXELS_AN_INCH = 220


def check(path: Path, also: tuple[str, ...] = ()) -> None:
    """Refuse what cannot become a figure, before the work that it is to show. also: other endings."""
    check_writable(path, (*also, *ENDINGS))
    if path.suffix.lower() in ENDINGS:
        check_libraries()


def check_libraries() -> None:
    for library in ("altair", "vl_convert"):
        import_library(library, "drawing")


def save(diagnoses: list[Diagnosis], folder: Path, format: str) -> list[Path]:
    """Every figure there is data for, as ``folder/<name>.<format>``."""
    if format not in FORMATS:
        raise InputError(f"figures cannot be written as {format!r}; choose one of {', '.join(FORMATS)}")
    if not diagnoses:
        raise InputError("there is nothing to draw: no diagnosis was given; give at least one")
    charts = {name: chart for name, make in FIGURES.items() if (chart := make(diagnoses)) is not None}
    check_folder(folder)
    written = []
    for name, chart in charts.items():
        path = folder / f"{name}.{format}"
        write(chart, path)
        written.append(path)
    return written


def save_one(diagnoses: list[Diagnosis], name: str, path: Path) -> None:
    """One figure, by its name in FIGURES or of a chart that is drawn on request, in the format of the path's ending."""
    chart = _drawn(name, diagnoses)
    if chart is None:
        raise InputError(f"there is nothing to draw for {path}: these diagnoses have no data for {name}")
    write(chart, path)


def write(chart: Any, path: Path) -> None:
    """A figure or any altair chart, in the package's style."""
    format = path.suffix.lower().removeprefix(".")
    settings: dict[str, Any] = {"ppi": _PIXELS_AN_INCH} if format == "png" else {}
    with whole_file(path) as temporary:
        (chart if isinstance(chart, Figure) else styled(chart)).save(temporary, format=format, **settings)


def styled(chart: Any) -> Any:
    """An altair chart with the package's fonts, axes and colours."""
    chart = chart.copy(deep=False)
    chart.config = PAPER.config
    return chart


@dataclass(frozen=True)
class Figure:
    """A Vega-Lite description that can write itself, as altair's charts can."""

    spec: dict[str, Any] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        return self.spec

    def save(self, path: str | Path, format: str | None = None, **settings: Any) -> None:
        """settings: of vl-convert, such as ppi."""
        import vl_convert  # heavy, and only charts need it

        write = getattr(vl_convert, f"vegalite_to_{format or Path(path).suffix.lower().removeprefix('.')}")
        made = write(self.spec, **settings)
        Path(path).write_bytes(made.encode() if isinstance(made, str) else made)

    def _repr_svg_(self) -> str:
        """In a notebook."""
        import vl_convert

        return str(vl_convert.vegalite_to_svg(self.spec))


Make = Callable[[list[Diagnosis]], Figure | None]


def _drawn(name: str, diagnoses: list[Diagnosis]) -> Figure | None:
    spec = figure(CHARTS[name], diagnoses)
    return None if spec is None else Figure({**spec, "config": PAPER.config})


class _Figures(Mapping[str, Make]):
    """The charts that are written as files, whenever they were registered."""

    def __getitem__(self, name: str) -> Make:
        if not CHARTS[name].in_files:
            raise KeyError(name)
        return partial(_drawn, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, chart in CHARTS.items() if chart.in_files)

    def __len__(self) -> int:
        return sum(1 for _ in self)


FIGURES: Mapping[str, Make] = _Figures()
"""By name: from diagnoses to a figure, or None where there is no data."""
curves, steered, changes = FIGURES["curves"], FIGURES["steered"], FIGURES["changes"]
eigenvalues, dominance, extrapolation = FIGURES["eigenvalues"], FIGURES["dominance"], FIGURES["extrapolation"]
