"""Whole runs at ImageNet's form: from parquet, damaged images, signals to workers, the command."""

# ruff: noqa: NPY002 (timm draws from the global state of numpy)

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support import timm_models
from support.commands import run
from support.imagenet_example import RECIPE, splits, train, write_folders, write_parquet
from support.nightly import nightly
from support.places import TEST_FOLDERS
from support.runs import train_task

from oversmooth.models import load
from oversmooth.safety.errors import InputError
from oversmooth.steering import steering_of
from oversmooth_papers.engine import checkpoint, loop
from oversmooth_papers.engine.saved_model import load_model, notes_of
from oversmooth_papers.tasks.imagenet.data import transform_of
from oversmooth_papers.tasks.imagenet.task import AVERAGED, ImagenetTask, plain_model_of
from oversmooth_papers.tasks.registry import load_trained

pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
ONE_EPOCH = replace(RECIPE, epochs=1, warmup=0)


@pytest.fixture
def pictures(tmp_path):
    return write_folders(tmp_path / "pictures")


def test_parquet_trains_as_the_same_images_in_folders(tmp_path, pictures):
    home = write_parquet(tmp_path / "parquet" / "pictures")
    one = train(ONE_EPOCH, splits(pictures), 0)
    other = train(ONE_EPOCH, splits(home), 2)
    assert one.scores == other.scores
    for (name, ours), theirs in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_the_callers_random_numbers_are_left_alone(pictures):
    def drawn():
        return random.random(), np.random.rand(), torch.rand(1).item()

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = drawn()
    for put_back, state in zip((random.setstate, np.random.set_state, torch.set_rng_state), states, strict=True):
        put_back(state)
    train(ONE_EPOCH, splits(pictures))
    assert drawn() == expected


def test_a_finished_run_leaves_the_plain_weights_and_their_average(tmp_path, pictures):
    task = ImagenetTask(ONE_EPOCH, splits(pictures), 0)
    result = train_task(task, folder=tmp_path / "run")
    model, recipe = load_model(tmp_path / "run" / loop.MODEL, plain_model_of)
    assert recipe == result.recipe
    assert steering_of(model) is not None
    average, _ = load_model(tmp_path / "run" / AVERAGED, plain_model_of)
    for name, value in result.model.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), value, rtol=0.01, atol=1e-3)  # bf16 in the file
        torch.testing.assert_close(average.get_parameter(name), task.average[name], rtol=0.01, atol=1e-3)
    assert any(not torch.equal(a, b) for a, b in zip(average.parameters(), model.parameters(), strict=True))
    notes = notes_of(tmp_path / "run" / loop.MODEL)
    assert {name: notes[name] for name in ("accuracy", "accuracy_ema")} == result.scores


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [0, 200])
def test_a_damaged_image_is_named_in_one_sentence(pictures, workers, length):
    damaged = next((pictures / "train" / "n02").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:length])
    with pytest.raises(InputError) as error:
        train(replace(ONE_EPOCH, repeats=1), splits(pictures), workers)
    assert str(error.value).startswith(f"{damaged} does not decode (")
    assert str(error.value).endswith("; fetch it again")
    assert "\n" not in str(error.value)
    assert length or "no known image format" in str(error.value)


def test_a_step_that_is_not_finite_is_found_again_by_its_own_batch(pictures):
    """The batches up to it are fetched again: it is the same one that fails."""
    recipe = replace(RECIPE, lr=1e12, warmup=0, variant="plain")
    with pytest.raises(InputError, match=r"step [2-9] \(epoch [123]\)") as error:
        train(recipe, splits(pictures), on_nan="retry")
    assert "not finite" in str(error.value)
    assert "when the step is run again, every layer is" not in str(error.value)
    assert "3 times it went back to a checkpoint" in str(error.value)


_RUN = """
import sys
sys.path[:0] = {tests!r}
from dataclasses import replace
from support.imagenet_example import RECIPE, splits, train
result = train(replace(RECIPE, epochs=400), splits({data!r}), 2, folder={folder!r}, resume=True)
print(result.why)
"""


def wait_for(condition, seconds):
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
@pytest.mark.parametrize(
    ("how", "why"), [(signal.SIGKILL, None), (signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")]
)
def test_workers_end_with_the_run_which_can_go_on(tmp_path, pictures, how, why):
    """Signals go to all of its processes, as from a terminal or a batch system; a kill to it alone."""
    code = _RUN.format(tests=TEST_FOLDERS, data=str(pictures), folder=str(tmp_path / "run"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True, **pipes) as process:
        try:
            wait_for(lambda: checkpoint.newest(tmp_path / "run") and len(children(process.pid)) >= 2, 120)
            workers = children(process.pid)
            (os.kill if why is None else os.killpg)(process.pid, how)
            out, err = process.communicate(timeout=60)
            wait_for(lambda: not any(runs(worker) for worker in workers), 30)
        finally:
            process.kill()
    assert why is None or (process.returncode, out.split()) == (0, [why]), err
    saved = checkpoint.load(tmp_path / "run", replace(RECIPE, epochs=400))
    assert 0 < int(saved.arrays["position"]) < 1200


def test_as_a_command_with_options_of_its_own(tmp_path, pictures, monkeypatch, capsys):
    """Trained by its recipe's file, tested, and diagnosed with the preprocessing it was tested with."""
    timm_models.timm()
    monkeypatch.setenv("OVERSMOOTH_WORKERS", "1")
    (tmp_path / "recipe.json").write_text(ONE_EPOCH.to_json())
    given = ("train", "--task", "imagenet", "--data", pictures, "--recipe", tmp_path / "recipe.json", "--device", "cpu")
    assert run(monkeypatch, *given, "--drop-path", 0.3, "--ema", 0.5, "--repeats", 2, "-o", tmp_path / "run") == 0
    assert "of averaged weights" in capsys.readouterr().out
    path = tmp_path / "run" / loop.MODEL
    model, recipe = load_trained(path)
    assert (recipe.drop_path, recipe.ema, recipe.repeats) == (0.3, 0.5, 2)
    assert [block.drop for block in model.blocks] == pytest.approx([0, 0.15, 0.3])
    assert run(monkeypatch, "diagnose", path, "--data", pictures / "val" / "n01", "--device", "cpu") == 0
    assert "HFC/LFC" in capsys.readouterr().out
    image = Image.open(next((pictures / "val" / "n01").iterdir())).resize((40, 57))
    ours = load(str(path)).preprocessing(image)
    torch.testing.assert_close(ours, transform_of(recipe.preprocessing())(image), atol=0.02, rtol=0)


def test_without_timm_it_says_what_to_install(monkeypatch, pictures):
    import importlib

    def missing(name, *_more):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

    data = splits(pictures)
    monkeypatch.setattr(importlib, "import_module", missing)
    words = r"training at ImageNet's size needs timm, which is not installed; install oversmooth-papers\[imagenet\]"
    with pytest.raises(InputError, match=words):
        train(RECIPE, data)
