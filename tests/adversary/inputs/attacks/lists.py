"""Files of TOML that name work, spoiled: the survey's here, and the sweep's in the tests of the papers."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from adversary.inputs.attacks import mutations, names
from adversary.inputs.case import Build, Case, Place, prepared

SURVEY = ("survey", "list.toml", "-o", "out")
TEXTS: dict[str, Callable[[str], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda held: held[:-3].rstrip().encode(),
    "null bytes": lambda held: bytes(len(held)),
    "UTF-16": lambda held: held.encode("utf-16"),
    "latin-1": lambda held: held.encode() + b'# \xe9\n',
    "random bytes": lambda _: bytes((i * 97 + 13) % 256 for i in range(2000)),
    "a list": lambda _: b"[]",
    "JSON": lambda _: b'{"methods": ["plain"], "spectrum": ["vit"]}',
    "a key twice": lambda held: f"{held.splitlines()[0]}\n{held}".encode(),
    "a key that is not known": lambda held: f'red = "\\u001b[31mred"\n{held}'.encode(),
    "a key in colour": lambda held: f'"\\u001b[31mred" = 1\n{held}'.encode(),
    "deep lists": lambda _: b"x = " + b"[" * 100_000 + b"]" * 100_000,
    "deep tables": lambda _: b"[" + b"a." * 5000 + b"a]",
    "a number of 10^5 digits": lambda held: f"inputs = {'9' * 100_000}\n{held}".encode(),
    "a date": lambda held: f"inputs = 1979-05-27T07:32:00Z\n{held}".encode(),
}  # fmt: skip


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {in_toml(inner)}' for key, inner in value.items() if inner is not None)}}}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else json.dumps(value)


def spoiled(group: str, line: Sequence[str], held: str, keys: Sequence[str], needed: Sequence[str]) -> Iterator[Case]:
    """Every text in place of the file, every value of another kind for a key, and what is no file."""
    name = line[1]

    def case(label: str, make: Callable[[Place], Any]) -> Case:
        return Case(f"{group}/{label}", prepared(needed, line, make))

    for label, text in TEXTS.items():
        yield case(label, functools.partial(Place.write, name=name, content=text(held)))
    for key in keys:
        rest = "".join(f"{one}\n" for one in held.splitlines() if not one.startswith(f"{key} ="))
        for label in ("text", "-1", "10^30", "a fraction", "NaN", "a list of lists", "an object"):
            content = f"{key} = {in_toml(mutations.VALUES[label])}\n{rest}"
            yield case(f"{key}: {label}", functools.partial(Place.write, name=name, content=content))
    yield case("nothing there", lambda _: None)
    yield case("a folder", lambda place: (place / name).mkdir())
    yield case("a pipe", lambda place: os.mkfifo(place / name))
    yield case("a device", lambda place: (place / name).symlink_to("/dev/zero"))


def cases() -> Iterator[Case]:
    keys = ("spectrum", "diagnose", "data", "inputs", "length")
    yield from spoiled("lists", SURVEY, 'diagnose = ["vit"]\ninputs = 1\n', keys, ("vit",))
    lists: dict[str, Any] = {
        "names nothing": [], "an empty name": [""], "no such path": ["nowhere/at/all"], "no such stars": ["no/*/where"],
        "a bracket that is not closed": ["[vit"], "markup": ["[bold]zebra[/bold]"], "colour": ["\x1b[31mred"],
        "a zero byte": ["vit\0"], "5000 letters": ["x" * 5000], "a folder without a model": ["images"],
        "a device": ["/dev/zero"], "text": ["text.txt"], "a hub id": ["nobody/nothing-at-all"],
        "a configuration": ["vit/config.json"],
    }  # fmt: skip
    for label, value in lists.items():
        for key in ("spectrum", "diagnose"):
            yield Case(f"lists/{key}, {label}", _survey(f"{key} = {in_toml(value)}"), "refused")
    for label, text in {
        "the same name twice": 'spectrum = ["vit", "vit", "v*t"]',
        "under both": 'spectrum = ["vit"]\ndiagnose = ["vit"]\ninputs = 1',
        "a saved diagnosis": 'spectrum = ["d.json"]',
    }.items():
        yield Case(f"lists/{label}", _survey(text), "fine", holds=_one_row)
    yield Case("lists/data that are not there", _survey('diagnose = ["vit"]\ndata = "nowhere"'))
    named = lambda place, text: _survey(f"spectrum = {in_toml([text])}")(place)  # noqa: E731
    yield from names.every_text({"a survey's checkpoint": named})


def _survey(text: str) -> Build:
    needed = ("vit", "images", "text.txt", "d.json")
    return prepared(needed, SURVEY, lambda place: place.write("list.toml", text))


def _one_row(place: Place, _outcome: Any) -> str | None:
    rows = json.loads((place / "out/survey.json").read_text())
    return None if len(rows) == 1 else f"{len(rows)} rows of one checkpoint"
