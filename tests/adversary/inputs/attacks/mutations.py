"""Ways to spoil JSON: as bytes, and one field at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

DEEP = 100_000
RAW: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "a brace": lambda _: b"{",
    "cut": lambda held: held[: len(held) // 2],
    "null": lambda _: b"null",
    "a list": lambda _: b"[]",
    "an empty object": lambda _: b"{}",
    "a string": lambda _: b'"x"',
    "a number": lambda _: b"1",
    "NaN": lambda _: b"NaN",
    "UTF-16": lambda held: held.decode().encode("utf-16"),
    "latin-1": lambda held: held[:-1].rstrip()[:-1] + b', "\xe9": "\xff"}',
    "zero bytes": lambda held: bytes(len(held)),
    "a zero byte within": lambda held: held[:5] + b"\x00" + held[5:],
    "deep lists": lambda _: b"[" * DEEP + b"]" * DEEP,
    "deep objects": lambda _: b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a deep field": lambda held: _with_field(held, b"[" * DEEP + b"]" * DEEP),
    "a number of 10^5 digits": lambda held: _with_field(held, b"9" * 100_000),
    "1e400": lambda held: _with_field(held, b"1e400"),
    "every name twice": lambda held: _twice(held),
    "a mark of order before": lambda held: b"\xef\xbb\xbf" + held,
    "a comment": lambda held: b"// a comment\n" + held,
    "lone surrogate": lambda held: _with_field(held, b'"\\ud800"'),
    "10 MB of blanks": lambda held: b" " * 10_000_000 + held,
    "random bytes": lambda _: bytes((i * 97 + 13) % 256 for i in range(2000)),
}
HARMLESS = ("every name twice", "a mark of order before", "10 MB of blanks", "1e400", "lone surrogate", "latin-1")
"""What may be read all the same, if the reader likes."""
HARMLESS += ("a number of 10^5 digits", "a deep field")


def _with_field(held: bytes, value: bytes) -> bytes:
    held = held.rstrip()
    if not held.endswith(b"}"):
        return value
    return held[:-1].rstrip() + (b"" if held.rstrip(b" \n}") == b"{" else b",") + b'"added": ' + value + b"}"


def _twice(held: bytes) -> bytes:
    held = held.strip()
    return held[:-1] + b"," + held[1:] if held.startswith(b"{") else held


VALUES: dict[str, Any] = {
    "null": None, "text": "\x1b[31mred[/b]", "-1": -1, "0": 0, "10^9": 10**9, "10^30": 10**30, "a fraction": 0.3,
    "infinite": float("inf"), "NaN": float("nan"), "true": True, "a list": [], "a list of lists": [[[1]]],
    "an object": {"a": {"b": None}},
}  # fmt: skip


def paths(found: Any, before: tuple[str | int, ...] = (), most: int = 1) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON value; of a list the first entries alone."""
    entries = found.items() if isinstance(found, dict) else enumerate(found[:most]) if isinstance(found, list) else ()
    for key, value in entries:
        yield (*before, key)
        yield from paths(value, (*before, key), most)


def at(found: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        found = found[key]
    return found


def changed(found: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    found = copy.deepcopy(found)
    at(found, path[:-1])[path[-1]] = value
    return found


def without(found: Any, path: tuple[str | int, ...]) -> Any:
    found = copy.deepcopy(found)
    del at(found, path[:-1])[path[-1]]
    return found


def other_kinds(value: Any) -> list[str]:
    """The names of values of other kinds than a value has, those that are most apart first."""
    if isinstance(value, bool):
        return ["text", "null", "10^9", "a list"]
    if isinstance(value, (int, float)):
        return ["text", "null", "-1", "10^30", "NaN", "a list", "an object"]
    if isinstance(value, str):
        return ["0", "null", "a list", "text", "an object"]
    if isinstance(value, list):
        return ["text", "null", "an object", "0", "a list", "a list of lists"]
    if isinstance(value, dict):
        return ["text", "null", "a list", "0"]
    return ["text", "0", "a list", "an object"]


def dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
