"""Recipes of segmentation: the published one, names, what they refuse, and how they fit data."""

from dataclasses import replace

import pytest
import torch
from support.segmentation_example import RECIPE, splits

from oversmooth.safety.errors import InputError
from oversmooth.steering import NeuTRENO, Spectral
from oversmooth_papers.engine.recipe import read_recipe
from oversmooth_papers.tasks.segmentation.data import Labelled, Splits, shapes
from oversmooth_papers.tasks.segmentation.model import plain_model_of
from oversmooth_papers.tasks.segmentation.recipe import PAPER, QUICK, Recipe


def test_the_published_recipe_is_the_recovered_one():
    shape = PAPER.shape
    assert (shape.patch, shape.width, shape.depth, shape.heads, shape.classes) == (16, 192, 12, 3, 150)
    assert (PAPER.crop, PAPER.stride, PAPER.decoder_layers, PAPER.epochs, PAPER.batch) == (512, 512, 2, 64, 8)
    assert (PAPER.optimiser, PAPER.momentum, PAPER.lr, PAPER.power) == ("sgd", 0.9, 1e-3, 0.9)
    assert (PAPER.weight_decay, PAPER.clip, PAPER.scales) == (0.0, None, (0.5, 2.0))
    assert PAPER.test_scales == (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)


@pytest.mark.parametrize("recipe", [PAPER, QUICK, RECIPE])
def test_json_gives_the_recipe_back(recipe):
    assert read_recipe(recipe.to_dict()) == recipe
    assert Recipe.from_json(recipe.to_json()).key == recipe.key


def test_keys_differ_with_every_setting():
    others = [replace(RECIPE, steer="encoder"), replace(RECIPE, crop=32), replace(RECIPE, scales=(1.0, 1.0)), QUICK]
    assert len({RECIPE.key, *(r.key for r in others)}) == 5


def test_the_learning_rate_falls_as_a_power_of_what_is_left():
    rates = replace(RECIPE, epochs=2, lr=0.2).learning_rates(5).tolist()
    assert rates == pytest.approx([0.2 * ((10 - step) / 10) ** 0.9 for step in range(10)])


@pytest.mark.parametrize("recipe", [QUICK, RECIPE, replace(RECIPE, decoder_layers=1), replace(PAPER, crop=64)])
def test_weights_are_counted_before_they_are_made(recipe):
    assert sum(p.numel() for p in plain_model_of(recipe).parameters()) == recipe.parameters


def test_variants_labels_and_scores():
    assert (PAPER.methods(), RECIPE.methods()) == ([], [NeuTRENO(0.6)])
    cold = replace(RECIPE, variant="sharpen", start="cold", seed=2)
    assert cold.methods() == [Spectral("sharpen", start="cold", seed=2)]
    assert PAPER.label == "Segmenter on deit-tiny, ade20k"
    assert RECIPE.label == "Segmenter on a ViT of width 16 with neutreno:strength=0.6, shapes"
    assert "in the decoder, shapes" in replace(RECIPE, steer="decoder").label
    assert replace(PAPER, encoder="/some/where/vit/").label == "Segmenter on vit, ade20k"
    assert RECIPE.describe({"miou_val": 0.25, "pixel_accuracy_val": 0.5}) == "mIoU 25.00 % on validation"
    assert RECIPE.describe({"miou": 0.25, "miou_multiscale": 0.5}) == "mIoU 25.00 %, at several scales 50.00 %"


def test_settings_of_the_shape_are_changed_with_the_others():
    changed = RECIPE.changed({"patch": 8, "width": 32, "crop": 24, "lr": None})
    assert (changed.shape.patch, changed.shape.width, changed.shape.image, changed.lr) == (8, 32, 24, RECIPE.lr)


def test_a_recipe_is_fitted_to_data():
    data = splits()
    fitted = replace(QUICK, shape=replace(QUICK.shape, classes=9), data="other").fitted(data)
    assert (fitted.data, fitted.shape.classes, fitted.crop, fitted.stride) == ("shapes", 5, 16, 10)
    fitted.check_fits(data)
    with pytest.raises(InputError, match=r"for ade20k and the data are shapes; fit it with"):
        PAPER.check_fits(data)
    assert QUICK.fitted(shapes(8, 2, 2)) == QUICK


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(360, 480)], (352, 234, 0, 352)),  # CamVid's: the largest that patches of 16 tile
        ([(360, 480), (400, 250)], (512, 512, 512, 512)),  # several sizes keep the crop
    ],
)
def test_the_crop_fits_into_images_of_one_size(sizes, expected):
    def part(sizes):
        images = [torch.zeros(3, *size, dtype=torch.uint8) for size in sizes]
        return Labelled(images, [image[0] for image in images], ["a", "b"], "some")

    train, test = part(sizes[:1]), part(sizes)
    train = replace(train, images=torch.stack(train.images), masks=torch.stack(train.masks))
    fitted = replace(PAPER, encoder="").fitted(Splits(train, test, test))
    assert (fitted.crop, fitted.stride, fitted.shorter, fitted.shape.image) == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"crop": 350, "encoder": ""}, "patches of 16 do not tile images of 350 pixels"),
        ({"scales": (0.0, 0.5)}, "scales are"),
        ({"test_scales": ()}, "scales are"),
        ({"steer": "both"}, r"steer is 'both'; choose encoder\+decoder or encoder or decoder"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": 0.0}, "lr is 0"),
        ({"variant": "nothing"}, "variant is .nothing.; give plain"),
    ],
)
def test_what_no_run_can_have_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        replace(PAPER, **changes)
