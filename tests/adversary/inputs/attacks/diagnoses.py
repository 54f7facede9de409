"""Saved diagnoses with one thing changed, read back by every command that takes one."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.attacks import mutations
from adversary.inputs.case import Case, prepared

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
    for label, spoil in mutations.RAW.items():
        for line in LINES[:2]:
            content = lambda spoil=spoil: spoil(json.dumps(example()).encode())  # noqa: E731
            yield _case(line, label, content, "either" if label in HARMLESS else "refused")
    found = example()
    twice = {path[2:] for path in mutations.paths(found) if path[0] == "layers"}  # the first block says them again
    ways = [p for p in mutations.paths(found, most=2) if not (p[:2] == ("layers", 1) and p[2:] in twice)]
    for number, path in enumerate(ways):
        kinds, line = mutations.other_kinds(mutations.at(found, path)), LINES[number % 3]
        if number % 10 == 0:
            yield _changed(DRAWN, path, kinds[0])
        yield _changed(line, path, kinds[number % len(kinds)])
        if isinstance(path[-1], str) and number % 2:
            gone = lambda path=path: json.dumps(mutations.without(found, path)).encode()  # noqa: E731
            yield _case(line, f"{mutations.dotted(path)}: gone", gone)
    for where, path in {"all layers": ("layers",), "its name": ("model", "name"), "its version": ("version",)}.items():
        for kind in mutations.VALUES:
            for line in LINES[1:5]:
                yield _changed(line, path, kind, where)
    for label, change in SHAPES.items():
        for line in (*LINES[:3], DRAWN):
            yield _case(
                line, label, lambda change=change: _shaped(change), "refused" if label == "version 99" else "either"
            )
    yield _case(DRAWN, "as it is", lambda: json.dumps(found).encode(), "fine")


def _case(line: tuple[str, ...], label: str, content: Callable[[], bytes], expected: Any = "either") -> Case:
    command = next(word for word in ("--html", "table1", "fig2", "fig5", "spectrum", "diagnose") if word in line)
    build = prepared((), line, lambda place: place.write("d.json", content()))
    return Case(f"diagnoses/{command}, {label}", build, expected, ("d.json",), slow=line is DRAWN)


def _changed(line: tuple[str, ...], path: tuple[str | int, ...], kind: str, where: str = "") -> Case:
    content = lambda: json.dumps(mutations.changed(example(), path, mutations.VALUES[kind])).encode()  # noqa: E731
    return _case(line, f"{where or mutations.dotted(path)}: {kind}", content)


def _shaped(change: Callable[[Any, Any], Any]) -> bytes:
    found = copy.deepcopy(example())
    change(found, found["layers"])
    return json.dumps(found).encode()


SHAPES: dict[str, Callable[[Any, Any], Any]] = {
    "no layers": lambda found, _: found.update(layers=[]),
    "one layer": lambda found, layers: found.update(layers=layers[:1]),
    "5000 layers": lambda found, layers: found.update(layers=layers[:1] + layers[1:2] * 5000),
    "no heads": lambda _, layers: layers[1]["spectrum"].update(heads={}),
    "rows of other lengths": lambda _, layers: layers[1]["dominance"].update(rho_rough_heads=[[1.0], [1.0, 2.0, 3.0]]),
    "unknown verdicts": lambda _, layers: layers[1]["dominance"].update(verdict_heads=[["so-so"] * 2] * 2),
    "eigenvalues without their other half": lambda _, layers: layers[1]["spectrum"]["joined"]["raw"].update(imag=[]),
    "10^6 eigenvalues": lambda _, layers: layers[1]["spectrum"]["joined"]["raw"].update(
        real=[0.5] * 10**6, imag=[0.0] * 10**6
    ),
    "a course of other lengths": lambda found, _: found["extrapolation"][0]["real"].update(depth=[1]),
    "huge numbers": lambda _, layers: layers[1].update(tokens=dict.fromkeys(layers[1]["tokens"], 1e308)),
    "tiny numbers": lambda _, layers: layers[1].update(tokens=dict.fromkeys(layers[1]["tokens"], 5e-324)),
    "negative shares": lambda _, layers: layers[1]["dominance"].update(smoothing_share=-3.0),
    "a million letters": lambda found, _: found.update(verdict=["x" * 10**6]),
    "10^4 remarks": lambda found, _: found.update(remarks=["x"] * 10**4),
    "unknown metrics": lambda _, layers: layers[1]["tokens"].update(beauty=1.0),
    "version 99": lambda found, _: found.update(version=99),
}
"""Every field of its kind, and the whole still none."""
