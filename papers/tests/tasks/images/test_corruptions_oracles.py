"""Each corruption against another implementation: PIL, scipy, colorsys, or the published steps done one by one."""

import colorsys
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image, features
from scipy import ndimage, stats
from support.pictures import encoded

from oversmooth.inputs.pictures import picture
from oversmooth_papers.tasks.images.corruptions import CONSTANTS, SEVERITIES, corrupt
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.jpeg import recoded
from oversmooth_papers.tasks.images.corruptions.kinds import frost_textures, plasma
from oversmooth_papers.tasks.images.corruptions.pixels import mirror, reflect, truncated

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pictures():
    """(8, 3, 32, 32), uint8: six made pictures, one with black, noise, and noise in grey."""
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    noise[1] = noise[1, ..., :1]
    made = np.stack([picture(i, 32) for i in range(6)])
    made[3, :4] = 0
    return torch.from_numpy(np.concatenate((made, noise))).permute(0, 3, 1, 2).contiguous()


def draws(kind, severity, count=8):
    """The random numbers that corrupt() gives to images 0 to count - 1."""
    return CorruptionDraws(f"0/{kind}/{severity}", 0, count, CPU)


def as_bytes(values):
    """The published cast, but for rounding error: levels (any shape) to bytes, towards zero."""
    return np.clip(np.asarray(values) + 1e-6, 0, 255).astype(np.uint8)


def assert_equal(ours, theirs, *, share=0.0):
    """All bytes equal but for a ``share`` that may be one off, where a value lies on a step."""
    apart = np.abs(ours.numpy().astype(int) - np.asarray(theirs).astype(int))
    assert apart.max() <= (1 if share else 0)
    assert (apart > 0).mean() <= share


# --- noise: mean, variance, distribution -----------------------------------------------------------------------------


@pytest.mark.parametrize("severity", SEVERITIES)
def test_normal_noise_has_its_mean_and_variance(severity):
    grey = torch.full((40, 3, 32, 32), 120, dtype=torch.uint8)
    sigma = CONSTANTS["gaussian_noise"][severity - 1][0] * 255
    noisy = corrupt(grey, "gaussian_noise", severity).double()
    error = sigma / math.sqrt(grey.numel())
    assert noisy.mean().item() == pytest.approx(119.5, abs=4 * error)  # cut, so half a level less
    assert noisy.var().item() == pytest.approx(sigma**2 + 1 / 12, rel=0.03)
    levels = np.bincount(noisy.int().flatten(), minlength=256)
    expected = np.diff(stats.norm.cdf(np.arange(257), 120, sigma)) * grey.numel()
    expected[0], expected[255] = expected[0] + 1e-9, expected[255] + 1e-9
    common = expected > 20
    wanted = expected[common] * levels[common].sum() / expected[common].sum()
    assert stats.chisquare(levels[common], wanted).pvalue > 1e-4


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("level", [0, 3, 100, 255])
def test_shot_noise_counts_photons_as_poisson_does(severity, level):
    grey = torch.full((40, 3, 32, 32), level, dtype=torch.uint8)
    photons = CONSTANTS["shot_noise"][severity - 1][0]
    levels = np.bincount(corrupt(grey, "shot_noise", severity).flatten(), minlength=256)
    counts = np.arange(2 * photons + 60)
    shown = as_bytes(counts / photons * 255)
    expected = np.bincount(shown, stats.poisson.pmf(counts, level / 255 * photons), minlength=256) * grey.numel()
    assert levels[expected < 1e-6].sum() == 0
    common = expected > 20
    if common.sum() == 1:
        assert levels[common].sum() == pytest.approx(grey.numel(), rel=0.01)
    else:
        wanted = expected[common] * levels[common].sum() / expected[common].sum()
        assert stats.chisquare(levels[common], wanted).pvalue > 1e-4


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_is_half_salt_half_pepper_and_spares_the_rest(severity):
    grey = torch.full((60, 3, 32, 32), 99, dtype=torch.uint8)
    share = CONSTANTS["impulse_noise"][severity - 1][0]
    levels, counts = corrupt(grey, "impulse_noise", severity).unique(return_counts=True)
    assert levels.tolist() == [0, 99, 255]
    for count in (counts[0], counts[2]):
        assert count.item() / grey.numel() == pytest.approx(share / 2, rel=0.12)


# --- the published procedures, image by image or by scipy, PIL and colorsys -----------------------------------------


def gaussian_blur(pictures, sigma):
    return ndimage.gaussian_filter(pictures.astype(float), (0, 0, sigma, sigma), mode="nearest", truncate=4)


def defocus_blur(pictures, _draw, radius, softness):
    line = np.arange(-8, 9)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    soft = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(soft, soft) / soft.sum() ** 2, mode="constant")
    return ndimage.correlate(pictures.astype(float), kernel[None, None], mode="mirror")


def glass_blur(pictures, draw, sigma, _reach, rounds):
    """The published loop with its aliased swap."""
    steps = [draw.below(4, 32, 32).numpy() for _ in range(rounds)]
    out = as_bytes(gaussian_blur(pictures, sigma)).transpose(0, 2, 3, 1)
    for number, x in enumerate(out):
        for step in steps:
            for h in range(31, 1, -1):
                for w in range(31, 1, -1):
                    up, left = divmod(int(step[number, h, w]), 2)
                    # Both sides are views: what is stored first is what is read second.
                    x[h, w], x[h - up, w - left] = x[h - up, w - left], x[h, w]
    return gaussian_blur(out.transpose(0, 3, 1, 2), sigma)


def streak(image, radius, sigma, degrees):
    """ImageMagick's motion blur, tap by tap: (c, h, w) levels."""
    taps = np.exp(-(np.arange(2 * math.ceil(radius) + 1) ** 2) / (2 * sigma**2))
    out, rows, columns = np.zeros(image.shape), np.arange(image.shape[1]), np.arange(image.shape[2])
    for i, tap in enumerate(taps / taps.sum()):
        down = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        right = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        out += tap * image[:, np.clip(rows + down, 0, rows[-1])][:, :, np.clip(columns + right, 0, columns[-1])]
    return np.floor(out + 0.5)


def motion_blur(pictures, draw, radius, sigma):
    degrees = draw.between(-45, 45)
    assert -45 < degrees.min() < degrees.max() < 45
    return np.stack([streak(image, radius, sigma, turn) for image, turn in zip(pictures, degrees, strict=True)])


def clipped_zoom(planes, factor):
    """(k, 32, 32): the middle of each enlarged by scipy and cut to size."""
    crop = math.ceil(32 / factor)
    top = (32 - crop) // 2
    middle = planes[:, top : top + crop, top : top + crop]
    large = np.stack([ndimage.zoom(plane, factor, order=1, mode="nearest") for plane in middle])
    trim = (large.shape[1] - 32) // 2
    return large[:, trim : trim + 32, trim : trim + 32]


def zoom_blur(pictures, _draw, end):
    planes, factors = pictures.reshape(-1, 32, 32).astype(float), np.arange(1, end, 0.01)
    total = planes + sum(clipped_zoom(planes, factor) for factor in factors)
    return (total / (len(factors) + 1)).reshape(pictures.shape)


def snow(pictures, draw, mean, sigma, zoom, threshold, radius, long, kept):
    flakes = clipped_zoom(draw.normal(32, 32).numpy() * sigma + mean, zoom)
    flakes = as_bytes(np.where(flakes < threshold, 0, np.clip(flakes, 0, 1)) * 255)[:, None]
    degrees = draw.between(-135, -45).tolist()
    fallen = np.stack([streak(one, radius, long, turn) for one, turn in zip(flakes, degrees, strict=True)])
    x = pictures / 255
    grey = np.einsum("nchw,c->nhw", x, [0.299, 0.587, 0.114])[:, None]
    white = kept * x + (1 - kept) * np.maximum(x, grey * 1.5 + 0.5)
    return (white + fallen / 255 + np.rot90(fallen, 2, axes=(2, 3)) / 255) * 255


def fog(pictures, draw, thickness, decay):
    mist, x = plasma(draw, 32, decay).numpy()[:, None], pictures / 255
    peak = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + thickness * mist) * peak / (peak + thickness) * 255


def through_hsv(images, change):
    """(n, 3, h, w): each colour through colorsys, 0 to 1."""
    flat = (np.moveaxis(images, 1, -1).reshape(-1, 3) / 255).tolist()
    table = {colour: colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*colour))) for colour in set(map(tuple, flat))}
    out = np.array([table[colour] for colour in map(tuple, flat)]) * 255
    return out.reshape(len(images), 32, 32, 3).transpose(0, 3, 1, 2)


def brightness(pictures, _draw, added):
    return through_hsv(pictures, lambda h, s, v: (h, s, min(v + added, 1)))


def contrast(pictures, _draw, kept):
    mean = pictures.mean(axis=(2, 3), keepdims=True)
    return (pictures - mean) * kept + mean


def elastic_transform(pictures, draw, *shares):
    length, smooth, reach = (32 * share for share in shares)
    corners = np.array([[26, 26], [26, 6], [6, 6]])  # (x, y)
    moved = corners + draw.between(-reach, reach, 3, 2).numpy()
    fields = draw.between(-1, 1, 2, 32, 32).numpy()
    rows, columns = np.mgrid[:32, :32].astype(float)
    theirs = []
    for number, image in enumerate(pictures.astype(float)):
        back = np.linalg.solve(np.column_stack((moved[number], np.ones(3))), corners)  # (x, y, 1) -> where from
        x, y = np.moveaxis(np.stack((columns, rows, np.ones_like(rows)), axis=-1) @ back, -1, 0)
        image = np.stack([ndimage.map_coordinates(plane, (y, x), order=1, mode="mirror") for plane in image])
        if length:
            dx, dy = (length * ndimage.gaussian_filter(f, smooth, mode="reflect", truncate=3) for f in fields[number])
            places = (rows + dy, columns + dx)
            image = np.stack([ndimage.map_coordinates(plane, places, order=1, mode="reflect") for plane in image])
        theirs.append(image)
    return np.stack(theirs)


ON_A_STEP = dict(motion_blur=1e-4, zoom_blur=1e-4, snow=1e-4, fog=1e-4, elastic_transform=1e-3)
"""The share of bytes that may be one off; elsewhere all are equal."""


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    "published",
    [defocus_blur, glass_blur, motion_blur, zoom_blur, snow, fog, brightness, contrast, elastic_transform],
)
def test_it_is_the_published_procedure(published, severity, pictures):
    kind = published.__name__
    theirs = published(pictures.numpy(), draws(kind, severity), *CONSTANTS[kind][severity - 1])
    assert_equal(corrupt(pictures, kind, severity), as_bytes(theirs), share=ON_A_STEP.get(kind, 0))


def test_plasma_is_the_diamond_square_rule_point_by_point():
    side, decay, number = 16, 1.75, 2
    draw, again = CorruptionDraws("fog", 0, 4, CPU), CorruptionDraws("fog", 0, 4, CPU)
    ours = plasma(draw, side, decay)
    again.uniform(1, 1)
    heights, step, wobble = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half, cells = step // 2, side // step
        # Middles of squares, then of their upper sides, then of their left sides; all four neighbours on a torus.
        for row, column, near in (
            (half, half, ((-half, -half), (-half, half), (half, -half), (half, half))),
            (0, half, ((-half, 0), (half, 0), (0, -half), (0, half))),
            (half, 0, ((-half, 0), (half, 0), (0, -half), (0, half))),
        ):
            noise = again.between(-wobble, wobble, cells, cells)[number].numpy() * wobble
            for i in range(cells):
                for j in range(cells):
                    y, x = row + i * step, column + j * step
                    four = [heights[(y + down) % side, (x + right) % side] for down, right in near]
                    heights[y, x] = sum(four) / 4 + noise[i, j]
        step, wobble = half, wobble / decay
    heights -= heights.min()
    np.testing.assert_allclose(ours[number].numpy(), heights / heights.max(), atol=1e-12)


def test_frost_shows_windows_of_five_made_textures():
    textures = frost_textures()
    assert textures.shape == (5, 3, 128, 128)
    black = torch.zeros(60, 3, 32, 32, dtype=torch.uint8)
    shown = corrupt(black, "frost", 5)  # 0.45 of the texture alone
    tiled = torch.cat((textures, textures[..., :32]), dim=-1)
    tiled = torch.cat((tiled, tiled[..., :32, :]), dim=-2)
    windows = truncated(tiled * 0.45).unfold(2, 32, 1).unfold(3, 32, 1)  # 5, 3, places, places, 32, 32
    used = set()
    for image in shown[:20]:
        corner = (windows[..., 0, :3] == image[None, :, None, None, 0, :3]).all(dim=(1, 4))
        places = [at for at in corner.nonzero().tolist() if torch.equal(windows[at[0], :, at[1], at[2]], image)]
        assert places
        used.add(places[0][0])
    assert len(used) >= 4
    assert shown.flatten(1).double().mean(dim=1).std() > 5


@pytest.mark.parametrize("size", [32, 31, 48])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate_is_pils_box_filter(severity, size, pictures):
    images = torch.nn.functional.interpolate(pictures.float(), size=size).to(torch.uint8)
    small = int(size * CONSTANTS["pixelate"][severity - 1][0])
    theirs = []
    for image in images.permute(0, 2, 3, 1).contiguous().numpy():
        shrunk = Image.fromarray(image).resize((small, small), Image.Resampling.BOX)
        theirs.append(np.asarray(shrunk.resize((size, size), Image.Resampling.BOX)).transpose(2, 0, 1))
    assert_equal(corrupt(images, "pixelate", severity), np.stack(theirs))


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (24, 40)])
@pytest.mark.parametrize("quality", [80, 65, 58, 50, 40, 5, 97])
def test_jpeg_gives_the_bytes_of_pil(quality, size, pictures):
    images = torch.nn.functional.interpolate(pictures.float(), size=size).to(torch.uint8)
    theirs = []
    for image in images.permute(0, 2, 3, 1).contiguous().numpy():
        decoded = Image.open(io.BytesIO(encoded(image, "JPEG", quality=quality)))
        theirs.append(np.asarray(decoded).transpose(2, 0, 1))
    ours = recoded(images, quality).numpy()
    if features.check_feature("libjpeg_turbo"):
        assert np.array_equal(ours, np.stack(theirs))
    else:  # another libjpeg enlarges chroma otherwise
        assert np.abs(ours.astype(int) - np.stack(theirs)).mean() < 1


def test_borders_are_numpys():
    index = torch.arange(-20, 27)
    for border, mode in ((mirror, "reflect"), (reflect, "symmetric")):
        assert np.array_equal(border(index, 7).numpy(), np.pad(np.arange(7), 20, mode=mode)), mode
