"""The library's demo was made by the code here: its models, its test images, and how they were corrupted."""

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


@pytest.mark.parametrize("variant", VARIANTS)
def test_models_are_of_the_recipe_beside_them(variant):
    path = vits.file_of(variant)
    recipe = Recipe.from_json((vits.FOLDER / "recipe.json").read_text())
    assert load_vit(path)[1] == replace(recipe, variant=variant)
    assert notes_of(path)["accuracy"] > 0.88


def test_the_images_are_the_first_of_the_test_set():
    test = vits.images()
    try:
        whole = load("fashion-mnist", "test")
    except InputError:
        pytest.skip("the data set is not installed")
    assert torch.equal(test.images, whole.images[:512])
    assert torch.equal(test.labels, whole.labels[:512])


def test_every_image_has_one_corruption_in_turn():
    test = vits.images()
    clean, mixed = test.images[:300], test.corrupted[2]
    for kind in ("brightness", "contrast", "pixelate"):  # without random numbers, or the same in all channels
        place = KINDS.index(kind)
        alone = corrupt(clean.expand(-1, 3, -1, -1), kind, 3)[place::15, :1]
        assert (mixed[place::15].int() - alone.int()).abs().max() <= 1
    assert all(not torch.equal(a, b) for a, b in zip(mixed, clean, strict=True))
