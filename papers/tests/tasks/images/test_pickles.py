"""CIFAR's pickles: read as Python 2 and 3 write them, and never run."""

import os
import pickle
import struct
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.data import load

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3072), np.uint8)
FINE = [3, 99, 0, 7, 7, 7]
NEEDED = "needs `data`, an array of bytes (n, 3072), and `fine_labels`, as many whole numbers"


def text(value: bytes) -> bytes:
    """A Python 2 string in a pickle."""
    return b"T" + struct.pack("<i", len(value)) + value


def numbers(values) -> bytes:
    return b"](" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"e"


def python2(**entries: bytes) -> bytes:
    """A dictionary as Python 2 pickles one, protocol 2: byte strings for text."""
    body = b"".join(text(key.encode()) + value for key, value in entries.items())
    return b"\x80\x02}(" + body + b"u."


def array(pixels: np.ndarray) -> bytes:
    """An array of bytes as numpy under Python 2 pickles it."""
    rows, columns = (b"J" + struct.pack("<i", size) for size in pixels.shape)
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    return made + b"(K\x01(" + rows + columns + b"t" + dtype + b"I00\n" + text(pixels.tobytes()) + b"tb"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "train").write_bytes(python2(data=array(PIXELS), fine_labels=numbers(FINE)))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"n{i}" for i in range(100)]}, 2))
    return tmp_path


def refused(words, home, content=None):
    """content: to write into the file first."""
    if content is not None:
        (home / "train").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(home)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cifar_100_as_python_2_wrote_it(home):
    held = pickle.loads(python2(data=array(PIXELS)), encoding="bytes")
    assert np.array_equal(held[b"data"], PIXELS)  # the pickles made here are numpy's
    found = load(home)
    assert torch.equal(found.images, torch.from_numpy(PIXELS).view(6, 3, 32, 32))
    assert found.labels.tolist() == FINE
    assert (found.name, found.classes[99]) == ("cifar100", "n99")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_cifar_10_as_python_3_writes_it(protocol, tmp_path):
    def named(**entries):
        return {key.encode() if protocol % 2 else key: value for key, value in entries.items()}

    for number in range(1, 6):
        part = named(data=PIXELS[number : number + 1], labels=[number])
        (tmp_path / f"data_batch_{number}").write_bytes(pickle.dumps(part, protocol))
    (tmp_path / "test_batch").write_bytes(pickle.dumps(named(data=PIXELS[:2], labels=[9, 0]), protocol))
    found = load(tmp_path)
    assert torch.equal(found.images, torch.from_numpy(PIXELS[1:]).view(5, 3, 32, 32))
    assert (found.labels.tolist(), found.name, found.classes[2]) == ([1, 2, 3, 4, 5], "cifar10", "bird")
    (tmp_path / "batches.meta").write_bytes(pickle.dumps(named(label_names=list("abcdefghij")), protocol))
    assert load(tmp_path, "test").classes == list("abcdefghij")


def test_pickles_that_ask_for_much_memory_are_refused(home):
    """A place of 32 GB in a list of 20 bytes; labels that no array holds."""
    tracemalloc.start()
    refused("needs `data`", home, b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    refused("is no pickled dictionary", home, b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b".")
    labels = [2**64, *FINE[1:]]
    refused("as many whole numbers", home, pickle.dumps({"data": PIXELS, "fine_labels": labels}, 2))


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_something_does_not(protocol, home, tmp_path):
    proof = tmp_path / "ran"
    for evil, named in (
        (Evil(os.mkdir, str(proof)), "mkdir"),
        (Evil(eval, f"__import__('os').mkdir({str(proof)!r})"), "eval"),
        (Evil(getattr, "text", "upper"), "getattr"),
        (Evil(np.fromfile, str(home / "meta")), "fromfile"),
        (Evil(pickle.loads, pickle.dumps(Evil(os.mkdir, str(proof)))), "loads"),
    ):
        for held in ({"data": evil, "fine_labels": FINE}, evil):
            words = "is no pickled dictionary of numbers, text and arrays alone (it asks for"
            refused(words, home, pickle.dumps(held, protocol))
            refused(named, home)
    assert not proof.exists()


def test_nothing_of_numpys_is_called_either(home):
    # Even what is allowed by name is only noted down, whatever it is called with.
    call = b"cnumpy\nndarray\n(J\xff\xff\xff\x7fJ\xff\xff\xff\x7ft\x85R"
    refused(NEEDED, home, python2(data=call, fine_labels=numbers(FINE)))
    codec = b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x04\x00\x00\x00zlibtR"
    refused(NEEDED, home, python2(data=codec, fine_labels=numbers(FINE)))
    before = set(sys.modules)
    refused("asks for antigravity.fly", home, b"\x80\x02cantigravity\nfly\n.")
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no pickle at all", "is no pickled dictionary"),
        (python2(data=array(PIXELS))[:-4000], "is no pickled dictionary"),
        (pickle.dumps({"data": PIXELS, "labels": FINE}), NEEDED),
        (pickle.dumps({"data": PIXELS, "fine_labels": FINE[:5]}), NEEDED),
        (pickle.dumps({"data": PIXELS, "fine_labels": ["a"] * 6}), NEEDED),
        (pickle.dumps({"data": PIXELS, "fine_labels": [100] * 6}), "has labels from 100 to 100 and 100 classes"),
        (pickle.dumps({"data": PIXELS.astype(float), "fine_labels": FINE}), NEEDED),
        (pickle.dumps({"data": np.asfortranarray(PIXELS), "fine_labels": FINE}), NEEDED),
    ],
)
def test_files_that_will_not_do_are_named(content, words, home):
    refused(words, home, content)


def test_names_that_will_not_do_are_named(home):
    (home / "meta").write_bytes(pickle.dumps({"fine_label_names": 3}))
    refused("has no list fine_label_names", home)
