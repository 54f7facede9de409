"""Whole runs at ImageNet's form: from folders and parquet, damaged images, signals to workers, the command."""

# ruff: noqa: NPY002 (timm draws from the global state of numpy)

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from support import timm_models
from support.commands import run
from support.imagenet_example import RECIPE, splits, train, write_folders, write_parquet
from support.nightly import nightly, some
from support.places import TEST_FOLDERS

from oversmooth.safety.errors import InputError
from oversmooth.steering import steering_of
from oversmooth.steering.saving import read_file
from oversmooth_papers.engine import checkpoint, loop
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.saved_model import load_model, notes_of
from oversmooth_papers.tasks.imagenet.feed import testing_transform
from oversmooth_papers.tasks.imagenet.task import AVERAGED, plain_model_of
from oversmooth_papers.tasks.registry import load_trained

testing_transform.__test__ = False
pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
EVERY_EPOCH = WatchSettings(evaluate=1, monitor=3, save=0)


def lines(path):
    """Of a log, without what a clock says."""
    return [
        {name: value for name, value in json.loads(line).items() if name not in ("seconds", "images_per_s")}
        for line in path.read_text().splitlines()
    ]


def assert_same(one, other):
    for file in (loop.MODEL, AVERAGED):
        ours, theirs = (read_file(folder / file)[0] for folder in (one, other))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), (file, name)
    for name in [name for name in ("log.jsonl", "smoothing.jsonl") if (one / name).exists()]:
        assert lines(one / name) == lines(other / name)


@pytest.fixture
def pictures(tmp_path):
    return write_folders(tmp_path / "pictures")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))


def test_parquet_trains_as_the_same_images_in_folders(tmp_path, pictures):
    home = write_parquet(tmp_path / "parquet" / "pictures")
    for name, where in (("folders", pictures), ("parquet", home)):
        assert train(RECIPE, splits(where), device="cpu", folder=tmp_path / name, watch=EVERY_EPOCH).finished
    assert_same(tmp_path / "folders", tmp_path / "parquet")


def test_the_callers_random_numbers_are_left_alone(pictures):
    import random

    import numpy as np

    def after():
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        yield
        yield random.random(), np.random.rand(), torch.rand(1).item()

    plain, trained = after(), after()
    next(plain)
    expected = next(plain)
    next(trained)
    train(replace(RECIPE, epochs=1), splits(pictures), device="cpu")
    assert next(trained) == expected


def test_a_finished_run_leaves_the_plain_weights_and_their_average(tmp_path, pictures):
    result = train(replace(RECIPE, epochs=1, warmup=0), splits(pictures), device="cpu", folder=tmp_path / "run")
    model, recipe = load_model(tmp_path / "run" / loop.MODEL, plain_model_of)
    assert recipe == result.recipe
    assert steering_of(model) is not None
    result.model.eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), result.model(x), rtol=0.05, atol=0.05)  # bf16 weights
    average, _ = load_model(tmp_path / "run" / AVERAGED, plain_model_of)
    for name, value in average.named_parameters():
        torch.testing.assert_close(value, result.model.average[name], rtol=0.01, atol=1e-3)
    assert any(not torch.equal(a, b) for a, b in zip(average.parameters(), model.parameters(), strict=True))
    notes = notes_of(tmp_path / "run" / loop.MODEL)
    assert {name: notes[name] for name in ("accuracy", "accuracy_ema")} == result.scores


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named_in_one_sentence(tmp_path, pictures, workers):
    damaged = next((pictures / "train" / "n02").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(InputError) as error:
        train(replace(RECIPE, repeats=1), splits(pictures), workers, device="cpu", folder=tmp_path / "run")
    assert str(error.value).startswith(f"{damaged} does not decode (")
    assert str(error.value).endswith("; fetch it again")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("how", ["stop", "retry"])
def test_a_step_that_is_not_finite_is_found_again_by_its_own_batch(pictures, how):
    """The batches up to it are fetched again: it is the same one that fails."""
    recipe = replace(RECIPE, lr=1e12, warmup=0, variant="plain")
    with pytest.raises(InputError, match=r"step [2-9] \(epoch [123]\)") as error:
        train(recipe, splits(pictures), device="cpu", on_nan=how)
    assert "not finite" in str(error.value)
    assert "when the step is run again, every layer is" not in str(error.value)
    assert ("3 times it went back to a checkpoint" in str(error.value)) == (how == "retry")


_RUN = """
import sys
sys.path[:0] = {tests!r}
from dataclasses import replace
from oversmooth_papers.engine.loop import WatchSettings
from support.commands import run
from support.imagenet_example import RECIPE, splits, train
result = train(replace(RECIPE, epochs={epochs}), splits({data!r}), {workers}, device="cpu", folder={folder!r},
               resume=True, watch=WatchSettings(evaluate=0, monitor=0, save=0))
print(result.why, result.step)
"""


def started(tmp_path, pictures, workers, epochs=3, folder="run", **more):
    code = _RUN.format(
        tests=TEST_FOLDERS, data=str(pictures), workers=workers, epochs=epochs, folder=str(tmp_path / folder)
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def children(process):
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(child) for child in file.read().split()]


def runs(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@nightly
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
@pytest.mark.parametrize("how", some([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], 3))
def test_workers_end_with_the_run_which_can_go_on(tmp_path, pictures, how):
    """Signals go to all of its processes, as from a terminal or a batch system; a kill to it alone."""
    process = started(tmp_path, pictures, 2, epochs=400, start_new_session=True)
    try:
        wait_for(lambda: checkpoint.newest(tmp_path / "run") and len(children(process.pid)) >= 2)
        workers = children(process.pid)
        (os.kill if how == signal.SIGKILL else os.killpg)(process.pid, how)
        out, err = process.communicate(timeout=60)
        wait_for(lambda: not any(runs(worker) for worker in workers), 30)
    finally:
        if process.poll() is None:
            process.kill()
    if how != signal.SIGKILL:
        assert process.returncode == 0, err
        assert out.split()[0] == {signal.SIGTERM: "preempted", signal.SIGINT: "interrupted"}[how]
    saved = checkpoint.load(tmp_path / "run", replace(RECIPE, epochs=400))
    assert 0 < int(saved.arrays["position"]) < 1200


@nightly
@pytest.mark.skipif(sys.platform != "linux", reason="killed as Linux does it")
def test_killed_it_goes_on_bit_for_bit(tmp_path, pictures):
    process = started(tmp_path, pictures, 2, epochs=8)
    wait_for(lambda: (newest := checkpoint.newest(tmp_path / "run")) is not None and newest.name >= "000004")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    for folder, workers in (("run", 1), ("whole", 0)):
        done = started(tmp_path, pictures, workers, epochs=8, folder=folder)
        out, err = done.communicate(timeout=300)
        assert done.returncode == 0, err
        assert out.split() == ["finished", "24"]
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_as_a_command_with_options_of_its_own(tmp_path, pictures, monkeypatch, capsys):
    """Trained by its recipe's file, tested, and diagnosed with the preprocessing it was tested with."""
    timm_models.timm()
    monkeypatch.setenv("OVERSMOOTH_WORKERS", "1")
    (tmp_path / "recipe.json").write_text(replace(RECIPE, epochs=1).to_json())
    given = ("train", "--task", "imagenet", "--data", pictures, "--recipe", tmp_path / "recipe.json", "--device", "cpu")
    assert run(monkeypatch, *given, "--drop-path", 0.3, "--ema", 0.5, "--repeats", 2, "-o", tmp_path / "run") == 0
    assert "of averaged weights" in capsys.readouterr().out
    model, recipe = load_trained(tmp_path / "run" / loop.MODEL)
    assert (recipe.drop_path, recipe.ema, recipe.repeats) == (0.3, 0.5, 2)
    assert [block.drop for block in model.blocks] == pytest.approx([0, 0.15, 0.3])
    from PIL import Image

    from oversmooth.models import load

    loaded = load(str(tmp_path / "run" / loop.MODEL))
    image = Image.open(next((pictures / "val" / "n01").iterdir())).resize((40, 57))
    torch.testing.assert_close(loaded.preprocessing(image), testing_transform(recipe)(image), atol=0.02, rtol=0)
    assert run(monkeypatch, *given, "--share", 0.5, "-o", tmp_path / "other") == 2
    assert "--share is no setting of --task imagenet" in capsys.readouterr().err


def test_without_timm_it_says_what_to_install(monkeypatch, pictures):
    import importlib

    def missing(name, *_more):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

    data = splits(pictures)
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"training at ImageNet's size needs timm, which is not installed"):
        train(RECIPE, data, device="cpu")
