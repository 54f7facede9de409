"""Data are read within memory, whatever lies beside them; the corpus of bad input has what is damaged."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from support.fuzzing import Letters

from oversmooth import InputError
from oversmooth.inputs import arrays, parquet
from oversmooth.inputs.images import image_inputs
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.inputs.text import text_inputs

STEPS = Preprocessing(size=(16, 24), note="")


def images(file, **settings):
    return list(image_inputs(STEPS, file, **(dict(count=2, batch=2) | settings)))


def texts(file, **settings):
    return list(text_inputs(Letters(), file, **(dict(count=2, length=8, batch=2) | settings)))


def refused(call, *arguments, words="", **settings):
    with pytest.raises(InputError, match=words) as said:
        call(*arguments, **settings)
    sentence = str(said.value)
    assert len(sentence) < 300 + len(str(arguments[0]))
    assert "()" not in sentence
    return sentence


def test_only_what_was_chosen_is_kept(tmp_path):
    numbers = np.arange(50 * 8 * 8 * 3, dtype=np.uint32).reshape(50, 8, 8, 3) % 251
    for stored in (numbers, np.asfortranarray(numbers), numbers.astype(">f8"), numbers.astype(np.int16)):
        np.savez_compressed(tmp_path / "a.npz", images=stored, labels=np.arange(50))
        found = arrays.pictures(tmp_path / "a.npz", 3)
        assert (found.total, found.indices, found.labels) == (50, [8, 25, 41], [8, 25, 41])
        assert np.array_equal(found.pixels, numbers[[8, 25, 41]])


def test_more_than_memory_holds_is_refused_with_the_number(tmp_path, monkeypatch):
    monkeypatch.setattr("oversmooth.safety.machine.free_memory", lambda: 10**6)
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((10, 256, 256, 3), np.uint8))
    refused(images, tmp_path / "a.npz", words=r"images\.npy in .* needs .* of memory, but 1 MB are free; give fewer")


def test_what_lies_beside_the_pictures_may_be_anything(tmp_path):
    np.savez(tmp_path / "a.npz", note=np.array([{}], object), x=np.zeros((3, 8, 8, 3), np.uint8))
    assert len(images(tmp_path / "a.npz")) == 1


def test_row_groups_beyond_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("oversmooth.safety.machine.free_memory", lambda: 1000)
    large = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [str(i) * 100 for i in range(100)]}), large)
    refused(texts, large, words=r"a row group of .* needs .* of memory, but 1 kB are free; write it in smaller")
    assert parquet.ROWS_AT_ONCE < 100


@pytest.mark.parametrize("kind", [SyntaxError, ValueError, MemoryError])
def test_a_reason_is_never_empty(kind, tmp_path, monkeypatch):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")

    def silent(*_):
        raise kind

    monkeypatch.setattr("oversmooth.inputs.images._load", silent)
    refused(images, tmp_path / "a.png", words=rf"a\.png does not decode \({kind.__name__}\) and was skipped")


def test_every_format_that_is_listed_is_read(tmp_path):
    from oversmooth.inputs.sources import IMAGES

    Image.init()
    for ending in IMAGES:
        if Image.EXTENSION.get(ending) in Image.SAVE:
            Image.new("L" if ending == ".pgm" else "RGB", (8, 8)).save(tmp_path / f"a{ending}")
            assert len(images(tmp_path / f"a{ending}")) == 1


LONG = "Some words follow each other here. " * 2000


@pytest.mark.parametrize("text", ["short words", LONG], ids=["short", "long"])
def test_a_byte_order_mark_is_no_letter(text, tmp_path):
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt").write_bytes(text.encode("utf-8-sig"))
    plain, marked = texts(tmp_path / "a.txt"), texts(tmp_path / "b.txt")
    assert torch.equal(plain[0].inputs["input_ids"][0], marked[0].inputs["input_ids"][0])


def test_a_tokenizer_that_fails_is_named(tmp_path):
    class Broken(Letters):
        def __call__(self, *_, **__):
            raise Exception("WordLevel error: Missing [UNK] token from the vocabulary")

    (tmp_path / "a.txt").write_text("some words")
    with pytest.raises(InputError, match=r"the tokenizer fails on a\.txt \(WordLevel error: "):
        text_inputs(Broken(), tmp_path / "a.txt", count=2, length=8, batch=2)


def test_a_text_larger_than_memory_is_read_in_part_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("oversmooth.safety.machine.free_memory", lambda: 10**5)
    (tmp_path / "a.txt").write_text(LONG)
    assert len(texts(tmp_path / "a.txt")) == 1
    refused(texts, tmp_path / "a.txt", words="reading all of .* needs .* of memory, but 100 kB are free", lines=True)
