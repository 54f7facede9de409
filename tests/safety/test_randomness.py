"""Numbers of our own, and the caller's left alone."""

import pytest
import torch
from support import language_example
from support.train_example import RECIPE

from oversmooth.safety.randomness import seeded
from oversmooth_papers.tasks.images.build import model_of as vit_of
from oversmooth_papers.tasks.language.task import model_of as language_model_of


def test_the_seed_decides_as_torchs_own_and_the_caller_goes_on():
    torch.manual_seed(3)
    first, second = torch.rand(4), torch.rand(4)
    torch.manual_seed(7)
    own = torch.randn(4)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), first)
    with seeded(7):
        assert torch.equal(torch.randn(4), own)
    with pytest.raises(RuntimeError), seeded(7):
        torch.rand(9).view(2)  # drawn, and then refused
    assert torch.equal(torch.rand(4), second)


@pytest.mark.parametrize("make", [lambda: vit_of(RECIPE), lambda: language_model_of(language_example.RECIPE)])
def test_building_a_model_leaves_seeds_of_gpus_alone(make, monkeypatch):
    def seeds(_seed):
        raise AssertionError("a GPU was seeded")

    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, seeds)
    first, second = make(), make()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
