"""Saved diagnoses with one thing changed, read back by every command that takes one."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.attacks import mutations
from adversary.inputs.case import Case, Place

LINES = (
    ("diagnose", "d.json", "d.json"),
    ("reproduce", "table1", "d.json", "-o", "out.md"),
    ("spectrum", "d.json"),
    ("reproduce", "fig2", "d.json"),
    ("reproduce", "fig5", "d.json"),
    ("diagnose", "d.json", "--html", "out.html"),
)
DRAWN = LINES[5]
"""Takes seconds: for few."""
HARMLESS = ("every name twice", "a mark of order before", "10 MB of blanks", "a deep field", "1e400", "lone surrogate")
HARMLESS += ("a number of 10^5 digits",)


@functools.cache
def example() -> dict[str, Any]:
    """A diagnosis as it is saved, with something in every field."""
    from support.report_example import example as made_up

    found = json.loads(made_up(layers=2, heads=2, head_dim=2, inputs=2).to_json())
    found["provenance"].update(counting_rule="one maximum per head", massive_rule="5 times the median", seconds=1.0)
    return found


def cases() -> Iterator[Case]:
    for label in mutations.RAW:
        for line in LINES[:2]:
            fine = label in HARMLESS
            yield _case(f"{_short(line)}, {label}", line, functools.partial(_raw, label=label), fine)
    found = example()
    twice = {path[2:] for path in mutations.paths(found) if path[0] == "layers"}  # the first block says them again
    ways = [p for p in mutations.paths(found, most=2) if not (p[:2] == ("layers", 1) and p[2:] in twice)]
    for number, path in enumerate(ways):
        where = ".".join(map(str, path))
        kinds = mutations.other_kinds(mutations.at(found, path))
        line = LINES[number % 3]
        chosen = [kinds[number % len(kinds)]]
        if number % 10 == 0:
            value = mutations.VALUES[kinds[0]]
            changed = functools.partial(_changed, path=path, value=value)
            yield _case(f"{_short(DRAWN)}, {where}: {kinds[0]}", DRAWN, changed, True)
        for kind in chosen:
            value = mutations.VALUES[kind]
            changed = functools.partial(_changed, path=path, value=value)
            yield _case(f"{_short(line)}, {where}: {kind}", line, changed, True)
        if isinstance(path[-1], str) and number % 2:
            yield _case(f"{_short(line)}, {where}: gone", line, functools.partial(_gone, path=path), True)
    for where, path in {"all layers": ("layers",), "its name": ("model", "name"), "its version": ("version",)}.items():
        for kind, value in mutations.VALUES.items():
            for line in LINES[1:5]:
                changed = functools.partial(_changed, path=path, value=value)
                yield _case(f"{_short(line)}, {where}: {kind}", line, changed, True)
    yield from _shapes()


def _short(line: tuple[str, ...]) -> str:
    """The command and what it writes."""
    return next(word for word in ("--html", "table1", "fig2", "fig5", "spectrum", "diagnose") if word in line)


def _case(label: str, line: tuple[str, ...], spoil: Any, fine: bool) -> Case:
    def build(place: Place) -> list[str]:
        (place / "d.json").write_bytes(spoil())
        return list(line)

    return Case(f"diagnoses/{label}", build, "either" if fine else "refused", ("d.json",), slow=line is DRAWN)


def _raw(label: str) -> bytes:
    return mutations.RAW[label](json.dumps(example()).encode())


def _changed(path: tuple[str | int, ...], value: Any) -> bytes:
    return json.dumps(mutations.changed(example(), path, value)).encode()


def _gone(path: tuple[str | int, ...]) -> bytes:
    return json.dumps(mutations.without(example(), path)).encode()


def _shapes() -> Iterator[Case]:
    """Every field of its kind, and the whole still none."""

    def spoilt(label: str) -> bytes:
        found = mutations.changed(example(), ("version",), 2)
        layers = found["layers"]
        if label == "no layers":
            found["layers"] = []
        elif label == "one layer":
            found["layers"] = layers[:1]
        elif label == "5000 layers":
            found["layers"] = layers[:1] + layers[1:2] * 5000
        elif label == "no heads":
            layers[1]["spectrum"]["heads"] = {}
        elif label == "rows of other lengths":
            layers[1]["dominance"]["rho_rough_heads"] = [[1.0], [1.0, 2.0, 3.0]]
        elif label == "unknown verdicts":
            layers[1]["dominance"]["verdict_heads"] = [["so-so"] * 2] * 2
        elif label == "eigenvalues without their other half":
            layers[1]["spectrum"]["joined"]["raw"]["imag"] = []
        elif label == "10^6 eigenvalues":
            layers[1]["spectrum"]["joined"]["raw"].update(real=[0.5] * 10**6, imag=[0.0] * 10**6)
        elif label == "a course of other lengths":
            found["extrapolation"][0]["real"]["depth"] = [1]
        elif label == "huge numbers":
            layers[1]["tokens"] = dict.fromkeys(layers[1]["tokens"], 1e308)
        elif label == "tiny numbers":
            layers[1]["tokens"] = dict.fromkeys(layers[1]["tokens"], 5e-324)
        elif label == "negative shares":
            layers[1]["dominance"]["smoothing_share"] = -3.0
        elif label == "a million letters":
            found["verdict"] = ["x" * 10**6]
        elif label == "10^4 remarks":
            found["remarks"] = ["x"] * 10**4
        elif label == "unknown metrics":
            layers[1]["tokens"]["beauty"] = 1.0
        elif label == "version 3":
            found["version"] = 3
        elif label == "version 1":
            found["version"] = 1
        return json.dumps(found).encode()

    labels = (
        "no layers", "one layer", "5000 layers", "no heads", "rows of other lengths", "unknown verdicts",
        "eigenvalues without their other half", "10^6 eigenvalues", "a course of other lengths", "huge numbers",
        "tiny numbers", "negative shares", "a million letters", "10^4 remarks", "unknown metrics", "version 3",
        "version 1",
    )  # fmt: skip
    for label in labels:
        for line in (*LINES[:3], DRAWN):
            yield _case(f"{_short(line)}, {label}", line, functools.partial(spoilt, label), label != "version 3")

    def alone(place: Place) -> list[str]:
        Path(place / "d.json").write_bytes(json.dumps(example()).encode())
        return ["diagnose", "d.json", "--html", "out.html"]

    yield Case("diagnoses/as it is", alone, "fine", slow=True)
