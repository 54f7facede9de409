"""Pictures from folders and parquet: what is read, in which order, and what is refused in one sentence."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.imagenet_example import CLASSES, jpeg, modes, rows, write_folders, write_parquet

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.imagenet.data import load_splits
from oversmooth_papers.tasks.imagenet.data.painted import painted


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))


def check(splits, classes):
    assert splits.classes == classes
    for part, pictures, each in (("train", splits.train, 5), ("val", splits.test, 2)):
        expected = rows(part, each)
        assert pictures.labels.tolist() == [label for _, label in expected]
        for index, (number, _) in enumerate(expected):
            assert pictures.source.encoded(index) == jpeg(number, modes(number))
            assert pictures.image(index).mode == "RGB"


def test_folders_are_classes_in_the_order_of_their_names(tmp_path):
    home = write_folders(tmp_path / "pictures", 5, 2)
    (home / "train" / "n01" / ".hidden.JPEG").write_bytes(b"")
    (home / "train" / "n01" / "notes.txt").write_text("no image")
    (home / "train" / ".cache").mkdir()
    splits = load_splits(home)
    check(splits, CLASSES)
    assert splits.name == "pictures"
    assert splits.train.source.where(7) == str(home / "train" / "n02" / "n02_00102.JPEG")


def test_parquet_is_unpacked_once_and_read_image_by_image(tmp_path, monkeypatch):
    home = write_parquet(tmp_path / "pictures", 5, 2)
    check(load_splits(home), ("0", "1", "2"))
    from oversmooth_papers.tasks.imagenet.data import parquet

    def never(*_given):
        raise AssertionError("it was unpacked before")

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "_unpack", never)
        check(load_splits(home), ("0", "1", "2"))
    for file in (tmp_path / "cache").glob("*.bin"):  # a copy that lacks a byte is made again
        file.write_bytes(file.read_bytes()[:-1])
    check(load_splits(home), ("0", "1", "2"))


def test_imagenet_is_found_by_its_name(tmp_path, monkeypatch):
    write_folders(tmp_path / "data" / "ILSVRC2012", 2, 1)
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    assert load_splits("imagenet").name == "imagenet"
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path / "data" / "ILSVRC2012"))
    with pytest.raises(InputError, match=r"imagenet is not in OVERSMOOTH_DATA \(.*\); give its folder"):
        load_splits("imagenet")


def test_painted_pictures_are_the_same_every_time():
    one, other = painted(8, 4), painted(8, 4)
    assert one.train.labels.tolist() == [0, 1, 2, 3] * 2
    for index in range(8):
        assert one.train.source.encoded(index) == other.train.source.encoded(index)
    assert np.asarray(one.test.image(0)).shape[2] == 3
    assert min(one.test.image(3).size) >= 48


def no_images(home):
    for file in (home / "train").rglob("*.JPEG"):
        file.unlink()
    return r"pictures/train has no images in its folders; looked for \.jpg"


def no_folders(home):
    for folder in (home / "val").iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    return "pictures/val has no folders; its images must lie in one for each class"


def one_class(home):
    for part in ("train", "val"):
        for name in ("n02", "n03"):
            (home / part / name).rename(home / f"{part}-{name}")
    return "pictures has one class, 'n01'; give at least 2"


def another_class(home):
    (home / "val" / "n03").rename(home / "val" / "n04")
    return "pictures/val has the class 'n04', which .*train has not"


def no_val(home):
    (home / "val").rename(home / "elsewhere")
    return "pictures has no folder val beside its other; fetch that too"


def nothing(home):
    (home / "val").rename(home / "elsewhere")
    (home / "train").rename(home / "elsewhere2")
    return "pictures holds no images in a known layout; looked for train/CLASS"


@pytest.mark.parametrize("spoil", [no_images, no_folders, one_class, another_class, no_val, nothing])
def test_folders_that_will_not_do_are_refused(tmp_path, spoil):
    home = write_folders(tmp_path / "pictures", 2, 1)
    words = spoil(home)
    with pytest.raises(InputError, match=words) as error:
        load_splits(home)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"image": [b"x", b"y"]}, "has no column named label"),
        ({"label": [0, 1]}, "it needs one named image or img"),
        ({"image": [b"x", None], "label": [0, 1]}, "row 1 of .* has no image bytes"),
        ({"image": [b"x", b"y"], "label": ["a", "b"]}, "row 0 of .* has the label 'a'; labels must be whole numbers"),
        ({"image": [b"x", b"y"], "label": [0, None]}, "row 1 of .* has the label None"),
        ({"image": [b"x", b"y"], "label": [1, -1]}, "has labels from -1 to 1 and"),
        ({"image": [b"x", b"y"], "label": [0, 10**9]}, "has a label of 1,000,000,000"),
        ({"image": [b"x", b"y"], "label": [0, 0]}, "has one class, '0'"),
    ],
)
def test_parquet_that_will_not_do_is_refused(tmp_path, table, words):
    home = tmp_path / "pictures"
    home.mkdir()
    for name in ("train", "val"):
        pq.write_table(pa.table(table), home / f"{name}.parquet")
    with pytest.raises(InputError, match=words):
        load_splits(home)


def test_one_part_of_parquet_is_not_enough(tmp_path):
    home = write_parquet(tmp_path / "pictures", 2, 1)
    for file in (home / "data").glob("validation*"):
        file.unlink()
    with pytest.raises(InputError, match=r"has no val-\*\.parquet beside its other part"):
        load_splits(home)


def test_images_that_do_not_decode_are_named(tmp_path):
    home = write_folders(tmp_path / "pictures", 3, 1)
    file = home / "train" / "n01" / "n01_00002.JPEG"
    for data, why in ((b"", "no known image format"), (b"GIF89a" + bytes(40), "no known image format")):
        file.write_bytes(data)
        with pytest.raises(InputError) as error:
            load_splits(home).train.image(2)
        assert str(error.value) == f"{file} does not decode ({why}); fetch it again"
    splits = load_splits(home)
    file.unlink()
    with pytest.raises(InputError, match=r"n01_00002\.JPEG cannot be read"):
        splits.train.image(2)


def test_what_is_no_folder_is_refused():
    with pytest.raises(InputError, match="nowhere is no folder and no known data set"):
        load_splits("nowhere")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    home = write_parquet(tmp_path / "pictures", 2, 1)
    (tmp_path / "locked").mkdir(mode=0o500)
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "locked" / "cache"))
    with pytest.raises(InputError, match=r"cannot be written .* set OVERSMOOTH_CACHE"):
        load_splits(home)


def test_a_disk_without_room_is_told(tmp_path, monkeypatch):
    home = write_parquet(tmp_path / "pictures", 2, 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10})())
    with pytest.raises(InputError, match=r"unpacking .* and 10 bytes are free; make room, or set OVERSMOOTH_CACHE"):
        load_splits(home)
