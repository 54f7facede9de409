"""Models that are built from a seed, with the caller's random numbers left alone."""

import pytest
import torch
from support import language_example
from support.train_example import RECIPE

from oversmooth_papers.tasks.images.build import model_of as vit_of
from oversmooth_papers.tasks.language.task import model_of as language_model_of


@pytest.mark.parametrize("make", [lambda: vit_of(RECIPE), lambda: language_model_of(language_example.RECIPE)])
def test_building_a_model_leaves_seeds_of_gpus_alone(make, monkeypatch):
    def seeds(_seed):
        raise AssertionError("a GPU was seeded")

    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, seeds)
    first, second = make(), make()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
