"""Spectra, dominance, limits and simulation: what depth does to tokens, from attention A and the weights' H alone.

Pure functions of arrays and operators; they know nothing of models. docs/theory.md has the statements and the proofs.
"""

from oversmooth.theory.bounds import head_verdicts
from oversmooth.theory.dominance import Dominance, dominance
from oversmooth.theory.kernels import KernelOfAttention, attention_kernel, gradient_flow, gradient_step
from oversmooth.theory.limit import LimitArray
from oversmooth.theory.operators import (
    AttentionOperator,
    DenseAttention,
    SoftmaxAttention,
    is_causal,
    is_row_stochastic,
)
from oversmooth.theory.radii import AttentionChange
from oversmooth.theory.shifted import ShiftedDominance, shifted_dominance
from oversmooth.theory.simulate import Simulation, simulate
from oversmooth.theory.spectrum import AttentionSpectrum, attention_spectrum, flip_threshold
from oversmooth.theory.stack import StackDominance, stack_dominance
from oversmooth.theory.weights import (
    asymmetry,
    centre_features,
    fold_norm,
    head_spectrum,
    joined_asymmetry,
    joined_spectrum,
    repeat_shared_heads,
)

__all__ = [
    "AttentionChange",
    "AttentionOperator",
    "AttentionSpectrum",
    "DenseAttention",
    "Dominance",
    "KernelOfAttention",
    "LimitArray",
    "ShiftedDominance",
    "Simulation",
    "SoftmaxAttention",
    "StackDominance",
    "asymmetry",
    "attention_kernel",
    "attention_spectrum",
    "centre_features",
    "dominance",
    "flip_threshold",
    "fold_norm",
    "gradient_flow",
    "gradient_step",
    "head_spectrum",
    "head_verdicts",
    "is_causal",
    "is_row_stochastic",
    "joined_asymmetry",
    "joined_spectrum",
    "repeat_shared_heads",
    "shifted_dominance",
    "simulate",
    "stack_dominance",
]
