"""The second paper, "Mitigating Over-smoothing in Transformers via Regularized Nonlocal Functionals" (NeuTRENO)."""
