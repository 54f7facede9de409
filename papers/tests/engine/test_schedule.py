"""The learning rate against its formula."""

import math

import pytest

from oversmooth_papers.engine.schedule import learning_rates, polynomial


@pytest.mark.parametrize(("warmup", "cosine"), [(5, 300), (0, 7), (3, 1)])
def test_the_formula(warmup, cosine):
    rates = learning_rates(2e-3, warmup, cosine).tolist()
    assert len(rates) == warmup + cosine
    for step, rate in enumerate(rates):
        if step < warmup:
            expected = 2e-3 * step / warmup
        else:
            expected = 2e-3 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / cosine))
        assert rate == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_it_is_that_of_torch():
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)
    found = []
    for _ in range(20):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert learning_rates(0.1, 0, 20).tolist() == pytest.approx(found)


@pytest.mark.parametrize(("steps", "power"), [(20, 0.9), (1, 0.9), (7, 2.0)])
def test_the_polynomial_is_that_of_torch(steps, power):
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=0.1)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimiser, steps, power)
    expected = []
    for _ in range(steps):
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert polynomial(0.1, steps, power).tolist() == pytest.approx(expected)
