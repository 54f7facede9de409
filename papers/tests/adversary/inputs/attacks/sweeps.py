"""A sweep's file, spoiled: what it is, and what its recipe has."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from adversary.inputs.attacks import names
from adversary.inputs.attacks.lists import in_toml, spoiled
from adversary.inputs.case import Build, Case, Place, prepared
from adversary.inputs.kit import CIFAR

LINE = ("sweep", "sweep.toml", "--results", "results", "--device", "cpu")
HELD = f'methods = ["plain"]\nstrengths = [0.3]\nseeds = 1\nquick = true\ntask = "images"\ndata = "{CIFAR}"\n'
KEYS = ("methods", "strengths", "seeds", "quick", "task", "data", "recipe")


def cases() -> Iterator[Case]:
    yield from spoiled("sweeps", LINE, HELD, KEYS, (CIFAR,))
    methods: dict[str, Any] = {
        "none": [], "an empty name": [""], "one that is not there": ["nutreno"], "colour": ["\x1b[31mred"],
        "markup": ["[bold]zebra[/bold]"], "5000 letters": ["x" * 5000], "a setting without end": ["neutreno:strength="],
        "10^4": ["plain"] * 10_001,
    }  # fmt: skip
    for label, value in methods.items():
        yield _case(f"methods, {label}", HELD.replace('["plain"]', in_toml(value)))
    for label, value in {"infinite": "inf", "below 0": "-1e300"}.items():
        yield _case(f"strengths, {label}", HELD.replace("plain", "neutreno").replace("0.3", value))
    for name in ("language", "segmentation", "imagenet"):
        yield _case(f"{name} on images", HELD.replace('"images"', f'"{name}"'))
    recipe = {
        "a setting that is not there": "epoch = 1", "one in colour": '"\\u001b[31mred" = 1', "text": 'epochs = "1"',
        "a list": "epochs = [1]", "a table": "epochs = {a = 1}", "a date": "epochs = 1979-05-27", "NaN": "lr = nan",
        "the seed": "seed = 1", "the variant": 'variant = "smooth"', "a shape": "shape = 1", "its data": "data = 1",
        "heads that do not divide": "width = 16\nheads = 3", "10^9 blocks": "depth = 1_000_000_000",
        "no batch": "batch = 0", "an augmentation": "rand_augment = {x = 1}", "means": "mean = [1, 2]",
    }  # fmt: skip
    for label, text in recipe.items():
        yield _case(f"[recipe], {label}", f"{HELD}[recipe]\n{text}\n")
    yield from names.every_text({"a sweep's data": functools.partial(_named, key="data")})


def _named(place: Place, text: str, key: str) -> list[str]:
    held = "".join(f"{line}\n" for line in HELD.splitlines() if not line.startswith(f"{key} ="))
    return list(_build(f"{key} = {in_toml(text)}\n{held}")(place))


def _build(text: str) -> Build:
    return prepared((CIFAR,), LINE, lambda place: place.write("sweep.toml", text))


def _case(label: str, text: str) -> Case:
    return Case(f"sweeps/{label}", _build(text))
