"""Places that cannot be written to, each found before the work or with nothing left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.case import Case, Place, prepared
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


Make = Callable[[Place, str], Any]
"""The place, and the ending that is asked for."""


def _locked(place: Place, _ending: str) -> None:
    (place / "locked").mkdir()
    (place / "locked").chmod(0o500)


def _nothing(_place: Place, _ending: str) -> None: ...


PLACES: dict[str, tuple[str, Make]] = {
    "a locked folder": ("locked/x{}", _locked),
    "below a locked folder": ("locked/a/b/x{}", _locked),
    "below a file": ("file/x{}", lambda place, _: place.write("file", "mine")),
    "/proc": ("/proc/x{}", _nothing),
    "/dev/full's folder": ("/dev/full/x{}", _nothing),
    "a name too long": ("x" * 300 + "{}", _nothing),
    "a path too long": ("x/" * 3000 + "x{}", _nothing),
    "nothing": ("", _nothing),
    "a blank": (" ", _nothing),
    "the folder itself": (".", _nothing),
    "the folder above": ("..", _nothing),
    "a link to itself": ("loop{}", lambda place, ending: (place / f"loop{ending}").symlink_to(f"loop{ending}")),
}
ONLY_FILES: dict[str, tuple[str, Make]] = {
    "a folder of that name": ("made{}", lambda place, ending: (place / f"made{ending}").mkdir()),
    "another ending": ("x.exe", _nothing),
    "no ending": ("x", _nothing),
    "only an ending": ("{}", _nothing),
    "/dev/full": ("/dev/full", _nothing),
    "/dev/stdout": ("/dev/stdout", _nothing),
    "a link to /dev/full": ("link{}", lambda place, ending: (place / f"link{ending}").symlink_to("/dev/full")),
    "a pipe": ("pipe{}", lambda place, ending: os.mkfifo(place / f"pipe{ending}")),
}
ONLY_FOLDERS: dict[str, tuple[str, Make]] = {
    "a file of that name": ("file", lambda place, _: place.write("file", "mine")),
    "a folder with files": ("full", lambda place, _: place.write("full/mine.txt", "mine")),
}
MAY_WORK = {"a link to itself", "only an ending", "a link to /dev/full", "a pipe", "a blank"}
MAY_LIE_ANYWHERE = ("the folder itself", "the folder above", "a folder with files")
"""Of figures and runs."""


def cases() -> Iterator[Case]:
    for what, (needed, line, ending) in FILES.items():
        for where, (name, make) in {**PLACES, **ONLY_FILES}.items():
            yield _case(what, needed, line, where, name, make, f".{ending}")
        if what != "demo -o":
            # A short table fits on what is left.
            fits = ending == "md" or "simulate" in what or "spectrum" in what
            yield _case(what, needed, line, "a full disk", f"out.{ending}", _nothing, "", fits, without=("disk",))
    for what, (needed, line) in FOLDERS.items():
        for where, (name, make) in {**PLACES, **ONLY_FOLDERS}.items():
            if what in ("steer -o", "fold -o") or where not in MAY_LIE_ANYWHERE:
                yield _case(what, needed, line, where, name, make, "")
        yield _case(what, needed, line, "a full disk", "out", _nothing, "", without=("disk",))
    yield from _over_the_input()


def _case(
    what: str, needed: Any, line: Any, where: str, name: str, make: Make, ending: str, fine: bool = False,
    without: Any = ("permission",),
) -> Case:  # fmt: skip
    words = [part.replace("{}", name.replace("{}", ending)) for part in line]
    expected: Any = "either" if fine or (where in MAY_WORK and what != "demo -o") else "refused"
    build = prepared(needed, words, lambda place: make(place, ending))
    return Case(f"outputs/{what}: {where}", build, expected, without=without)


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
    needed = ("vit", "steered", "d.json", "results", "run", CIFAR)
    for label, line in lines.items():
        build = prepared(needed, line, lambda place: (place / "link").symlink_to("vit"))
        yield Case(f"outputs/{label}", build, "either" if label in fine else "refused")
