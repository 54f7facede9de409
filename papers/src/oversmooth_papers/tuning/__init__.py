"""A trained classifier helped without retraining: every weight frozen, the strengths of a steering method learned.

`learn` finds the strengths, `cross_validate` says what they are worth on images they have not seen.
"""

from oversmooth.observe.feed import class_count
from oversmooth_papers.tuning.cross_validation import (
    Answers,
    Outcome,
    answers_of,
    check_classifier,
    cross_validate,
    folds_of,
    untouched,
    work,
)
from oversmooth_papers.tuning.labelled import Labelled, read_labelled
from oversmooth_papers.tuning.learning import (
    DEFAULT_METHODS,
    Settings,
    frozen,
    learn,
    strengths_of,
    tune,
    tuning_method,
)
from oversmooth_papers.tuning.paired import (
    Comparison,
    MeanDifference,
    compare_right,
    mean_difference,
    smallest_detectable,
)

__all__ = [
    "DEFAULT_METHODS", "Answers", "Comparison", "Labelled", "MeanDifference", "Outcome", "Settings", "answers_of",
    "check_classifier", "class_count", "compare_right", "cross_validate", "folds_of", "frozen", "learn",
    "mean_difference", "read_labelled", "smallest_detectable", "strengths_of", "tune", "tuning_method",
    "untouched", "work",
]  # fmt: skip
