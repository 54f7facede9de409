"""Recipes of every task: what was published, files and keys, weights, data, schedules; what is refused."""

from dataclasses import replace

import pytest
import torch
from support import imagenet_example, language_example, segmentation_example, timm_models, train_example
from support.train_example import blobs

from oversmooth.safety.errors import InputError
from oversmooth.steering import NeuTRENO, Spectral
from oversmooth_papers.engine.recipe import read_recipe
from oversmooth_papers.tasks.imagenet import recipe as imagenet
from oversmooth_papers.tasks.images import recipe as images
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.registry import plain_model, untrained_model
from oversmooth_papers.tasks.segmentation import recipe as segmentation
from oversmooth_papers.tasks.segmentation.data import Labelled, Splits, shapes

SEGMENTED, PICTURES = segmentation_example.RECIPE, imagenet_example.RECIPE
needs_timm = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
RECIPES = [
    *(
        images.PAPER,
        images.QUICK,
        train_example.RECIPE,
        replace(images.PAPER, variant="neutreno:strength=0.4", clip=None),
    ),
    *(imagenet.PAPER, replace(imagenet.QUICK, variant="sharpen", drop_path=0.2), PICTURES),
    *(language.WIKITEXT2, language.CAUSAL, language.MASKED, language_example.RECIPE),
    *(segmentation.PAPER, segmentation.QUICK, SEGMENTED, replace(SEGMENTED, decoder_layers=1)),
]


def test_segmenters_published_recipe_is_the_recovered_one():
    recipe, shape = segmentation.PAPER, segmentation.PAPER.shape
    assert (shape.patch, shape.width, shape.depth, shape.heads, shape.classes) == (16, 192, 12, 3, 150)
    assert (recipe.crop, recipe.stride, recipe.decoder_layers, recipe.epochs, recipe.batch) == (512, 512, 2, 64, 8)
    assert (recipe.optimiser, recipe.momentum, recipe.lr, recipe.power) == ("sgd", 0.9, 1e-3, 0.9)
    assert (recipe.weight_decay, recipe.clip, recipe.scales) == (0.0, None, (0.5, 2.0))
    assert recipe.test_scales == (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)


def test_deits_settings_are_those_of_its_authors_and_neutrenos():
    recipe, shape = imagenet.PAPER, imagenet.PAPER.shape
    assert (shape.image, shape.patch, shape.width, shape.depth, shape.heads) == (224, 16, 192, 12, 3)
    assert shape.qkv_bias
    assert (recipe.batch, recipe.epochs, recipe.warmup, recipe.lr, recipe.weight_decay) == (1024, 300, 5, 1e-3, 0.05)
    assert (recipe.warmup_lr, recipe.last_lr, recipe.drop_path) == (1e-6, 1e-5, 0.1)
    assert (recipe.ema, recipe.repeats, recipe.rand_augment) == (0.99996, 3, "rand-m9-mstd0.5-inc1")
    assert (recipe.mixup, recipe.cutmix, recipe.smoothing, recipe.erasing) == (0.8, 1.0, 0.1, 0.25)
    assert recipe.parameters == 5_717_416  # DeiT-tiny's


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_file_gives_the_recipe_back_and_weights_are_counted_before_they_are_made(recipe):
    assert read_recipe(recipe.to_dict()) == recipe
    assert type(recipe).from_json(recipe.to_json()).key == recipe.key
    assert sum(p.numel() for p in plain_model(recipe).parameters()) == recipe.parameters


def test_keys_differ_with_every_setting():
    changed = [replace(SEGMENTED, steer="encoder"), replace(SEGMENTED, crop=32), replace(SEGMENTED, scales=(1.0, 1.0))]
    others = [*changed, segmentation.QUICK, replace(PICTURES, repeats=2), PICTURES]
    assert len({SEGMENTED.key, *(recipe.key for recipe in others)}) == 7


def test_labels_and_scores():
    paper = segmentation.PAPER
    assert (paper.methods(), SEGMENTED.methods()) == ([], [NeuTRENO(0.6)])
    cold = replace(SEGMENTED, variant="sharpen", start="cold", seed=2)
    assert cold.methods() == [Spectral("sharpen", start="cold", seed=2)]
    assert paper.label == "Segmenter on deit-tiny, ade20k"
    assert SEGMENTED.label == "Segmenter on a ViT of width 16 with neutreno:strength=0.6, shapes"
    assert "in the decoder, shapes" in replace(SEGMENTED, steer="decoder").label
    assert replace(paper, encoder="/some/where/vit/").label == "Segmenter on vit, ade20k"
    assert SEGMENTED.describe({"miou_val": 0.25, "pixel_accuracy_val": 0.5}) == "mIoU 25.00 % on validation"
    assert SEGMENTED.describe({"miou": 0.25, "miou_multiscale": 0.5}) == "mIoU 25.00 %, at several scales 50.00 %"
    assert imagenet.PAPER.label == "DeiT-tiny, imagenet"
    steered = replace(imagenet.PAPER, variant="neutreno:strength=0.6")
    assert steered.label == "DeiT-tiny with neutreno:strength=0.6, imagenet"
    said = imagenet.PAPER.describe({"accuracy": 0.5, "accuracy_ema": 0.25})
    assert said == "accuracy 50.00 %, of averaged weights 25.00 %"


def test_settings_of_the_shape_are_changed_with_the_others():
    changed = SEGMENTED.changed({"patch": 8, "width": 32, "crop": 24, "lr": None})
    sizes = (changed.shape.patch, changed.shape.width, changed.shape.image)
    assert (*sizes, changed.lr) == (8, 32, 24, SEGMENTED.lr)
    assert imagenet.PAPER.changed({"depth": 24, "drop_path": None}).shape.depth == 24


def test_a_recipe_is_fitted_to_data():
    data, quick = segmentation_example.splits(), segmentation.QUICK
    fitted = replace(quick, shape=replace(quick.shape, classes=9), data="other").fitted(data)
    assert (fitted.data, fitted.shape.classes, fitted.crop, fitted.stride) == ("shapes", 5, 16, 10)
    fitted.check_fits(data)
    with pytest.raises(InputError, match=r"for ade20k and the data are shapes; fit it with"):
        segmentation.PAPER.check_fits(data)
    assert quick.fitted(shapes(8, 2, 2)) == quick
    fitted = replace(images.PAPER, shape=replace(images.PAPER.shape, patch=4)).fitted(blobs(8, 0))
    assert (fitted.data, fitted.shape.image, fitted.shape.classes, len(fitted.mean)) == ("blobs", 8, 4, 3)
    fitted.check_fits(blobs(8, 0))
    with pytest.raises(InputError, match="recipe is for"):
        images.PAPER.check_fits(blobs(8, 0))


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
    fitted = replace(segmentation.PAPER, encoder="").fitted(Splits(train, test, test))
    assert (fitted.crop, fitted.stride, fitted.shorter, fitted.shape.image) == expected


def test_segmenters_learning_rate_falls_as_a_power_of_what_is_left():
    rates = replace(SEGMENTED, epochs=2, lr=0.2).learning_rates(5).tolist()
    assert rates == pytest.approx([0.2 * ((10 - step) / 10) ** 0.9 for step in range(10)])


@needs_timm
@pytest.mark.parametrize(("epochs", "warmup", "batch"), [(300, 5, 1024), (7, 0, 512), (3, 3, 2048)])
def test_deits_schedule_is_timms(epochs, warmup, batch):
    timm_models.timm()
    from timm.scheduler import CosineLRScheduler

    recipe = replace(imagenet.PAPER, epochs=epochs, warmup=warmup, batch=batch)
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3 * batch / 1024)
    schedule = CosineLRScheduler(optimiser, epochs, lr_min=1e-5, warmup_t=warmup, warmup_lr_init=1e-6)
    expected = [schedule._get_lr(epoch)[0] for epoch in range(epochs) for _ in range(4)]
    torch.testing.assert_close(recipe.learning_rates(4), torch.tensor(expected, dtype=torch.float64))


@needs_timm
@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6"])
def test_what_decays_is_what_decays_in_timm(variant):
    timm_models.timm()
    from timm.optim import param_groups_weight_decay

    recipe = replace(imagenet.QUICK, variant=variant)
    model = untrained_model(recipe)
    theirs = param_groups_weight_decay(model, 0.05, no_weight_decay_list=("pos_embed", "cls_token"))
    decaying = {id(p) for group in theirs if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert recipe.decays(name, parameter) == (id(parameter) in decaying), name


@pytest.mark.parametrize(
    ("recipe", "changes", "said"),
    [
        (images.PAPER, {"share": 1.5}, r"share is 1\.5"),
        (images.PAPER, {"seed": -1}, "seed is -1"),
        (images.PAPER, {"wiring": "crossed"}, "wiring is 'crossed'"),
        (images.PAPER, {"variant": "smoother"}, "variant is 'smoother'; give plain"),
        (images.PAPER, {"flip": 1.5}, "flip is 1.5; give at most 1"),
        (images.PAPER, {"smoothing": -0.1}, "smoothing is -0.1"),
        (images.PAPER, {"cutmix": float("nan")}, "cutmix is nan"),
        (images.PAPER, {"mean": (0.5, 0.5)}, "one number for each of the 3 channels"),
        (images.PAPER, {"std": (0.5, 0.0, 0.5)}, "each std above 0"),
        (imagenet.PAPER, {"batch": 1001}, "a batch of 1001 does not split into 4 parts"),
        (imagenet.PAPER, {"drop_path": 1.0}, "drop_path is 1; give less than 1"),
        (imagenet.PAPER, {"repeats": 0}, "repeats is 0; give at least 1"),
        (imagenet.PAPER, {"interpolation": "nearest"}, "interpolation is 'nearest'; choose bicubic or bilinear"),
        (language.WIKITEXT2, {"epochs": 0}, "epochs is 0"),
        (language.WIKITEXT2, {"masked": 1.0}, "masked is 1"),
        (language.WIKITEXT2, {"tokenizer": "bpe", "vocabulary": 9}, "at least 300"),
        (language.WIKITEXT2, {"tokenizer": "letters"}, "tokenizer is 'letters'"),
        (segmentation.PAPER, {"crop": 350, "encoder": ""}, "patches of 16 do not tile images of 350 pixels"),
        (segmentation.PAPER, {"scales": (0.0, 0.5)}, "scales are"),
        (segmentation.PAPER, {"test_scales": ()}, "scales are"),
        (segmentation.PAPER, {"steer": "both"}, r"steer is 'both'; choose encoder\+decoder or encoder or decoder"),
        (segmentation.PAPER, {"lr": 0.0}, "lr is 0"),
    ],
)
def test_what_no_run_can_have_is_refused(recipe, changes, said):
    with pytest.raises(InputError, match=said):
        replace(recipe, **changes)
