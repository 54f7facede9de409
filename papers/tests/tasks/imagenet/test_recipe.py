"""The recipe: timm's schedule, which weights decay, what is refused; and its commands."""

from dataclasses import replace

import pytest
import torch
from support import timm_models

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.recipe import read_recipe
from oversmooth_papers.tasks.imagenet.recipe import PAPER, QUICK, Recipe
from oversmooth_papers.tasks.imagenet.task import model_of, plain_model_of

needs_timm = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")


def test_the_paper_s_settings():
    """As NeuTRENO's authors and DeiT's give them."""
    shape = PAPER.shape
    assert (shape.image, shape.patch, shape.width, shape.depth, shape.heads) == (224, 16, 192, 12, 3)
    assert shape.qkv_bias
    assert (PAPER.batch, PAPER.epochs, PAPER.warmup, PAPER.lr, PAPER.weight_decay) == (1024, 300, 5, 1e-3, 0.05)
    assert (PAPER.warmup_lr, PAPER.last_lr, PAPER.drop_path, PAPER.ema, PAPER.repeats) == (1e-6, 1e-5, 0.1, 0.99996, 3)
    assert (PAPER.mixup, PAPER.cutmix, PAPER.smoothing, PAPER.erasing) == (0.8, 1.0, 0.1, 0.25)
    assert PAPER.rand_augment == "rand-m9-mstd0.5-inc1"
    assert PAPER.parameters == sum(p.numel() for p in plain_model_of(PAPER).parameters()) == 5_717_416  # DeiT-tiny's


@needs_timm
@pytest.mark.parametrize(("epochs", "warmup", "batch"), [(300, 5, 1024), (7, 0, 512), (3, 3, 2048)])
def test_the_schedule_is_timms(epochs, warmup, batch):
    timm_models.timm()
    from timm.scheduler import CosineLRScheduler

    recipe = replace(PAPER, epochs=epochs, warmup=warmup, batch=batch)
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3 * batch / 1024)
    schedule = CosineLRScheduler(optimiser, epochs, lr_min=1e-5, warmup_t=warmup, warmup_lr_init=1e-6)
    expected = []
    for epoch in range(epochs):
        expected += [schedule._get_lr(epoch)[0]] * 4
    torch.testing.assert_close(recipe.learning_rates(4), torch.tensor(expected, dtype=torch.float64))


@needs_timm
@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6"])
def test_what_decays_is_what_decays_in_timm(variant):
    timm_models.timm()
    from timm.optim import param_groups_weight_decay

    recipe = replace(QUICK, variant=variant)
    model = model_of(recipe)
    theirs = param_groups_weight_decay(model, 0.05, no_weight_decay_list=("pos_embed", "cls_token"))
    decaying = {id(p) for group in theirs if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert recipe.decays(name, parameter) == (id(parameter) in decaying), name


def test_a_recipe_comes_back_and_changes():
    recipe = replace(QUICK, variant="sharpen", drop_path=0.2)
    assert read_recipe(recipe.to_dict()) == recipe
    assert recipe.key != replace(recipe, repeats=2).key
    assert PAPER.changed({"depth": 24, "drop_path": None}).shape.depth == 24
    assert PAPER.label == "DeiT-tiny, imagenet"
    assert replace(PAPER, variant="neutreno:strength=0.6").label == "DeiT-tiny with neutreno:strength=0.6, imagenet"
    assert PAPER.describe({"accuracy": 0.5, "accuracy_ema": 0.25}) == "accuracy 50.00 %, of averaged weights 25.00 %"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 1001}, "a batch of 1001 does not split into 4 parts"),
        ({"drop_path": 1.0}, "drop_path is 1; give less than 1"),
        ({"ema": -0.1}, "ema is -0.1; give at least 0"),
        ({"repeats": 0}, "repeats is 0; give at least 1"),
        ({"erasing": 1.5}, "erasing is 1.5; give less than 1"),
        ({"interpolation": "nearest"}, "interpolation is 'nearest'; choose bicubic or bilinear"),
    ],
)
def test_settings_that_no_run_can_have_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Recipe(**settings)
