"""Things that are not the kind of file they should be: pipes, devices, sockets, links, folders, locked doors."""

from __future__ import annotations

import functools
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.attacks.shards import SECRET, no_secret
from adversary.inputs.case import Case, Outcome, Place, prepared
from adversary.inputs.kit import CIFAR, SMALL_RUN


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name may have 108 letters
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


def _locked(path: Path) -> None:
    path.write_text("x")
    path.chmod(0)


def _locked_folder(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")
    path.chmod(0)


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**42)


KINDS: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to /dev/null": lambda path: path.symlink_to("/dev/null"),
    "a link to /dev/stdin": lambda path: path.symlink_to("/dev/stdin"),
    "a link to /proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "an empty folder": Path.mkdir,
    "an empty file": Path.touch,
    "4 TB of zeros": _sparse,
    "a locked file": _locked,
    "a locked folder": _locked_folder,
    "nothing": lambda _path: None,
}
TAKES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # what is asked: the name it has, what else is needed, the command
    "a model": ("thing", (), ("diagnose", "thing", "--inputs", "2")),
    "weights": ("thing.safetensors", (), ("spectrum", "thing.safetensors", "--heads", "2")),
    "a pt file": ("thing.pt", (), ("spectrum", "thing.pt", "--heads", "2")),
    "weights of a folder": ("vit/model.safetensors", ("vit",), ("spectrum", "vit")),
    "weights to run": ("vit/model.safetensors", ("vit",), ("diagnose", "vit", "--inputs", "2")),
    "weights to steer": ("vit/model.safetensors", ("vit",), ("steer", "vit", "-m", "neutreno", "-o", "out")),
    "a configuration": ("vit/config.json", ("vit",), ("diagnose", "vit", "--inputs", "2")),
    "a configuration for spectra": ("vit/config.json", ("vit",), ("spectrum", "vit", "--heads", "2")),
    "a processor": ("vit/preprocessor_config.json", ("vit",), ("diagnose", "vit", "--inputs", "2", "--no-spectra")),
    "a tokenizer": ("gpt/tokenizer.json", ("gpt",), ("diagnose", "gpt", "--inputs", "2", "--no-spectra")),
    "a readme beside": ("vit/README.md", ("vit",), ("steer", "vit", "-m", "neutreno", "-o", "out")),
    "an index": ("sharded/model.safetensors.index.json", ("sharded",), ("spectrum", "sharded")),
    "a steered file": ("steered/steered.safetensors", ("steered",), ("fold", "steered", "-o", "out")),
    "a folder to fold": ("thing", (), ("fold", "thing", "-o", "out")),
    "a saved diagnosis": ("thing.json", (), ("diagnose", "thing.json")),
    "a diagnosis for a page": ("thing.json", (), ("diagnose", "thing.json", "--html", "out.html")),
    "a diagnosis for a figure": ("thing.json", (), ("reproduce", "fig5", "thing.json", "-o", "out.svg")),
    "text": ("thing.txt", ("gpt",), ("diagnose", "gpt", "--no-spectra", "--data", "thing.txt")),
    "a folder of text": ("data/thing.txt", ("gpt",), ("diagnose", "gpt", "--no-spectra", "--data", "data")),
    "npz": ("thing.npz", ("vit",), ("diagnose", "vit", "--no-spectra", "--data", "thing.npz")),
    "parquet": ("thing.parquet", ("vit",), ("diagnose", "vit", "--no-spectra", "--data", "thing.parquet")),
    "a picture": ("thing.png", ("vit",), ("diagnose", "vit", "--no-spectra", "--data", "thing.png")),
    "pictures": ("thing", ("vit",), ("diagnose", "vit", "--no-spectra", "--data", "thing")),
    "one of the pictures": ("images/0.png", ("vit", "images"), ("diagnose", "vit", "--no-spectra", "--data", "images")),
    "a recipe": ("thing.json", (), ("train", "--recipe", "thing.json", "-o", "out")),
    "a data set": ("thing", (), ("train", "--data", "thing", "-o", "out", *SMALL_RUN)),
    "training images": (f"{CIFAR}/train.bin", (CIFAR,), ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN)),
    "names of classes": (
        f"{CIFAR}/fine_label_names.txt", (CIFAR,),
        ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--minutes", "0"),
    ),
    "gzipped images": (
        "fashion-mnist/train-images-idx3-ubyte.gz", ("fashion-mnist",),
        ("train", "--data", "./fashion-mnist", "-o", "out", *SMALL_RUN),
    ),
    "a checkpoint to go on from": (
        "out/checkpoint.safetensors", ("stopped", CIFAR),
        ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--resume", "--minutes", "0"),
    ),
    "results": ("thing", (), ("reproduce", "status", "--results", "thing")),
    "results to show": ("thing", (), ("reproduce", "table2", "--show", "--results", "thing")),
    "a cell": ("results/table2/0123456789ab.json", ("results",), ("reproduce", "status", "--results", "results")),
    "a trained model": ("thing.safetensors", (), ("diagnose", "thing.safetensors", "--inputs", "2")),
    "models": ("thing", (CIFAR,), ("reproduce", "table3", "--quick", "--data", CIFAR, "--models", "thing")),
    "official corruptions": (
        "thing", (CIFAR,), ("reproduce", "table3", "--quick", "--data", CIFAR, "--official", "thing"),
    ),
}  # fmt: skip
FINE = {"a readme beside", "names of classes", "results", "results to show", "a cell", "models", "official corruptions"}
"""What may as well be done without."""
FINE |= {"one of the pictures", "a processor", "a folder of text", "a tokenizer", "a checkpoint to go on from"}
FINE |= {"a configuration for spectra"}
ALWAYS = ("a pipe", "a link to /dev/zero", "a link to itself", "a locked file", "4 TB of zeros")


def cases() -> Iterator[Case]:
    for number, (what, (name, needed, line)) in enumerate(TAKES.items()):
        for turn, (kind, make) in enumerate(KINDS.items()):
            if kind in ALWAYS or (turn + number) % 2:
                spoil = functools.partial(_put, name=name, make=make)
                expected: Any = "either" if what in FINE else "refused"
                yield Case(f"kinds/{what}: {kind}", prepared(needed, line, spoil), expected, without=("permission",))
    for device, (what, line) in itertools.product(DEVICES, TO_DEVICES.items()):
        build = prepared(("vit", "gpt"), [part.format(device) for part in line])
        yield Case(f"kinds/{device} as {what}", build, "either" if what == "results" else "refused")
    yield from _links()


def _put(place: Place, name: str, make: Callable[[Path], Any]) -> None:
    if (place / "stopped").exists():
        (place / "stopped").rename(place / "out")  # a run may change what is its own
    target = place / name
    target.unlink(missing_ok=True)
    target.parent.mkdir(exist_ok=True)
    make(target)


DEVICES = (
    "/dev/zero", "/dev/null", "/dev/full", "/dev/random", "/dev/stdin", "/proc/self/mem", "/proc", "/dev",
)  # fmt: skip
TO_DEVICES = {
    "model": ("diagnose", "{}"),
    "weights": ("spectrum", "{}"),
    "text": ("diagnose", "gpt", "--data", "{}"),
    "pictures": ("diagnose", "vit", "--data", "{}"),
    "recipe": ("train", "--recipe", "{}", "-o", "out"),
    "data": ("train", "--data", "{}", "-o", "out"),
    "fold": ("fold", "{}", "-o", "out"),
    "results": ("reproduce", "status", "--results", "{}"),
}
STEER = ("steer", "{}", "-m", "neutreno", "-o", "out")
RUN = {"diagnose": ("diagnose", "{}", "--inputs", "2", "--no-spectra"), "spectrum": ("spectrum", "{}"), "steer": STEER}


def _links() -> Iterator[Case]:
    """What steer and fold copy along, and what they must not; and models behind links."""
    fold = ("fold", "steered", "-o", "out")
    for kind in ("relative", "absolute", "chain"):
        for model, line in (("vit", [part.format("vit") for part in STEER]), ("steered", fold)):
            build = prepared((model,), line, functools.partial(_secret, model=model, kind=kind))
            yield Case(f"kinds/{line[0]}, a readme that is a link out, {kind}", build, "either", holds=no_secret)
    steer = [part.format("vit") for part in STEER]
    beside = prepared(("vit",), steer, lambda place: place.write("vit/modeling.py", "import os"))
    yield Case("kinds/steer, Python beside the weights", beside, "fine", holds=_no_python)
    behind: dict[str, tuple[str, Callable[[Place], Any]]] = {
        "the hub's cache": ("models--a--b/snapshots/0123", _as_the_hub_lays_it),
        "a link to a model": ("link", lambda place: (place.copy("vit"), (place / "link").symlink_to("vit"))),
    }
    for (command, line), (label, (name, make)) in itertools.product(RUN.items(), behind.items()):
        yield Case(f"kinds/{command}, {label}", prepared((), [part.format(name) for part in line], make), "fine")


def _secret(place: Place, model: str, kind: str) -> None:
    place.write("private/key", SECRET)
    target = {"relative": "../private/key", "absolute": place / "private/key", "chain": "NOTES.md"}[kind]
    (place / f"{model}/README.md").symlink_to(target)
    if kind == "chain":
        (place / f"{model}/NOTES.md").symlink_to("../private/key")


def _as_the_hub_lays_it(place: Place) -> None:
    """Links into blobs beside."""
    place.copy_as("vit", "models--a--b/snapshots/0123")
    (place / "models--a--b/blobs").mkdir()
    for number, file in enumerate(sorted((place / "models--a--b/snapshots/0123").iterdir())):
        file.rename(place / f"models--a--b/blobs/{number}")
        file.symlink_to(f"../../blobs/{number}")


def _no_python(place: Place, _outcome: Outcome) -> str | None:
    return "a Python file was copied along" if list(place.folder.glob("out/**/*.py")) else None
