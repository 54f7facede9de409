"""Every method on two families: its formula, by day half of the other checks; some families (at night all) with two.

`make conformance` runs the whole matrix.
"""

import pytest
from support.conformance import CHECKS, METHODS, check_compile, check_refused, refused
from support.families import usable
from support.nightly import some

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul"),  # processors without bfloat16
]
# Padded and Post-LN with biases; causal, with shared value heads and RMSNorm.
FULL = ("BERT", "Llama")
EVERYWHERE = ("Spectral: sharpen", "NeuTRENO")
COMPILED = "torch encoder (Pre-LN, batch first)"
# What takes its time, or does not depend on the family: on the two alone.
ONLY_FULL = ("reentrant", "optimiser", "threads")
ONE_OF_THEM = {"fold": "Spectral: sharpen", "zero": "NeuTRENO", "bf16": "Spectral: sharpen"}
CELLS = [
    *some([(check, FULL[0], method) for method in METHODS for check in CHECKS], 2),  # of each method other checks
    *((check, FULL[1], method) for method in some(METHODS, 4) for check in CHECKS),
    *(("formula", name, method) for name in FULL for method in METHODS),
]
CELLS += [
    (check, name, method)
    for name in some(usable(), 12)
    for method in EVERYWHERE
    for check in CHECKS
    if name not in FULL and check not in ONLY_FULL and ONE_OF_THEM.get(check, method) == method
]


@pytest.mark.parametrize(("check", "name", "method"), [cell for cell in dict.fromkeys(CELLS) if not refused(*cell[1:])])
def test_method_on_family(check, name, method):
    CHECKS[check](name, method)


@pytest.mark.parametrize(("name", "method"), [(n, m) for n in usable() for m in METHODS if refused(n, m)])
def test_what_is_refused_says_why(name, method):
    check_refused(name, method)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "method",
    some(["Spectral: sharpen", "NeuTRENO: learned by head", "FeatScale"], 3),
)
def test_compiled(method):
    check_compile(COMPILED, method)
