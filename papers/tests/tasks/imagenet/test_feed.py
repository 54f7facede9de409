"""Batches: by place and epoch alone, from any step on, with any workers and processes; order and Mixup are timm's."""

# ruff: noqa: NPY002 (timm draws from the global state of numpy)

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import timm_models
from support.imagenet_example import RECIPE, splits, step_of, write_folders

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.imagenet.data import Splits
from oversmooth_papers.tasks.imagenet.feed import Transformed
from oversmooth_papers.tasks.imagenet.task import ImagenetTask, model_of

pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
CPU, STEP = torch.device("cpu"), torch.zeros(1, dtype=torch.int64)


@pytest.fixture(autouse=True)
def timm():
    return timm_models.timm()


@pytest.fixture
def data(tmp_path):
    return splits(write_folders(tmp_path / "pictures"))


def drawn(recipe, data, steps, ranks=None, workers=0, start=0):
    """The batches of an epoch from a step on; the generator is where it would be there."""
    feed = ImagenetTask(recipe, data, workers).feed(CPU, ranks or Ranks(), compiled=False)
    feed.reorder(torch.Generator().manual_seed(1))
    feed.seek(start)
    batches = []
    for step in range(start, steps):
        feed.draw(torch.Generator().manual_seed(step))
        batches.append(tuple(part.clone() for part in feed.batch(STEP)))
    return batches


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_nothing(data, workers):
    assert_equal(drawn(RECIPE, data, 3, workers=workers), drawn(RECIPE, data, 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_lies_before_a_step_is_not_decoded(data, workers, monkeypatch):
    whole = drawn(RECIPE, data, 3)
    seen = []
    image = Transformed.__getitem__
    monkeypatch.setattr(Transformed, "__getitem__", lambda self, key: seen.append(key) or image(self, key))
    assert_equal(drawn(RECIPE, data, 3, start=2, workers=workers), whole[2:])
    assert len(seen) == (8 if workers == 0 else 0)


def test_an_image_that_is_repeated_is_augmented_anew(data):
    recipe = replace(RECIPE, mixup=0.0, cutmix=0.0)
    images, targets = drawn(recipe, data, 1)[0]
    assert torch.equal(targets[0], targets[1])
    assert torch.equal(targets[1], targets[2])
    assert not any(torch.equal(images[a], images[b]) for a in range(8) for b in range(a))


def test_processes_have_the_parts_of_the_batch_that_one_has(data):
    whole = drawn(RECIPE, data, 3)
    for world in (2, 4):
        for rank in range(world):
            places = Ranks(rank, world).places(8)
            own = [tuple(part[places] for part in batch) for batch in whole]
            assert_equal(drawn(RECIPE, data, 3, Ranks(rank, world)), own)


def test_epochs_differ_and_a_step_reads_what_was_drawn(data):
    step = step_of(RECIPE, model_of(RECIPE), data, CPU)
    seen = []
    for _ in range(2):
        step.begin_epoch()
        for _ in range(step.steps):
            step.run()
            seen.append(step.batch()[0].clone())
    assert step.steps == 3
    assert not any(torch.equal(seen[a], seen[b]) for a in range(6) for b in range(a))


def test_a_blank_batch_has_the_form_of_a_batch(data):
    task = ImagenetTask(RECIPE, data, 0)
    for blank, real in zip(task.blank(8, CPU), drawn(RECIPE, data, 1)[0], strict=True):
        assert (blank.shape, blank.dtype) == (real.shape, real.dtype)


def test_smoothing_is_watched_on_test_images_of_all_classes(data):
    model = model_of(RECIPE)
    probe = ImagenetTask(RECIPE, data, 0).probe(model, CPU)
    assert probe.inputs[0].shape == (8, 3, 16, 16)
    assert list(probe.blocks) == list(model.blocks)
    assert ImagenetTask(RECIPE, data).facts() == {"test_images": 12, "train_images": 24}


def test_fewer_images_than_a_batch_are_refused(data):
    with pytest.raises(InputError, match="24 images are less than one batch of 32"):
        step_of(replace(RECIPE, batch=32), model_of(RECIPE), data, CPU)


def test_data_of_another_recipe_are_refused(data):
    with pytest.raises(InputError, match="the recipe is for other with 3 classes and the data are pictures with 3"):
        ImagenetTask(replace(RECIPE, data="other"), data)
    assert replace(RECIPE, data="other").fitted(data) == RECIPE


# Order and Mixup


@pytest.mark.parametrize(("count", "repeats", "whole"), [(24, 3, 0), (24, 1, 0), (1000, 3, 256), (1000, 1, 0)])
def test_an_epoch_has_the_images_of_timms_sampler(count, repeats, whole):
    from timm.data.distributed_sampler import RepeatAugSampler

    many = Splits([("", 0)] * count, [("", 0)], ("a", "b", "c"), "pictures")
    feed = ImagenetTask(replace(RECIPE, repeats=repeats), many, 0).feed(CPU, Ranks(), compiled=False)
    feed.reorder(torch.Generator().manual_seed(1))
    theirs = RepeatAugSampler(range(count), num_replicas=1, rank=0, num_repeats=repeats, selected_round=whole)
    theirs.set_epoch(feed.seed)
    assert feed.rows.tolist() == list(theirs)
    assert len(feed.rows) == (count // whole * whole if whole else count)


def mixed(recipe, images, labels, seed, ranks=None):
    """Images and targets after the feed's Mixup."""
    data = Splits([("", 0)] * 32, [("", 0)], ("a", "b", "c"), "pictures")
    feed = ImagenetTask(recipe, data, 0).feed(CPU, ranks or Ranks(), compiled=False)
    feed.images = images.clone()
    feed._mix(labels, seed)
    return feed.images, feed.targets


@pytest.mark.parametrize("seed", range(4))
def test_mixing_is_timms_under_the_same_numpy_seed(seed):
    from timm.data import Mixup

    images, labels = torch.randn(8, 3, 16, 16), torch.randint(3, (8,))
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5, label_smoothing=0.1, num_classes=3)
    np.random.seed([seed, 0, 0, 0])
    theirs, soft = mixup(images.clone(), labels)
    ours, targets = mixed(replace(RECIPE, mix_parts=1), images, labels, seed)
    assert torch.equal(ours, theirs)
    assert torch.equal(targets, soft)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("world", [2, 4])
def test_processes_mix_their_parts_as_one_does(parts, world):
    recipe = replace(RECIPE, batch=16, mix_parts=parts)
    images, labels = torch.randn(16, 3, 8, 8), torch.randint(3, (16,))
    whole, targets = mixed(recipe, images, labels, 7)
    for rank in range(world):
        places = Ranks(rank, world).places(16)
        own, soft = mixed(recipe, images[places], labels[places], 7, Ranks(rank, world))
        assert torch.equal(soft, targets[places])
        assert torch.equal(own, whole[places])


def test_parts_are_mixed_by_draws_of_their_own():
    recipe = replace(RECIPE, batch=16, mix_parts=4, cutmix=0.0, smoothing=0.0)
    labels = torch.tensor([0] * 8 + [1] * 8)  # partners have other classes: targets are λ
    _, targets = mixed(recipe, torch.randn(16, 3, 4, 4), labels, 3)
    assert len({round(float(value), 6) for value in targets[:8, 0]}) == 4


def test_without_mixing_targets_are_smoothed_classes():
    recipe = replace(RECIPE, mixup=0.0, cutmix=0.0, smoothing=0.3, batch=3)
    images, labels = torch.randn(3, 3, 4, 4), torch.tensor([2, 0, 1])
    ours, targets = mixed(recipe, images, labels, 0)
    torch.testing.assert_close(targets, 0.7 * torch.eye(3)[labels] + 0.1)
    assert torch.equal(ours, images)
