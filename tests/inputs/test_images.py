"""Pictures from every source: which are taken, what comes out, and what is said of those that fail."""

import builtins
import importlib
import io

import numpy as np
import pytest
import torch
from PIL import Image
from support.places import shared

from oversmooth.inputs.images import image_inputs
from oversmooth.inputs.pictures import picture
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.safety.errors import InputError

STEPS = Preprocessing((16, 24))


def test_pictures_are_made_where_no_data_is_given():
    inputs = image_inputs(STEPS, None, count=5, batch=2)
    batches = list(inputs)
    assert (inputs.what, inputs.count, inputs.skipped) == ("5 pictures painted by oversmooth", 5, [])
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert batches[1].names == ("picture 2", "picture 3")
    assert torch.equal(batches[1].inputs["pixel_values"][0], STEPS.tensor(picture(2, (16, 24))))
    assert batches[0].special is None
    assert batches[0].labels is None


def test_a_folder_is_read_in_order_and_again(folder):
    inputs = image_inputs(STEPS, folder, count=99, batch=4, argument="x")
    for _ in range(2):
        batches = list(inputs)
        assert [name for batch in batches for name in batch.names] == [
            "a.png", "b.jpg", "c.webp", "d.PNG", "more/e.png", "more/f.bmp"
        ]  # fmt: skip
        assert batches[0].inputs["x"].shape == (4, 3, 16, 24)
    assert inputs.what == f"6 images of {folder}"


def test_fewer_than_there_are_come_evenly_spread(folder):
    inputs = image_inputs(STEPS, folder, count=2, batch=4)
    assert inputs.what == f"2 of the 6 images of {folder}, evenly spread"
    assert [batch.names for batch in inputs] == [("b.jpg", "more/e.png")]
    assert [batch.names for batch in image_inputs(STEPS, folder / "a.png", count=3, batch=2)] == [("a.png",)]


def test_parquet_with_structs_and_labels(encoded, table):
    column = [{"bytes": data, "path": None} for data in encoded]
    file = table("some.parquet", image=column, label=[3, 1, 4, 1, 5, 9])
    inputs = image_inputs(STEPS, file, count=3, batch=2)
    batches = list(inputs)
    assert [batch.labels.tolist() for batch in batches] == [[1, 1], [9]]
    assert batches[0].names == ("row 1 of some.parquet", "row 3 of some.parquet")
    with Image.open(io.BytesIO(encoded[1])) as image:
        assert torch.equal(batches[0].inputs["pixel_values"][0], STEPS(image))


def test_a_folder_of_parquet_files_counts_as_one(encoded, tmp_path, table):
    home = tmp_path / "set"
    table("set/b.parquet", img=encoded[3:], fine_label=[3, 4, 5])
    table("set/a.parquet", img=encoded[:3], fine_label=[0, 1, 2])
    (home / "labels.txt").write_text("cat\ndog\n")
    inputs = image_inputs(STEPS, home, count=9, batch=9)
    (batch,) = inputs
    assert batch.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.names[3] == "row 0 of b.parquet"
    assert [batch.labels.tolist() for batch in image_inputs(STEPS, home, count=2, batch=9)] == [[1, 4]]


@pytest.mark.parametrize("form", ["NHWC", "NCHW", "0 to 1", "float 0 to 255", "another name"])
def test_npz_in_every_form(form, pixels, tmp_path):
    images = {
        "NHWC": pixels,
        "NCHW": pixels.transpose(0, 3, 1, 2),
        "0 to 1": pixels.astype(np.float32) / 255,
        "float 0 to 255": pixels.astype(np.float64),
        "another name": pixels,
    }[form]
    file = tmp_path / "some.npz"
    if form == "another name":
        np.savez(file, note=np.zeros(3), x=images)
    else:
        np.savez(file, images=images, labels=np.arange(5))
    (batch,) = image_inputs(STEPS, file, count=2, batch=2)
    assert batch.names == ("image 1 of some.npz", "image 3 of some.npz")
    assert torch.equal(batch.inputs["pixel_values"], torch.stack([STEPS.tensor(pixels[i]) for i in (1, 3)]))
    assert (batch.labels is None) == (form == "another name")
    np.savez(file, images=pixels[..., :1])
    (grey,) = image_inputs(STEPS, file, count=1, batch=1)
    assert torch.equal(grey.inputs["pixel_values"][0, 0], grey.inputs["pixel_values"][0, 2])


def test_what_does_not_decode_is_named_left_out_and_counted(folder):
    (folder / "b.jpg").write_bytes((folder / "b.jpg").read_bytes()[:200])
    (folder / "c.webp").write_text("no picture at all")
    inputs = image_inputs(STEPS, folder, count=99, batch=3)
    for _ in range(2):
        assert [batch.names for batch in inputs] == [("a.png", "d.PNG", "more/e.png"), ("more/f.bmp",)]
        assert inputs.count == 4
        assert len(inputs.skipped) == 2
        assert inputs.skipped[0].startswith("b.jpg does not decode (")


def test_a_row_without_bytes_is_left_out(encoded, table):
    file = table("x.parquet", image=[{"bytes": None, "path": "/etc/passwd"}, {"bytes": encoded[0], "path": None}])
    inputs = image_inputs(STEPS, file, count=2, batch=2)
    assert [batch.names for batch in inputs] == [("row 1 of x.parquet",)]
    assert inputs.skipped == ["row 0 of x.parquet does not decode (the row has no image bytes) and was skipped"]


def refused(source, words, **settings):
    with pytest.raises(InputError) as caught:
        list(image_inputs(STEPS, source, **{"count": 4, "batch": 2} | settings))
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("library", "package", "name"), [("PIL", "pillow", "a.png"), ("pyarrow", "pyarrow", "a.parquet")]
)
def test_a_missing_library_is_asked_for_by_name(library, package, name, folder, monkeypatch):
    (folder / name).touch()

    def missing(module):
        if module.split(".")[0] == library:
            raise ModuleNotFoundError(module)
        return builtins.__import__(module)

    monkeypatch.setattr(importlib, "import_module", missing)
    refused(folder / name, f"needs {package}, which is not installed; install oversmooth[models]")


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "total", "size"), [("imagenet-val-1k", "1,000", 224), ("cifar-100", "60,000", 32)])
def test_parquet_of_data_sets(name, total, size):
    source = shared("data", name)
    inputs = image_inputs(Preprocessing((size, size)), source, count=8, batch=8)
    (batch,) = inputs
    assert inputs.what == f"8 of the {total} images of {source}, evenly spread"
    assert batch.inputs["pixel_values"].shape == (8, 3, size, size)
    assert len(set(batch.labels.tolist())) > 4
    assert inputs.skipped == []
