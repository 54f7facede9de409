"""What is done to images is what timm does: its transforms, its order, its Mixup."""

# ruff: noqa: NPY002 (timm draws from the global state of numpy)

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support import timm_models
from support.imagenet_example import RECIPE, jpeg

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.imagenet.recipe import PAPER
from oversmooth_papers.tasks.imagenet.transforms import Mixing, Order, posterized, testing_transform, training_transform

testing_transform.__test__ = False
pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")


@pytest.fixture(autouse=True)
def timm():
    return timm_models.timm()


def words(transform):
    """Of every operation of a pipeline, RandAugment's own among them."""
    return [repr(part) for part in transform.transforms]


def test_the_training_transform_is_timms_for_deits_settings():
    from timm.data import create_transform

    theirs = create_transform(
        224, is_training=True, color_jitter=0.4, auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic",
        re_prob=0.25, re_mode="pixel", re_count=1,
    )  # fmt: skip
    ours = training_transform(PAPER)
    assert words(ours) == words(theirs)
    kinds = [type(part).__name__ for part in ours.transforms]
    assert kinds == [
        "RandomResizedCropAndInterpolation", "RandomHorizontalFlip", "RandAugment", "MaybeToTensor", "Normalize",
        "RandomErasing",
    ]  # fmt: skip
    assert "scale=(0.08, 1.0)" in words(ours)[0]
    assert "interpolation=bicubic" in words(ours)[0]
    assert "p=0.25, mode=pixel" in words(ours)[-1]


@pytest.mark.parametrize("seed", range(6))
def test_images_come_out_as_timms_do(seed):
    import random

    from timm.data import create_transform

    theirs = create_transform(
        32,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
    )
    ours = training_transform(replace(PAPER, shape=replace(PAPER.shape, image=32)))
    image, out = Image.open(io.BytesIO(jpeg(seed))), []
    for transform in (ours, theirs):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        out.append(transform(image))
    assert torch.equal(*out)


def test_testing_resizes_to_256_and_takes_224_from_the_middle():
    from torchvision.transforms import InterpolationMode

    resize, crop, _, normalise = testing_transform(PAPER).transforms
    assert (resize.size, resize.interpolation) == (256, InterpolationMode.BICUBIC)
    assert tuple(crop.size) == (224, 224)
    assert normalise.mean.tolist() == pytest.approx([0.485, 0.456, 0.406])
    image = Image.open(io.BytesIO(jpeg(3))).resize((300, 512))
    small = image.resize((256, 437), Image.Resampling.BICUBIC)  # int(256 · 512 / 300) is 436 or 437
    small = small if resize(image).size == small.size else image.resize((256, 436), Image.Resampling.BICUBIC)
    top = round((small.height - 224) / 2)
    expected = np.asarray(small.crop((16, top, 240, top + 224)), np.float64) / 255
    expected = (expected - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(testing_transform(PAPER)(image).permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_posterizing_to_nothing_is_black_as_it_used_to_be():
    image = Image.open(io.BytesIO(jpeg(1))).convert("RGB")
    assert not np.asarray(posterized(image, 0)).any()
    assert np.array_equal(np.asarray(posterized(image, 3)), np.asarray(image) & 0b11100000)
    assert np.array_equal(np.asarray(posterized(image, 8)), np.asarray(image))


def test_an_epoch_repeats_images_as_deits_sampler():
    """3 of each in a row, cut to a whole number of 256, against a loop by hand."""
    order = Order(1000, 3)
    assert order.examples == 768
    permutation = torch.randperm(1000, generator=torch.Generator().manual_seed(5)).tolist()
    assert order(5).tolist() == [index for index in permutation for _ in range(3)][:768]
    assert order(6).tolist() != order(5).tolist()
    assert sorted(Order(1000, 1)(5).tolist()) == list(range(1000))
    assert Order(24, 3).examples == 24


@pytest.mark.parametrize("seed", range(4))
def test_mixing_is_timms_under_the_same_numpy_seed(seed):
    from timm.data import Mixup

    recipe = replace(RECIPE, batch=8, mix_parts=1)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(3, (8,))
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5, label_smoothing=0.1, num_classes=3)
    np.random.seed([seed, 0, 0, 0])
    theirs, soft = mixup(images.clone(), labels)
    np.random.seed(11)
    ours = images.clone()
    targets = Mixing(recipe, Ranks())(ours, labels, seed)
    assert torch.equal(ours, theirs)
    assert torch.equal(targets, soft)
    drawn = np.random.rand()
    np.random.seed(11)
    assert drawn == np.random.rand()  # the caller's numbers go on as if nothing had been drawn


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("world", [2, 4])
def test_processes_mix_their_parts_as_one_does(parts, world):
    recipe = replace(RECIPE, batch=16, mix_parts=parts)
    images, labels = torch.randn(16, 3, 8, 8), torch.randint(3, (16,))
    whole = images.clone()
    targets = Mixing(recipe, Ranks())(whole, labels, 7)
    for rank in range(world):
        places = Ranks(rank, world).places(16)
        own = images[places].clone()
        assert torch.equal(Mixing(recipe, Ranks(rank, world))(own, labels[places], 7), targets[places])
        assert torch.equal(own, whole[places])


def test_parts_are_mixed_by_draws_of_their_own():
    recipe = replace(RECIPE, batch=16, mix_parts=4, cutmix=0.0, smoothing=0.0)
    labels = torch.tensor([0] * 8 + [1] * 8)  # partners have other classes: targets are λ
    targets = Mixing(recipe, Ranks())(torch.randn(16, 3, 4, 4), labels, 3)
    assert len({round(float(value), 6) for value in targets[:8, 0]}) == 4


def test_without_mixing_targets_are_smoothed_classes():
    recipe = replace(RECIPE, mixup=0.0, cutmix=0.0, smoothing=0.3)
    images, labels = torch.randn(3, 3, 4, 4), torch.tensor([2, 0, 1])
    before = images.clone()
    targets = Mixing(recipe, Ranks())(images, labels, 0)
    torch.testing.assert_close(targets, 0.7 * torch.eye(3)[labels] + 0.1)
    assert torch.equal(images, before)


def test_processes_that_do_not_share_the_parts_are_refused():
    with pytest.raises(InputError, match="3 processes do not share the 4 parts of a batch"):
        Mixing(replace(RECIPE, batch=24), Ranks(0, 3))
