"""Data that was made to do harm, or broke on its way: refused in a sentence, without waiting, and within memory."""

import io
import os
import zipfile

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
PLAIN = dict(images=np.zeros((3, 8, 8, 3), np.uint8))


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


# What is no file


@pytest.mark.parametrize(("suffix", "read"), [(".npz", images), (".png", images), (".parquet", texts), (".txt", texts)])
def test_pipes_and_devices_are_not_waited_for(suffix, read, tmp_path):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    refused(read, tmp_path / f"pipe{suffix}", words="it is a pipe; give")
    (tmp_path / f"zeros{suffix}").symlink_to("/dev/zero")
    refused(read, tmp_path / f"zeros{suffix}", words="it is a device; give")


# npz


def packed(path, content=None, **arrays):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for key, array in arrays.items():
            data = io.BytesIO()
            np.save(data, array)
            file.writestr(f"{key}.npy", data.getvalue())
        if content is not None:
            file.writestr("images.npy", content)
    return path


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00\xff\xff{", b"no array at all"])
def test_an_array_that_is_not_what_it_claims(content, tmp_path):
    refused(images, packed(tmp_path / "a.npz", content=content), words="is not a readable .npz file")


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.array([[[[{}]]]], object))
    refused(images, tmp_path / "a.npz", words="is not a readable .npz file")


def test_packed_bytes_that_are_damaged(tmp_path):
    whole = bytearray(
        packed(tmp_path / "a.npz", images=np.arange(768, dtype=np.uint8).reshape(4, 8, 8, 3)).read_bytes()
    )
    whole[60:120] = bytes(60)
    (tmp_path / "a.npz").write_bytes(whole)
    refused(images, tmp_path / "a.npz", words="is not a readable .npz file")


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("oversmooth.safety.files._ONLY_IF_LARGE", 10**6)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    file = packed(tmp_path / "bomb.npz", images=np.zeros((20, 256, 256, 3), np.uint8))
    refused(
        images, file, words=r"images\.npy in .*bomb\.npz has [\d,]+ bytes and unpacks to 3,932,[\d,]+, [\d,]+ times"
    )


def test_only_what_was_chosen_is_kept(tmp_path):
    numbers = np.arange(50 * 8 * 8 * 3, dtype=np.uint32).reshape(50, 8, 8, 3) % 251
    for stored in (numbers, np.asfortranarray(numbers), numbers.astype(">f8"), numbers.astype(np.int16)):
        packed(tmp_path / "a.npz", images=stored, labels=np.arange(50))
        found = arrays.pictures(tmp_path / "a.npz", 3)
        assert (found.total, found.indices, found.labels) == (50, [8, 25, 41], [8, 25, 41])
        assert np.array_equal(found.pixels, numbers[[8, 25, 41]])


def test_more_than_memory_holds_is_refused_with_the_number(tmp_path, monkeypatch):
    monkeypatch.setattr("oversmooth.safety.machine.free_memory", lambda: 10**6)
    packed(tmp_path / "a.npz", images=np.zeros((10, 256, 256, 3), np.uint8))
    refused(images, tmp_path / "a.npz", words=r"images\.npy in .* needs .* of memory, but 1 MB are free; give fewer")


def test_what_lies_beside_the_pictures_may_be_anything(tmp_path):
    np.savez(tmp_path / "a.npz", note=np.array([{}], object), x=np.zeros((3, 8, 8, 3), np.uint8))
    assert len(images(tmp_path / "a.npz")) == 1


def test_ids_beyond_all_tokens(tmp_path):
    packed(tmp_path / "a.npz", input_ids=np.array([[1, 2], [3, 2**64 - 1]], np.uint64))
    refused(texts, tmp_path / "a.npz", words="input_ids ranges from 1 to 18446744073709551615")


# parquet


def table(path, *columns):
    schema = pyarrow.schema([(name, value.type) for name, value in columns])
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([value for _, value in columns], schema=schema), path)
    return path


@pytest.fixture
def png():
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "png")
    return data.getvalue()


def test_two_columns_of_one_name(png, tmp_path):
    image, text = pyarrow.array([png]), pyarrow.array(["some words"])
    for read, column in ((images, ("image", image)), (texts, ("text", text))):
        refused(read, table(tmp_path / "a.parquet", column, column), words=r"a\.parquet is not a readable parquet file")


def test_a_thousand_columns_are_not_listed(tmp_path):
    wide = table(tmp_path / "a.parquet", *((f"column {i}", pyarrow.array([1])) for i in range(1000)))
    refused(images, wide, words="column 7 and so on; name one of them image")


@pytest.mark.parametrize("column", [[1.5, None], [b"ab", b"cd"], [["a"], ["b"]], [{"bytes": 5}, None]], ids=str)
def test_columns_that_hold_neither_text_nor_pictures(column, tmp_path):
    rows = table(tmp_path / "a.parquet", ("text", pyarrow.array(column)), ("image", pyarrow.array(column)))
    for lines in (False, True):
        refused(texts, rows, words="contains no text", lines=lines)
    refused(images, rows, words="none of the 2 images")


def test_row_groups_beyond_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("oversmooth.safety.machine.free_memory", lambda: 1000)
    large = table(tmp_path / "a.parquet", ("text", pyarrow.array([str(i) * 100 for i in range(100)])))
    refused(
        texts, large, words=r"a row group of .* needs .* of memory, but 1 kB are free; write it in smaller row groups"
    )
    assert parquet.ROWS_AT_ONCE < 100


# pictures


@pytest.mark.parametrize("kind", [SyntaxError, ValueError, MemoryError])
def test_a_reason_is_never_empty(kind, tmp_path, monkeypatch):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")

    def silent(*_):
        raise kind

    monkeypatch.setattr("oversmooth.inputs.images._load", silent)
    refused(images, tmp_path / "a.png", words=rf"a\.png does not decode \({kind.__name__}\) and was skipped")


def test_postscript_is_not_run_whatever_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("Ghostscript was started"))
    refused(images, tmp_path / "a.png", words=r"none of the 1 images .* decodes")


def test_every_format_that_is_listed_is_read(tmp_path):
    from oversmooth.inputs.sources import IMAGES

    Image.init()
    for ending in IMAGES:
        if Image.EXTENSION.get(ending) in Image.SAVE:
            Image.new("L" if ending == ".pgm" else "RGB", (8, 8)).save(tmp_path / f"a{ending}")
            assert len(images(tmp_path / f"a{ending}")) == 1


# text


LONG = "Some words follow each other here. " * 2000


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_text_in_two_bytes_a_letter_is_no_text(encoding, tmp_path):
    (tmp_path / "a.txt").write_bytes(LONG.encode(encoding))
    refused(texts, tmp_path / "a.txt", words=r"contains zero bytes, as UTF-16 does|is not UTF-8 text")


@pytest.mark.parametrize("lines", [False, True])
def test_zero_bytes_anywhere_in_what_is_read(lines, tmp_path):
    (tmp_path / "a.txt").write_bytes(LONG.replace("each", "e\0ch").encode())
    refused(texts, tmp_path / "a.txt", words="contains zero bytes", lines=lines)
    rows = table(tmp_path / "a.parquet", ("text", pyarrow.array(["some", "wo\0rds"])))
    refused(texts, rows, words="row 1 of a.parquet is not text: it contains zero bytes", lines=lines)


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
