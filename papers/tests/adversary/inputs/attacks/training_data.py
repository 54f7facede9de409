"""Images to train on that are damaged, swollen or not what they say."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.attacks.data import BOMB, CHUNK, parquets
from adversary.inputs.case import Case, Place, prepared
from adversary.inputs.kit import CIFAR, SMALL_RUN

PARQUET_FINE = {
    "a column twice", "labels twice", "text twice", "half of them noise", "labels of 2^60", "labels below 0",
    "labels of text", "labels that are null", "labels that are fractions", "other columns",
}  # fmt: skip


def _idx(magic: int, *sizes: int, data: bytes = b"") -> bytes:
    return gzip.compress(struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + data, mtime=0)


def _gzip_bomb(head: bytes = b"") -> bytes:
    return gzip.compress(head, mtime=0) + gzip.compress(bytes(CHUNK), mtime=0) * (BOMB // CHUNK)


IDX: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "not gzipped": lambda: b"x" * 100,
    "cut": lambda: _idx(0x803, 100, 28, 28, data=bytes(78_400))[:-20],
    "a wrong checksum": lambda: _idx(0x803, 100, 28, 28, data=bytes(78_400))[:-8] + bytes(8),
    "another magic": lambda: _idx(0x999, 100, 28, 28, data=bytes(78_400)),
    "floats": lambda: _idx(0xD03, 100, 28, 28, data=bytes(4 * 78_400)),
    "9 dimensions": lambda: _idx(0x809, *[2] * 9, data=bytes(512)),
    "2^32 images": lambda: _idx(0x803, 2**32 - 1, 28, 28, data=bytes(784)),
    "sides of 2^32": lambda: _idx(0x803, 100, 2**32 - 1, 2**32 - 1),
    "no images": lambda: _idx(0x803, 0, 28, 28),
    "sides of 0": lambda: _idx(0x803, 100, 0, 0),
    "too few bytes": lambda: _idx(0x803, 100, 28, 28, data=bytes(784)),
    "too many bytes": lambda: _idx(0x803, 100, 28, 28, data=bytes(80_000)),
    "fewer images than labels": lambda: _idx(0x803, 50, 28, 28, data=bytes(39_200)),
    "a bomb": lambda: _gzip_bomb(struct.pack(">IIII", 0x803, 100, 28, 28)),
    "labels in its place": lambda: _idx(0x801, 100, data=bytes(100)),
}
BINARY: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "one byte": lambda _: b"x",
    "one byte short": lambda held: held[:-1],
    "one byte long": lambda held: held + b"x",
    "labels of 255": lambda held: b"\xff" * len(held),
    "a web page": lambda _: b"<!doctype html>" * 500,
    "one image": lambda held: held[:3074],
}


def cases() -> Iterator[Case]:
    for label, write in parquets().items():
        spoil = lambda place, write=write: _both_splits(place, write)  # noqa: E731
        yield _case("set", f"parquet to train on, {label}", (), spoil, label in PARQUET_FINE)
    for label, make in IDX.items():
        for which in ("images-idx3", "labels-idx1"):
            yield _spoilt("fashion-mnist", f"train-{which}-ubyte.gz", label, lambda _, make=make: make())
    for label, change in BINARY.items():
        for file in ("train.bin", "test.bin", "fine_label_names.txt"):
            yield _spoilt(CIFAR, file, label, change, file.endswith(".txt") or label == "one image")


def _both_splits(place: Place, write: Callable[[Path], Any]) -> None:
    (place / "set").mkdir()
    for split in ("train", "test"):
        write(place / f"set/{split}-00000.parquet")


def _spoilt(folder: str, file: str, label: str, change: Callable[[bytes], bytes], fine: bool = False) -> Case:
    def spoil(place: Place) -> None:
        target = place / f"{folder}/{file}"
        target.write_bytes(change(target.read_bytes()))

    return _case(folder, f"{folder}, {file}: {label}", (folder,), spoil, fine)


def _case(folder: str, label: str, needed: tuple[str, ...], spoil: Callable[[Place], None], fine: bool) -> Case:
    line = ("train", "--data", f"./{folder}", "-o", "out", *SMALL_RUN, "--minutes", "0")
    return Case(f"data/{label}", prepared(needed, line, spoil), "either" if fine else "refused")
