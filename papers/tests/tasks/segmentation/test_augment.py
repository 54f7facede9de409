"""Crops of images and masks against plain loops, both moved alike; colours against colorsys and plain arithmetic."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oversmooth_papers.tasks.segmentation.augment import (
    COLOUR_UNIFORMS,
    Normalise,
    crops,
    distorted,
    hue_turned,
    saturated,
)
from oversmooth_papers.tasks.segmentation.data import IGNORE

unit = st.floats(0, 1 - 2**-10, width=32)


def run(images, masks, uniform, **given):
    uniform = torch.tensor([uniform], dtype=torch.float32)
    return crops(images, masks, uniform, **{"side": 16, "scales": (0.5, 2.0), "flip": 0.5, **given})


def test_all_of_an_image_at_its_own_size_is_the_image():
    images = torch.randint(256, (1, 3, 16, 16), dtype=torch.uint8)
    masks = torch.randint(5, (1, 16, 16), dtype=torch.uint8)
    pixels, labels, inside = run(images, masks, [0.3, 0.2, 0.9, 0.9], scales=(1.0, 1.0))
    torch.testing.assert_close(pixels, images.float(), rtol=0, atol=1e-3)
    assert torch.equal(labels, masks.long())
    assert inside.all()
    pixels, labels, _ = run(images, masks, [0.3, 0.2, 0.9, 0.1], scales=(1.0, 1.0))
    torch.testing.assert_close(pixels, images.float().flip(-1), rtol=0, atol=1e-3)
    assert torch.equal(labels, masks.long().flip(-1))


@given(unit, unit, unit, unit)
@settings(max_examples=25, deadline=None)
def test_they_are_those_of_plain_loops(scale, down, across, mirrored):
    height, width, side = 12, 20, 16
    random = np.random.default_rng(3)
    image = random.integers(0, 256, (3, height, width), dtype=np.uint8)
    mask = random.integers(0, 5, (height, width), dtype=np.uint8)
    pixels, labels, inside = run(
        torch.from_numpy(image)[None], torch.from_numpy(mask)[None], [scale, down, across, mirrored]
    )
    s = np.float64(0.5 + 1.5 * np.float32(scale))
    size = (s * height, s * width)
    top, left = down * max(size[0] - side, 0), across * max(size[1] - side, 0)
    for i in range(side):
        for j in range(side):
            y, x = (top + i + 0.5) / s, (left + j + 0.5) / s  # in the image's pixels
            if min(abs(y - height), abs(x - width)) < 1e-3:
                continue  # float32 may have it on either side
            within = y < height and x < width
            assert bool(inside[0, i, j]) == within
            if not within:
                assert int(labels[0, i, j]) == IGNORE
                continue
            if mirrored < 0.5:
                x = width - x
            if min(abs(y - round(y)), abs(x - round(x))) > 1e-3:
                assert int(labels[0, i, j]) == mask[int(y), int(x)]
            v, u = min(max(y - 0.5, 0), height - 1), min(max(x - 0.5, 0), width - 1)
            a, b = int(v), int(u)
            c, d = min(a + 1, height - 1), min(b + 1, width - 1)
            f, g = v - a, u - b
            expected = (1 - f) * ((1 - g) * image[:, a, b] + g * image[:, a, d]) + f * (
                (1 - g) * image[:, c, b] + g * image[:, c, d]
            )
            np.testing.assert_allclose(pixels[0, :, i, j].numpy(), expected, atol=0.05)


def test_images_have_draws_of_their_own():
    images = torch.randint(256, (2, 3, 20, 20), dtype=torch.uint8)
    masks = torch.randint(5, (2, 20, 20), dtype=torch.uint8)
    uniform = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.6]])
    given = dict(side=16, scales=(0.5, 2.0), flip=0.5)
    both = crops(images, masks, uniform, **given)
    for number in range(2):
        part = slice(number, number + 1)
        one = crops(images[part], masks[part], uniform[part], **given)
        for ours, theirs in zip(both, one, strict=True):
            torch.testing.assert_close(ours[part], theirs)


def test_normalised_is_less_the_mean_over_the_spread():
    images = torch.randint(256, (2, 3, 4, 4)).float()
    out = Normalise((0.1, 0.5, 0.2), (0.3, 0.2, 0.5), torch.device("cpu"))(images)
    for channel, (mean, std) in enumerate([(0.1, 0.3), (0.5, 0.2), (0.2, 0.5)]):
        torch.testing.assert_close(out[:, channel], (images[:, channel] / 255 - mean) / std, rtol=1e-4, atol=1e-5)


# Colours

PIXELS = torch.randint(256, (2, 3, 5, 6), generator=torch.Generator().manual_seed(0)).float()
PIXELS[0, :, 0, 0] = 77.0  # grey
PIXELS[0, :, 0, 1] = 0.0
PIXELS[0, :, 0, 2] = torch.tensor([255.0, 0.0, 0.0])


def by_pixel(x, change):
    """colorsys for every pixel; change: of (h, s, v)."""
    out = torch.empty_like(x)
    for b, i, j in ((b, i, j) for b in range(len(x)) for i in range(x.shape[2]) for j in range(x.shape[3])):
        h, s, v = colorsys.rgb_to_hsv(*(x[b, :, i, j] / 255).tolist())
        out[b, :, i, j] = 255 * torch.tensor(colorsys.hsv_to_rgb(*change(h, s, v)))
    return out


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 1.5])
def test_saturation_is_that_of_colorsys(factor):
    expected = by_pixel(PIXELS, lambda h, s, v: (h, min(1, s * factor), v))
    torch.testing.assert_close(saturated(PIXELS, torch.tensor(factor)), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("turn", [-0.1, 0.0, 0.03, 0.1])
def test_hue_is_that_of_colorsys(turn):
    expected = by_pixel(PIXELS, lambda h, s, v: ((h + turn) % 1, s, v))
    found = hue_turned(PIXELS, torch.full((2, 1, 1, 1), turn))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)


@given(st.lists(st.floats(0, 1 - 2**-10, width=32), min_size=COLOUR_UNIFORMS, max_size=COLOUR_UNIFORMS))
@settings(max_examples=40, deadline=None)
def test_the_steps_come_in_their_order(numbers):
    found = distorted(PIXELS[:1], torch.tensor([numbers]))
    x = PIXELS[:1]
    if numbers[0] < 0.5:
        x = (x + 64 * numbers[1] - 32).clamp(0, 255)
    contrast = 0.5 + numbers[4] if numbers[3] < 0.5 else 1.0
    if numbers[2] < 0.5:
        x = (x * contrast).clamp(0, 255)
    if numbers[5] < 0.5:
        x = by_pixel(x, lambda h, s, v: (h, min(1, s * (0.5 + numbers[6])), v))
    if numbers[7] < 0.5:
        x = by_pixel(x, lambda h, s, v: ((h + 0.1 * (2 * numbers[8] - 1)) % 1, s, v))
    if not numbers[2] < 0.5:
        x = (x * contrast).clamp(0, 255)
    torch.testing.assert_close(found, x, rtol=1e-3, atol=0.05)


def test_colours_have_draws_of_their_own():
    uniform = torch.rand(2, COLOUR_UNIFORMS, generator=torch.Generator().manual_seed(1))
    both = distorted(PIXELS, uniform)
    torch.testing.assert_close(both[1:], distorted(PIXELS[1:], uniform[1:]))
