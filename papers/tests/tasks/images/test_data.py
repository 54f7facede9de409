"""Data sets from every layout they are published in, made small here; what will not do is refused in one sentence."""

import gzip
import json
import os
import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.nightly import nightly
from support.pictures import encoded
from support.places import shared

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images import readers
from oversmooth_papers.tasks.images.data import KNOWN, Images, load, share

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

RANDOM = np.random.default_rng(0)
COLOUR = RANDOM.integers(0, 256, (12, 32, 32, 3), np.uint8)
GREY = RANDOM.integers(0, 256, (6, 28, 28), np.uint8)
FINE = [3, 99, 0, 7] * 3


@pytest.fixture(autouse=True)
def _apart(monkeypatch, tmp_path):
    """No data and no cache but the test's own, and no network."""
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    monkeypatch.setattr("oversmooth_papers.tasks.images.data.SYSTEM", tmp_path / "system")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


def table(path, columns, names=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    made = arrow.table(columns)
    if names:
        features = {key: {"names": value, "_type": "ClassLabel"} for key, value in names.items()}
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(made, path, row_group_size=2)


def cells(images, form="PNG"):
    return [{"bytes": encoded(image, form, lossless=True), "path": None} for image in images]


def cifar100(home, form="WEBP", split="train", images=COLOUR):
    half = len(images) // 2
    for part, rows in enumerate((slice(0, half), slice(half, None))):
        columns = {"img": cells(images[rows], form), "fine_label": FINE[rows]}
        table(home / f"{split}-0000{part}-of-00002.parquet", columns)
    return home


def same(found, pixels, labels, name, classes):
    expected = torch.from_numpy((pixels if pixels.ndim == 4 else pixels[..., None]).copy()).permute(0, 3, 1, 2)
    assert torch.equal(found.images, expected)
    assert found.images.is_contiguous()
    assert found.labels.tolist() == labels
    assert (found.name, len(found.classes)) == (name, classes)


@pytest.mark.parametrize(("form", "cache"), [("PNG", True), ("WEBP", True), ("PNG", False)])
def test_parquet_in_several_files_of_either_format(form, cache, tmp_path, monkeypatch):
    home, decoded, calls = cifar100(tmp_path / "some", form), readers.decoded, []
    monkeypatch.setattr(readers, "decoded", lambda *given: (calls.append(1), decoded(*given))[1])
    for _ in range(2):
        same(load(home, "train", cache=cache), COLOUR, FINE, "cifar100", 100)
    assert len(calls) == (1 if cache else 2)  # what was kept is not decoded again
    assert len(list((tmp_path / "cache").glob("*"))) == (1 if cache else 0)


def test_the_cache_is_never_a_reason_to_stop(tmp_path, monkeypatch):
    home = cifar100(tmp_path / "some")
    load(home)
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    same(load(home), COLOUR, FINE, "cifar100", 100)
    cifar100(home, images=COLOUR[::-1])
    os.utime(home / "train-00000-of-00002.parquet", ns=(1, 1))
    same(load(home), COLOUR[::-1], FINE, "cifar100", 100)
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(kept))  # a file, where nothing can be kept
    same(load(home), COLOUR[::-1], FINE, "cifar100", 100)


def test_class_names_from_the_hubs_note_or_a_file_beside(tmp_path):
    home = tmp_path / "cifar10"
    names = [f"kind {number}" for number in range(10)]
    columns = {"img": cells(COLOUR[:4]), "label": [0, 9, 3, 3]}
    table(home / "plain_text" / "train-0.parquet", columns, {"label": names})  # as the hub's repository is laid out
    found = load(home)
    same(found, COLOUR[:4], [0, 9, 3, 3], "cifar10", 10)
    assert found.classes == names
    beside = cifar100(tmp_path / "b")
    (beside / "fine_labels.txt").write_text("\n".join(f"n{number}" for number in range(100)))
    assert load(beside).classes[99] == "n99"


@pytest.mark.parametrize(
    ("folder", "name", "classes", "normalised"),
    [
        ("mine", "mine", ["0", "1", "2"], ((GREY.mean() / 255,), (GREY.std() / 255,))),
        ("fashion_mnist", "fashion-mnist", KNOWN["fashion-mnist"].classes, ((0.2860,), (0.3530,))),
    ],
)
def test_grey_images_and_sets_of_another_name(folder, name, classes, normalised, tmp_path):
    table(tmp_path / folder / "test-0.parquet", {"image": cells(GREY), "label": [0, 1, 2, 0, 1, 2]})
    found = load(tmp_path / folder, "test")
    same(found, GREY, [0, 1, 2, 0, 1, 2], name, len(classes))
    assert found.classes == list(classes)
    np.testing.assert_allclose(found.normalisation(), normalised)


def binary(home, fine=True):
    home.mkdir(parents=True)
    pixels = COLOUR.transpose(0, 3, 1, 2).reshape(12, -1)
    if fine:
        np.column_stack([np.zeros(12), FINE, pixels]).astype(np.uint8).tofile(home / "train.bin")
        (home / "fine_label_names.txt").write_text("\n".join(f"n{number}" for number in range(100)))
        return home
    rows = np.column_stack([np.arange(12) % 10, pixels]).astype(np.uint8)
    for number in range(1, 6):
        rows[number - 1 : number].tofile(home / f"data_batch_{number}.bin")
    rows.tofile(home / "test_batch.bin")
    return home


def test_the_binary_version(tmp_path):
    same(load(binary(tmp_path / "a")), COLOUR, FINE, "cifar100", 100)
    home = binary(tmp_path / "b", fine=False)
    same(load(home), COLOUR[:5], [0, 1, 2, 3, 4], "cifar10", 10)
    assert load(home, "test").classes[2] == "bird"
    (home / "test_batch.bin").write_bytes(b"123")
    refused("test_batch.bin has 3 bytes, not a whole number of rows of 3,073", home, "test")


def idx(home, ending="", split="train"):
    home.mkdir(parents=True, exist_ok=True)
    images = bytes([0, 0, 8, 3]) + np.array(GREY.shape, ">u4").tobytes() + GREY.tobytes()
    labels = bytes([0, 0, 8, 1]) + np.array([6], ">u4").tobytes() + bytes([9, 0, 1, 2, 3, 4])
    prefix = "t10k" if split == "test" else split
    for name, data in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
        (home / (name + ending)).write_bytes(gzip.compress(data) if ending else data)
    return home


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_plain_and_packed(ending, tmp_path):
    home = idx(tmp_path / "fashion-mnist", ending, "test")
    found = load(home, "test")
    same(found, GREY, [9, 0, 1, 2, 3, 4], "fashion-mnist", 10)
    assert found.classes[0] == "T-shirt/top"
    assert load(idx(tmp_path / "mnist", ending)).classes[9] == "9"
    found.images[0] = 0  # the memory is theirs: torch warns of tensors that cannot be written


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: gzip.compress(data)[:-40], "is not a readable gzip file"),
        (lambda data: gzip.compress(data[:-5]), "says it has 4,704 bytes (6, 28, 28) and has more or fewer"),
        (lambda data: gzip.compress(b"\0\0\x0d\x03" + data[4:]), "does not begin as an idx file of bytes in 3"),
        (lambda data: gzip.compress(data[:4] + np.array([2**32 - 1] * 3, ">u4").tobytes()), "79,228,162"),
    ],
)
def test_broken_idx_files_are_named(damage, words, tmp_path):
    home = idx(tmp_path / "mnist", ".gz")
    file = home / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(gzip.decompress(file.read_bytes())))
    assert file.name in refused(words, home)  # long paths are shortened


def refused(words, what, split="train"):
    with pytest.raises(InputError) as caught:
        load(what, split)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    return message


def test_a_name_is_found_in_data_under_its_folder_name_or_the_folder_itself(tmp_path, monkeypatch):
    home = cifar100(tmp_path / "root" / "data" / "cifar-100")
    for folder, name in ((home, "CIFAR-100"), (home.parent, "cifar100"), (tmp_path / "root", "cifar_100")):
        monkeypatch.setenv("OVERSMOOTH_DATA", str(folder))
        same(load(name), COLOUR, FINE, "cifar100", 100)
    idx(tmp_path / "system" / "fashion-mnist", ".gz")
    assert load("fashion-mnist").name == "fashion-mnist"


def test_another_set_in_the_place_of_the_one_named_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_DATA", str(cifar100(tmp_path / "x")))
    refused("has images (3, 32, 32) in 100 classes; cifar10 has (3, 32, 32) in 10", "cifar10")
    small = cifar100(tmp_path / "small", images=np.ascontiguousarray(COLOUR[:, :16, :16]))
    refused("has images (3, 16, 16) in 100 classes", small)


def test_places_without_data_are_named(tmp_path):
    refused("is no folder and no known data set; give a folder, or one of cifar100", tmp_path / "gone")
    refused("there is no split 'valid'", tmp_path, "valid")
    refused("holds no data set in a known layout; looked for train-*.parquet", tmp_path)
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"")
    refused("unpack cifar-100-python.tar.gz first", tmp_path)
    home = cifar100(tmp_path / "one")
    refused("has the train split and not the test split", home, "test")
    cifar100(tmp_path / "two")
    refused("holds several data sets: one, two; name one of them", tmp_path)


def parquet_cases():
    """Columns that will not do, and what is said."""
    images = cells(COLOUR[:3])
    twice = arrow.StructArray.from_arrays([arrow.array([b"a", b"b"])] * 2, ["bytes", "bytes"])
    other = cells([np.zeros((20, 32, 3), np.uint8)])
    cut = {"bytes": images[1]["bytes"][:900], "path": None}
    whole = "give whole numbers from 0, below 1,000,000"
    yield dict(img=images, text=["a"] * 3), "has the columns img, text; name one of them fine_label or label"
    yield dict(label=[1, 2, 3]), "has the columns label; name one of them img or image"
    for labels in ([1, None, 2], ["a", "b", "c"], [[0], [1], [2]], [0, 1, 1_000_000], [0.0, 1.0, 2.0]):
        yield dict(img=images, label=labels), whole
    yield dict(img=images[:2], label=arrow.array([0, 2**64 - 1], "uint64")), "has labels of uint64, 0 empty"
    yield dict(img=images, fine_label=[1, 2, 100]), "has labels from 1 to 100 and 100 classes"
    yield dict(img=images, fine_label=[1, 3, -1]), "has labels from -1 to 3"
    yield dict(img=[images[0], {"bytes": b"no", "path": "x"}], label=[0, 1]), "does not decode"
    yield dict(img=[images[0], cut], label=[0, 1]), "row 1 of"
    yield dict(img=images + other, label=[0] * 4), "is 32 by 20 and the first is 32 by 32; images must all have one"
    yield dict(img=arrow.array([], arrow.struct({"bytes": "binary"})), label=arrow.array([], "int64")), "has no rows"
    yield dict(img=twice, label=[0, 1]), "train-0.parquet is not a readable parquet file"


@pytest.mark.parametrize(("columns", "words"), list(parquet_cases()))
def test_parquet_that_will_not_do_is_named(columns, words, tmp_path):
    table(tmp_path / "x" / "train-0.parquet", columns)
    assert str(tmp_path / "x") in refused(words, tmp_path / "x") or "has labels from" in words


def test_broken_and_unlike_parquet_is_named(tmp_path):
    file, images = tmp_path / "train-0.parquet", cells(COLOUR[:3])
    table(file, {"img": images, "label": [0, 1, 2]})
    table(tmp_path / "train-1.parquet", {"img": images, "fine_label": [0, 1, 2]})
    refused("train-0.parquet have different columns", tmp_path)
    file.write_bytes(file.read_bytes()[:-50])
    refused("is not a readable parquet file", tmp_path)


def test_pipes_and_devices_are_no_data(tmp_path):
    for name in ("train-0.parquet", "train.bin", "train", "meta"):
        os.mkfifo(tmp_path / name)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / name).symlink_to("/dev/zero")
    refused("holds no data set in a known layout", tmp_path)


def test_what_exceeds_the_memory_is_refused_with_the_number(tmp_path, monkeypatch):
    monkeypatch.setattr("oversmooth.safety.machine.free_memory", lambda: 10_000)
    refused("of memory, but 10 kB are free", cifar100(tmp_path / "a"))
    message = refused("of memory, but 10 kB are free", idx(tmp_path / "c"))
    assert "train-images-idx3-ubyte says it has 4,704 bytes (6, 28, 28), which needs 14.1 kB" in message


def test_more_than_a_file_says_is_not_unpacked(tmp_path):
    """Fifty megabytes of zeros in fifty kilobytes: read as far as the header says, and no further."""
    file = idx(tmp_path / "mnist", ".gz") / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + bytes(50_000_000)))
    tracemalloc.start()
    refused("says it has 4,704 bytes (6, 28, 28) and has more or fewer", file.parent)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_formats_may_be_mixed_and_grey_ones_among_colours(tmp_path):
    column = [*cells(COLOUR[:1], "WEBP"), *cells(COLOUR[1:2, :, :, 0])]
    table(tmp_path / "x" / "train-0.parquet", {"img": column, "label": [0, 1]})
    same(load(tmp_path / "x"), np.stack([COLOUR[0], COLOUR[1, :, :, :1].repeat(3, axis=2)]), [0, 1], "x", 2)


def test_a_name_is_fetched_from_the_hub_where_there_is_one(tmp_path, monkeypatch):
    refused("needs huggingface_hub, which is not installed", "cifar100")
    asked = []

    def snapshot_download(repo, *, repo_type, allow_patterns):
        asked.append((repo, repo_type, allow_patterns))
        cifar100(tmp_path / "hub" / "cifar100", split="test")
        return str(tmp_path / "hub")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    same(load("cifar100", "test"), COLOUR, FINE, "cifar100", 100)
    assert asked == [("uoft-cs/cifar100", "dataset", ["*test-*.parquet"])]
    refused("has the test split and not the train split", "cifar100")

    def unreachable(*_, **__):
        raise ConnectionError("no route to host.\nmore")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=unreachable))
    refused("cannot be fetched from the hub (no route to host. more); set OVERSMOOTH_DATA", "cifar10")


def test_a_share_is_the_same_for_the_same_seed_and_within_larger_ones():
    images = torch.arange(200 * 12).view(200, 3, 2, 2).to(torch.uint8)
    whole = Images(images, torch.arange(200), [str(number) for number in range(200)], "some")
    for fraction in (0, -0.1, 0.001, 1.01, float("nan")):
        with pytest.raises(InputError, match="of the 200 images of some is not possible; give a fraction"):
            share(whole, fraction, 0)
    tenth, half = share(whole, 0.1, 7), share(whole, 0.5, 7)
    assert (len(tenth), len(half)) == (20, 100)
    assert set(tenth.labels.tolist()) < set(half.labels.tolist())
    assert torch.equal(tenth.images, whole.images[tenth.labels])
    assert torch.equal(tenth.labels, share(whole, 0.1, 7).labels)
    assert not torch.equal(tenth.labels, share(whole, 0.1, 8).labels)
    assert tenth.labels.tolist() == sorted(set(tenth.labels.tolist()))
    assert share(whole, 1, 7) is whole


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), "of torch.float32 and labels"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"images \(2, 4, 4, 3\)"),
        (torch.zeros(0, 3, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), r"images \(0, 3"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"labels \(3,\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 2]), "labels from 0 to 2 and 2 classes"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), "one level alone, which cannot be normal"),
    ],
)
def test_images_are_checked(images, labels, words):
    with pytest.raises(InputError, match=words):
        Images(images, labels, ["a", "b"], "x").normalisation()


@nightly
@pytest.mark.realdata
def test_cifar_100_is_whole(monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_DATA", str(shared("data", "cifar-100").parent))
    test = load("cifar100", "test")
    assert test.images.shape == (10_000, 3, 32, 32)
    assert test.labels.bincount().tolist() == [100] * 100
    assert (test.classes[0], test.classes[99], test.labels[0].item()) == ("apple", "worm", 49)
    assert test.images.sum(dtype=torch.int64).item() == 3_755_249_331
