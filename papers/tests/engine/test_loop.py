"""Whole runs: what they write, how they stop and go on, and what stops them."""

import importlib.util
import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from support.runs import EVERY_EPOCH, LEFT, QUIET, assert_same_models
from support.train_example import RECIPE, plain, splits, train

from oversmooth.safety.errors import InputError
from oversmooth.steering import steering_of
from oversmooth_papers.engine import checkpoint, failure, loop
from oversmooth_papers.engine import saved_model as saved
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tables.provenance import provenance
from oversmooth_papers.tasks.images import task
from oversmooth_papers.tasks.images.data import load_splits
from oversmooth_papers.tasks.registry import load_trained


@pytest.fixture(scope="module")
def reports():
    """The progress of `whole`."""
    return []


@pytest.fixture(scope="module")
def whole(tmp_path_factory, reports):
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SECONDS_BETWEEN_REPORTS", 0)
        return train(RECIPE, splits(), folder=folder, watch=EVERY_EPOCH, on_progress=reports.append)


def test_a_run_leaves_a_log_a_model_and_no_checkpoint(whole):
    assert whole.finished
    assert whole.step == whole.steps == 20
    assert [row["epoch"] for row in whole.epochs] == [1, 2, 3, 4]
    assert all({"loss", "lr", "accuracy", "images_per_s"} <= row.keys() for row in whole.epochs)
    assert whole.scores["accuracy"] == whole.epochs[-1]["accuracy"]
    assert sorted(path.name for path in whole.folder.iterdir()) == LEFT
    (machine,) = whole.machines
    assert machine == {"from_step": 0, "hardware": provenance("cpu")["hardware"], "torch": torch.__version__}
    looks = [json.loads(line) for line in (whole.folder / "smoothing.jsonl").read_text().splitlines()]
    assert [row["step"] for row in looks] == [1, 3, 6, 9, 12, 15, 18, 20]  # the last, always
    assert all(len(row[name]) == 3 for row in looks for name in ("hfc_lfc", "cos", "abs_cos"))


def test_it_learns():
    recipe = plain(epochs=14, lr=3e-3)
    result = train(recipe, splits(160), watch=WatchSettings(monitor=0, evaluate=0))
    assert result.scores["accuracy"] > 0.6  # chance is 0.25; 0.7 to 0.9 over seeds
    assert result.epochs[-1]["loss"] < result.epochs[0]["loss"]


def test_the_caller_keeps_its_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(plain(epochs=1), splits())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "preempted"), (signal.SIGUSR2, "preempted")],
)
def test_a_signal_leaves_a_checkpoint(tmp_path, whole, monkeypatch, number, why):
    """Within an epoch: Ctrl-C, SIGTERM, and the warning that batch systems can be told to send."""
    folder = tmp_path / "run"
    pressed = []

    def press(progress):
        if progress.step == 7 and not pressed:
            pressed.append(progress)
            for _ in range(1 if number == signal.SIGINT else 3):  # a parent's death may be told several times
                os.kill(os.getpid(), number)

    watch = replace(EVERY_EPOCH, save=1e9)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_REPORTS", 0)

    def handler(_number, _frame):
        raise AssertionError("the run did not receive it")

    signal.signal(number, handler)
    result = train(RECIPE, splits(), folder=folder, watch=watch, on_progress=press)
    assert signal.getsignal(number) is handler
    signal.signal(number, signal.SIG_DFL)
    assert (result.why, result.step) == (why, 7)
    result = train(RECIPE, splits(), folder=folder, resume=True, watch=watch)
    assert result.finished
    assert_same_models(whole.folder, folder)


def test_a_directory_with_a_run_is_not_overwritten(tmp_path, whole):
    folder = tmp_path / "run"
    train(RECIPE, splits(), folder=folder, minutes=0)
    with pytest.raises(InputError, match="not finished; go on with --resume"):
        train(RECIPE, splits(), folder=folder)
    with pytest.raises(InputError, match="finished run"):
        train(RECIPE, splits(), folder=whole.folder)
    again = train(RECIPE, splits(), folder=whole.folder, resume=True)
    assert (again.scores, again.epochs) == (whole.scores, whole.epochs)


def test_a_checkpoint_of_another_recipe_is_refused_by_the_field_that_differs(tmp_path, whole):
    train(RECIPE, splits(), folder=tmp_path, minutes=0)
    with pytest.raises(InputError, match=r"another recipe: weight_decay is 0\.05 there and 0\.1 here"):
        train(replace(RECIPE, weight_decay=0.1), splits(), folder=tmp_path, resume=True)
    with pytest.raises(InputError, match="steps per epoch"):
        train(RECIPE, splits(80), folder=tmp_path, resume=True)
    with pytest.raises(InputError, match="another recipe: seed is 0 there and 1 here"):
        train(replace(RECIPE, seed=1), splits(), folder=whole.folder, resume=True)


def test_a_checkpoint_of_another_kind_of_device_is_refused(tmp_path):
    train(RECIPE, splits(), folder=tmp_path, minutes=0)
    found = checkpoint.load(tmp_path, RECIPE)
    short = {name: found.arrays[name][:16].clone() for name in ("generator.order", "generator.augment")}  # as a GPU's
    checkpoint.save(tmp_path, RECIPE, {**found.arrays, **short}, found.facts)
    with pytest.raises(InputError, match="was trained on a GPU, whose random numbers a CPU cannot go on with"):
        train(RECIPE, splits(), folder=tmp_path, resume=True)


@pytest.mark.parametrize("layer", ["blocks.1.mlp.fc1.weight", "blocks.0.norm1.bias"])
def test_a_loss_that_is_not_finite_stops_with_step_and_layer(tmp_path, layer, monkeypatch, whole):
    body = Step.body

    def sabotaged(self):
        if self.done == 7:
            with torch.no_grad():
                dict(self.model.named_parameters())[layer].view(-1)[0] = torch.nan
        body(self)

    monkeypatch.setattr(Step, "body", sabotaged)
    first = r"step 8 \(epoch 2\): the loss is nan; " + layer.replace(".", r"\.")
    with pytest.raises(failure.Diverged, match=first + ".*go on from .*checkpoint.safetensors with --resume"):
        train(RECIPE, splits(), folder=tmp_path, watch=QUIET)
    monkeypatch.undo()
    assert train(RECIPE, splits(), folder=tmp_path, resume=True, watch=EVERY_EPOCH).finished
    assert_same_models(whole.folder, tmp_path)


def test_an_overflow_is_found_in_the_layer_that_makes_it(monkeypatch):
    """Every weight is finite, but a product is not."""
    recipe = plain(warmup=0)
    made = task.ImagesTask.model_of

    def huge(recipe):
        model = made(recipe)
        with torch.no_grad():
            model.blocks[1].mlp.fc1.weight.fill_(1e38)
        return model

    monkeypatch.setattr(task.ImagesTask, "model_of", staticmethod(huge))
    with pytest.raises(failure.Diverged, match=r"step 1 .*blocks\.1\.mlp\.fc1 is the first layer whose output"):
        train(recipe, splits())


def test_a_batch_that_does_not_fit_is_said(monkeypatch):
    def full(_self):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Step, "run", full)
    with pytest.raises(InputError, match="a batch of 8 does not fit into the memory of cpu; give a smaller batch"):
        train(RECIPE, splits())


def test_bad_devices_and_folders_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        train(RECIPE, splits(), folder=tmp_path / "file")
    with pytest.raises(InputError, match="no device 'abacus'"):
        train(RECIPE, splits(), device="abacus")
    with pytest.raises(InputError, match="a share"):
        train(replace(RECIPE, share=1e-9), splits())
    with pytest.raises(InputError):
        load_splits(tmp_path)


@pytest.mark.parametrize("variant", ["plain", "smooth", "neutreno:strength=0.5"])
def test_a_saved_model_comes_back(tmp_path, variant):
    recipe = replace(RECIPE, variant=variant, epochs=1)
    result = train(recipe, splits(), folder=tmp_path)
    model, found = load_trained(tmp_path / loop.MODEL)
    assert found == recipe
    assert (steering_of(model) is None) == (variant == "plain")
    x = torch.randn(3, 3, 8, 8)
    result.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), result.model(x), rtol=0.05, atol=0.05)  # bf16 weights
    assert saved.notes_of(tmp_path / loop.MODEL)["accuracy"] == result.scores["accuracy"]
    if variant != "plain":
        from oversmooth import load_steered
        from oversmooth_papers.tasks.images.vit import ViT

        again = load_steered(tmp_path / loop.MODEL, ViT(recipe.shape))
        with torch.no_grad():
            torch.testing.assert_close(again(x), model(x))


def test_tensorboard_is_written_or_asked_for(tmp_path):
    given = dict(device="cpu", folder=tmp_path, watch=replace(EVERY_EPOCH, tensorboard=True))
    if importlib.util.find_spec("tensorboard") is None:
        with pytest.raises(InputError, match="pip install tensorboard"):
            train(RECIPE, splits(), **given)
        assert not list(tmp_path.iterdir())
    else:
        train(replace(RECIPE, epochs=1, warmup=0), splits(), **given)
        assert list((tmp_path / "tensorboard").glob("events*"))


def test_progress_has_scores_with_the_epoch_they_are_of(whole, reports):
    assert reports[-1].epoch == RECIPE.total_epochs == whole.epochs[-1]["epoch"]
    steps = reports[-1].steps // RECIPE.total_epochs
    for row in whole.epochs:
        (*_, last) = [one for one in reports if one.step == steps * row["epoch"]]
        assert (last.epoch, last.scores) == (row["epoch"], RECIPE.describe(row))
