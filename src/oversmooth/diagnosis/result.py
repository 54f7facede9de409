"""The public `Diagnosis`: its data, and how it shows itself."""

from __future__ import annotations

from oversmooth.report.comparison import Drawable
from oversmooth.results.data import DiagnosisData


class Diagnosis(DiagnosisData, Drawable):
    """Everything that `diagnose` measured and predicted about a model."""

    def _drawn(self) -> list[DiagnosisData]:
        return [self]
