"""Mean intersection over union and sliding windows, against plain loops."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.segmentation_example import RECIPE, splits

from oversmooth_papers.tasks.segmentation.data import IGNORE, Labelled
from oversmooth_papers.tasks.segmentation.evaluate import Evaluator, confusion, mean_iou, pixel_accuracy, places
from oversmooth_papers.tasks.segmentation.model import model_of

CPU = torch.device("cpu")
LABELS = st.sampled_from([0, 1, 2, 3, IGNORE])


@given(arrays(np.uint8, (3, 4, 5), elements=LABELS), arrays(np.int64, (3, 4, 5), elements=st.integers(0, 4)))
@settings(max_examples=100, deadline=None)
def test_mean_iou_is_that_of_a_plain_loop(truth, predicted):
    truth[0, 0, 0] = 0  # at least one pixel counts
    shares, right, counted = [], 0, 0
    for label in range(5):
        both = either = 0
        for t, p in zip(truth.flatten().tolist(), predicted.flatten().tolist(), strict=True):
            if t != IGNORE:
                both += t == label and p == label
                either += t == label or p == label
        if either:
            shares.append(both / either)
    for t, p in zip(truth.flatten().tolist(), predicted.flatten().tolist(), strict=True):
        counted += t != IGNORE
        right += t == p
    matrix = confusion(torch.from_numpy(truth), torch.from_numpy(predicted), 5)
    assert mean_iou(matrix) == pytest.approx(sum(shares) / len(shares))
    assert pixel_accuracy(matrix) == pytest.approx(right / counted)


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
