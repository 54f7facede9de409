"""Nguyen et al., "Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals" (NeuTRENO)."""

NO_TABLES = ("adaptation", "cosine", "energy", "kernel", "prediction", "robustness")
"""Files that register no table of trained models: they import torch, which the help of the commands does without."""
