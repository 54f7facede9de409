"""Labelled images from parquet, arrays and folders; what has no labels is told."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.commands import make_gpt
from support.pictures import encoded
from support.tuning_example import write_parquet

from oversmooth.models import load
from oversmooth.safety.errors import InputError
from oversmooth_papers.tuning import read_labelled


@pytest.fixture
def loaded(vit):
    return load(str(vit))


@pytest.mark.parametrize(("column", "label"), [("image", "label"), ("img", "fine_label")])
def test_parquet(loaded, tmp_path, column, label):
    path = write_parquet(tmp_path / "data.parquet", label=label, column=column)
    data = read_labelled(loaded, path)
    assert data.labels.tolist() == [0, 1] * 6
    assert data.images.shape == (12, 3, 16, 16)
    assert data.argument == "pixel_values"
    # One half is darker than the other, as its labels say.
    assert data.images[data.labels == 0].mean() < data.images[data.labels == 1].mean() - 0.5
    assert len(read_labelled(loaded, path, count=5)) == 5


def folder_of_classes(folder, names, each=2):
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            level = np.full((16, 16, 3), 40 * place + i, np.uint8)
            (folder / name / f"{i}.png").write_bytes(encoded(level))
    return folder


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("LABEL_1", "LABEL_0"), [0, 0, 1, 1]),  # by the model's own names, in the order of files
        (("1", "0"), [0, 0, 1, 1]),
        (("01", "00"), [0, 0, 1, 1]),
        (("ant", "bee"), [0, 0, 1, 1]),  # as many as the model has, in the order of the alphabet
    ],
)
def test_folders_are_classes(loaded, tmp_path, names, labels):
    data = read_labelled(loaded, folder_of_classes(tmp_path / "data", names))
    assert data.labels.tolist() == labels


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda p: write_parquet(p / "x.parquet", label=None),
            "x.parquet has no labels, .*; give parquet with",
        ),
        (lambda p: write_parquet(p / "x.parquet", classes=3), "has the label 2, and .* knows the classes 0 to 1"),
        (lambda p: folder_of_classes(p / "x", ("a", "b", "c")), "has 3 folders that are no classes of"),
        (lambda p: folder_of_classes(p / "x", ("0", "5")), "has the label 5"),
        (lambda p: (Image.new("RGB", (16, 16)).save(p / "a.png"), p)[1], "has no labels"),
        (lambda p: (Image.new("RGB", (16, 16)).save(p / "a.png"), p / "a.png")[1], "a.png has no labels"),
        (lambda p: p / "nowhere", "there is no data at"),
    ],
)
def test_what_has_no_labels_is_refused(loaded, tmp_path, make, sentence):
    with pytest.raises(InputError, match=sentence):
        read_labelled(loaded, make(tmp_path))


def test_some_without_labels(loaded, tmp_path):
    import pyarrow
    import pyarrow.parquet

    pixels = [{"bytes": encoded(np.zeros((16, 16, 3), np.uint8))}] * 64
    table = pyarrow.table({"image": pixels, "label": [0] * 40 + [None] * 24})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match="has no labels, or not for all images"):
        read_labelled(loaded, tmp_path / "x.parquet")


def test_a_language_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="takes no images; give an image classifier"):
        read_labelled(load(str(make_gpt(tmp_path / "gpt"))), tmp_path)


def test_npz(loaded, tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 16, 16, 3), np.uint8), labels=np.array([1, 0, 1]))
    data = read_labelled(loaded, tmp_path / "x.npz")
    assert torch.equal(data.labels, torch.tensor([1, 0, 1]))
