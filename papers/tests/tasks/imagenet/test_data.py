"""Pictures from folders and parquet, what is refused in one sentence, and timm's transforms."""

# ruff: noqa: NPY002 (timm draws from the global state of numpy)

import io
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from support import timm_models
from support.imagenet_example import CLASSES, jpeg, modes, rows, write_folders, write_parquet

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.imagenet import data
from oversmooth_papers.tasks.imagenet.data import load_splits, painted
from oversmooth_papers.tasks.imagenet.feed import (
    Transformed,
    batches,
    posterized,
    testing_transform,
    training_transform,
    worker_count,
)
from oversmooth_papers.tasks.imagenet.recipe import PAPER

testing_transform.__test__ = False
pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    timm_models.timm()
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))


def check(splits, classes):
    assert tuple(splits.classes) == classes
    for part, samples, each in (("train", splits.train, 5), ("val", splits.test, 2)):
        expected = rows(part, each)
        assert [label for _, label in samples] == [label for _, label in expected]
        for (file, _), (number, _) in zip(samples, expected, strict=True):
            assert Path(file).read_bytes() == jpeg(number, modes(number))


def test_folders_are_classes_in_the_order_of_their_names(tmp_path):
    home = write_folders(tmp_path / "pictures", 5, 2)
    (home / "train" / "n01" / "notes.txt").write_text("no image")
    (home / "train" / ".cache").mkdir()
    splits = load_splits(home)
    check(splits, CLASSES)
    assert splits.name == "pictures"


def test_parquet_is_unpacked_once(tmp_path, monkeypatch):
    home = write_parquet(tmp_path / "pictures", 5, 2)
    check(load_splits(home), ("0", "1", "2"))
    monkeypatch.setattr(data, "_unpack", None)
    check(load_splits(home), ("0", "1", "2"))


def test_imagenet_is_found_by_its_name(tmp_path, monkeypatch):
    write_folders(tmp_path / "data" / "ILSVRC2012", 2, 1)
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    assert load_splits("imagenet").name == "imagenet"
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path / "data" / "ILSVRC2012"))
    with pytest.raises(InputError, match=r"imagenet is not in OVERSMOOTH_DATA \(.*\); give painted, or a folder"):
        load_splits("imagenet")
    with pytest.raises(InputError, match="nowhere is no folder; give painted, or a folder"):
        load_splits("nowhere")


def test_painted_pictures_are_the_same_every_time():
    one, other = painted(8, 4), painted(8, 4)
    assert one.train == other.train
    assert [label for _, label in one.train] == [0, 1, 2, 3] * 2
    assert min(Image.open(io.BytesIO(one.test[3][0])).size) >= 48


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda home: [file.unlink() for file in (home / "train").rglob("*.JPEG")],
            "train has no images; give",
        ),
        (lambda home: (home / "val" / "n03").rename(home / "val" / "n04"), "the class 'n04', which .*train has not"),
        (lambda home: (home / "val").rename(home / "elsewhere"), "does not hold images to train on and to test on"),
    ],
)
def test_folders_that_will_not_do_are_refused(tmp_path, spoil, words):
    home = write_folders(tmp_path / "pictures", 2, 1)
    spoil(home)
    with pytest.raises(InputError, match=words) as error:
        load_splits(home)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"label": [0, 1]}, "it needs one named image or img"),
        ({"image": [b"x", b"y"]}, "row 0 of .* is no image with a number as label"),
        ({"image": [b"x", None], "label": [0, 1]}, "row 1 of .* is no image with a number as label"),
        ({"image": [b"x", b"y"], "label": ["../a", "b"]}, "row 0 of .* is no image with a number as label"),
    ],
)
def test_parquet_that_will_not_do_is_refused(tmp_path, table, words):
    home = tmp_path / "pictures"
    home.mkdir()
    for name in ("train", "val"):
        pq.write_table(pa.table(table), home / f"{name}.parquet")
    with pytest.raises(InputError, match=words):
        load_splits(home)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    home = write_parquet(tmp_path / "pictures", 2, 1)
    (tmp_path / "locked").mkdir(mode=0o500)
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "locked" / "cache"))
    with pytest.raises(InputError, match=r"cannot be written .* set OVERSMOOTH_CACHE"):
        load_splits(home)


def test_images_that_do_not_decode_are_named(tmp_path):
    home = write_folders(tmp_path / "pictures", 3, 1)
    file = home / "train" / "n01" / "n01_00002.JPEG"
    transformed = Transformed(load_splits(home).train, testing_transform(PAPER))
    for spoilt in (b"", b"GIF89a" + bytes(40)):
        file.write_bytes(spoilt)
        with pytest.raises(InputError) as error:
            next(batches(transformed, [(0, 1), (0, 2)], 2, 0))
        assert str(error.value) == f"{file} does not decode (no known image format); fetch it again"


def test_workers_are_counted(monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_WORKERS", "5")
    assert worker_count(4) == 5
    for bad in ("-1", "many", "100000"):
        monkeypatch.setenv("OVERSMOOTH_WORKERS", bad)
        with pytest.raises(InputError, match=f"OVERSMOOTH_WORKERS is '{bad}' in the environment"):
            worker_count(1)
    monkeypatch.delenv("OVERSMOOTH_WORKERS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: range(16), raising=False)
    assert [worker_count(world) for world in (1, 4, 32)] == [16, 4, 1]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert worker_count(64) == 2


# Transforms


def words(transform):
    """Of every operation of a pipeline, RandAugment's own among them."""
    return [repr(part) for part in transform.transforms]


def test_the_training_transform_is_timms_for_deits_settings():
    from timm.data import create_transform

    theirs = create_transform(
        224, is_training=True, color_jitter=0.4, auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic",
        re_prob=0.25, re_mode="pixel", re_count=1,
    )  # fmt: skip
    ours = training_transform(PAPER)
    assert words(ours) == words(theirs)
    kinds = [type(part).__name__ for part in ours.transforms]
    assert kinds == [
        "RandomResizedCropAndInterpolation", "RandomHorizontalFlip", "RandAugment", "MaybeToTensor", "Normalize",
        "RandomErasing",
    ]  # fmt: skip
    assert "scale=(0.08, 1.0)" in words(ours)[0]
    assert "interpolation=bicubic" in words(ours)[0]
    assert "p=0.25, mode=pixel" in words(ours)[-1]


@pytest.mark.parametrize("seed", range(6))
def test_images_come_out_as_timms_do(seed):
    from timm.data import create_transform

    theirs = create_transform(
        32,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
    )
    ours = training_transform(replace(PAPER, shape=replace(PAPER.shape, image=32)))
    image, out = Image.open(io.BytesIO(jpeg(seed))), []
    for transform in (ours, theirs):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        out.append(transform(image))
    assert torch.equal(*out)


def test_testing_resizes_to_256_and_takes_224_from_the_middle():
    from torchvision.transforms import InterpolationMode

    resize, crop, _, normalise = testing_transform(PAPER).transforms
    assert (resize.size, resize.interpolation) == (256, InterpolationMode.BICUBIC)
    assert tuple(crop.size) == (224, 224)
    assert normalise.mean.tolist() == pytest.approx([0.485, 0.456, 0.406])
    image = Image.open(io.BytesIO(jpeg(3))).resize((300, 512))
    small = image.resize((256, 437), Image.Resampling.BICUBIC)  # int(256 · 512 / 300) is 436 or 437
    small = small if resize(image).size == small.size else image.resize((256, 436), Image.Resampling.BICUBIC)
    top = round((small.height - 224) / 2)
    expected = np.asarray(small.crop((16, top, 240, top + 224)), np.float64) / 255
    expected = (expected - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(testing_transform(PAPER)(image).permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_posterizing_to_nothing_is_black_as_it_used_to_be():
    image = Image.open(io.BytesIO(jpeg(1))).convert("RGB")
    assert not np.asarray(posterized(image, 0)).any()
    assert np.array_equal(np.asarray(posterized(image, 3)), np.asarray(image) & 0b11100000)
    assert np.array_equal(np.asarray(posterized(image, 8)), np.asarray(image))
