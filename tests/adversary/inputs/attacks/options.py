"""Every value that makes no sense, for every option of every command: the list is the application's own."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

from adversary.inputs.case import Case, Place, prepared
from adversary.inputs.kit import CIFAR, SMALL_RUN

QUICK = ("--quick", "--data", CIFAR, "--results", "results", "--minutes", "0", "--device", "cpu")
TESTED = ("--quick", "--data", CIFAR, "--results", "results", "--device", "cpu")
TUNED = ("--data", "images.npz", "--folds", "2", "--steps", "1", "--batch", "2", "--method", "neutreno")
BASES: dict[str, tuple[str, ...]] = {
    "diagnose": ("vit", "--inputs", "1", "--depth", "2"),
    "spectrum": ("vit",),
    "simulate": ("--tokens", "6", "--width", "4", "--heads", "2", "--layers", "10"),
    "steer": ("vit", "--method", "neutreno", "--output", "out"),
    "fold": ("steered", "--output", "out"),
    "train": ("--data", CIFAR, "--output", "out", *SMALL_RUN, "--minutes", "0"),
    "demo": ("--output", "out.html"),
    "layers": ("vit", "--inputs", "16"),
    "spans": ("vit", "--inputs", "1", "--drop"),
    "survey": ("list.toml", "--output", "out"),
    "sweep": ("sweep.toml", "--results", "results", "--device", "cpu"),
    "reproduce table1": ("vit", "--inputs", "2"),
    "reproduce fig2": ("vit", "--inputs", "2"),
    "reproduce fig3": ("vit", "--inputs", "2"),
    "reproduce steering": ("vit", "--inputs", "1", "--spectra", "1"),
    "reproduce fig5": ("vit",),
    "reproduce table2": QUICK,
    "reproduce depth": QUICK,
    "reproduce table3": TESTED,
    "reproduce status": ("--results", "results"),
    "reproduce neutreno robustness": ("--trained", "run", *TESTED),
    **dict.fromkeys(
        (f"reproduce neutreno {name}" for name in ("cosine", "kernel", "energy")), ("vit", "--inputs", "1")
    ),
    "reproduce neutreno prediction": ("--trained", "run", "--data", CIFAR, "--inputs", "1", "--device", "cpu"),
    "reproduce first-paper": ("--results", "results"),
    "reproduce models": ("--pack", "out.zip", "--results", "results"),
    "reproduce neutreno adaptation": ("vit", *TUNED, "--results", "results"),
    "tune": ("vit", *TUNED),
}
"""A quick way to run each command; one that is not listed gets its required arguments."""
MISSES = ("OVERSMOOTH_DATA", "no model", "no plain model", "plain models", "models are missing")
MISS = tuple(f"reproduce {name}" for name in ("table3", "text figures", "text glue", "neutreno prediction"))
"""Commands that look for models that were trained first, and what they say."""
LONG = {"demo", "gallery", "reproduce fig3", "reproduce steering", "sweep"}
"""Take seconds with a value that will do: get only those that cannot."""
ON_SAVED = ("json", "html", "figures", "format", "output")
"""Options of outputs, for which a saved diagnosis will do as the model."""
NEEDED = ("vit", "steered", "run", CIFAR, "results", "d.json", "images.npz", "list.toml", "sweep.toml")
AGAIN = ("-1", "empty", "colour")
"""For an option that another command has too: what is asked of it is asked in one place."""
ANY = {
    "empty": "", "markup": "[/b]", "bold": "[bold]zebra[/bold]", "colour": "\x1b[31mred", "long": "x" * 5000,
    "unicode": "½ⅷ\u202eевил", "bytes": b"\xff\xfe",
}  # fmt: skip
NUMBERS = {
    "0": "0", "-1": "-1", "10^9": "1000000000", "10^40": "9" * 40, "nan": "nan", "inf": "inf", "fraction": "0.5",
    "1e400": "1e400", "arabic": "٣٣٣٣",
}  # fmt: skip


SHOW_SAVED = ("diagnose", "spectrum", "reproduce table1", "reproduce fig2", "reproduce fig5")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the application with its full name."""

    from oversmooth.cli import commands

    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for key, inner in command.commands.items():
                yield from below(f"{name} {key}".strip(), inner)
        else:
            yield name, command

    yield from below("", commands())


def options(command: Any) -> Iterator[tuple[str, Any]]:
    """The options that take a value, by their long names."""
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.is_flag and parameter.name != "help":
            yield max(parameter.opts, key=len), parameter


def _is_number(command: Any, parameter: Any) -> bool:
    """By the function's own annotation: how the parser keeps types is its affair."""
    hint = typing.get_type_hints(inspect.unwrap(command.callback))[parameter.name]
    return re.search(r"\b(int|float)\b", str(hint)) is not None


def base(name: str, command: Any, without: Any = None) -> list[str]:
    """Arguments with which a command runs, but for one option."""
    given = list(BASES.get(name, ()))
    if name not in BASES:
        for parameter in command.params:
            if parameter.required and parameter.param_type_name == "argument":
                given.append("vit")
            elif parameter.required:
                given += [max(parameter.opts, key=len), "out"]
    if without is not None and without.name in ON_SAVED and name in SHOW_SAVED:
        given = ["d.json"]
    if without is not None:
        while found := [place for place, word in enumerate(given) if word in without.opts]:
            del given[found[0] : found[0] + 1 + max(1, without.nargs)]
    return given


def case(name: str, command: Any, option: str, parameter: Any, label: str, value: str | bytes) -> Case:
    def build(place: Place) -> list[str | bytes]:
        line = base(name, command, parameter)
        place.copy(*(word for word in NEEDED if word in line))
        return [*name.split(), *line, option, *[value] * max(1, parameter.nargs)]

    says = (option.strip("-"), option.strip("-").replace("-", " "), option.strip("-").replace("-", "_"), parameter.name)
    shown = value.decode("latin-1") if isinstance(value, bytes) else value
    quoted = tuple(word for word in (shown[:12], "red", "zebra", "евил") if word and word in shown)
    quoted += (f"{int(shown):,}",) if shown.isascii() and shown.isdigit() else ()
    quoted += ("xff", "udcff") if isinstance(value, bytes) else ()
    # What a command may miss first: data or another model; or those that were trained.
    lacks = () if name in BASES else ("OVERSMOOTH_DATA", "vit")
    lacks = MISSES if name in MISS else lacks
    return Case(f"options/{name} {option} {label}", build, "either", (*says, *quoted, *lacks), slow=name in LONG)


def cases() -> Iterator[Case]:
    seen = set()
    for name, command in commands():
        for option, parameter in options(command):
            again = option in seen
            seen.add(option)
            values = {**(NUMBERS if _is_number(command, parameter) else {"0": "0", "-1": "-1"}), **ANY}
            for label, value in values.items():
                if again and label not in AGAIN:
                    continue
                if name in LONG and label in ("0", "-1", "10^9", "10^40", "arabic"):
                    continue
                if name == "sweep" and label == "bytes":
                    continue  # it would train, and safetensors reads no file whose name is not UTF-8
                if option == "--minutes" and QUICK is BASES.get(name) and label in ("10^9", "10^40", "inf", "arabic"):
                    continue  # it would train for minutes, as told
                if option == "--figures" and label not in ("empty", "long", "bytes"):
                    continue  # each draws a dozen charts
                yield case(name, command, option, parameter, label, value)
    yield from _of_the_line()


def _of_the_line() -> Iterator[Case]:
    """What is wrong with the line as a whole."""
    lines: dict[str, tuple[str | bytes, ...]] = {
        "no such command": ("diagnoze",),
        "command in colour": ("\x1b[31mred",),
        "command with markup": ("[bold]zebra[/bold]",),
        "command of 5000 letters": ("x" * 5000,),
        "command of bytes": (b"\xff\xfe",),
        "empty command": ("",),
        "no model": ("diagnose",),
        "an empty model": ("diagnose", ""),
        "a model in colour": ("diagnose", "\x1b[31mred"),
        "a model with markup": ("diagnose", "[bold]zebra[/bold]"),
        "a closing tag as a model": ("spectrum", "[/b]"),
        "a model of 5000 letters": ("diagnose", "x" * 5000),
        "a model of 5000 parts": ("diagnose", "x/" * 2500),
        "a model of bytes": ("spectrum", b"\xff\xfe"),
        "a model with a newline": ("diagnose", "red\ngreen"),
        "an option that is not there": ("diagnose", "vit", "--colour", "red"),
        "an option in colour": ("diagnose", "vit", "--\x1b[31mred"),
        "an option with markup": ("diagnose", "vit", "--[bold]zebra[/bold]"),
        "an option of 5000 letters": ("diagnose", "vit", "--" + "x" * 5000),
        "an option without its value": ("diagnose", "vit", "--data"),
        "too many arguments": ("fold", "steered", "again", "-o", "out"),
        "1000 models": ("diagnose", *["vit"] * 1000, "--html", "out.html"),
        "10000 values of one option": ("steer", "vit", "-o", "out", *["-m", "neutreno"] * 10000),
        "a group without a command": ("reproduce", "tabel2"),
        "a hub id": ("diagnose", "nobody/nothing-at-all"),
        "a hub id for spectra": ("spectrum", "nobody/nothing-at-all"),
        "a hub id to steer": ("steer", "nobody/nothing-at-all", "-m", "neutreno", "-o", "out"),
        "a url": ("diagnose", "http://127.0.0.1:9/model"),
        "a url of a file": ("diagnose", "file:///etc/passwd"),
        "an address inside": ("spectrum", "hf://nobody/nothing"),
        "dots": ("diagnose", ".."),
        "root": ("spectrum", "/"),
        "layers without end": ("steer", "vit", "-m", "neutreno", "-o", "out", "--layers", "0-99999999999"),
        "layers of 10^30": ("steer", "vit", "-m", "neutreno", "-o", "out", "--layers", "9" * 30),
        "layers backwards": ("steer", "vit", "-m", "neutreno", "-o", "out", "--layers", "4-1"),
        "layers below": ("steer", "vit", "-m", "neutreno", "-o", "out", "--layers", "-5"),
        "layers twice": ("steer", "vit", "-m", "neutreno", "-o", "out", "--layers", "0,0,0-1" + ",0" * 9),
        "layers with commas": ("steer", "vit", "-m", "neutreno", "-o", "out", "--layers", ",,1,,"),
        "a json for two": ("diagnose", "vit", "vit", "--json", "out.json"),
    }
    fine = {"layers twice", "layers below"}
    for label, line in lines.items():
        build = prepared(("vit", "steered"), line)  # type: ignore[arg-type]
        yield Case(f"options/line: {label}", build, "either" if label in fine else "refused")
    settings = {
        "neutreno": ("strength=nan", "strength=inf", "strength=1e400", "strength=", "strength", "learned=maybe", "x=1"),
        "spectral": (
            "mode=[/b]", "interval=1..0", "interval=nan..nan", "interval=..", "interval=1", "seed=-1",
            f"seed={'9' * 40}",
            "orthogonal=\x1b[31mred", "form=general,interval=-inf..inf", "mode=sharpen,mode=smooth", "bounded=2",
        ),
        "attnscale": ("strength=1e38", "strength=-1e308"),
        "featscale": ("low=nan", "high=-inf", "as_published=\u202e"),
        "contranorm": ("temperature=0", "temperature=-1", "temperature=nan", "strength=1e300"),
        "valueresidual": ("strength=nan", "strength=-1e30"),
        "centred": ("strength=inf",),
        "laplacian": ("strength=nan", "learned="),
        "": ("", "=", ":", "a=b"),
        "x" * 2000: ("strength=1",),
        "[bold]zebra[/bold]": ("x=1",),
        "\x1b[31mred": ("x=1",),
    }  # fmt: skip
    for method, several in settings.items():
        for setting in several:
            build = prepared(("vit",), ("steer", "vit", "-m", f"{method}:{setting}", "-o", "out"))
            yield Case(f"options/steer -m {method[:20]!a}:{setting[:40]!a}", build, "either")
