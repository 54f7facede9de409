"""Observation of every family: it changes nothing, and its numbers are those of slow routes of their own."""

import functools

import pytest
import torch
from support import family_checks as checks
from support.families import FAMILIES, run, usable
from support.nightly import NIGHTLY, some
from torch import nn

from oversmooth.anatomy import locate
from oversmooth.trace import HeadSpectra, TokenMetrics, Trace, study

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul"),  # processors without bfloat16
]


def sampled(names, every):
    """ALBERT runs its one layer twelve times: by day it is stood for by the one that runs two of them twice."""
    return [name if NIGHTLY or name != "ALBERT" else "ALBERT (2 groups)" for name in some(names, every)]


EVERY = pytest.mark.parametrize("name", sampled(usable(), 9))
SOME = pytest.mark.parametrize("name", sampled(usable(), 12))


CHECKS = [
    checks.check_identical,
    checks.check_attention,
    checks.check_negative_share,
    functools.partial(checks.check_negative_share, variant="folded"),
    checks.check_extrapolation,
    checks.check_stack,
]


@pytest.mark.parametrize("check", CHECKS, ids=["bits", "attention", "negative", "folded", "last block", "stack"])
@EVERY
def test_every_number_is_that_of_a_slow_route(name, check):
    check(name)


@SOME
def test_outputs_stay_as_they_are_in_half_precision(name):
    checks.check_identical(name, torch.bfloat16)


@SOME
def test_nothing_is_left_behind_by_a_model_that_fails(name):
    family = FAMILIES[name]
    model = family.make()
    with torch.no_grad():
        plan = study(model, locate(model), lambda: run(model, family.inputs())).plan
    checks.check_untouched(model)
    last = dict(model.named_modules())[family.block.format(family.runs[-1])]

    def fail(*_):
        raise ArithmeticError("on purpose")

    handle = last.register_forward_pre_hook(fail)
    trace = Trace(model, plan, [TokenMetrics(plan), HeadSpectra(plan)])
    trace.begin()
    with pytest.raises(ArithmeticError, match="on purpose"), trace, torch.no_grad():
        run(model, family.inputs())
    with pytest.raises(ArithmeticError, match="on purpose"), torch.no_grad():
        study(model, locate(model), lambda: run(model, family.inputs()))
    handle.remove()
    checks.check_untouched(model)
    assert not model.training
    with torch.no_grad():
        checks.same_bits(
            checks.tensors(run(model, family.inputs())), checks.tensors(run(family.make(), family.inputs()))
        )


@pytest.mark.parametrize("name", sampled([n for n in usable() if FAMILIES[n].library != "toy"], 6))
def test_gradients_stay_as_they_are(name):
    family = FAMILIES[name]

    def gradients(model: nn.Module, out):
        sum(x.square().sum() for x in checks.tensors(out)).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    plain, watched = family.make(), family.make()
    expected = gradients(plain, run(plain, family.inputs()))
    checks.same_bits(gradients(watched, checks.observed(watched, family.inputs())), expected)
