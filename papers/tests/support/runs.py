"""What tests of training runs of every task share."""

import json

import torch

from oversmooth.steering.saving import read_file
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.loop import RunSettings, WatchSettings

LEFT = ["log.jsonl", "machines.jsonl", "model.safetensors", "smoothing.jsonl"]
"""What a finished run leaves in its folder."""
EVERY_EPOCH = WatchSettings(evaluate=1, monitor=3, save=0)
QUIET = WatchSettings(monitor=0)
_CLOCK = ("seconds", "images_per_s", "tokens_per_s")


def train_task(task, reuse=None, device="cpu", **settings):
    settings = RunSettings(device=device, **settings)
    return loop.train(task, settings, reuse=reuse)


def rows(path):
    """Of a log, without what a clock says."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in _CLOCK} for line in lines]


def assert_same_models(one, other):
    """All weights in the files of two finished runs are equal, bit for bit."""
    files = sorted(path.name for path in one.glob("*.safetensors"))
    assert files == sorted(path.name for path in other.glob("*.safetensors"))
    for file in files:
        assert_same(read_file(one / file)[0], read_file(other / file)[0])


def assert_same_runs(one, other):
    """Their models and their logs."""
    assert_same_models(one, other)
    for name in ("log.jsonl", "smoothing.jsonl"):
        assert rows(one / name) == rows(other / name)


def assert_same(ours, theirs):
    """Two dictionaries of tensors, bit for bit."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
