"""Two real gloo processes compute the gradients of one, in every task; they stop, resume and end together."""

from pathlib import Path

import pytest
import torch
from support import timm_models, two_processes
from support.nightly import nightly, some
from support.runs import LEFT, assert_same_runs, rows

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.ranks import Ranks

KINDS = [
    *some(["sharpen", "plain"], 2),
    *(pytest.param(kind, marks=nightly) for kind in ("causal", "masked", "segmentation")),
    pytest.param(
        "imagenet", marks=[nightly, pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")]
    ),
]
_WORK = """
from dataclasses import replace
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.registry import task_of
from support import imagenet_example, language_example, segmentation_example, timm_models
from support.nightly import NIGHTLY
from support.runs import EVERY_EPOCH
from support.train_example import RECIPE, splits, train

def tasks():
    for variant in ("sharpen", "plain"):
        yield variant, task_of(replace(RECIPE, variant=variant, warmup=0, mixup=1.0, cutmix=0.8), splits())
    if not NIGHTLY:
        return
    for name, recipe in (("causal", language_example.RECIPE), ("masked", language_example.masked_recipe())):
        shape = replace(recipe.shape, dropout=0.0)
        yield name, language_example.task_of(replace(recipe, variant="neutreno:strength=0.4", shape=shape))
    yield "segmentation", task_of(segmentation_example.RECIPE, segmentation_example.splits())
    if timm_models.available():
        pictures = imagenet_example.splits(imagenet_example.write_folders(folder / "pictures"))
        yield "imagenet", ImagenetTask(replace(imagenet_example.RECIPE, drop_path=0.0), pictures, 1)

def gradients(task, ranks):
    step = Step(task, task.model(), cpu, ranks)
    found, update = [], step.optimiser.step
    def recorded():
        found.append({name: p.grad.clone() for name, p in step.named.items()})
        update()
    step.optimiser.step = recorded
    step.begin_epoch()
    for _ in range(3):
        step.run()
    return found

def work(ranks, name):
    for kind, task in tasks():
        torch.save(gradients(task, ranks), folder / f"{kind}-{name}.pt")
    watch, which = WatchSettings(evaluate=2, save=0), name.rstrip("01")
    train(RECIPE, splits(), folder=folder / which, watch=watch)
    rising = replace(RECIPE, variant="neutreno:strength=0.6", ramp=0.5)
    train(rising, splits(), folder=folder / f"rising {which}", watch=watch)
    if ranks.world > 1:
        asked_to_leave(ranks.rank)
        cut()

def asked_to_leave(rank):
    # The second process alone receives a signal, in the middle of an epoch.
    step = Step.run
    def signalled(self):
        step(self)
        if rank == 1 and self.done == 7:
            os.kill(os.getpid(), signal.SIGTERM)
    Step.run = signalled
    watch = WatchSettings(evaluate=2)
    result = train(RECIPE, splits(), folder=folder / "asked", watch=watch)
    (folder / f"asked{rank}.txt").write_text(f"{result.why} {result.step}")
    Step.run = step
    train(RECIPE, splits(), folder=folder / "asked", resume=True, watch=watch)

def cut():
    # With dropout, which each process draws for itself.
    for which, settings in (("whole", {}), ("cut", dict(resume=True, minutes=0))):
        finished = False
        while not finished:
            settings |= dict(folder=folder / which, watch=EVERY_EPOCH)
            finished = language_example.train(language_example.RECIPE, **settings).finished
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    return two_processes.run(_WORK, lambda: tmp_path_factory.mktemp("ranks"), "oversmooth_papers.engine.ranks")


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_give_the_gradients_of_one(both, kind):
    """A masked batch or one of crops has another number of targets in each part, and counts each once."""
    one, first, second = (torch.load(both / f"{kind}-{name}.pt", weights_only=True) for name in ("one", "two0", "two1"))
    tolerance = dict(rtol=1e-4, atol=1e-6) if kind in ("sharpen", "plain") else dict(rtol=1e-3, atol=1e-5)
    assert len(one) == 3
    for step in range(3):
        for name, gradient in one[step].items():
            torch.testing.assert_close(first[step][name], gradient, **tolerance)
            assert torch.equal(first[step][name], second[step][name])


def test_a_run_of_two_that_is_cut_ends_bit_for_bit(both):
    assert_same_runs(both / "whole", both / "cut")
    assert len(rows(both / "whole" / "log.jsonl")) == 3


@pytest.mark.parametrize("kind", ["", "rising "])
def test_two_processes_give_the_run_of_one(both, kind):
    one, two = both / f"{kind}one", both / f"{kind}two"
    logs = [rows(run / "log.jsonl") for run in (one, two)]
    assert all(("strength_share" in row) == bool(kind) for row in (*logs[0], *logs[1]))
    for ours, theirs in zip(*logs, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert ours.get("accuracy") == pytest.approx(theirs.get("accuracy"), abs=0.1)
    assert sorted(p.name for p in two.iterdir()) == LEFT


def test_a_signal_to_one_process_stops_both_at_one_step(both):
    """And not only when an epoch is over."""
    said = {(both / f"asked{rank}.txt").read_text() for rank in (0, 1)}
    assert len(said) == 1
    why, step = said.pop().split()
    assert why == "preempted"
    assert 7 <= int(step) < 20
    for ours, theirs in zip(*(rows(both / name / "log.jsonl") for name in ("two", "asked")), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)


@pytest.mark.parametrize(("batch", "world"), [(96, 2), (96, 3), (96, 8), (12, 6)])
def test_parts_are_pairs_and_cover_the_batch(batch, world):
    parts = [Ranks(rank, world).places(batch) for rank in range(world)]
    assert sorted(torch.cat(parts).tolist()) == list(range(batch))
    for part in parts:
        assert torch.equal(part.flip(0), batch - 1 - part)


def test_processes_that_a_batch_cannot_feed_are_refused():
    for batch, world, fits in ((8, 9, 18), (96, 5, 90)):
        with pytest.raises(InputError, match=rf"a batch of {batch} does not split into {world} .* such as {fits}, or"):
            Ranks(0, world).places(batch)
