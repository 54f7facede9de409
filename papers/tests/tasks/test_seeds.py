"""Models that are built from a seed, with the caller's random numbers left alone."""

from dataclasses import replace

import pytest
import torch
from support import imagenet_example, language_example, segmentation_example, train_example

from oversmooth_papers.tasks.registry import untrained_model


@pytest.mark.parametrize("example", [train_example, language_example, segmentation_example, imagenet_example])
def test_the_seed_decides_the_weights_and_the_caller_keeps_its_numbers(example, monkeypatch):
    def seeds(_seed):
        raise AssertionError("a GPU was seeded")

    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, seeds)
    before = torch.get_rng_state()
    first, second, other = (untrained_model(replace(example.RECIPE, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for one, same in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, same)
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
