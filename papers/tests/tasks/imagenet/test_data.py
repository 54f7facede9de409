"""Pictures from folders and parquet, what is refused in one sentence, and timm's transforms."""

# ruff: noqa: NPY002 (timm draws from the global state of numpy)

import io
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
from oversmooth_papers.tasks.imagenet.data import load_splits, painted, posterized, transform_of, worker_count
from oversmooth_papers.tasks.imagenet.recipe import PAPER

pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")


@pytest.fixture(autouse=True)
def timm():
    return timm_models.timm()


@pytest.mark.parametrize(("write", "classes"), [(write_folders, CLASSES), (write_parquet, ("0", "1", "2"))])
def test_images_and_classes_come_in_the_order_of_their_names_or_rows(tmp_path, write, classes):
    home = write(tmp_path / "pictures", 5, 2)
    (home / "notes.txt").write_text("no image")
    splits = load_splits(home)
    assert (tuple(splits.classes), splits.name) == (classes, "pictures")
    for part, samples, each in (("train", splits.train, 5), ("val", splits.test, 2)):
        found = [samples[place] for place in range(len(samples))]
        read = [(s if isinstance(s, bytes) else Path(s).read_bytes(), label) for s, label in found]
        assert read == [(jpeg(number, modes(number)), label) for number, label in rows(part, each)]


def test_imagenet_is_found_by_its_name(tmp_path, monkeypatch):
    write_folders(tmp_path / "data" / "ILSVRC2012", 2, 1)
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    assert load_splits("imagenet").name == "imagenet"
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path / "data" / "ILSVRC2012"))
    with pytest.raises(InputError, match=r"imagenet is not in OVERSMOOTH_DATA \(.*\); give painted, or a folder"):
        load_splits("imagenet")
    with pytest.raises(InputError, match="nowhere is no folder and no known data set; give painted, or a folder"):
        load_splits("nowhere")


def test_painted_pictures_are_the_same_every_time():
    one, other = painted(8, 4), painted(8, 4)
    assert one.train == other.train
    assert [label for _, label in one.train] == [0, 1, 2, 3] * 2
    assert min(Image.open(io.BytesIO(one.test[3][0])).size) >= 48


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda home: [file.unlink() for file in (home / "train").rglob("*.JPEG")], "train has no images; give"),
        (lambda home: (home / "val" / "n03").rename(home / "val" / "n04"), "no images of 'n04' to train on"),
        (lambda home: (home / "val").rename(home / "elsewhere"), "validation has no images; give"),
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
        ({"label": [0, 1]}, "name one of them image or img"),
        ({"image": [b"x", b"y"]}, "is not a readable parquet file"),
        ({"image": [b"x", b"y"], "label": ["../a", "b"]}, "has the label '../a'; give whole numbers"),
        ({"image": [b"x", b"y"], "label": [0, -1]}, "has the label -1; give whole numbers"),
    ],
)
def test_parquet_that_will_not_do_is_refused(tmp_path, table, words):
    for name in ("train", "val"):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=words):
        load_splits(tmp_path)


def test_workers_are_counted(monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_WORKERS", "5")
    assert worker_count() == 5
    monkeypatch.setenv("OVERSMOOTH_WORKERS", "many")
    with pytest.raises(InputError, match="OVERSMOOTH_WORKERS is 'many' in the environment"):
        worker_count()
    monkeypatch.delenv("OVERSMOOTH_WORKERS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: range(16), raising=False)
    for processes, workers in (("1", 16), ("4", 4), ("32", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert worker_count() == workers


@pytest.mark.parametrize("seed", range(6))
def test_the_training_transform_is_timms_for_deits_settings(seed):
    from timm.data import create_transform

    settings = dict(auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic", re_prob=0.25, re_mode="pixel")
    theirs = create_transform(32, is_training=True, color_jitter=0.4, **settings)
    ours = transform_of(replace(PAPER, shape=replace(PAPER.shape, image=32)).augmentation())
    assert [repr(part) for part in ours.transforms] == [repr(part) for part in theirs.transforms]
    image, out = Image.open(io.BytesIO(jpeg(seed))), []
    for transform in (ours, theirs):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        out.append(transform(image))
    assert torch.equal(*out)


def test_testing_resizes_to_256_and_takes_224_from_the_middle():
    image = Image.open(io.BytesIO(jpeg(3))).resize((300, 375))
    small = image.resize((256, 320), Image.Resampling.BICUBIC)
    expected = np.asarray(small.crop((16, 48, 240, 272)), np.float64) / 255
    expected = (expected - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    transformed = transform_of(PAPER.preprocessing())(image)
    np.testing.assert_allclose(transformed.permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_posterizing_to_nothing_is_black():
    image = Image.open(io.BytesIO(jpeg(1))).convert("RGB")
    assert not np.asarray(posterized(image, 0)).any()
    assert np.array_equal(np.asarray(posterized(image, 3)), np.asarray(image) & 0b11100000)
