"""Many processes: the gradients and the run of one, on two real gloo processes."""

import json

import pytest
import torch
from support import two_processes
from support.nightly import some
from support.runs import LEFT

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.ranks import Ranks

VARIANTS = some(["sharpen", "plain"], 2)
_WORK = """
from dataclasses import replace
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.images.build import model_of
from support.train_example import RECIPE, blobs, splits, step_of, train

def gradients(variant, ranks):
    recipe = replace(RECIPE, variant=variant, warmup=0, mixup=1.0, cutmix=0.8)
    step = step_of(recipe, model_of(recipe), blobs(40, 0), cpu, ranks)
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
    torch.save({v: gradients(v, ranks) for v in VARIANTS}, folder / f"{name}.pt")
    watch = WatchSettings(evaluate=2, save=0)
    train(RECIPE, splits(), folder=folder / name.rstrip("01"), watch=watch)
    rising = replace(RECIPE, variant="neutreno:strength=0.6", ramp=0.5)
    train(rising, splits(), folder=folder / f"rising {name.rstrip('01')}", watch=watch)
    if ranks.world > 1:
        asked_to_leave(ranks.rank)

def asked_to_leave(rank):
    # The second process alone receives a signal, in the middle of an epoch.
    step = Step.run
    def signalled(self):
        step(self)
        if rank == 1 and self.done == 7:
            os.kill(os.getpid(), signal.SIGTERM)
    Step.run = signalled
    result = train(RECIPE, splits(), folder=folder / "asked", watch=WatchSettings(evaluate=2))
    (folder / f"asked{rank}.txt").write_text(f"{result.why} {result.step}")
    Step.run = step
    watch = WatchSettings(evaluate=2)
    train(RECIPE, splits(), folder=folder / "asked", resume=True, watch=watch)
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return two_processes.run(
        f"VARIANTS = {VARIANTS}\n" + _WORK, lambda: tmp_path_factory.mktemp("ranks"), "oversmooth_papers.engine.ranks"
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_processes_give_the_gradients_of_one(both, variant):
    one, first, second = (
        torch.load(both / f"{name}.pt", weights_only=True)[variant] for name in ("one", "two0", "two1")
    )
    for step in range(3):
        for name, gradient in one[step].items():
            torch.testing.assert_close(first[step][name], gradient, rtol=1e-4, atol=1e-6)
            assert torch.equal(first[step][name], second[step][name])


@pytest.mark.parametrize("kind", ["", "rising "])
def test_two_processes_give_the_run_of_one(both, kind):
    one, two = both / f"{kind}one", both / f"{kind}two"
    rows = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in (one, two)]
    assert all(("strength_share" in row) == bool(kind) for row in (*rows[0], *rows[1]))
    for ours, theirs in zip(*rows, strict=True):
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
    rows = [
        [json.loads(line) for line in (both / name / "log.jsonl").read_text().splitlines()] for name in ("two", "asked")
    ]
    for ours, theirs in zip(*rows, strict=True):
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
