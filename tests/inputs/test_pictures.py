"""The made pictures: always the same, all different, and like photographs in what their spectrum does."""

import numpy as np
import pytest

from oversmooth.inputs.pictures import picture


def test_a_picture_is_fixed_by_its_index_and_seed():
    assert np.array_equal(picture(5, 48), picture(5, 48))
    assert not np.array_equal(picture(5, 48), picture(5, 48, seed=1))


def test_no_two_are_alike():
    small = [picture(index, 32).astype(float) for index in range(8)]
    apart = [np.abs(a - b).mean() for i, a in enumerate(small) for b in small[:i]]
    assert min(apart) > 10


@pytest.mark.parametrize("index", range(8))
def test_a_scene_is_the_same_at_every_size(index):
    large, small = picture(index, (128, 96)), picture(index, (64, 48))
    shrunk = large.reshape(64, 2, 48, 2, 3).mean(axis=(1, 3))
    assert small.shape == (64, 48, 3)
    assert small.dtype == np.uint8
    assert np.corrcoef(shrunk.ravel(), small.ravel())[0, 1] > 0.85


def test_amplitudes_fall_with_frequency_as_in_photographs():
    size = 64
    grey = np.stack([picture(index, size).mean(axis=-1) for index in range(8)])
    window = np.hanning(size)[:, None] * np.hanning(size)
    power = (np.abs(np.fft.fft2((grey - grey.mean(axis=(1, 2), keepdims=True)) * window)) ** 2).mean(axis=0)
    radius = np.hypot(*np.meshgrid(np.fft.fftfreq(size) * size, np.fft.fftfreq(size) * size))
    bands = np.array([2, 4, 8, 16, 32])
    mean = [power[(radius >= low) & (radius < 2 * low)].mean() for low in bands[:-1]]
    slope = np.polyfit(np.log(bands[:-1]), np.log(mean), 1)[0]
    assert -3.2 < slope < -1.4  # photographs: about -2


def test_they_use_the_range_and_have_colour():
    for index in range(6):
        pixels = picture(index, 48).astype(float)
        assert pixels.std() > 20
        assert np.ptp(pixels.mean(axis=(0, 1))) > 1 or pixels.std(axis=-1).mean() > 5
