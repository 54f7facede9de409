"""RandAugment on the device: every operation against Pillow, and against timm where it is there; what is drawn."""

import functools
import math

import numpy as np
import pytest
import torch

from oversmooth.inputs.pictures import picture
from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.randaugment import OPERATIONS, UNIFORMS, Plan, apply, plan_from
from oversmooth_papers.tasks.images.recipe import RandAugment

Image = pytest.importorskip("PIL.Image")
ImageEnhance = pytest.importorskip("PIL.ImageEnhance")
ImageOps = pytest.importorskip("PIL.ImageOps")

FILL = (129, 124, 112)
EXACT = {"AutoContrast", "Equalize", "Invert", "Posterize", "Solarize", "SolarizeAdd"}
COUNT = 24


@functools.cache
def pixels() -> np.ndarray:
    """Pictures, and what histograms stumble on: one colour, two levels, noise, few levels, a ramp. (n, 32, 32, 3)"""
    random = np.random.default_rng(0)
    made = [picture(index, 32) for index in range(COUNT - 5)]
    two = np.where(random.random((32, 32, 3)) < 0.01, 9, 200)
    ramp = np.broadcast_to(np.arange(32)[:, None, None] * 8, (32, 32, 3))
    few = random.integers(100, 104, (32, 32, 3))
    odd = [np.full((32, 32, 3), 77), two, random.integers(0, 256, (32, 32, 3)), few, ramp]
    return np.stack([*made, *(image.astype(np.uint8) for image in odd)])


def tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def array(images: torch.Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy().astype(int)


def plan_of(name: str, magnitude, negated, cubic) -> Plan:
    magnitude, negated, cubic = (torch.as_tensor(np.asarray(part))[:, None] for part in (magnitude, negated, cubic))
    return Plan(torch.full(negated.shape, OPERATIONS.index(name)), magnitude.float(), negated, cubic)


def pillow(image, name: str, magnitude: float, negated: bool, cubic: bool, increasing: bool = False, fill=FILL):
    """The operation as timm hands it to Pillow."""
    share, sign, resample = magnitude / 10, -1 if negated else 1, Image.BICUBIC if cubic else Image.BILINEAR
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        factor = max(0.1, 1 + sign * 0.9 * share) if increasing else share * 1.8 + 0.1
        return getattr(ImageEnhance, name)(image).enhance(factor)
    if name == "Rotate":
        return image.rotate(sign * share * 30, resample=resample, fillcolor=fill)
    if name in ("ShearX", "ShearY", "TranslateXRel", "TranslateYRel"):
        along, width, height = sign * share, *image.size
        move = {
            "ShearX": (1, 0.3 * along, 0, 0, 1, 0),
            "ShearY": (1, 0, 0, 0.3 * along, 1, 0),
            "TranslateXRel": (1, 0, 0.45 * along * width, 0, 1, 0),
            "TranslateYRel": (1, 0, 0, 0, 1, 0.45 * along * height),
        }[name]
        return image.transform(image.size, Image.AFFINE, move, resample=resample, fillcolor=fill)
    if name == "Posterize":
        bits = 4 - int(share * 4) if increasing else int(share * 4)
        # As Pillow did before it refused 0.
        return ImageOps.posterize(image, bits) if bits else image.point(lambda _: 0)
    if name == "Solarize":
        threshold = min(256, int(share * 256))
        return ImageOps.solarize(image, 256 - threshold if increasing else threshold)
    if name == "SolarizeAdd":
        added = min(128, int(share * 110))
        return image.point(lambda level: min(255, level + added) if level < 128 else level)
    return getattr(ImageOps, name.lower())(image)  # AutoContrast, Equalize, Invert


def drawn(seed: int):
    """A magnitude and directions for each image, the ends of the scale among them."""
    random = np.random.default_rng(seed)
    magnitude = np.clip(random.normal(8, 2.5, COUNT), 0, 10).astype(np.float32)
    magnitude[:2] = 0, 10
    return magnitude, random.random(COUNT) < 0.5, random.random(COUNT) < 0.5


def check(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    difference = np.abs(found - expected)
    assert difference.max() <= (0 if name in EXACT else 1)
    # Pillow's places are float64 and it truncates: a shift at magnitude 10 is 14.4, and two fifths of 5 are 2, or not.
    assert (difference > 0).mean() < 0.005


@pytest.mark.parametrize(("increasing", "grey"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_pillows(name, increasing, grey):
    magnitude, negated, cubic = drawn(OPERATIONS.index(name))
    images, fill = (np.ascontiguousarray(pixels()[:, :20, :28, :1]), (99,)) if grey else (pixels(), FILL)
    plan = plan_of(name, magnitude, negated, cubic)
    found = apply(RandAugment(increasing=increasing), tensor(images), plan, torch.tensor(fill, dtype=torch.int32))
    expected = []
    for image, m, n, c in zip(images, magnitude, negated, cubic, strict=True):
        opened = Image.fromarray(image[..., 0] if grey else image)
        made = pillow(opened, name, float(m), n, c, increasing, fill=99 if grey else FILL)
        expected.append(np.asarray(made, int).reshape(image.shape))
    check(name, array(found), np.stack(expected))


@pytest.mark.parametrize("level", range(11))
def test_whole_magnitudes_are_truncated_as_in_python(level):
    images, fill = tensor(pixels()), torch.tensor(FILL, dtype=torch.int32)
    for name in ("Posterize", "Solarize", "SolarizeAdd"):
        plan = plan_of(name, [level] * COUNT, [False] * COUNT, [False] * COUNT)
        found = apply(RandAugment(), images, plan, fill)
        expected = [np.asarray(pillow(Image.fromarray(image), name, level, False, False), int) for image in pixels()]
        assert np.array_equal(array(found), np.stack(expected))


def test_operations_follow_one_another_and_minus_one_is_none():
    images, fill = tensor(pixels()), torch.tensor(FILL, dtype=torch.int32)
    random = torch.Generator().manual_seed(3)
    augment = RandAugment(operations=3, probability=0.7)
    uniform, normal = torch.rand(COUNT, 3, UNIFORMS, generator=random), torch.randn(COUNT, 3, generator=random)
    plan = plan_from(augment, uniform, normal)
    found = apply(augment, images, plan, fill)
    for index in range(COUNT):
        image = images[index : index + 1]
        for step in range(3):
            parts = (plan.operation, plan.magnitude, plan.negated, plan.cubic)
            if plan.operation[index, step] >= 0:
                alone = Plan(*(part[index : index + 1, step : step + 1] for part in parts))
                image = apply(augment, image, alone, fill)
        assert torch.equal(found[index], image[0])
    assert (plan.operation == -1).any()


def many(augment: RandAugment, count: int = 20_000) -> Plan:
    random = torch.Generator().manual_seed(1)
    uniform = torch.rand(count, augment.operations, UNIFORMS, generator=random)
    return plan_from(augment, uniform, torch.randn(count, augment.operations, generator=random))


def test_operations_are_drawn_evenly_and_each_applied_half_the_time():
    plan = many(RandAugment())
    total = plan.operation.numel()
    counts = torch.bincount(plan.operation.flatten() + 1, minlength=16).double()
    expected = torch.tensor([0.5] + [0.5 / 15] * 15).double() * total
    assert ((counts - expected).square() / expected).sum() < 37.7  # chi-square, 15 degrees, one in a thousand
    both = plan.operation >= 0
    assert abs((both[:, 0] & both[:, 1]).double().mean() - 0.25) < 0.015  # one does not depend on the other


def test_magnitudes_directions_and_interpolations_are_as_set():
    magnitude = many(RandAugment()).magnitude.double()
    assert magnitude.max() == 10
    normal = torch.distributions.Normal(9.0, 1.0)
    for level in (6.5, 8.0, 9.0, 9.9):
        share = normal.cdf(torch.tensor(level)).item()
        assert abs((magnitude < level).double().mean() - share) < 4 * math.sqrt(share * (1 - share) / magnitude.numel())
    assert many(RandAugment(magnitude=0)).magnitude.min() == 0
    for interpolation, share in (("random", 0.5), ("bilinear", 0.0), ("bicubic", 1.0)):
        plan = many(RandAugment(noise=0.0, interpolation=interpolation))
        assert (plan.magnitude == 9).all()
        assert abs(plan.cubic.double().mean() - share) < 0.015
        assert abs(plan.negated.double().mean() - 0.5) < 0.015


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(magnitude=11), "magnitude is 11; give at most 10"),
        (dict(operations=0), "operations is 0"),
        (dict(noise=math.inf), "noise is inf"),
        (dict(probability=1.5), "probability is 1.5"),
        (dict(interpolation="nearest"), "interpolation is 'nearest'; choose random or bilinear or bicubic"),
    ],
)
def test_settings_that_will_not_do_are_named(settings, words):
    with pytest.raises(InputError, match=words):
        RandAugment(**settings)
