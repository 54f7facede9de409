"""Nguyen et al., "Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals" (NeuTRENO)."""
