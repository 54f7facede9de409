"""Places that cannot be written to, each found before the work or with nothing left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.case import Case, Place
from adversary.inputs.kit import CIFAR, SMALL_RUN

SIMULATE = ("simulate", "--preset", "smoothing", "--layers", "5", "--width", "4", "--heads", "1")
FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    # needed, command with {} for the output, its ending
    "diagnose --json": (("vit",), ("diagnose", "vit", "--inputs", "2", "--no-spectra", "--json", "{}"), "json"),
    "diagnose --html": (("s.json",), ("diagnose", "s.json", "--html", "{}"), "html"),
    "spectrum --json": (("vit",), ("spectrum", "vit", "--json", "{}"), "json"),
    "spectrum -o": (("vit",), ("spectrum", "vit", "-o", "{}"), "svg"),
    "spectrum -o png": (("vit",), ("spectrum", "vit", "-o", "{}"), "png"),
    "simulate -o": ((), (*SIMULATE, "-o", "{}"), "html"),
    "simulate -o json": ((), (*SIMULATE, "-o", "{}"), "json"),
    "table1 -o": (("d.json",), ("reproduce", "table1", "d.json", "-o", "{}"), "md"),
    "fig2 -o": (("d.json",), ("reproduce", "fig2", "d.json", "-o", "{}"), "pdf"),
    "fig5 -o": (("d.json",), ("reproduce", "fig5", "d.json", "-o", "{}"), "svg"),
    "table2 -o": (("results",), ("reproduce", "table2", "--show", "--results", "results", "-o", "{}"), "md"),
    "table3 -o": (("results",), ("reproduce", "table3", "--show", "--results", "results", "-o", "{}"), "svg"),
    "demo -o": ((), ("demo", "-o", "{}"), "html"),
}  # fmt: skip
FOLDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "diagnose --figures": (("s.json",), ("diagnose", "s.json", "--figures", "{}", "--format", "svg")),
    "steer -o": (("vit",), ("steer", "vit", "-m", "neutreno", "-o", "{}")),
    "fold -o": (("steered",), ("fold", "steered", "-o", "{}")),
    "train -o": ((CIFAR,), ("train", "--data", CIFAR, "-o", "{}", *SMALL_RUN, "--minutes", "0")),
    "table2 --results": (
        (CIFAR,),
        ("reproduce", "table2", "--quick", "--data", CIFAR, "--results", "{}", "--minutes", "0", "--device", "cpu"),
    ),
}  # fmt: skip


def _locked(place: Place) -> None:
    (place / "locked").mkdir(mode=0o500)
    (place / "locked").chmod(0o500)


def _file(place: Place) -> None:
    place.write("file", "mine")


def _full(place: Place) -> None:
    (place / "full").mkdir()
    place.write("full/mine.txt", "mine")


def _loops(place: Place) -> None:
    for ending in _ENDINGS:
        (place / f"loop{ending}").symlink_to(f"loop{ending}")


PLACES: dict[str, tuple[str, Callable[[Place], Any]]] = {
    "a locked folder": ("locked/x{}", _locked),
    "below a locked folder": ("locked/a/b/x{}", _locked),
    "below a file": ("file/x{}", _file),
    "/proc": ("/proc/x{}", lambda _place: None),
    "/dev/full's folder": ("/dev/full/x{}", lambda _place: None),
    "a name too long": ("x" * 300 + "{}", lambda _place: None),
    "a path too long": ("x/" * 3000 + "x{}", lambda _place: None),
    "nothing": ("", lambda _place: None),
    "a blank": (" ", lambda _place: None),
    "the folder itself": (".", lambda _place: None),
    "the folder above": ("..", lambda _place: None),
    "a link to itself": ("loop{}", lambda place: _loops(place)),
}  # fmt: skip
_ENDINGS = ("", ".json", ".html", ".svg", ".png", ".md", ".pdf")
ONLY_FILES: dict[str, tuple[str, Callable[[Place, str], Any]]] = {
    "a folder of that name": ("made{}", lambda place, ending: (place / f"made{ending}").mkdir()),
    "another ending": ("x.exe", lambda _place, _ending: None),
    "no ending": ("x", lambda _place, _ending: None),
    "only an ending": ("{}", lambda _place, _ending: None),
    "/dev/full": ("/dev/full", lambda _place, _ending: None),
    "/dev/stdout": ("/dev/stdout", lambda _place, _ending: None),
    "a link to /dev/full": ("link{}", lambda place, ending: (place / f"link{ending}").symlink_to("/dev/full")),
    "a pipe": ("pipe{}", lambda place, ending: os.mkfifo(place / f"pipe{ending}")),
}
MAY_WORK = {"a link to itself", "only an ending", "a link to /dev/full", "a pipe", "a blank"}


def cases() -> Iterator[Case]:
    for what, (needed, line, ending) in FILES.items():
        for where, (name, make) in PLACES.items():
            yield _case(
                what, needed, line, where, name.replace("{}", f".{ending}"), lambda place, make=make: make(place)
            )
        for where, (name, make) in ONLY_FILES.items():
            made = lambda place, make=make, ending=ending: make(place, f".{ending}")  # noqa: E731
            yield _case(what, needed, line, where, name.replace("{}", f".{ending}"), made)
        if what != "demo -o":
            yield _full_disk(what, needed, line, f"out.{ending}")
    for what, (needed, line) in FOLDERS.items():
        for where, (name, make) in PLACES.items():
            if name in (".", "..") and what not in ("steer -o", "fold -o"):
                continue  # figures and runs may lie in any folder
            yield _case(what, needed, line, where, name.replace("{}", ""), lambda place, make=make: make(place))
        yield _case(what, needed, line, "a file of that name", "file", _file)
        yield _full_disk(what, needed, line, "out")
        if what in ("steer -o", "fold -o"):
            yield _case(what, needed, line, "a folder with files", "full", _full)
    yield from _over_the_input()


def _case(what: str, needed: Any, line: Any, where: str, name: str, make: Callable[[Place], Any]) -> Case:
    def build(place: Place) -> list[str]:
        place.copy(*needed)
        make(place)
        return [part.replace("{}", name) for part in line]

    expected = "either" if where in MAY_WORK and what != "demo -o" else "refused"
    return Case(f"outputs/{what}: {where}", build, expected, without=("permission",))  # type: ignore[arg-type]


def _full_disk(what: str, needed: Any, line: Any, name: str) -> Case:
    def build(place: Place) -> list[str]:
        place.copy(*needed)
        return [part.replace("{}", name) for part in line]

    # A short table fits on what is left.
    expected = "either" if name.endswith(".md") or "simulate" in what or "spectrum" in what else "refused"
    return Case(f"outputs/{what}: a full disk", build, expected, without=("disk",))  # type: ignore[arg-type]


def _over_the_input() -> Iterator[Case]:
    """Output that is the input, and two outputs that are one."""
    lines: dict[str, tuple[str, ...]] = {
        "steer into itself": ("steer", "vit", "-m", "neutreno", "-o", "vit"),
        "steer below itself": ("steer", "vit", "-m", "neutreno", "-o", "vit/out"),
        "steer through a link": ("steer", "vit", "-m", "neutreno", "-o", "link"),
        "fold into itself": ("fold", "steered", "-o", "steered"),
        "json over a configuration": ("spectrum", "vit", "--json", "vit/config.json"),
        "json over an index": ("diagnose", "d.json", "--json", "vit/config.json"),
        "one file for two": ("diagnose", "d.json", "--html", "out.html", "--figures", "out.html"),
        "two outputs of one name": (
            "reproduce", "table2", "--show", "--results", "results", "-o", "out.md", "-o", "out.md",
        ),
        "train into a model": ("train", "--data", CIFAR, "-o", "vit", *SMALL_RUN, "--minutes", "0"),
        "train into a run": ("train", "--data", CIFAR, "-o", "run", *SMALL_RUN, "--minutes", "0"),
        "results in a model": ("reproduce", "status", "--results", "vit"),
    }  # fmt: skip
    fine = {"two outputs of one name", "results in a model", "steer below itself"}
    for label, line in lines.items():

        def build(place: Place, line: tuple[str, ...] = line) -> list[str]:
            place.copy("vit", "steered", "d.json", "results", "run", CIFAR)
            (place / "link").symlink_to("vit")
            return list(line)

        yield Case(f"outputs/{label}", build, "either" if label in fine else "refused")
