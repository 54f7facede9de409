"""What holds for every corruption: its settings, what it leaves alone, its random numbers, and what it refuses."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oversmooth.inputs.pictures import picture
from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.corruptions import CONSTANTS, KINDS, SEVERITIES, corrupt, read_official
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws, mixed_bits

BY_RULE = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
"""The rest have chance in them."""


@pytest.fixture(scope="module")
def pictures():
    """(24, 3, 32, 32), uint8, like photographs in their statistics."""
    return torch.from_numpy(np.stack([picture(i, 32) for i in range(24)])).permute(0, 3, 1, 2).contiguous()


def damage(images, changed):
    return (images.double() - changed.double()).square().mean().item()


def test_the_settings_are_the_published_ones():
    one = {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot_noise": (500, 250, 100, 75, 50),
        "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "zoom_blur": (1.06, 1.11, 1.16, 1.21, 1.26),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg_compression": (80, 65, 58, 50, 40),
    }
    for kind, settings in one.items():
        assert CONSTANTS[kind] == tuple((value,) for value in settings)
    columns = {  # one list per setting, over the five intensities
        "defocus_blur": ([0.3, 0.4, 0.5, 1, 1.5], [0.4, 0.5, 0.6, 0.2, 0.1]),
        "glass_blur": ([0.05, 0.25, 0.4, 0.25, 0.4], [1] * 5, [1, 1, 1, 2, 2]),
        "motion_blur": ([6, 6, 6, 8, 9], [1, 1.5, 2, 2, 2.5]),
        "frost": ([1, 1, 0.9, 0.85, 0.75], [0.2, 0.3, 0.4, 0.4, 0.45]),
        "fog": ([0.2, 0.5, 0.75, 1, 1.5], [3, 3, 2.5, 2, 1.75]),
        "elastic_transform": ([0, 0.05, 0.08, 0.1, 0.1], [0, 0.2, 0.06, 0.04, 0.03], [0.08, 0.07, 0.06, 0.05, 0.03]),
        "snow": (
            *([0.1, 0.1, 0.15, 0.25, 0.3], [0.2, 0.2, 0.3, 0.3, 0.3], [1, 1, 1.75, 2.25, 1.25]),
            *([0.6, 0.5, 0.55, 0.6, 0.65], [8, 10, 10, 12, 14], [3, 4, 4, 6, 12], [0.95, 0.9, 0.9, 0.85, 0.8]),
        ),
    }
    for kind, settings in columns.items():
        assert CONSTANTS[kind] == tuple(zip(*settings, strict=True)), kind
    assert set(one) | set(columns) == set(KINDS)
    assert len(KINDS) == 15


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_corrupted_alike_in_every_batch(kind, pictures, monkeypatch):
    before = pictures.clone()
    for severity in SEVERITIES:
        whole = corrupt(pictures, kind, severity, seed=3)
        assert whole.dtype == torch.uint8
        assert whole.shape == pictures.shape
        assert damage(pictures, whole) > 0.1
        pieces = [corrupt(pictures[i:j], kind, severity, seed=3, start=i) for i, j in ((0, 1), (1, 8), (8, 24))]
        assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(pictures, before)
    strided = pictures.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    monkeypatch.setattr("oversmooth_papers.tasks.images.corruptions._PIECE", {"cpu": 5 * 3072})
    assert torch.equal(corrupt(strided, kind, 5, seed=3), whole)
    # The seed and the number of an image decide where there is chance.
    for other in (dict(seed=1), dict(seed=3, start=9)):
        assert torch.equal(corrupt(pictures, kind, 5, **other), whole) == (kind in BY_RULE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(8, 8), (17, 40), (64, 48)])
def test_other_sizes_work(kind, size):
    images = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)
    for severity in (1, 4):
        assert corrupt(images, kind, severity).shape == images.shape


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, as a GPU would; moving a tensor is no such operation."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        assert len({tensor.device for tensor in tensors}) < 2, function
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_stays_on_the_device(kind):
    images = torch.empty(2, 3, 32, 32, dtype=torch.uint8, device="meta")
    with OneDevice():
        assert corrupt(images, kind, 5).device.type == "meta"


@given(level=st.integers(0, 255), severity=st.sampled_from(SEVERITIES))
@pytest.mark.parametrize(
    "kind",
    [
        *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ],
)
def test_an_even_grey_stays_as_it_is(kind, level, severity):
    grey = torch.full((2, 3, 32, 32), level, dtype=torch.uint8)
    # Half a step of JPEG's coarsest mean: 16 · 125 % / 8 / 2 levels, and one.
    slack = 4 if kind == "jpeg_compression" else 0
    assert (corrupt(grey, kind, severity).int() - level).abs().max() <= slack


# Not in order of intensity by their settings: frost mixes in less of the picture from 4 on and shifts its mean less,
# glass moves pixels of a sharper picture at 4 than at 3, the elastic transform trades affine reach for waves.
UNORDERED = {"frost", "glass_blur", "elastic_transform"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNORDERED])
def test_damage_grows_with_intensity(kind, pictures):
    harm = [damage(pictures, corrupt(pictures, kind, severity)) for severity in SEVERITIES]
    # Motion blur at 3 and 4 is the same Gaussian cut off at 6 and at 8, where little is left: the angles drawn decide.
    slack = 0.98 if kind == "motion_blur" else 1
    assert all(more >= slack * less for less, more in itertools.pairwise(harm))
    assert harm[4] > 1.5 * harm[0]


def test_kinds_and_intensities_have_random_numbers_of_their_own():
    grey, pairs = torch.full((8, 3, 32, 32), 128, dtype=torch.uint8), (("gaussian", 4), ("gaussian", 5), ("shot", 5))
    noises = [corrupt(grey, f"{kind}_noise", severity).double().flatten() - 127.5 for kind, severity in pairs]
    assert torch.corrcoef(torch.stack(noises)).triu(1).abs().max() < 0.03


# --- the random numbers ---------------------------------------------------------------------------------------------


def test_the_hash_gives_splitmix64s_published_numbers():
    words = np.array([(1234567 + 0x9E3779B97F4A7C15 * k) % 2**64 for k in (1, 2, 3)], np.uint64)
    mixed = mixed_bits(torch.from_numpy(words.view(np.int64))).numpy().view(np.uint64)
    assert mixed.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_are_even_normal_and_unrelated():
    draw = CorruptionDraws("statistics", 0, 400, torch.device("cpu"))
    uniform, normal, whole = draw.uniform(501), draw.normal(501), draw.below(4, 501)
    assert 0 < uniform.min() < 1e-4
    assert 1 - 1e-4 < uniform.max() < 1
    for found, wanted, within in (
        (uniform.mean(), 0.5, 0.003),
        (uniform.var(), 1 / 12, 0.001),
        (normal.mean(), 0, 0.01),
        (normal.var(), 1, 0.015),
        (normal.pow(4).mean(), 3, 0.08),
    ):
        assert abs(found - wanted) < within
    assert (torch.bincount(whole.flatten()) / whole.numel() - 0.25).abs().max() < 0.005
    for numbers in (uniform, normal):
        # Images: 501 numbers each, so 1/sqrt(501) is a σ. Then places.
        assert torch.corrcoef(numbers[:40]).triu(1).abs().max() < 0.22
        assert torch.corrcoef(numbers.T[:40]).triu(1).abs().max() < 0.25
    assert torch.corrcoef(torch.stack((uniform.flatten(), normal.flatten())))[0, 1].abs() < 0.01


# --- the official files ---------------------------------------------------------------------------------------------


@pytest.fixture
def official(tmp_path):
    """A folder laid out as the official one; the pictures are a file of holes, so that it costs no disk."""
    pictures = np.lib.format.open_memmap(tmp_path / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    pictures[20_000, 4, 5] = (7, 8, 9)
    pictures[29_999] = 3
    pictures[30_000] = 4
    pictures.flush()
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10_000) % 100, 5).astype(np.uint8))
    return tmp_path


def test_an_official_file_is_read_by_intensity(official):
    images, labels = read_official(official, "fog", 3)
    assert images.shape == (10_000, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert images[0, :, 4, 5].tolist() == [7, 8, 9]
    assert images[-1].unique().tolist() == [3]
    assert labels.dtype == torch.int64
    assert torch.equal(labels, torch.arange(10_000) % 100)
    assert read_official(str(official), "fog", 4)[0][0].unique().tolist() == [4]


def test_official_files_that_are_wrong_are_named(official, tmp_path):
    np.save(tmp_path / "rain.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(tmp_path / "frost.npy", np.array([{}], dtype=object))
    (tmp_path / "contrast.npy").write_bytes((tmp_path / "labels.npy").read_bytes()[:1000])
    (tmp_path / "pixelate.npy").write_bytes(b"")
    with (tmp_path / "brightness.npy").open("wb") as file:
        np.savez(file, images=np.zeros(3))
    with pytest.raises(InputError, match=r"snow\.npy does not exist; give the folder"):
        read_official(official, "snow", 1)
    for kind in ("rain", "frost", "contrast", "pixelate", "brightness"):
        holds = r"it holds \(10, 32, 32, 3\) of uint8" if kind == "rain" else ""
        with pytest.raises(InputError, match=rf"{kind}\.npy is not an official file \({holds}.*; give the folder"):
            read_official(official, kind, 1)
    np.save(tmp_path / "labels.npy", np.zeros(50_000))
    with pytest.raises(InputError, match=r"labels\.npy is not an official file \(it holds \(50000,\) of float64"):
        read_official(official, "fog", 1)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(kind="rain"), "no corruption is called 'rain'; there are gaussian_noise, shot_noise, .*jpeg"),
        (dict(severity=0), "severity is 0; give a whole number from 1"),
        (dict(severity=2.0), r"severity is 2\.0"),
        (dict(images=torch.zeros(2, 3, 32, 32)), r"shape \(2, 3, 32, 32\) of torch\.float32; give bytes"),
        (dict(images=torch.zeros(2, 32, 32, 3, dtype=torch.uint8)), r"shape \(2, 32, 32, 3\)"),
        (dict(images=torch.zeros(3, 32, 32, dtype=torch.uint8)), r"shape \(3, 32, 32\)"),
        (dict(images=torch.zeros(0, 3, 32, 32, dtype=torch.uint8)), r"shape \(0, 3, 32, 32\)"),
        (dict(images=torch.zeros(1, 3, 4, 32, dtype=torch.uint8)), "at least 8 by 8 pixels"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(change, match):
    settings = dict(images=torch.zeros(1, 3, 32, 32, dtype=torch.uint8), kind="fog", severity=1, seed=0) | change
    with pytest.raises(InputError, match=match):
        corrupt(settings.pop("images"), settings.pop("kind"), settings.pop("severity"), **settings)


def test_official_files_of_another_set_are_refused(tmp_path, monkeypatch):
    from oversmooth_papers.tasks.images import evaluate
    from oversmooth_papers.tasks.images.data import Images

    images, labels = torch.zeros(10, 3, 32, 32, dtype=torch.uint8), torch.arange(10)
    monkeypatch.setattr(evaluate, "read_official", lambda *_: (images, labels))
    cpu = torch.device("cpu")
    names = [str(i) for i in range(10)]
    own = evaluate.Corruptions(Images(images[:4], labels[:4], names, "own"), cpu, official=tmp_path)
    assert own("fog", 1)[0].shape == (4, 3, 32, 32)
    for other in (Images(images[:4], labels[1:5], names, "b"), Images(images[:4, :1], labels[:4], names, "c")):
        with pytest.raises(InputError, match="sizes or labels differ"):
            evaluate.Corruptions(other, cpu, official=tmp_path)("fog", 1)
