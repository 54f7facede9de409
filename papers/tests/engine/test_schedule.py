"""The learning rate against its formula and against torch's own schedules."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, PolynomialLR

from oversmooth_papers.engine.schedule import learning_rates, polynomial


@pytest.mark.parametrize(("warmup", "cosine"), [(5, 300), (0, 7), (3, 1)])
def test_the_formula(warmup, cosine):
    rising = [2e-3 * step / warmup for step in range(warmup)]
    falling = [2e-3 * 0.5 * (1 + math.cos(math.pi * step / cosine)) for step in range(cosine)]
    rates = learning_rates(2e-3, warmup, cosine).tolist()
    assert rates == pytest.approx(rising + falling, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (learning_rates(0.1, 0, 20), lambda optimiser: CosineAnnealingLR(optimiser, 20)),
        (polynomial(0.1, 20, 0.9), lambda optimiser: PolynomialLR(optimiser, 20, 0.9)),
        (polynomial(0.1, 1, 0.9), lambda optimiser: PolynomialLR(optimiser, 1, 0.9)),
        (polynomial(0.1, 7, 2.0), lambda optimiser: PolynomialLR(optimiser, 7, 2.0)),
    ],
)
def test_it_is_that_of_torch(ours, theirs):
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule, expected = theirs(optimiser), []
    for _ in ours:
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert ours.tolist() == pytest.approx(expected)
