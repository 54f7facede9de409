"""Data that is damaged, swollen or not what it says: arrays, tables, pictures, text, and images to train on."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.case import Case, Place, prepared
from adversary.inputs.kit import CIFAR, SMALL_RUN
from support.pictures import encoded

BOMB = 3 * 1024**3
"""Bytes that a bomb unpacks to: over what a case may take."""
Line = tuple[str, ...]
CHUNK = 64 * 1024**2


def deflated_zeros(before: bytes, size: int) -> bytes:
    """A raw deflate stream of some bytes and many zeros: packed once, repeated."""

    def packed(content: bytes) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH)

    return packed(before) + packed(bytes(CHUNK)) * (size // CHUNK) + zlib.compressobj(9, zlib.DEFLATED, -15).flush()


def zip_with(members: dict[str, tuple[bytes, int, int, int]]) -> bytes:
    """A zip by hand of (packed bytes, checksum, unpacked size, method): one that any tool would refuse to write."""
    held, listing = io.BytesIO(), io.BytesIO()
    for name, (packed, check, size, method) in members.items():
        at, title = held.tell(), name.encode()
        entry = struct.pack("<HHHHHIIIHH", 45, 0, method, 0, 0, check, len(packed), size & 0xFFFFFFFF, len(title), 0)
        held.write(b"PK\x03\x04" + entry + title + packed)
        listing.write(b"PK\x01\x02" + struct.pack("<H", 45) + entry + struct.pack("<HHHII", 0, 0, 0, 0, at) + title)
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), listing.tell(), held.tell(), 0)
    return held.getvalue() + listing.getvalue() + b"PK\x05\x06" + end


def npy(shape: object, dtype: str = "'|u1'", version: bytes = b"\x01\x00", data: bytes = b"") -> bytes:
    """An array's file with any header."""
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode("latin-1")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def stored(**arrays: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return held.getvalue()


def _savez(**arrays: Any) -> bytes:
    import numpy as np

    held = io.BytesIO()
    np.savez(held, **arrays)
    return held.getvalue()


def _bomb_npz(name: str) -> bytes:
    head = npy((BOMB // (16 * 16 * 3), 16, 16, 3))
    # The checksum is wrong, which nobody knows before it is unpacked.
    return zip_with({f"{name}.npy": (deflated_zeros(head, BOMB), 0, len(head) + BOMB, 8)})


def _npzs() -> dict[str, Callable[[], bytes]]:
    import numpy as np

    images, labels = np.zeros((4, 16, 16, 3), np.uint8), np.zeros(4, np.int64)
    whole = _savez(images=images, labels=labels)
    return {
        "empty": lambda: b"",
        "text": lambda: b"not an archive",
        "half": lambda: whole[: len(whole) // 2],
        "without its end": lambda: whole[:-10],
        "an empty archive": lambda: stored(),
        "a lone array": lambda: npy((1,)),
        "no header": lambda: stored(images=b"x"),
        "an empty member": lambda: stored(images=b""),
        "a header of nonsense": lambda: stored(images=b"\x93NUMPY\x01\x00\x10\x00__import__('os')"),
        "a header that calls": lambda: stored(images=npy("__import__('os').system('touch CODE-RAN')")),
        "version 9": lambda: stored(images=npy((4, 16, 16, 3), version=b"\x09\x00", data=bytes(3072))),
        "a deep header": lambda: stored(images=npy("(" * 5000 + ")" * 5000)),
        "a huge shape": lambda: stored(images=npy((10**12, 224, 224, 3))),
        "a shape that overflows": lambda: stored(images=npy((2**62, 2**62, 3))),
        "a negative shape": lambda: stored(images=npy((-4, 16, 16, 3), data=bytes(3072))),
        "a shape beyond its data": lambda: stored(images=npy((400, 16, 16, 3), data=bytes(3072))),
        "no such type": lambda: stored(images=npy((4, 16, 16, 3), "'|z9'", data=bytes(3072))),
        "objects": lambda: stored(images=npy((4,), "'|O'", data=b"x")),
        "a record": lambda: stored(images=npy((4,), "[('a', '<i4'), ('b', '|u1')]", data=bytes(20))),
        "strings": lambda: _savez(images=np.array(["a", "b"])),
        "complex": lambda: _savez(images=images.astype(complex)),
        "dates": lambda: _savez(images=images.astype("datetime64[s]")),
        "NaN": lambda: _savez(images=images * np.nan),
        "fractions": lambda: _savez(images=images + 0.5),
        "above 255": lambda: _savez(images=images.astype(np.int32) + 1000),
        "below 0": lambda: _savez(images=images.astype(np.int32) - 1000),
        "a flat array": lambda: _savez(images=images.reshape(-1)),
        "five dimensions": lambda: _savez(images=images[None]),
        "two channels": lambda: _savez(images=images[..., :2]),
        "no images": lambda: _savez(images=images[:0]),
        "no pixels": lambda: _savez(images=images[:, :0]),
        "one pixel": lambda: _savez(images=images[:, :1, :1]),
        "images of 1 by 30000": lambda: _savez(images=np.zeros((2, 1, 30000, 3), np.uint8)),
        "another name": lambda: _savez(pictures=images),
        "labels of 2^60": lambda: _savez(images=images, labels=labels + 2**60),
        "labels of 2^63": lambda: _savez(images=images, labels=labels.astype(np.uint64) + 2**63),
        "labels below 0": lambda: _savez(images=images, labels=labels - 7),
        "labels of text": lambda: _savez(images=images, labels=np.array(list("abcd"))),
        "labels that are fractions": lambda: _savez(images=images, labels=labels + 0.5),
        "labels that are NaN": lambda: _savez(images=images, labels=labels * np.nan),
        "too few labels": lambda: _savez(images=images, labels=labels[:2]),
        "labels of two dimensions": lambda: _savez(images=images, labels=labels[None]),
        "encrypted": lambda: _flagged(whole, 1),
        "an unknown method": lambda: zip_with({"images.npy": (b"x" * 100, 0, 100, 77)}),
        "a wrong checksum": lambda: zip_with({"images.npy": (npy((4, 16, 16, 3), data=bytes(3072)), 1, 3200, 0)}),
        "a size that lies": lambda: zip_with({"images.npy": (b"x" * 100, zlib.crc32(b"x" * 100), 2**32 - 2, 0)}),
        "a name that leads out": lambda: zip_with({"../../images.npy": (b"x", zlib.crc32(b"x"), 1, 0)}),
        "10^4 members": lambda: stored(**{f"x{i}": b"x" for i in range(10_000)}),
        "a bomb": lambda: _bomb_npz("images"),
        "a bomb beside": lambda: _bomb_npz("other"),
    }


NPZ_FINE = {"fractions", "above 255", "one pixel", "images of 1 by 30000", "labels of 2^60", "labels below 0"}
NPZ_FINE |= {"labels of 2^63", "NaN", "below 0", "another name"}


def _flagged(whole: bytes, flag: int) -> bytes:
    """The bits of general use, set in every header."""
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (found := whole.find(magic, start)) >= 0:
            whole = whole[: found + at] + struct.pack("<H", flag) + whole[found + at + 2 :]
            start = found + 4
    return whole


def _tokens() -> dict[str, Callable[[], bytes]]:
    import numpy as np

    ids = np.ones((4, 16), np.int64)
    return {
        "of 2^40": lambda: _savez(input_ids=ids * 2**40),
        "below 0": lambda: _savez(input_ids=-ids),
        "beyond the vocabulary": lambda: _savez(input_ids=ids * 30),
        "fractions": lambda: _savez(input_ids=ids + 0.5),
        "flat": lambda: _savez(input_ids=ids[0]),
        "three dimensions": lambda: _savez(input_ids=ids[None]),
        "none": lambda: _savez(input_ids=ids[:0]),
        "of no length": lambda: _savez(input_ids=ids[:, :0]),
        "one": lambda: _savez(input_ids=ids[:, :1]),
        "too long": lambda: _savez(input_ids=np.ones((4, 1000), np.int64)),
        "a mask of another shape": lambda: _savez(input_ids=ids, attention_mask=ids[:2]),
        "a mask of fractions": lambda: _savez(input_ids=ids, attention_mask=ids * 0.5),
        "a mask of nothing": lambda: _savez(input_ids=ids, attention_mask=ids * 0),
        "a mask of sevens": lambda: _savez(input_ids=ids, attention_mask=ids * 7),
        "a mask of text": lambda: _savez(input_ids=ids, attention_mask=np.full((4, 16), "x")),
        "a huge shape": lambda: stored(input_ids=npy((10**9, 10**9), "'<i8'")),
        "a bomb": lambda: _bomb_npz("input_ids"),
    }


TOKENS_FINE = {"too long", "fractions", "a mask of fractions", "a mask of sevens", "one"}


def parquets() -> dict[str, Callable[[Path], Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(**columns: Any) -> Callable[[Path], None]:
        return lambda path: pq.write_table(pa.table(columns), path)

    def columns(names: list[str], arrays: list[Any]) -> Callable[[Path], None]:
        return lambda path: pq.write_table(pa.Table.from_arrays([pa.array(a) for a in arrays], names), path)

    good = [{"bytes": _png(), "path": "x.png"}] * 4
    return {
        "empty": lambda path: path.touch(),
        "text": lambda path: path.write_text("not a table"),
        "only its ends": lambda path: path.write_bytes(b"PAR1" + b"PAR1"),
        "a footer of 2^31": lambda path: path.write_bytes(b"PAR1" + bytes(20) + struct.pack("<I", 2**31 - 1) + b"PAR1"),
        "no rows": table(image=pa.array([], pa.binary())),
        "no columns": columns([], []),
        "other columns": table(a=[1], b=["x"]),
        "a column twice": columns(["image", "image", "label"], [good, good, [0, 1, 2, 3]]),
        "labels twice": columns(["image", "label", "label"], [good, [0] * 4, [1] * 4]),
        "text twice": columns(["text", "text"], [["a long text"] * 4, ["another"] * 4]),
        "images that are numbers": table(image=[1, 2, 3]),
        "images that are text": table(image=["a", "b"]),
        "images that are null": table(image=pa.array([None, None], pa.binary())),
        "images that are paths": table(image=[{"path": "/etc/passwd", "bytes": None}] * 4),
        "images that are empty": table(image=[b""] * 4),
        "images that are noise": table(image=[b"\x89PNG noise"] * 4),
        "half of them noise": table(image=[_png(), b"noise", _png(), b""]),
        "text that is numbers": table(text=[1, 2, 3]),
        "text that is null": table(text=pa.array([None] * 4, pa.string())),
        "text that is empty": table(text=[""] * 4),
        "text that is bytes": table(text=[b"\xff\xfe\x00"] * 4),
        "labels of 2^60": table(image=good, label=[2**60] * 4),
        "labels below 0": table(image=good, label=[-5] * 4),
        "labels of text": table(image=good, label=list("abcd")),
        "labels that are null": table(image=good, label=pa.array([None] * 4, pa.int64())),
        "labels that are fractions": table(image=good, label=[0.5] * 4),
        "nested lists": table(image=[[[[1]]]] * 4),
        "spoiled within": _spoiled,
    }


def _spoiled(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": [_png()] * 4, "text": ["x" * 500] * 4}), path)
    content = bytearray(path.read_bytes())
    content[8:60] = b"\xff" * 52
    path.write_bytes(content)


def _png(size: tuple[int, int] = (16, 16)) -> bytes:
    from PIL import Image

    return encoded(Image.new("RGB", size, (9, 99, 199)))


def _png_of(width: int, height: int) -> bytes:
    """A picture that says it is large and has little to show for it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(10_000)))
        + chunk(b"IEND", b"")
    )


PICTURES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"not a picture",
    "half": lambda: _png()[:40],
    "one byte": lambda: b"\x89",
    "40000 by 40000": lambda: _png_of(40_000, 40_000),
    "2^31 by 2^31": lambda: _png_of(2**31 - 1, 2**31 - 1),
    "0 by 0": lambda: _png_of(0, 0),
    "a wrong checksum": lambda: _png().replace(b"IDAT", b"IDAX"),
    "a jpeg's first bytes": lambda: b"\xff\xd8\xff\xe0" + bytes(100),
    "postscript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(touch CODE-RAN) (w) file\n",
    "svg": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
    "a bitmap of 2^31": lambda: b"BM" + struct.pack("<IHHIIiiHHI", 2**31, 0, 0, 54, 40, 2**31 - 1, 2**31 - 1, 1, 24, 0),
    "a gif of many frames": lambda: _gif(),
    "16 bits": lambda: _mode("I;16"),
    "one bit": lambda: _mode("1"),
    "palette": lambda: _mode("P"),
    "with alpha": lambda: _mode("RGBA"),
    "one pixel": lambda: _png((1, 1)),
    "1 by 20000": lambda: _png((1, 20_000)),
}
PICTURES_FINE = {"16 bits", "one bit", "palette", "with alpha", "one pixel", "1 by 20000", "a gif of many frames"}


def _mode(mode: str) -> bytes:
    from PIL import Image

    return encoded(Image.new(mode, (16, 16)))


def _gif() -> bytes:
    from PIL import Image

    frames = [Image.new("RGB", (8, 8), (i, i, i)) for i in range(200)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


TEXTS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "blanks": lambda: b" \n\t" * 1000,
    "one letter": lambda: b"a",
    "zero bytes": lambda: bytes(5000),
    "zero bytes within": lambda: b"The quick\x00brown fox. " * 200,
    "UTF-16": lambda: ("The quick brown fox. " * 200).encode("utf-16"),
    "UTF-16 without a mark": lambda: ("The quick brown fox. " * 200).encode("utf-16-le"),
    "UTF-32": lambda: ("The quick brown fox. " * 200).encode("utf-32"),
    "latin-1": lambda: ("Le cœur déçu. ".replace("œ", "oe") * 200).encode("latin-1"),
    "random bytes": lambda: bytes((i * 97 + i // 256) % 256 for i in range(5000)),
    "cut within a letter": lambda: ("é" * 2000).encode()[:-1],
    "surrogates": lambda: ("\ud800" * 2000).encode("utf-8", "surrogatepass"),
    "overlong": lambda: b"\xc0\x80" * 2000,
    "a mark of order": lambda: b"\xef\xbb\xbf" + b"The quick brown fox. " * 200,
    "escape codes": lambda: b"\x1b[31mred\x1b[0m quick brown fox. " * 200,
    "one line of 5 MB": lambda: b"abc " * 1_250_000,
    "10^6 empty lines": lambda: b"\n" * 10**6,
    "carriage returns": lambda: b"The quick\rbrown fox.\r" * 200,
    "a gzip": lambda: gzip.compress(b"The quick brown fox. " * 200),
}
TEXTS_FINE = {"a mark of order", "escape codes", "one line of 5 MB", "carriage returns", "latin-1", "one letter"}
TEXTS_FINE |= {"cut within a letter", "10^6 empty lines"}


def cases() -> Iterator[Case]:
    vit = ("diagnose", "vit", "--no-spectra", "--inputs", "4", "--data")
    gpt = ("diagnose", "gpt", "--no-spectra", "--inputs", "4", "--data")
    for label, make in _npzs().items():
        yield _data(f"npz, {label}", "vit", "x.npz", make, vit, label in NPZ_FINE)
    for label, make in _tokens().items():
        yield _data(f"token ids, {label}", "gpt", "x.npz", make, gpt, label in TOKENS_FINE)
    for label, write in parquets().items():
        for model, line in (("vit", vit), ("gpt", gpt)):
            yield _written(f"parquet for {model}, {label}", model, "x.parquet", write, line, True)
    for label, make in PICTURES.items():
        yield _data(f"a picture, {label}", "vit", "x.png", make, vit, label in PICTURES_FINE)
        yield _data(f"a picture among others, {label}", "vit", "images/x.png", make, vit, True, "images")
    for label, make in TEXTS.items():
        yield _data(f"text, {label}", "gpt", "x.txt", make, gpt, label in TEXTS_FINE)
        yield _data(f"text beside others, {label}", "gpt", "texts/x.txt", make, gpt, True, "texts")
    yield from _mixtures()


def _data(
    label: str, model: str, name: str, make: Callable[[], bytes], line: Line, fine: bool, given: str = ""
) -> Case:
    def write(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(make())

    return _written(label, model, name, write, line, fine, given)


def _written(
    label: str, model: str, name: str, write: Callable[[Path], Any], line: Line, fine: bool, given: str = ""
) -> Case:
    def spoil(place: Place) -> None:
        if given == "images":
            place.copy("images")
        if given == "texts":
            place.copy_as("text.txt", "texts/good.txt")
        write(place / name)

    says = ("x.npz", "inputs", "label") if label.startswith("npz") else ()
    build = prepared((model,), (*line, given or name), spoil)
    return Case(f"data/{label}", build, "either" if fine else "refused", says)


def _mixtures() -> Iterator[Case]:
    """Good data for another model, and too little or too much of it."""
    lines = {
        "text for a vision model": ("diagnose", "vit", "--data", "text.txt"),
        "pictures for a language model": ("diagnose", "gpt", "--data", "images"),
        "images' npz for a language model": ("diagnose", "gpt", "--data", "images.npz"),
        "tokens' npz for a vision model": ("diagnose", "vit", "--data", "tokens.npz"),
        "a table of text for a vision model": ("diagnose", "vit", "--data", "text.parquet"),
        "a table of images for a language model": ("diagnose", "gpt", "--data", "images.parquet"),
        "a model as data": ("diagnose", "vit", "--data", "vit"),
        "weights as data": ("diagnose", "vit", "--data", "vit/model.safetensors"),
        "a diagnosis as data": ("diagnose", "gpt", "--data", "d.json"),
        "data as a model": ("diagnose", "images"),
        "text as a model": ("diagnose", "text.txt"),
        "npz as a model": ("spectrum", "images.npz"),
        "a folder of pictures to train on": ("train", "--data", "images", "-o", "out"),
        "a model to train on": ("train", "--data", "vit", "-o", "out"),
        "npz to train on": ("train", "--data", "images.npz", "-o", "out"),
        "a configuration as a diagnosis": ("diagnose", "vit/config.json"),
        "a recipe that is a configuration": ("train", "--recipe", "vit/config.json", "-o", "out"),
        "a recipe that is a diagnosis": ("train", "--recipe", "d.json", "-o", "out"),
        "a cell as a diagnosis": ("diagnose", "results/table2/03a7ee362ef8.json"),
        "a model to fold": ("fold", "vit", "-o", "out"),
        "a steered model steered": ("steer", "steered", "-m", "spectral", "-o", "out"),
        "a model that does not fold": ("fold", "neutreno", "-o", "out"),
        "a run of training to steer": ("steer", "run", "-m", "spectral", "-o", "out"),
        "another size of cifar": ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--patch", "7"),
    }
    fine = {"a diagnosis as data", "a run of training to steer", "a model as data", "a steered model steered"}
    needed = (
        "vit", "gpt", "text.txt", "images", "images.npz", "tokens.npz", "text.parquet", "images.parquet", "d.json",
        "results", "steered", "neutreno", "run", CIFAR,
    )  # fmt: skip
    for label, line in lines.items():
        yield Case(f"data/{label}", prepared(needed, line), "either" if label in fine else "refused")
