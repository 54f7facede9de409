"""The world around a command: encodings, streams, a missing library, a home that is locked, variables of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adversary.inputs.case import Case, Outcome, Place, prepared
from adversary.inputs.kit import CIFAR, SMALL_RUN

LINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "help": ((), ("--help",)),
    "help of train": ((), ("train", "--help")),
    "version": ((), ("--version",)),
    "simulate": ((), ("simulate", "--preset", "smoothing", "--layers", "5", "--width", "4", "--heads", "1")),
    "spectrum": (("vit",), ("spectrum", "vit")),
    "a saved diagnosis": (("d.json",), ("diagnose", "d.json")),
    "status": (("results",), ("reproduce", "status", "--results", "results")),
    "table2": (("results",), ("reproduce", "table2", "--show", "--results", "results")),
    "a refusal": ((), ("diagnose", "nöwhere/ünfound.safetensors")),
}
WORLDS: dict[str, dict[str, str]] = {
    "LC_ALL=C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "PYTHONIOENCODING=ascii": {"PYTHONIOENCODING": "ascii"},
    "PYTHONIOENCODING=latin-1": {"PYTHONIOENCODING": "latin-1"},
    "PYTHONIOENCODING=utf-16": {"PYTHONIOENCODING": "utf-16"},
    "COLUMNS=1": {"COLUMNS": "1"},
    "COLUMNS=0": {"COLUMNS": "0"},
    "COLUMNS=x": {"COLUMNS": "x"},
    "COLUMNS=20": {"COLUMNS": "20"},
    "TERM=dumb": {"TERM": "dumb"},
    "TERM is empty": {"TERM": ""},
    "NO_COLOR": {"NO_COLOR": "1"},
    "PYTHONHASHSEED": {"PYTHONHASHSEED": "1"},
}
REAL = {"LC_ALL=C", "PYTHONIOENCODING=ascii", "PYTHONIOENCODING=latin-1", "PYTHONIOENCODING=utf-16"}


def cases() -> Iterator[Case]:
    for world, variables in WORLDS.items():
        for what, (needed, line) in LINES.items():
            if world.endswith(("latin-1", "utf-16")) and what not in ("help", "a refusal", "a saved diagnosis"):
                continue
            yield Case(
                f"environment/{world}, {what}",
                prepared(needed, line),
                "refused" if what == "a refusal" else "fine",
                environment=variables,
                process="real" if world in REAL else "forked",
            )
    yield from _streams()
    yield from _libraries()
    yield from _variables()
    yield from _homes()


def _streams() -> Iterator[Case]:
    for what, (needed, line) in LINES.items():
        for lack in ("stdout", "reader"):
            if what in ("version", "help of train", "table2"):
                continue
            yield Case(
                f"environment/without {'a standard output' if lack == 'stdout' else 'a reader'}, {what}",
                prepared(needed, line),
                "either",
                codes=(2,) if what == "a refusal" else (0, 1, 2, 141, -13),
                without=(lack,),
                process="real",
                holds=_is_quiet,
            )
    for what in ("spectrum", "a saved diagnosis", "simulate", "a refusal"):
        needed, line = LINES[what]
        refused = what == "a refusal"
        terminal = {"TERM": "xterm"}
        expected: Any = "refused" if refused else "fine"
        yield Case(
            f"environment/a terminal, {what}",
            prepared(needed, line),
            expected,
            environment=terminal,
            process="terminal",
        )


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
    for library, lines in needs.items():
        for what, (needed, line, missed) in lines.items():
            expected: Any = "either" if missed is None else "refused" if missed else "fine"
            yield Case(
                f"environment/without {library}, {what}",
                prepared(needed, line),
                expected,
                (library, {"PIL": "pillow", "vl_convert": "vl-convert"}.get(library, library), "install"),
                blocked=(library,) if library != "tensorboard" else ("tensorboard", "torch.utils.tensorboard"),
                process="real" if library in ("numpy", "safetensors", "tokenizers") else "forked",
            )


def _variables() -> Iterator[Case]:
    train = ((CIFAR,), ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--minutes", "0"))
    spectrum = (("vit",), ("spectrum", "vit"))
    bad = ("x", "", "-1", "1e3", "9" * 30, "\x1b[31mred", "[/b]")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        for value in bad:
            alone = {name: value}
            yield Case(f"environment/{name}={ascii(value)[:20]}, train", prepared(*train), "either", environment=alone)
        yield Case(f"environment/{name}=x, spectrum", prepared(*spectrum), "fine", environment={name: "x"})
    together = {
        "a rank beyond the world": {"RANK": "5", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        "a world without an address": {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        "no such address": {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "y"},
        "a world of none": {"RANK": "0", "WORLD_SIZE": "0", "LOCAL_RANK": "0"},
    }
    for label, variables in together.items():
        yield Case(f"environment/{label}, train", prepared(*train), "either", environment=variables)
    for name, values in {
        "OMP_NUM_THREADS": ("x", "-1", "100000"),
        "CUDA_VISIBLE_DEVICES": ("x", "99"),
        "OVERSMOOTH_DATA": ("/nowhere", "\x1b[31mred", "", "/dev/zero", "x" * 5000),
        "HF_HOME": ("/proc/nowhere", "/dev/null"),
        "HF_ENDPOINT": ("nonsense", "http://127.0.0.1:9"),
        "HF_HUB_OFFLINE": ("0", "x"),
        "HTTPS_PROXY": ("http://127.0.0.1:9", "nonsense"),
        "TORCH_HOME": ("/dev/null",),
        "MPLBACKEND": ("nonsense",),
        "TMPDIR": ("/nowhere", "/dev/null"),
        "HOME": ("/nowhere", "/dev/null", ""),
        "XDG_CACHE_HOME": ("/dev/null",),
        "OVERSMOOTH_CACHE": ("/dev/null", "/proc/x", "", "x" * 5000),
        "PWD": ("/nowhere",),
        "LANG": ("x", "\x1b[31mred"),
        "PAGER": ("touch CODE-RAN",),
        "EDITOR": ("touch CODE-RAN",),
    }.items():
        for value in values:
            real = name.startswith(("HF_", "OMP", "HTTPS", "LANG"))
            lines = {"spectrum": spectrum}
            if name.startswith(("OVERSMOOTH", "TMPDIR", "HOME")):
                lines["train by name"] = (
                    (),
                    ("train", "--data", "cifar100", "-o", "out", *SMALL_RUN, "--minutes", "0"),
                )
                lines["steer"] = (("vit",), ("steer", "vit", "-m", "neutreno", "-o", "out"))
            if name.startswith(("HF_", "HTTPS")):
                lines["a hub id"] = ((), ("diagnose", "nobody/nothing-at-all"))
            for what, (needed, line) in lines.items():
                expected: Any = "refused" if what == "a hub id" else "either" if what == "train by name" else "fine"
                if name == "OMP_NUM_THREADS":
                    expected = "either"
                yield Case(
                    f"environment/{name}={ascii(value)[:24]}, {what}",
                    prepared(needed, line),
                    expected,
                    environment={**({"OVERSMOOTH_CACHE": ""} if name == "XDG_CACHE_HOME" else {}), name: value},
                    process="real" if real else "forked",
                )


def _homes() -> Iterator[Case]:
    """A home and a cache that cannot be read or written."""
    lines = {
        "spectrum": (("vit",), ("spectrum", "vit")),
        "diagnose": (("vit",), ("diagnose", "vit", "--inputs", "2", "--no-spectra")),
        "train": ((CIFAR,), ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--minutes", "0")),
        "a hub id": ((), ("diagnose", "nobody/nothing-at-all")),
    }
    for what, (needed, line) in lines.items():
        for mode in (0o000, 0o500):
            variables = {
                "HOME": "{case}/locked",
                "XDG_CACHE_HOME": "{case}/locked/c",
                "OVERSMOOTH_CACHE": "{case}/locked/o",
            }
            yield Case(
                f"environment/a locked home ({mode:03o}), {what}",
                prepared(needed, line, lambda place, mode=mode: (place / "locked").mkdir(mode)),
                "refused" if what == "a hub id" else "fine",
                environment={**variables, "HF_HOME": "{case}/locked/h"},
                without=("permission",),
                process="real" if what in ("a hub id", "diagnose") else "forked",
            )

    def read_only(place: Place) -> None:
        for path in (place / "vit").iterdir():
            path.chmod(0o400)
        (place / "vit").chmod(0o500)

    steer = prepared(("vit",), ("steer", "vit", "-m", "neutreno", "-o", "out"), read_only)
    yield Case("environment/a read-only model, steer", steer, "fine", without=("permission",))
