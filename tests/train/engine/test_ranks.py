"""Many processes: the gradients and the run of one, on two real gloo processes."""

import json
import os
import subprocess
import sys

import pytest
import torch
from support.nightly import some
from support.places import TESTS

from oversmooth.safety.errors import InputError
from oversmooth.train.engine.ranks import Ranks

_PROCESSES = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from dataclasses import replace
from pathlib import Path
import torch
import torch.distributed as dist
from oversmooth.train.engine import loop
from oversmooth.train.tasks.images.build import model_of
from oversmooth.train.engine.ranks import Ranks, joined
from support.train_example import RECIPE, blobs, splits, step_of, train

folder, cpu = Path({folder!r}), torch.device("cpu")

def gradients(variant, ranks):
    recipe = replace(RECIPE, variant=variant, warmup=0, mixup=1.0, cutmix=0.8)
    step = step_of(recipe, model_of(recipe), blobs(40, 0), cpu, ranks)
    found = []
    update = step._update
    def kept(bad):
        found.append({{name: p.grad.clone() for name, p in step.named.items()}})
        update(bad)
    step._update = kept
    step.begin_epoch()
    for _ in range(3):
        step.run()
    return found

def work(ranks, name):
    torch.save({{v: gradients(v, ranks) for v in ("plain", "sharpen")}}, folder / f"{{name}}.pt")
    watch = loop.WatchSettings(evaluate=2, save=0)
    train(RECIPE, splits(), device="cpu", folder=folder / name.rstrip("01"), watch=watch)

def asked_to_leave(rank):
    # The second process alone hears a signal, in the middle of an epoch.
    step = loop.Run._one
    def heard(self):
        step(self)
        if rank == 1 and self.step.done == 7:
            os.kill(os.getpid(), signal.SIGTERM)
    loop.Run._one = heard
    result = train(RECIPE, splits(), device="cpu", folder=folder / "asked", watch=loop.WatchSettings(evaluate=2))
    (folder / f"asked{{rank}}.txt").write_text(f"{{result.why}} {{result.step}}")
    loop.Run._one = step
    watch = loop.WatchSettings(evaluate=2)
    train(RECIPE, splits(), device="cpu", folder=folder / "asked", resume=True, watch=watch)

os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT={port!r}, GLOO_SOCKET_IFNAME="lo")
children = []
for rank in (0, 1):
    child = os.fork()
    if not child:
        os.environ["RANK"] = str(rank)
        try:
            with joined(cpu) as ranks:
                work(ranks, f"two{{rank}}")
                asked_to_leave(rank)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
failed = [os.waitpid(child, 0)[1] for child in children]
os.environ["WORLD_SIZE"] = "1"
if any(failed):
    sys.exit(1)
work(Ranks(), "one")
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    import socket

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(5):  # somebody else may take the port before they do
        folder = tmp_path_factory.mktemp("ranks")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        code = _PROCESSES.format(tests=str(TESTS), folder=str(folder), port=port)
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
        if "EADDRINUSE" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("variant", some(["sharpen", "plain"], 2))
def test_two_processes_give_the_gradients_of_one(both, variant):
    one, first, second = (
        torch.load(both / f"{name}.pt", weights_only=True)[variant] for name in ("one", "two0", "two1")
    )
    for step in range(3):
        for name, gradient in one[step].items():
            torch.testing.assert_close(first[step][name], gradient, rtol=1e-4, atol=1e-6)
            assert torch.equal(first[step][name], second[step][name])


def test_two_processes_give_the_run_of_one(both):
    rows = [
        [json.loads(line) for line in (both / name / "log.jsonl").read_text().splitlines()] for name in ("one", "two")
    ]
    for ours, theirs in zip(*rows, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert ours.get("accuracy") == pytest.approx(theirs.get("accuracy"), abs=0.1)
    assert sorted(p.name for p in (both / "two").iterdir()) == ["log.jsonl", "model.safetensors", "smoothing.jsonl"]


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
    with pytest.raises(InputError, match="9 processes are more than the pairs in a batch of 8; start at most 4"):
        Ranks(0, 9).places(8)
    with pytest.raises(InputError, match=r"a batch of 96 does not split into 5 even parts.* such as 90"):
        Ranks(0, 5).places(96)
