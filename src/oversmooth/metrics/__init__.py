"""Metrics of a token array: the three notions of smoothing.

Pure functions of ``(..., n, d)``, tokens by features, with an optional ``mask`` of the valid tokens; they know
nothing of models. Computed in float32 or better whatever the input's precision, and differentiable. Each docstring
says where its metric is undefined.
"""

from oversmooth.metrics.angle import cosine
from oversmooth.metrics.frequency import hfc, input_convergence, lfc
from oversmooth.metrics.moments import Summary, summary
from oversmooth.metrics.rank import (
    effective_rank,
    rank_one_distance,
    ranks_of,
    sigma_ratio,
    singular_values,
    stable_rank,
)
from oversmooth.metrics.registry import METRICS, register

__all__ = [
    "METRICS", "Summary", "cosine", "effective_rank", "hfc", "input_convergence", "lfc",
    "rank_one_distance", "ranks_of", "register", "sigma_ratio", "singular_values", "stable_rank",
    "summary",
]  # fmt: skip
