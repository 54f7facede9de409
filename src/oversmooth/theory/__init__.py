"""Spectra, dominance, limits and simulation: what depth does to tokens, from attention A and the weights' H alone.

Pure functions of arrays and operators; they know nothing of models. docs/theory.md has the statements and the proofs.
"""

from oversmooth.theory.bounds import head_verdicts
from oversmooth.theory.constant_state import constant_state
from oversmooth.theory.depth import growth_bounds, log_time
from oversmooth.theory.dominance import Dominance, dominance
from oversmooth.theory.operators import DenseAttention, SoftmaxAttention, is_causal, is_row_stochastic
from oversmooth.theory.radii import AttentionChange
from oversmooth.theory.simulate import simulate
from oversmooth.theory.spectrum import attention_spectrum, flip_threshold
from oversmooth.theory.weights import asymmetry, centre_features, fold_norm, head_spectrum, joined_spectrum

__all__ = [
    "AttentionChange", "DenseAttention", "Dominance", "SoftmaxAttention", "asymmetry", "attention_spectrum",
    "centre_features", "constant_state", "dominance", "flip_threshold", "fold_norm", "growth_bounds", "head_spectrum",
    "head_verdicts", "is_causal", "is_row_stochastic", "joined_spectrum", "log_time", "simulate",
]  # fmt: skip
