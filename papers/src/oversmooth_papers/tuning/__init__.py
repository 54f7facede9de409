"""A trained classifier helped without retraining: every weight frozen, the strengths of a steering method learned.

`learning` finds the strengths, `cross_validate` says what they are worth on images they have not seen.
"""

from oversmooth_papers.tuning.cross_validation import (
    Answers,
    Outcome,
    baseline,
    check_classifier,
    cross_validate,
    folds_of,
)
from oversmooth_papers.tuning.labelled import Labelled, read_labelled
from oversmooth_papers.tuning.learning import DEFAULT_METHODS, TuningSettings, tune, tuning_method

__all__ = [
    "DEFAULT_METHODS", "Answers", "Labelled", "Outcome", "TuningSettings", "baseline", "check_classifier",
    "cross_validate", "folds_of", "read_labelled", "tune", "tuning_method",
]  # fmt: skip
