"""Checks for your own methods and model families: each passes silently, or raises AssertionError with what is wrong.

    check_method(MyMethod(0.5), model, inputs)     a steering method satisfies the contract of all methods
    check_family(model, inputs)                    a model is measured correctly, and stays unchanged

They run on a copy of the model, take a few seconds for a small one, and share no formula with the code they check.
"""

from oversmooth.testing.family import check_family
from oversmooth.testing.method import check_method

__all__ = ["check_family", "check_method"]
