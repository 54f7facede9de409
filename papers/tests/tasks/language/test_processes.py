"""A language model trained by two real processes: the gradients of one, and a run that is cut goes on bit for bit."""

import json

import pytest
import torch
from support import two_processes
from support.nightly import nightly

from oversmooth_papers.engine import loop
from oversmooth_papers.tasks.registry import load_trained

_WORK = """
from dataclasses import replace
from oversmooth_papers.engine import loop
from support.language_example import RECIPE, masked_recipe, step_of, train

def gradients(ranks, recipe):
    recipe = replace(recipe, variant="neutreno:strength=0.4", shape=replace(recipe.shape, dropout=0.0))
    step = step_of(recipe, cpu, ranks)
    found = []
    update = step._update
    def kept(bad):
        found.append({name: p.grad.clone() for name, p in step.named.items()})
        update(bad)
    step._update = kept
    step.begin_epoch()
    for _ in range(3):
        step.run()
    return found

def work(ranks, name):
    for kind, recipe in (("causal", RECIPE), ("masked", masked_recipe())):
        torch.save(gradients(ranks, recipe), folder / f"{kind}-{name}.pt")
    if ranks.world == 1:
        return
    watch = loop.WatchSettings(evaluate=1, monitor=0, save=0)
    train(RECIPE, folder=folder / "whole", watch=watch)
    while not train(RECIPE, folder=folder / "cut", resume=True, minutes=0, watch=watch).finished:
        pass
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return two_processes.run(_WORK, lambda: tmp_path_factory.mktemp("language"))


@nightly
@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_two_processes_give_the_gradients_of_one(both, kind):
    files = (both / f"{kind}-{name}.pt" for name in ("one", "two0", "two1"))
    one, first, second = (torch.load(file, weights_only=True) for file in files)
    for step in range(3):
        for name, gradient in one[step].items():
            torch.testing.assert_close(first[step][name], gradient, rtol=1e-4, atol=1e-6)
            assert torch.equal(first[step][name], second[step][name])


def test_a_run_of_two_that_is_cut_ends_bit_for_bit(both):
    """With dropout, which each process draws for itself."""
    one, other = (load_trained(both / which / loop.MODEL)[0].state_dict() for which in ("cut", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)
    rows = [
        [json.loads(line)["loss"] for line in (both / which / "log.jsonl").read_text().splitlines()]
        for which in ("cut", "whole")
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3
