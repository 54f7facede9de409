"""What the engine gets of segmentation: batches, a loss, a probe, and scores against plain loops."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.nightly import nightly
from support.segmentation_example import RECIPE, splits, step_of, train

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.segmentation.data import IGNORE, Labelled, Splits, shapes
from oversmooth_papers.tasks.segmentation.model import model_of
from oversmooth_papers.tasks.segmentation.task import (
    Evaluator,
    SegmentationTask,
    confusion,
    mean_iou,
    places,
    scores_of,
)

CPU, STEP = torch.device("cpu"), torch.zeros(1, dtype=torch.int64)
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


def feed_of(recipe, data, ranks=None):
    return SegmentationTask(recipe, data).feed(CPU, ranks or Ranks(), compiled=False)


def test_a_batch_without_a_pixel_that_counts_has_loss_0():
    task, model = SegmentationTask(RECIPE, splits()), model_of(RECIPE)
    feed = feed_of(RECIPE, task.dataset)
    feed.masks.fill_(IGNORE)
    images, labels, pixels = feed.batch(STEP)
    assert bool((labels == IGNORE).all())
    loss = task.loss(model, (images, labels, pixels))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_without_scaling_and_mirroring_batches_are_the_images_in_order():
    data = shapes(8, 2, 2, size=16)
    recipe = replace(PLAIN, scales=(1.0, 1.0), flip=0.0, colours=False)
    feed = feed_of(recipe, data)
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
    images, labels, _ = feed_of(recipe, splits()).batch(STEP)
    assert bool((labels[:, 10:] == IGNORE).all())
    assert bool((labels[:, :, 10:] == IGNORE).all())
    assert float(images[:, :, 10:].abs().max()) == 0  # the mean of all images
    assert float(images[:, :, :10, :10].abs().max()) > 0


def test_parts_of_two_processes_are_the_batch_and_their_mean_loss_is_its_loss():
    task, model, losses, labels = SegmentationTask(RECIPE, splits()), model_of(RECIPE), {}, {}
    for rank, world in ((0, 1), (0, 2), (1, 2)):
        feed = feed_of(RECIPE, task.dataset, Ranks(rank, world))
        feed.reorder(torch.Generator().manual_seed(0))
        feed.draw(torch.Generator().manual_seed(2))
        batch = feed.batch(STEP + 1)
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
    batch, blank = feed_of(RECIPE, task.dataset).batch(STEP), task.blank(4, CPU)
    assert [(x.shape, x.dtype) for x in blank] == [(x.shape, x.dtype) for x in batch]
    assert float(task.loss(model_of(RECIPE), blank).detach()) > 0
    assert task.facts() == {"test_images": 6, "val_images": 4, "train_images": 16, "train_size": [20, 20]}
    task.check_memory(CPU)
    huge = replace(RECIPE, shape=replace(RECIPE.shape, width=1 << 20))
    with pytest.raises(InputError, match="give a smaller one"):
        SegmentationTask(huge, splits()).check_memory(CPU)


@nightly
def test_it_learns():
    recipe = replace(PLAIN, epochs=40, scales=(1.0, 1.0), colours=False, shape=replace(RECIPE.shape, width=32), lr=0.1)
    data = shapes(32, 8, 8, size=16)
    result = train(recipe, data, watch=WatchSettings(evaluate=0, monitor=0))
    assert result.epochs[-1]["loss"] < 0.7 * result.epochs[0]["loss"]
    assert result.scores["miou"] > 0.2  # all ground is at most 0.2


# Mean intersection over union and sliding windows, against plain loops

LABELS = st.sampled_from([0, 1, 2, 3, IGNORE])


@given(arrays(np.uint8, (3, 4, 5), elements=LABELS), arrays(np.int64, (3, 4, 5), elements=st.integers(0, 4)))
@settings(max_examples=50, deadline=None)
def test_mean_iou_is_that_of_a_plain_loop(truth, predicted):
    truth[0, 0, 0] = 0  # at least one pixel counts
    pairs = zip(truth.flatten().tolist(), predicted.flatten().tolist(), strict=True)
    counted, shares = [(t, p) for t, p in pairs if t != IGNORE], []
    for label in range(5):
        both = sum(t == label and p == label for t, p in counted)
        if either := sum(label in pair for pair in counted):
            shares.append(both / either)
    matrix = confusion(torch.from_numpy(truth), torch.from_numpy(predicted), 5)
    assert mean_iou(matrix) == pytest.approx(sum(shares) / len(shares))
    assert scores_of(matrix, "_val")["pixel_accuracy_val"] == pytest.approx(
        sum(t == p for t, p in counted) / len(counted)
    )


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 30))
def test_windows_cover_every_pixel_and_leave_none_of_the_image(length, window, stride):
    window, stride = min(window, length), min(stride, window)
    begins = places(length, window, stride)
    assert {pixel for begin in begins for pixel in range(begin, begin + window)} == set(range(length))
    assert all(later - earlier <= stride for earlier, later in itertools.pairwise(begins))
    assert len(begins) == len(set(begins)) == 1 + -(-(length - window) // stride)


def evaluator_for(**changes):
    recipe = replace(RECIPE, **changes)
    model = model_of(recipe).eval()
    with torch.no_grad():  # so that pixels differ by much
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return Evaluator(recipe, model, CPU, splits()), model


@pytest.mark.parametrize("size", [(16, 16), (24, 40), (19, 33), (16, 17)])
@pytest.mark.parametrize("stride", [5, 8, 16])
def test_sliding_windows_are_those_of_brute_force(size, stride):
    evaluator, model = evaluator_for(stride=stride)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    logits = evaluator.logits(x)
    assert logits.shape == (2, 5, *size)
    begins = []
    for length in size:
        along, at = [], 0
        while at + 16 < length:
            along.append(at)
            at += stride
        begins.append([*along, length - 16])
    with torch.no_grad():
        windows = {
            (top, left): torch.cat([model(one[None, :, top : top + 16, left : left + 16]) for one in x])
            for top in begins[0]
            for left in begins[1]
        }
    for row in range(0, size[0], 3):
        for column in range(0, size[1], 3):
            seen = [
                out[:, :, row - top, column - left]
                for (top, left), out in windows.items()
                if 0 <= row - top < 16 and 0 <= column - left < 16
            ]
            torch.testing.assert_close(logits[:, :, row, column], torch.stack(seen).mean(0), rtol=1e-4, atol=1e-5)


def test_scales_and_mirror_images_are_averaged_as_probabilities():
    evaluator, model = evaluator_for(stride=16)
    image = torch.randint(256, (1, 3, 16, 16), dtype=torch.uint8)
    mean, std = (torch.tensor(values)[:, None, None] for values in (RECIPE.mean, RECIPE.std))
    x = (image.float() / 255 - mean) / std
    expected = 0
    with torch.no_grad():
        for side in (16, 32):
            scaled = F.interpolate(x, (side, side), mode="bilinear", align_corners=False)
            for flipped in (False, True):
                one = scaled.flip(3) if flipped else scaled
                quarters = [model(part) for rows in one.split(16, 2) for part in rows.split(16, 3)]
                across = side // 16
                rows = [torch.cat(quarters[k * across : (k + 1) * across], 3) for k in range(across)]
                out = F.interpolate(torch.cat(rows, 2), (16, 16), mode="bilinear", align_corners=False)
                out = out.flip(3) if flipped else out
                expected = expected + torch.softmax(out, 1)
        found = evaluator.probabilities(image, (1.0, 2.0), mirrored=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shorter", "scale", "size", "expected"),
    [(0, 1.0, (20, 30), (20, 30)), (0, 0.5, (20, 30), (16, 24)), (0, 1.5, (20, 30), (30, 45)),
     (32, 1.0, (20, 30), (32, 48)), (32, 0.5, (64, 96), (16, 24)), (0, 1.0, (8, 30), (16, 60))],
)  # fmt: skip
def test_images_are_scaled_and_never_smaller_than_a_window(shorter, scale, size, expected):
    evaluator, _ = evaluator_for(shorter=shorter)
    assert tuple(evaluator.ready(torch.zeros(1, 3, *size), scale).shape[2:]) == expected


def test_images_of_several_sizes_are_counted_as_one_set():
    evaluator, model = evaluator_for()
    model.train()
    test = splits().test
    whole = evaluator.confusion(test)
    assert int(whole.sum()) == int((test.masks != IGNORE).sum())
    listed = Labelled(list(test.images), list(test.masks), test.classes, test.name)
    assert torch.equal(evaluator.confusion(listed), whole)
    cut = Labelled(
        [image[:, : 17 + number % 3] for number, image in enumerate(test.images)],
        [mask[: 17 + number % 3] for number, mask in enumerate(test.masks)],
        test.classes,
        test.name,
    )
    assert int(evaluator.confusion(cut).sum()) == sum(int((mask != IGNORE).sum()) for mask in cut.masks)
    assert model.training
