"""Every chart of diagnoses, described once: `report.page` and `report.figures` draw it from the same description.

A new chart is one file in this folder, or one function in a file that is there::

    @chart(title="Norms", lead="How long tokens are.")
    def norms(models, look):
        return Drawing([Panel("norms", {**look.size(210, 190), "data": ..., "mark": ..., "encoding": ...})])

It then has a section of its own in the page, and is a figure among the others.
"""

import importlib
import pkgutil

from oversmooth.report.charts.base import (
    CHARTS,
    Chart,
    Drawing,
    Key,
    Panel,
    Shown,
    assembled,
    chart,
    distinct,
    figure,
    shown,
)

_FIRST = ("depth", "accuracy", "changes", "spectra", "dominance", "further")
"""In the order in which charts are shown; other files follow."""
for _file in dict.fromkeys([*_FIRST, *(file.name for file in pkgutil.iter_modules(__path__))]):
    importlib.import_module(f"{__name__}.{_file}")

__all__ = ["CHARTS", "Chart", "Drawing", "Key", "Panel", "Shown", "assembled", "chart", "distinct", "figure", "shown"]
