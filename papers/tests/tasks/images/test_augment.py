"""The whole way from bytes to a batch: order, borders, targets, repeatability, and nothing read back to the host."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from oversmooth.inputs.pictures import picture
from oversmooth_papers.tasks.images import randaugment
from oversmooth_papers.tasks.images.augment import Augment, AugmentDraws
from oversmooth_papers.tasks.images.recipe import PAPER, RandAugment, Shape

PLAIN = dict(rand_augment=None, mixup=0.0, cutmix=0.0, smoothing=0.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
LABELS = torch.arange(12) % 5


@pytest.fixture(scope="module")
def images():
    return torch.stack([torch.from_numpy(picture(index, 32)).permute(2, 0, 1) for index in range(12)]).contiguous()


def made(*, classes, size=32, **settings) -> Augment:
    shape = Shape(image=size, classes=classes, channels=len(settings.get("mean", PAPER.mean)))
    return Augment(replace(PAPER, shape=shape, **settings))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_one_of_the_padded_image_and_half_are_mirrored(images):
    augment = made(classes=5, **PLAIN)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)))
    seen = set()
    for seed in range(40):
        draws = augment.draw(len(images), generator(seed))
        found = (augment.transform(images, LABELS, draws)[0] * 255).round().to(torch.uint8).numpy()
        numbers = draws.uniform[:-4].view(len(images), 3).numpy()
        for index, (down, across, side) in enumerate(numbers):
            row, column = int(down * 9), int(across * 9)
            crop = padded[index, :, row : row + 32, column : column + 32]
            assert np.array_equal(found[index], crop[..., ::-1] if side < 0.5 else crop)
            seen.add((row, column, bool(side < 0.5)))
    assert len(seen) > 150  # of the 162 there are


def test_smaller_and_larger_crops(images):
    x, _ = made(classes=5, size=20, padding=0, flip=0.0, **PLAIN)(images, LABELS, generator())
    assert x.shape == (12, 3, 20, 20)
    x, _ = made(classes=5, size=40, padding=4, flip=0.0, **PLAIN)(images, LABELS, generator())
    assert torch.equal((x[..., 4:-4, 4:-4] * 255).round().to(torch.uint8), images)


def test_with_everything_off_it_only_normalises(images):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    augment = made(classes=5, padding=0, flip=0.0, **{**PLAIN, "mean": mean, "std": std})
    x, targets = augment(images, LABELS, generator())
    expected = (images / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(x, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(x, augment.normalise(images))
    assert torch.equal(targets, torch.eye(5)[LABELS])


def test_the_order_is_crop_flip_randaugment_mix_normalise(images):
    augment = made(classes=5)
    draws = augment.draw(12, generator(5))
    x, targets = augment.transform(images, LABELS, draws)

    numbers = draws.uniform[:-4].view(12, 11)
    cropped = made(classes=5, **PLAIN)
    first = AugmentDraws(torch.cat([numbers[:, :3].flatten(), draws.uniform[-4:]]), draws.normal[:, :0])
    moved = (cropped.transform(images, LABELS, first)[0] * 255).round().to(torch.uint8)
    ours = RandAugment()
    plan = randaugment.plan_from(ours, numbers[:, 3:].unflatten(1, (2, 4)), draws.normal)
    changed = randaugment.apply(ours, moved, plan, augment.fill)
    last = made(rand_augment=None, padding=0, flip=0.0, classes=5)
    expected, wanted = last.transform(changed, LABELS, first)
    torch.testing.assert_close(x, expected)
    assert torch.equal(targets, wanted)
    assert augment.fill.tolist() == [129, 124, 112]  # timm's img_mean


def test_the_generators_state_is_all_there_is_and_draws_are_refilled_in_place(images):
    augment, one, other = made(classes=5), generator(3), generator(99)
    augment(images, LABELS, one)
    other.set_state(one.get_state())
    torch.manual_seed(17)  # of no account
    first, second = augment(images, LABELS, one), augment(images, LABELS, other)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], augment(images, LABELS, one)[0])
    assert augment.state_dict() == {}
    draws, again = augment.draw(12, generator(1)), augment.draw(12, generator(2))
    address = draws.uniform.data_ptr(), draws.normal.data_ptr()
    draws.refill(generator(2))
    assert (draws.uniform.data_ptr(), draws.normal.data_ptr()) == address
    assert torch.equal(draws.uniform, again.uniform)
    assert torch.equal(draws.normal, again.normal)


def test_images_are_independent_of_each_other_before_they_are_mixed(images):
    augment = made(classes=5, mixup=0.0, cutmix=0.0)
    draws = augment.draw(12, generator())
    together, _ = augment.transform(images, LABELS, draws)
    numbers = draws.uniform[:-4].view(12, -1)
    for index in range(12):
        alone = AugmentDraws(torch.cat([numbers[index], draws.uniform[-4:]]), draws.normal[index : index + 1])
        x, _ = augment.transform(images[index : index + 1], LABELS[index : index + 1], alone)
        assert torch.equal(x[0], together[index])


def test_nothing_is_read_back_and_no_shape_depends_on_what_was_drawn(images):
    # Meta tensors hold no values: whatever asked for one would fail.
    augment = made(classes=5).to("meta")
    draws = AugmentDraws(torch.empty(12 * 11 + 4, device="meta"), torch.empty(12, 2, device="meta"))
    x, targets = augment.transform(images.to("meta"), LABELS.to("meta"), draws)
    assert (x.shape, targets.shape) == ((12, 3, 32, 32), (12, 5))


def test_it_is_one_graph(images):
    augment = made(classes=5)
    compiled = torch.compile(augment.transform, backend="eager", fullgraph=True)
    draws = augment.draw(12, generator())
    for a, b in zip(compiled(images, LABELS, draws), augment.transform(images, LABELS, draws), strict=True):
        assert torch.equal(a, b)


def test_clothes_in_one_channel():
    augment = made(classes=10, size=28, padding=2, mean=(0.286,), std=(0.353,))
    images = torch.randint(0, 256, (6, 1, 28, 28), dtype=torch.uint8)
    x, targets = augment(images, torch.arange(6), generator())
    assert x.shape == (6, 1, 28, 28)
    assert x.isfinite().all()
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
