"""Things that are not the kind of file they should be: pipes, devices, sockets, links, folders, locked doors."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.attacks.shards import SECRET, _no_secret
from adversary.inputs.case import Case, Outcome, Place
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
        ("train", "--data", "fashion-mnist", "-o", "out", *SMALL_RUN),
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
FINE |= {"one of the pictures", "a processor", "a folder of text"}
ALWAYS = ("a pipe", "a link to /dev/zero", "a link to itself", "a locked file", "4 TB of zeros")


def cases() -> Iterator[Case]:
    for number, (what, (name, needed, line)) in enumerate(TAKES.items()):
        for turn, (kind, make) in enumerate(KINDS.items()):
            if kind in ALWAYS or (turn + number) % 2:
                yield _case(what, kind, name, needed, line, make)
    yield from _devices()
    yield from _links()


def _case(what: str, kind: str, name: str, needed: tuple[str, ...], line: tuple[str, ...], make: Any) -> Case:
    def build(place: Place) -> list[str]:
        place.copy(*needed)
        if "stopped" in needed:
            (place / "stopped").rename(place / "out")  # a run may change what is its own
        target = place / name
        target.unlink(missing_ok=True)
        target.parent.mkdir(exist_ok=True)
        make(target)
        return list(line)

    fine = what in FINE or (kind == "nothing" and what in ("a configuration for spectra",))
    fine |= what in ("a tokenizer", "a checkpoint to go on from")
    fine |= what == "a configuration for spectra"
    return Case(f"kinds/{what}: {kind}", build, "either" if fine else "refused", without=("permission",))


def _devices() -> Iterator[Case]:
    """By their own names."""
    commands = {
        "model": ("diagnose", "{}"),
        "weights": ("spectrum", "{}"),
        "text": ("diagnose", "gpt", "--data", "{}"),
        "pictures": ("diagnose", "vit", "--data", "{}"),
        "recipe": ("train", "--recipe", "{}", "-o", "out"),
        "data": ("train", "--data", "{}", "-o", "out"),
        "fold": ("fold", "{}", "-o", "out"),
        "results": ("reproduce", "status", "--results", "{}"),
    }
    for device in (
        "/dev/zero",
        "/dev/null",
        "/dev/full",
        "/dev/random",
        "/dev/stdin",
        "/proc/self/mem",
        "/proc",
        "/dev",
    ):
        for what, line in commands.items():

            def build(place: Place, device: str = device, line: tuple[str, ...] = line) -> list[str]:
                place.copy("vit", "gpt")
                return [part.format(device) for part in line]

            yield Case(f"kinds/{device} as {what}", build, "either" if what == "results" else "refused")


def _links() -> Iterator[Case]:
    """What steer and fold copy along, and what they must not."""

    def secret(kind: str) -> Callable[[Place], list[str]]:
        def build(place: Place) -> list[str]:
            place.copy("vit", "steered")
            place.write("private/key", SECRET)
            for model in ("vit", "steered"):
                link = place / f"{model}/README.md"
                target = {"relative": "../private/key", "absolute": place / "private/key", "chain": "NOTES.md"}[kind]
                link.symlink_to(target)
                if kind == "chain":
                    (place / f"{model}/NOTES.md").symlink_to("../private/key")
            return ["steer", "vit", "-m", "neutreno", "-o", "out"]

        return build

    for kind in ("relative", "absolute", "chain"):
        make = secret(kind)
        yield Case(f"kinds/steer, a readme that is a link out, {kind}", make, "either", holds=_no_secret)

        def fold(place: Place, make: Any = make) -> list[str]:
            make(place)
            return ["fold", "steered", "-o", "out"]

        yield Case(f"kinds/fold, a readme that is a link out, {kind}", fold, "either", holds=_no_secret)

    def python_beside(place: Place) -> list[str]:
        place.copy("vit")
        place.write("vit/modeling.py", "import os")
        return ["steer", "vit", "-m", "neutreno", "-o", "out"]

    yield Case("kinds/steer, Python beside the weights", python_beside, "fine", holds=_no_python)

    def hub(place: Place) -> None:
        """As the hub's cache lays a model: links into blobs beside."""
        place.copy_as("vit", "models--a--b/snapshots/0123")
        (place / "models--a--b/blobs").mkdir()
        for number, file in enumerate(sorted((place / "models--a--b/snapshots/0123").iterdir())):
            file.rename(place / f"models--a--b/blobs/{number}")
            file.symlink_to(f"../../blobs/{number}")

    lines = {
        "diagnose": ("diagnose", "{}", "--inputs", "2", "--no-spectra"),
        "spectrum": ("spectrum", "{}"),
        "steer": ("steer", "{}", "-m", "neutreno", "-o", "out"),
    }
    for command, line in lines.items():

        def cached(place: Place, line: Any = line) -> list[str]:
            hub(place)
            return [part.format("models--a--b/snapshots/0123") for part in line]

        def linked(place: Place, line: Any = line) -> list[str]:
            place.copy("vit")
            (place / "link").symlink_to("vit")
            return [part.format("link") for part in line]

        yield Case(f"kinds/{command}, the hub's cache", cached, "fine")
        yield Case(f"kinds/{command}, a link to a model", linked, "fine")


def _no_python(place: Place, _outcome: Outcome) -> str | None:
    return "a Python file was copied along" if list(place.folder.glob("out/**/*.py")) else None
