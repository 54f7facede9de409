"""The library's demo was made by the code here: its models and its test images."""

from dataclasses import replace

import pytest
import torch

from oversmooth import InputError
from oversmooth.demo import vits
from oversmooth_papers.engine.saved_model import notes_of
from oversmooth_papers.tasks.images.build import load_vit
from oversmooth_papers.tasks.images.data import load
from oversmooth_papers.tasks.images.recipe import VARIANTS, Recipe


@pytest.mark.parametrize("variant", VARIANTS)
def test_models_are_of_the_recipe_beside_them(variant):
    path = vits.file_of(variant)
    recipe = Recipe.from_json((vits.FOLDER / "recipe.json").read_text())
    assert load_vit(path)[1] == replace(recipe, variant=variant)
    assert notes_of(path)["accuracy"] > 0.88


def test_the_images_are_the_first_of_the_test_set():
    pixels, labels = vits.images()
    try:
        whole = load("fashion-mnist", "test")
    except InputError:
        pytest.skip("the data set is not installed")
    assert torch.equal(pixels, whole.images[:512])
    assert torch.equal(labels, whole.labels[:512])
