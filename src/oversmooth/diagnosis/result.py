"""The public `Diagnosis`: its data, and how it shows itself."""

from __future__ import annotations

from oversmooth.report.comparison import Drawable
from oversmooth.results import verdict
from oversmooth.results.data import DiagnosisData
from oversmooth.safety.foreign import visible


class Diagnosis(DiagnosisData, Drawable):
    """Everything that `diagnose` measured and predicted about a model. Printing it shows the verdict."""

    def __str__(self) -> str:
        """The verdict, the answer first, and the notes."""
        said = verdict.sentences(self) or [repr(self)]
        return visible("\n".join([*said, *(f"Note: {note}." for note in self.remarks)]))

    def _drawn(self) -> list[DiagnosisData]:
        return [self]
