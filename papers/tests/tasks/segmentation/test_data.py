"""Images with masks: CamVid's parquet, ADE20K's folders, shapes; and what will not do."""

import numpy as np
import pytest
import torch
from support.nightly import nightly
from support.pictures import encoded
from support.places import shared

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.segmentation.data import IGNORE, load_splits, shapes

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
RANDOM = np.random.default_rng(0)


def write(file, images, masks):
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        name: [{"bytes": encoded(pixels), "path": None} for pixels in arrays]
        for name, arrays in (("image", images), ("mask", masks))
    }
    parquet.write_table(arrow.table({**columns, "name": [str(i) for i in range(len(images))]}), file)


def camvid(home, highest=12):
    made = {}
    for split, count in (("train", 3), ("val", 2), ("test", 2)):
        images = RANDOM.integers(0, 256, (count, 6, 8, 3), np.uint8)
        masks = RANDOM.integers(0, highest, (count, 6, 8), np.uint8)
        masks[0, 0, 0] = highest - 1
        write(home / f"{split}.parquet", images, masks)
        made[split] = images, masks
    return made


def test_camvid_is_read_and_its_void_ignored(tmp_path, monkeypatch):
    made = camvid(tmp_path / "data" / "camvid")
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    splits = load_splits("camvid")
    assert (splits.name, len(splits.classes), splits.classes[0]) == ("camvid", 11, "Sky")
    assert splits.one_size
    for split, (images, masks) in made.items():
        part = getattr(splits, split)
        assert np.array_equal(part.images.numpy(), images.transpose(0, 3, 1, 2))
        assert np.array_equal(part.masks.numpy(), np.where(masks == 11, IGNORE, masks))
    assert load_splits(tmp_path / "data" / "camvid").name == "camvid"


def test_a_folder_of_parquet_has_as_many_classes_as_labels(tmp_path):
    made = camvid(tmp_path / "mine", highest=4)
    splits = load_splits(tmp_path / "mine")
    assert (splits.name, splits.classes) == ("mine", ["0", "1", "2", "3"])
    assert np.array_equal(splits.val.masks.numpy(), made["val"][1])


def ade(home, sizes=((6, 8), (10, 7))):
    made = {}
    for split in ("training", "validation"):
        for number, (height, width) in enumerate(sizes):
            image = RANDOM.integers(0, 256, (height, width, 3), np.uint8)
            mask = RANDOM.integers(0, 151, (height, width), np.uint8)
            mask[0, :2] = 0, 150
            for kind, pixels in (("images", image), ("annotations", mask)):
                file = home / kind / split / f"ADE_{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(encoded(pixels))
            made[split, number] = image, mask
    return made


def test_ade20k_is_read_with_labels_shifted_and_0_ignored(tmp_path):
    made = ade(tmp_path / "ADEChallengeData2016")
    splits = load_splits(tmp_path / "ADEChallengeData2016")
    assert (splits.name, len(splits.classes)) == ("ade20k", 150)
    assert splits.val is splits.test
    assert not splits.one_size
    assert splits.train.images.shape == (2, 3, 512, 683)  # to one size, which is said in its docstring
    assert splits.train.masks.shape == (2, 512, 683)
    for number in range(2):
        image, mask = made["validation", number]
        assert np.array_equal(splits.val.images[number].numpy(), image.transpose(2, 0, 1))
        expected = np.where(mask == 0, IGNORE, mask.astype(int) - 1)
        assert np.array_equal(splits.val.masks[number].numpy(), expected)
        _, trained = made["training", number]
        trained = np.where(trained == 0, IGNORE, trained.astype(int) - 1)
        rows = ((np.arange(512) + 0.5) * trained.shape[0] / 512).astype(int)
        columns = ((np.arange(683) + 0.5) * trained.shape[1] / 683).astype(int)
        assert np.array_equal(splits.train.masks[number].numpy(), trained[rows][:, columns])


def test_shapes_are_the_same_every_time_and_have_every_class():
    one, other = shapes(24, 4, 4), shapes(24, 4, 4)
    assert torch.equal(one.train.images, other.train.images)
    assert torch.equal(one.test.masks, other.test.masks)
    assert one.train.images.shape == (24, 3, 64, 64)
    counts = torch.bincount(one.train.masks.flatten(), minlength=256)
    assert bool((counts[:5] > 0).all())
    assert 0 < int(counts[IGNORE]) < 0.2 * int(counts.sum())
    assert int(counts[:5].sum() + counts[IGNORE]) == 24 * 64 * 64
    assert not torch.equal(one.train.images[:4], one.val.images)
    assert torch.equal(shapes(2, 1, 1).train.images, one.train.images[:2])
    assert load_splits("shapes").name == "shapes"


def test_what_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    camvid(tmp_path / "half")
    (tmp_path / "half" / "val.parquet").unlink()
    ade(tmp_path / "ade")
    (tmp_path / "ade" / "annotations" / "validation" / "ADE_1.png").unlink()
    for what, said in (
        ("nothing", "no folder and no known data set; give camvid"),
        ("camvid", "camvid is not in OVERSMOOTH_DATA, which is not set"),
        (tmp_path, r"no train\.parquet; images with masks are train\.parquet"),
        (tmp_path / "half", r"no val\.parquet"),
        (tmp_path / "ade", r"the mask of .*ADE_1\.png does not decode"),
    ):
        with pytest.raises(InputError, match=said):
            load_splits(what)


GREY = encoded(np.zeros((6, 8), np.uint8))


@pytest.mark.parametrize(
    ("images", "masks", "said"),
    [
        ([b"no image"], [GREY], r"the image of row 0 of .* does not decode"),
        ([GREY], [b"no mask"], r"the mask of row 0 of .* does not decode"),
        ([GREY], [None], r"the mask of row 0 of .* does not decode \(no known image format"),
        ([GREY], [encoded(np.zeros((5, 8), np.uint8))], "its mask 8 by 5; give masks of their images' size"),
        ([GREY], [encoded(np.zeros((6, 8, 3), np.uint8))], "has pixels of kind RGB"),
        ([GREY, encoded(np.zeros((6, 9), np.uint8))] * 2, None, "camvid has images of several sizes to train on"),
    ],
)
def test_broken_pictures_are_named(tmp_path, images, masks, said):
    camvid(tmp_path / "camvid")
    columns = {"image": images, "mask": masks or images}
    cells = {name: [{"bytes": cell, "path": "x"} for cell in column] for name, column in columns.items()}
    parquet.write_table(arrow.table(cells), tmp_path / "camvid" / "train.parquet")
    with pytest.raises(InputError, match=said):
        load_splits(tmp_path / "camvid")


@nightly
@pytest.mark.realdata
def test_camvid_is_whole():
    splits = load_splits(shared("data", "camvid"))
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [367, 101, 233]
    assert splits.train.images.shape == (367, 3, 360, 480)
    counts = torch.bincount(splits.test.masks.flatten(), minlength=256)
    assert bool((counts[:11] > 0).all())
    assert int(counts[11:IGNORE].sum()) == 0
    assert 0 < int(counts[IGNORE]) < 0.1 * int(counts.sum())
