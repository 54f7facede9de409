"""Plain values as types say: what fits comes back, what does not is named."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import pytest

from oversmooth.safety.typed import typed


class Shape(TypedDict, total=False):
    width: int


@dataclass
class Inner:
    number: float | None
    words: list[str] = field(default_factory=list)


@dataclass
class Outer:
    name: str
    inner: dict[str, list[Inner]]
    ends: tuple[float, float] | None = None
    sides: tuple[int, ...] = ()
    mode: Literal["smooth", "rough"] = "smooth"
    verdict: Annotated[str, Literal["tie", "open"]] = "tie"
    facts: Annotated[dict[str, Any], Shape] = field(default_factory=dict)
    either: int | str = 0
    numbers: list[float] = field(default_factory=list)
    on: bool = False


WHOLE = Outer(
    "a", {"b": [Inner(1.5, ["c"]), Inner(None)]}, (0.0, 1), (1, 2), "rough", "open", {"width": 3, "more": [{}]}, "x"
)


def test_there_and_back():
    assert typed(Outer, asdict(WHOLE)) == WHOLE
    assert typed(Outer, {"name": "a", "inner": {}}) == Outer("a", {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(name=None), "name is None, not text"),
        (dict(name=5), "name is 5, not text"),
        (dict(inner=[]), r"inner is \[\], not an object"),
        (dict(inner={"b": {}}), r"inner\.b is \{\}, not a list"),
        (dict(inner={"b": [{}]}), r"inner\.b\.0 has no 'number'"),
        (dict(inner={"b": [{"number": "x"}]}), r"inner\.b\.0\.number is 'x', not a finite number"),
        (dict(inner={"b": [{"number": True}]}), "not a finite number"),
        (dict(inner={"b": [{"number": float("nan")}]}), "not a finite number"),
        (dict(inner={"b": [{"number": 10**400}]}), "not a finite number"),
        (dict(inner={"b": [{"number": 1e300}]}), "not a finite number"),
        (dict(inner={"b": [{"number": 1, "words": "c"}]}), "words is 'c', not a list"),
        (dict(ends=[1]), r"ends is \[1\], not 2 values"),
        (dict(ends="ab"), "ends is 'ab', not a list"),
        (dict(sides=[1, 2.5]), r"sides\.1 is 2\.5, not a whole number"),
        (dict(sides=[2**63]), "not a whole number"),
        (dict(mode="x"), "mode is 'x', not 'smooth' or 'rough'"),
        (dict(mode=[]), "not 'smooth' or 'rough'"),
        (dict(verdict="x"), "verdict is 'x', not 'tie' or 'open'"),
        (dict(facts=[]), "facts is .*, not an object"),
        (dict(facts={"width": "3"}), r"facts\.width is '3', not a whole number"),
        (dict(either=None), "either is None, not text"),
        (dict(numbers=[1.0, "2"]), r"numbers\.1 is '2'"),
        (dict(numbers=[1.0, float("inf")]), r"numbers\.1 is inf"),
        (dict(numbers=[1.0, 1e200]), r"numbers\.1 is 1e\+200"),
        (dict(on=1), "on is 1, not true or false"),
        (dict(surprise=1), "it has 'surprise', which is not known"),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    with pytest.raises(ValueError, match=words) as said:
        typed(Outer, asdict(WHOLE) | change)
    assert len(str(said.value)) < 200


def test_something_else_is_shown_short():
    for value in (None, 5, "text", [], [1]):
        with pytest.raises(ValueError, match="not an object"):
            typed(Outer, value)
    with pytest.raises(ValueError, match="name is") as said:
        typed(Outer, {"name": ["x" * 1000] * 1000, "inner": {}})
    assert len(str(said.value)) < 300
