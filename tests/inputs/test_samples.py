"""Photographs of installed libraries: found as files, by name alone, without the library or the network."""

import socket
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from oversmooth.inputs.images import image_inputs
from oversmooth.inputs.pictures import picture
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.inputs.sources import check_readable, resolve
from oversmooth.safety.errors import InputError

STEPS = Preprocessing((16, 24))


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A scikit-image with two of its photographs, a picture that is none, and nothing that can be imported."""
    place = tmp_path / "site" / "skimage"
    (place / "data").mkdir(parents=True)
    (place / "__init__.py").write_text("raise RuntimeError('imported')\n")
    notes = tmp_path / "site" / "scikit_image-9.8.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: scikit-image\nVersion: 9.8\n")
    for index, name in enumerate(("coffee.png", "astronaut.png", "logo.png")):
        Image.fromarray(picture(index, (20, 30))).save(place / "data" / name)
    monkeypatch.syspath_prepend(str(place.parent))
    monkeypatch.setattr(socket, "socket", None)
    return place


def test_they_are_named_with_the_librarys_version(library):
    inputs = image_inputs(STEPS, "sample:skimage", count=64, batch=8)
    (batch,) = inputs
    assert inputs.what == "2 photographs that come with scikit-image 9.8: astronaut, coffee"
    assert batch.names == ("astronaut.png", "coffee.png")
    with Image.open(library / "data" / "coffee.png") as coffee:
        assert torch.equal(batch.inputs["pixel_values"][1], STEPS(coffee))
    one = image_inputs(STEPS, "sample:skimage", count=1, batch=8)
    assert one.what == "1 photographs that come with scikit-image 9.8: coffee"
    assert [batch.names for batch in one] == [("coffee.png",)]
    assert "skimage" not in sys.modules


@pytest.mark.usefixtures("library")
def test_without_the_name_pictures_are_painted():
    assert image_inputs(STEPS, None, count=2, batch=2).what == "2 pictures painted by oversmooth"


@pytest.mark.usefixtures("library")
def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample:skimage").mkdir()
    Image.fromarray(picture(0, 16)).save(tmp_path / "sample:skimage" / "mine.png")
    (batch,) = image_inputs(STEPS, "sample:skimage", count=2, batch=2)
    assert batch.names == ("mine.png",)


def test_what_will_not_do_is_named(library, monkeypatch):
    for read in (check_readable, lambda path: resolve(path, "vision")):
        with pytest.raises(InputError, match="unknown samples sample:mine; choose sample:skimage or sample:sklearn"):
            read(Path("sample:mine"))
    with pytest.raises(InputError, match="sample:skimage contains images, which a language model does not take"):
        resolve(Path("sample:skimage"), "text")
    for file in (library / "data").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"the installed scikit-image 9\.8 has no photographs; rein"):
        image_inputs(STEPS, "sample:skimage", count=1, batch=1)
    monkeypatch.setattr("oversmooth.inputs.samples.find_spec", lambda _: None)
    with pytest.raises(InputError, match="needs scikit-learn, which is not installed; install scikit-learn"):
        check_readable(Path("sample:sklearn"))
