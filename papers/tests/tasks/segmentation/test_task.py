"""What the engine gets of segmentation: batches, a loss, scores and something to watch smoothing on."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.nightly import nightly
from support.segmentation_example import RECIPE, splits, step_of, train

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.segmentation.data import IGNORE, Splits, shapes
from oversmooth_papers.tasks.segmentation.model import model_of
from oversmooth_papers.tasks.segmentation.recipe import QUICK, Recipe
from oversmooth_papers.tasks.segmentation.task import SegmentationTask

CPU = torch.device("cpu")
PLAIN = replace(RECIPE, variant="plain")


def test_the_loss_is_torchs_cross_entropy_of_pixels_that_count():
    task = SegmentationTask(RECIPE, splits())
    logits = torch.randn(3, 5, 16, 16, requires_grad=True)
    labels = torch.randint(5, (3, 16, 16))
    labels[torch.rand(labels.shape) < 0.3] = IGNORE
    pixels = (labels != IGNORE).sum().float()
    loss = task.loss(lambda _x: logits, (torch.zeros(3, 3, 16, 16), labels, pixels))
    expected = F.cross_entropy(logits, labels, ignore_index=IGNORE)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))


def test_a_batch_without_a_pixel_that_counts_has_loss_0():
    data = splits()
    task = SegmentationTask(RECIPE, data)
    feed = task.feed(CPU, Ranks(), compiled=False)
    feed.masks.fill_(IGNORE)
    images, labels, pixels = feed.batch(torch.zeros(1, dtype=torch.int64))
    assert bool((labels == IGNORE).all())
    model = model_of(RECIPE)
    loss = task.loss(model, (images, labels, pixels))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_without_scaling_and_mirroring_batches_are_the_images_in_order():
    data = shapes(8, 2, 2, size=16)
    recipe = replace(PLAIN, scales=(1.0, 1.0), flip=0.0, colours=False)
    feed = SegmentationTask(recipe, data).feed(CPU, Ranks(), compiled=False)
    feed.reorder(torch.Generator().manual_seed(3))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
    seen = []
    for step in range(2):
        feed.draw(torch.Generator().manual_seed(step))
        images, labels, pixels = feed.batch(torch.tensor([step]))
        rows = order[4 * step : 4 * step + 4]
        mean, std = (torch.tensor(values)[:, None, None] for values in (recipe.mean, recipe.std))
        expected = (data.train.images[rows].float() / 255 - mean) / std
        torch.testing.assert_close(images, expected, rtol=1e-3, atol=1e-3)
        assert torch.equal(labels, data.train.masks[rows].long())
        assert int(pixels) == int((labels != IGNORE).sum())
        seen += rows.tolist()
    assert sorted(seen) == list(range(8))


def test_what_lies_beyond_the_image_is_neither_black_nor_counted():
    recipe = replace(PLAIN, scales=(0.5, 0.5), flip=0.0)
    feed = SegmentationTask(recipe, splits()).feed(CPU, Ranks(), compiled=False)
    images, labels, _ = feed.batch(torch.zeros(1, dtype=torch.int64))
    assert bool((labels[:, 10:] == IGNORE).all())
    assert bool((labels[:, :, 10:] == IGNORE).all())
    assert float(images[:, :, 10:].abs().max()) == 0  # the mean of all images
    assert float(images[:, :, :10, :10].abs().max()) > 0


def test_parts_of_two_processes_are_the_batch_and_their_mean_loss_is_its_loss():
    data = splits()
    task = SegmentationTask(RECIPE, data)
    model = model_of(RECIPE)
    losses, labels = {}, {}
    for world in (1, 2):
        for rank in range(world):
            feed = task.feed(CPU, Ranks(rank, world), compiled=False)
            feed.reorder(torch.Generator().manual_seed(0))
            feed.draw(torch.Generator().manual_seed(2))
            batch = feed.batch(torch.ones(1, dtype=torch.int64))
            labels[world, rank] = batch[1]
            losses[world, rank] = float(task.loss(model, batch).detach())
    counts = [int((labels[2, rank] != IGNORE).sum()) for rank in (0, 1)]
    assert counts[0] != counts[1]  # where the mean of two means would be another
    assert losses[1, 0] == pytest.approx((losses[2, 0] + losses[2, 1]) / 2, rel=1e-5)
    whole = torch.empty_like(labels[1, 0])
    for rank in (0, 1):
        whole[Ranks(rank, 2).places(4)] = labels[2, rank]
    assert torch.equal(whole, labels[1, 0])


def test_a_step_is_plain_sgd_with_momentum_at_the_schedules_rate():
    data = splits()
    model, other = model_of(PLAIN), model_of(PLAIN)
    step = step_of(PLAIN, model, data, CPU)
    step.begin_epoch()
    buffers = [torch.zeros_like(p) for p in other.parameters()]
    for number in range(3):
        step.run()
        _, labels, pixels = batch = step.feed.batch(torch.tensor([number]))
        loss = F.cross_entropy(other(batch[0]), labels, ignore_index=IGNORE)
        assert int(pixels) == int((labels != IGNORE).sum())
        grads = torch.autograd.grad(loss, list(other.parameters()))
        rate = 0.05 * (1 - number / 12) ** 0.9
        with torch.no_grad():
            for parameter, buffer, grad in zip(other.parameters(), buffers, grads, strict=True):
                buffer.mul_(0.9).add_(grad)
                parameter -= rate * buffer
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5, msg=name)


def test_scores_are_of_val_on_the_way_and_of_test_at_the_end():
    data = splits()
    task = SegmentationTask(RECIPE, data)
    evaluation = task.evaluation(model_of(RECIPE), CPU)
    on_the_way, final = evaluation.scores(final=False), evaluation.scores(final=True)
    assert set(on_the_way) == {"miou_val", "pixel_accuracy_val"}
    assert set(final) == {"miou", "pixel_accuracy", "miou_multiscale", *on_the_way}
    assert all(final[name] == value for name, value in on_the_way.items())
    same = SegmentationTask(RECIPE, Splits(data.train, data.val, data.val))
    watched = same.evaluation(model_of(RECIPE), CPU)
    assert set(watched.scores(final=False)) == {"miou", "pixel_accuracy"}
    last = watched.scores(final=True)
    assert (last["miou"], "miou_val" in last) == (on_the_way["miou_val"], False)


@pytest.mark.parametrize("size", [20, 16, 11])
def test_smoothing_is_watched_in_the_encoder(size):
    data = shapes(8, 3, 2, size=size)
    model = model_of(RECIPE)
    probe = SegmentationTask(RECIPE, data).probe(model, CPU)
    assert list(probe.blocks) == list(model.encoder.blocks)
    assert probe.inputs[0].shape == (3, 3, 16, 16)
    if size == 20:
        middle = data.val.images[0, 1, 2:18, 2:18].float() / 255
        torch.testing.assert_close(probe.inputs[0][0, 1], (middle - RECIPE.mean[1]) / RECIPE.std[1])


def test_a_blank_batch_has_the_form_of_a_batch():
    task = SegmentationTask(RECIPE, splits())
    batch = task.feed(CPU, Ranks(), compiled=False).batch(torch.zeros(1, dtype=torch.int64))
    blank = task.blank(4, CPU)
    assert [(x.shape, x.dtype) for x in blank] == [(x.shape, x.dtype) for x in batch]
    assert float(task.loss(model_of(RECIPE), blank).detach()) > 0
    assert task.facts() == {"test_images": 6, "val_images": 4, "train_images": 16, "train_size": [20, 20]}
    task.check_memory(CPU)
    huge = replace(RECIPE, shape=replace(RECIPE.shape, width=1 << 20))
    with pytest.raises(InputError, match="give a smaller one"):
        SegmentationTask(huge, splits()).check_memory(CPU)


def test_data_of_another_recipe_are_refused():
    with pytest.raises(InputError, match="the recipe is for ade20k with 150 classes and the data are shapes with 5"):
        SegmentationTask(Recipe(), splits())


@nightly
def test_it_learns():
    recipe = replace(PLAIN, epochs=40, scales=(1.0, 1.0), colours=False, shape=replace(RECIPE.shape, width=32), lr=0.1)
    data = shapes(32, 8, 8, size=16)
    result = train(recipe, data, device="cpu", watch=WatchSettings(evaluate=0, monitor=0))
    assert result.epochs[-1]["loss"] < 0.7 * result.epochs[0]["loss"]
    assert result.scores["miou"] > 0.2  # all ground is at most 0.2


def test_the_quick_recipe_is_for_the_shapes_it_names():
    data = shapes(8, 2, 2)
    assert QUICK.fitted(data) == QUICK
    SegmentationTask(QUICK, data)
