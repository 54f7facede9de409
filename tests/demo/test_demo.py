"""The three ViTs of the demo: what ships with the package, and that it says what the paper says."""

import json
from dataclasses import replace

import pytest
import torch

from oversmooth import InputError
from oversmooth.demo import vits
from oversmooth_papers.engine.saved_model import notes_of
from oversmooth_papers.tasks.images.build import load_vit
from oversmooth_papers.tasks.images.corruptions import KINDS, corrupt
from oversmooth_papers.tasks.images.data import load
from oversmooth_papers.tasks.images.recipe import VARIANTS, Recipe


def few(count):
    test = vits.images()
    return replace(test, images=test.images[:count], labels=test.labels[:count])


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_file_is_small_and_of_the_recipe_beside_it(variant):
    path = vits.file_of(variant)
    assert path.stat().st_size <= 2_000_000
    recipe = Recipe.from_json((vits.FOLDER / "recipe.json").read_text())
    model, found = load_vit(path)
    assert found == replace(recipe, variant=variant)
    assert 5e5 < sum(p.numel() for p in model.parameters()) < 7e5
    assert notes_of(path)["accuracy"] > 0.88


def test_the_images_are_the_first_of_the_test_set():
    test = vits.images()
    assert test.images.shape == (512, 1, 28, 28)
    assert "Zalando" in (vits.FOLDER / "LICENSE").read_text()
    try:
        whole = load("fashion-mnist", "test")
    except InputError:
        pytest.skip("the data set is not installed")
    assert torch.equal(test.images, whole.images[:512])
    assert torch.equal(test.labels, whole.labels[:512])


def test_accuracy_is_that_of_a_plain_loop():
    test = few(count := len(KINDS))  # each is corrupted in another way
    model, recipe = load_vit(vits.file_of("sharpen"))
    found = vits.accuracy(vits.file_of("sharpen"), test)

    def by_hand(images):
        x = (images.float() / 255 - recipe.mean[0]) / recipe.std[0]
        with torch.no_grad():
            return sum(int(model(one[None]).argmax()) == int(label) for one, label in zip(x, test.labels, strict=True))

    assert found.clean == by_hand(test.images) / count
    assert found.corrupted == [by_hand(vits.corrupted(test, severity)) / count for severity in range(1, 6)]
    assert found.trained == notes_of(vits.file_of("sharpen"))["accuracy"]


def test_every_image_has_one_corruption_in_turn():
    test = few(40)
    mixed = vits.corrupted(test, 3)
    for kind in ("brightness", "contrast", "pixelate"):  # without random numbers, or the same in all channels
        place = KINDS.index(kind)
        alone = corrupt(test.images.expand(-1, 3, -1, -1), kind, 3)[place::15, :1]
        assert (mixed[place::15].int() - alone.int()).abs().max() <= 1
    assert all(not torch.equal(a, b) for a, b in zip(mixed, test.images, strict=True))


def test_the_story(monkeypatch):
    monkeypatch.setattr(vits, "_INPUTS", 2)
    test = few(20)
    smooth, sharpen = (vits.run(variant, test) for variant in ("smooth", "sharpen"))
    assert smooth.smoothing_share == 1
    assert sharpen.smoothing_share == 0
    for diagnosis, way in ((smooth, -1), (sharpen, 1)):
        curve = diagnosis.curve("hfc_lfc")
        assert way * (curve[-1] - curve[0]) > 0
        assert any(sentence.startswith("Accuracy:") for sentence in diagnosis.verdict)
        assert json.loads(diagnosis.to_json())["accuracy"]["images"] == 20
