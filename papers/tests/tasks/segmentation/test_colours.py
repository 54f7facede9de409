"""Colours distorted, against Python's colorsys and plain arithmetic."""

import colorsys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oversmooth_papers.tasks.segmentation.colours import UNIFORMS, distorted, hue_turned, saturated

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


@given(st.lists(st.floats(0, 1 - 2**-10, width=32), min_size=UNIFORMS, max_size=UNIFORMS))
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


def test_images_have_draws_of_their_own():
    uniform = torch.rand(2, UNIFORMS, generator=torch.Generator().manual_seed(1))
    both = distorted(PIXELS, uniform)
    torch.testing.assert_close(both[1:], distorted(PIXELS[1:], uniform[1:]))
