"""Diagnoses from Python and in notebooks: one, or several side by side, as plots, pages and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oversmooth.metrics import METRICS
from oversmooth.report import figures
from oversmooth.report.charts import base as charts
from oversmooth.report.style import PAPER, arrow, percent
from oversmooth.results.data import DiagnosisData
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    import pandas

_COLUMNS = ("model", "blocks", "mean cos", "HFC/LFC", "effective rank", "Re λ < 0", "smoothing share")


class Drawable:
    """What one diagnosis and several have in common: a page, figures, and what a notebook shows."""

    def _drawn(self) -> Sequence[DiagnosisData]:
        raise NotImplementedError

    def to_html(self, path: str | Path) -> None:
        """Write a report as one self-contained page.

        Args:
            path: of an .html file.

        Raises:
            InputError: it cannot be written, or there are too many models.
        """
        from oversmooth.report import page  # measuring needs no page

        file = arguments.path(path, remedy="give the path of a .html file")
        page.check(file)
        page.save(self._drawn(), file)

    def plot(self, name: str = "curves") -> figures.Figure:
        """A figure, which notebooks show and which saves itself: ``d.plot("hfc_lfc").save("figure.pdf")``.

        Args:
            name: of a metric, such as "hfc_lfc", or of a chart, such as "curves".

        Raises:
            InputError: there is no such name, or no data for it.
        """
        known = [*(metric.name for metric in METRICS.values() if metric.label), *figures.names()]
        if not isinstance(name, str) or name not in known:
            raise InputError(f"there is no plot {arguments.shown(name)}; choose one of {', '.join(known)}")
        made = figures.drawn(self._drawn(), name)
        if made is None:
            raise InputError(f"these diagnoses have no data for {name}; choose another plot")
        return made

    def _repr_html_(self) -> str:
        """In a notebook: the finding, its chart, and a line per model."""
        from oversmooth.report import headline, shell

        models, chart = charts.shown(self._drawn(), PAPER), figures.drawn(self._drawn(), "cos")
        text: str = shell.template("notebook.html.j2").render(
            finding=headline.finding(models),
            chart="" if chart is None else chart._repr_svg_(),
            head=_COLUMNS,
            rows=[[m.label, *_cells(m.diagnosis)] for m in models],
            each="d" if len(models) == 1 else "comparison",
        )
        return text


class Comparison(Drawable):
    """Several diagnoses side by side, in the order in which they were given."""

    def __init__(self, diagnoses: list[DiagnosisData]) -> None:
        self.diagnoses = diagnoses

    def _drawn(self) -> Sequence[DiagnosisData]:
        return self.diagnoses

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(d.name for d in self.diagnoses)}>"

    def __iter__(self) -> Iterator[DiagnosisData]:
        return iter(self.diagnoses)

    def __len__(self) -> int:
        return len(self.diagnoses)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per model and layer."""
        import pandas  # the user's own; nothing else here needs it

        labels = charts.distinct([d.name for d in self.diagnoses])
        tables = [d.to_pandas().assign(model=label) for d, label in zip(self.diagnoses, labels, strict=True)]
        return pandas.concat(tables, ignore_index=True)


def compare(*diagnoses: DiagnosisData) -> Comparison:
    """Several diagnoses side by side: ``compare(d1, d2).plot("cos")``, ``.to_html("page.html")``.

    Args:
        diagnoses: from `diagnose` or `Diagnosis.load`.

    Returns:
        What plots them together, and what a notebook shows as one table and chart.

    Raises:
        InputError: there are none, or something else is among them.
    """
    if not diagnoses:
        raise InputError("compare has no diagnoses; give two or more")
    for place, one in enumerate(diagnoses):
        if not isinstance(one, DiagnosisData):
            raise InputError(f"argument {place + 1} is {arguments.kind(one)}; give diagnoses, one by one")
    return Comparison(list(diagnoses))


def _cells(d: DiagnosisData) -> list[str]:
    courses = [arrow(d.curve(metric)) for metric in ("cos", "hfc_lfc", "effective_rank")]
    return [str(len(d.layers) - 1), *courses, *(percent(share, 0) for share in (d.negative_share, d.smoothing_share))]
