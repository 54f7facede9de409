"""The world around a command: encodings, streams, a missing library, a home that is locked, variables of others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from adversary.inputs.case import Case, Outcome, Place, prepared
from adversary.inputs.kit import CIFAR, SMALL_RUN

Line = tuple[tuple[str, ...], tuple[str, ...]]
"""What is needed, and the command."""
SPECTRUM: Line = (("vit",), ("spectrum", "vit"))
STEER: Line = (("vit",), ("steer", "vit", "-m", "neutreno", "-o", "out"))
TRAIN: Line = ((CIFAR,), ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--minutes", "0"))
DIAGNOSE: Line = (("vit",), ("diagnose", "vit", "--inputs", "2", "--no-spectra"))
HUB: Line = ((), ("diagnose", "nobody/nothing-at-all"))
LINES: dict[str, Line] = {
    "help": ((), ("--help",)),
    "help of train": ((), ("train", "--help")),
    "version": ((), ("--version",)),
    "simulate": ((), ("simulate", "--preset", "smoothing", "--layers", "5", "--width", "4", "--heads", "1")),
    "spectrum": SPECTRUM,
    "a saved diagnosis": (("d.json",), ("diagnose", "d.json")),
    "status": (("results",), ("reproduce", "status", "--results", "results")),
    "table2": (("results",), ("reproduce", "table2", "--show", "--results", "results")),
    "a refusal": ((), ("diagnose", "nöwhere/ünfound.safetensors")),
}
FEW = ("help", "a refusal", "a saved diagnosis")
WORLDS: dict[str, dict[str, str]] = {
    "LC_ALL=C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    **{f"PYTHONIOENCODING={name}": {"PYTHONIOENCODING": name} for name in ("ascii", "latin-1", "utf-16")},
    **{f"COLUMNS={width}": {"COLUMNS": width} for width in ("1", "0", "x", "20")}, "TERM=dumb": {"TERM": "dumb"},
    "TERM is empty": {"TERM": ""}, "NO_COLOR": {"NO_COLOR": "1"}, "PYTHONHASHSEED": {"PYTHONHASHSEED": "1"},
}  # fmt: skip


def _case(label: str, line: Line, expected: Any = "fine", real: bool = False, **more: Any) -> Case:
    """real: in an interpreter of its own, since modules read it as they are imported."""
    given = {"process": "real", **more} if real else more
    return Case(f"environment/{label}", prepared(*line), expected, **given)


def cases() -> Iterator[Case]:
    for world, variables in WORLDS.items():
        for what, line in LINES.items():
            if what in FEW or not world.endswith(("latin-1", "utf-16")):
                expected = "refused" if what == "a refusal" else "fine"
                real = world.startswith(("LC_ALL", "PYTHONIO"))
                yield _case(f"{world}, {what}", line, expected, real, environment=variables)
    yield from _streams()
    yield from _libraries()
    yield from _variables()
    yield from _homes()


def _streams() -> Iterator[Case]:
    for what, line in LINES.items():
        for lack, named in (("stdout", "a standard output"), ("reader", "a reader")):
            if what not in ("version", "help of train", "table2"):
                codes = (2,) if what == "a refusal" else (0, 1, 2, 141, -13)
                lacks: Any = dict(codes=codes, without=(lack,), holds=_is_quiet)
                yield _case(f"without {named}, {what}", line, "either", True, **lacks)
    for what in ("spectrum", "a saved diagnosis", "simulate", "a refusal"):
        expected = "refused" if what == "a refusal" else "fine"
        yield _case(f"a terminal, {what}", LINES[what], expected, environment={"TERM": "xterm"}, process="terminal")


def _is_quiet(_place: Place, outcome: Outcome) -> str | None:
    text = outcome.err.decode("utf-8", "replace")
    words = ("BrokenPipeError", "Bad file descriptor", "lost sys.stderr", "NoneType")
    return "speaks of its streams" if any(word in text for word in words) else None


def _libraries() -> Iterator[Case]:
    """A library that lacks is named, with what brings it, before the work; or nobody misses it."""
    needs = {
        "transformers": {
            "diagnose": (("vit",), ("diagnose", "vit", "--inputs", "2"), True),
            "steer": (("vit",), ("steer", "vit", "-m", "neutreno", "-o", "out"), True),
            "spectrum": (("vit",), ("spectrum", "vit"), False),
            "a saved diagnosis": (("d.json",), ("diagnose", "d.json"), False),
        },
        "PIL": {
            "pictures": (("vit", "images"), ("diagnose", "vit", "--no-spectra", "--data", "images"), True),
            "npz": (("vit", "images.npz"), ("diagnose", "vit", "--no-spectra", "--data", "images.npz"), None),
        },
        "pyarrow": {
            "parquet": (
                ("vit", "images.parquet"), ("diagnose", "vit", "--no-spectra", "--data", "images.parquet"), True,
            ),
        },
        "jinja2": {"a page": (("d.json",), ("diagnose", "d.json", "--html", "out.html"), True),
                   "a model's page": (("vit",), ("diagnose", "vit", "--inputs", "2", "--html", "out.html"), True),
                   "no page": (("d.json",), ("diagnose", "d.json"), False)},
        "vl_convert": {"figures": (("d.json",), ("diagnose", "d.json", "--figures", "out"), True),
                       "a histogram": (("vit",), ("spectrum", "vit", "-o", "out.png"), True),
                       "a chart": ((), ("simulate", "--preset", "smoothing", "-o", "out.svg"), True),
                       "fig5": (("d.json",), ("reproduce", "fig5", "d.json", "-o", "out.svg"), True),
                       "no chart": (("d.json",), ("diagnose", "d.json"), False)},
        "safetensors": {"spectrum": (("vit",), ("spectrum", "vit"), None)},
        "tokenizers": {"text": (("gpt",), ("diagnose", "gpt", "--inputs", "2", "--no-spectra"), None)},
        "tensorboard": {
            "train": ((CIFAR,), ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--tensorboard"), True),
        },
        "timm": {"a timm name": ((), ("diagnose", "vit_tiny_patch16_224"), True)},
        "numpy": {"simulate": ((), ("simulate", "--preset", "smoothing", "--layers", "5"), None)},
    }  # fmt: skip
    packages = {"PIL": "pillow", "vl_convert": "vl-convert"}
    for library, lines in needs.items():
        for what, (needed, line, missed) in lines.items():
            expected = "either" if missed is None else "refused" if missed else "fine"
            blocked = (library, "torch.utils.tensorboard") if library == "tensorboard" else (library,)
            lacks: Any = dict(says=(library, packages.get(library, library), "install"), blocked=blocked)
            real = library in ("numpy", "safetensors", "tokenizers")
            yield _case(f"without {library}, {what}", (needed, line), expected, real, **lacks)


def _variables() -> Iterator[Case]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        for value in ("x", "", "-1", "1e3", "9" * 30, "\x1b[31mred", "[/b]"):
            yield _case(f"{name}={ascii(value)[:20]}, train", TRAIN, "either", environment={name: value})
        yield _case(f"{name}=x, spectrum", SPECTRUM, environment={name: "x"})
    first = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    together = {
        "a rank beyond the world": {**first, "RANK": "5"},
        "a world without an address": first,
        "no such address": {**first, "MASTER_ADDR": "x", "MASTER_PORT": "y"},
        "a world of none": {**first, "WORLD_SIZE": "0"},
    }
    for label, variables in together.items():
        for what, line in (("train", TRAIN), ("diagnose", DIAGNOSE)):
            yield _case(f"{label}, {what}", line, "either", environment=variables)
    by_name: Line = ((), ("train", "--data", "cifar100", "-o", "out", *SMALL_RUN, "--minutes", "0"))
    for name, values in VARIABLES.items():
        lines = {"spectrum": SPECTRUM}
        if name.startswith(("OVERSMOOTH", "TMPDIR", "HOME")):
            lines |= {"train by name": by_name, "steer": STEER}
        if name.startswith(("HF_", "HTTPS")):
            lines["a hub id"] = HUB
        for value, (what, line) in itertools.product(values, lines.items()):
            either = what == "train by name" or name == "OMP_NUM_THREADS"
            expected = "refused" if what == "a hub id" else "either" if either else "fine"
            variables = {**({"OVERSMOOTH_CACHE": ""} if name == "XDG_CACHE_HOME" else {}), name: value}
            real = name.startswith(("HF_", "OMP", "HTTPS", "LANG"))
            yield _case(f"{name}={ascii(value)[:24]}, {what}", line, expected, real, environment=variables)


VARIABLES = {
    "OMP_NUM_THREADS": ("x", "-1", "100000"), "CUDA_VISIBLE_DEVICES": ("x", "99"),
    "OVERSMOOTH_DATA": ("/nowhere", "\x1b[31mred", "", "/dev/zero", "x" * 5000),
    "HF_HOME": ("/proc/nowhere", "/dev/null"), "HF_ENDPOINT": ("nonsense", "http://127.0.0.1:9"),
    "HF_HUB_OFFLINE": ("0", "x"), "HTTPS_PROXY": ("http://127.0.0.1:9", "nonsense"), "TORCH_HOME": ("/dev/null",),
    "MPLBACKEND": ("nonsense",), "TMPDIR": ("/nowhere", "/dev/null"), "HOME": ("/nowhere", "/dev/null", ""),
    "XDG_CACHE_HOME": ("/dev/null",), "OVERSMOOTH_CACHE": ("/dev/null", "/proc/x", "", "x" * 5000),
    "PWD": ("/nowhere",), "LANG": ("x", "\x1b[31mred"), "PAGER": ("touch CODE-RAN",), "EDITOR": ("touch CODE-RAN",),
}  # fmt: skip


def _homes() -> Iterator[Case]:
    """A home and a cache that cannot be read or written."""
    diagnose: Line = (("vit",), ("diagnose", "vit", "--inputs", "2", "--no-spectra"))
    lines = {"spectrum": SPECTRUM, "diagnose": diagnose, "train": TRAIN, "a hub id": HUB}
    homes = {"HOME": "", "XDG_CACHE_HOME": "/c", "OVERSMOOTH_CACHE": "/o", "HF_HOME": "/h"}
    for (what, line), mode in itertools.product(lines.items(), (0o000, 0o500)):
        yield Case(
            f"environment/a locked home ({mode:03o}), {what}",
            prepared(*line, lambda place, mode=mode: (place / "locked").mkdir(mode)),
            "refused" if what == "a hub id" else "fine",
            environment={name: "{case}/locked" + below for name, below in homes.items()},
            without=("permission",),
            process="real" if what in ("a hub id", "diagnose") else "forked",
        )

    def read_only(place: Place) -> None:
        for path in (place / "vit").iterdir():
            path.chmod(0o400)
        (place / "vit").chmod(0o500)

    steer = prepared(*STEER, read_only)
    yield Case("environment/a read-only model, steer", steer, "fine", without=("permission",))
