"""Recipes, cells, trained models, checkpoints, logs and caches: our own files, spoiled."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.attacks import mutations
from adversary.inputs.case import Build, Case, Place, prepared
from adversary.inputs.kit import CIFAR, ROOT, SMALL_RUN

TRAIN = ("train", "--recipe", "r.json", "--data", CIFAR, "-o", "out", "--device", "cpu", "--minutes", "0")
SHOWN = (
    ("reproduce", "status", "--results", "results"),
    ("reproduce", "table2", "--show", "--results", "results", "-o", "out.md"),
    ("reproduce", "depth", "--show", "--results", "results", "-o", "out.md"),
)
HARMLESS = mutations.HARMLESS


@functools.cache
def recipe() -> dict[str, Any]:
    """A small recipe that fits the kit's data."""
    from oversmooth_papers.tasks.images.recipe import PAPER

    found = PAPER.to_dict()
    found.update(epochs=1, warmup=0, batch=10)
    found["shape"].update(patch=8, width=16, depth=2, heads=2)
    return found


@functools.cache
def cell(table: str) -> dict[str, Any]:
    found = json.loads(min((ROOT / "results" / table).glob("*.json")).read_text())
    for log in ("epochs", "smoothing"):
        if log in found:
            found[log] = found[log][-1:]
    return found


def cases() -> Iterator[Case]:
    yield from _recipes()
    yield from _cells()
    yield from _metadata()
    yield from _records()
    yield from _runs_on_their_way()
    yield from _caches()
    yield from _models_of_tables()


def _recipes() -> Iterator[Case]:
    def case(label: str, content: Callable[[], bytes], fine: bool) -> Case:
        build = prepared((CIFAR,), TRAIN, lambda place: place.write("r.json", content()))
        return Case(f"runs/recipe, {label}", build, "either" if fine else "refused")

    for label, spoil in mutations.RAW.items():
        fine = label in HARMLESS or label == "an empty object"
        yield case(label, lambda spoil=spoil: spoil(json.dumps(recipe()).encode()), fine)
    for path in mutations.paths(recipe()):
        where = ".".join(map(str, path))
        for kind in dict.fromkeys((*mutations.other_kinds(mutations.at(recipe(), path))[:4], "10^9")):
            changed = functools.partial(mutations.changed, recipe(), path, mutations.VALUES[kind])
            yield case(f"{where}: {kind}", lambda changed=changed: json.dumps(changed()).encode(), True)
    for field, value in {
        "width": 10**6,
        "depth": 10**7,
        "heads": 10**6,
        "patch": 1,
        "mlp_ratio": 1e9,
        "image": 10**5,
    }.items():
        changed = functools.partial(mutations.changed, recipe(), ("shape", field), value)
        yield case(f"a {field} of {value:g}", lambda changed=changed: json.dumps(changed()).encode(), True)


def _cells() -> Iterator[Case]:
    def case(label: str, table: str, content: Callable[[], bytes], line: tuple[str, ...], name: str = "") -> Case:
        def spoil(place: Place) -> None:
            first = min((place / f"results/{table}").glob("*.json"))
            (first.with_name(name) if name else first).write_bytes(content())

        build = prepared(("results",), line, spoil)
        return Case(f"runs/{' '.join(line[1:3])}, cell of {table}, {label}", build, "either")

    show3 = ("reproduce", "table3", "--show", "--results", "results", "-o", "out.md")
    for label, spoil in mutations.RAW.items():
        for line in (*SHOWN[:2], show3):
            table = "table3" if line is show3 else "table2"
            content = functools.partial(_dumped, cell(table), spoil)
            yield case(label, table, content, line)
    for table, lines in {"table2": SHOWN, "table3": (SHOWN[0], show3)}.items():
        found = cell(table)
        for number, path in enumerate(mutations.paths(found)):
            where = ".".join(map(str, path))
            deep = path[0] == "recipe" and len(path) > 1
            kinds = mutations.other_kinds(mutations.at(found, path))
            for place_, kind in enumerate(kinds[: 1 if deep else 3]):
                line = lines[(number + place_) % 2]
                changed = functools.partial(mutations.changed, found, path, mutations.VALUES[kind])
                yield case(f"{where}: {kind}", table, lambda changed=changed: json.dumps(changed()).encode(), line)
            if isinstance(path[-1], str) and not (deep and number % 3):
                gone = functools.partial(mutations.without, found, path)
                yield case(f"{where}: gone", table, lambda gone=gone: json.dumps(gone()).encode(), lines[number % 2])
    for label, name in {
        "a name of no key": "notes.json",
        "a name in colour": "\x1b[31mred.json",
        "hidden": ".x.json",
    }.items():
        yield case(label, "table2", lambda: b"[]", SHOWN[0], name)

    name, content = "results/\x1b[31mred/x.json", json.dumps(cell("table2"))
    elsewhere = prepared(("results",), SHOWN[0], lambda place: place.write(name, content))
    yield Case("runs/status, a table in colour", elsewhere, "either")


def _dumped(found: Any, spoil: Callable[[bytes], bytes]) -> bytes:
    return spoil(json.dumps(found).encode())


def _with_metadata(place: Place, name: str, change: Callable[[dict[str, str]], Any]) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    file = place / name
    with safe_open(file, "pt") as opened:
        metadata = dict(opened.metadata() or {})
    changed = change(metadata)
    save_file(load_file(file), file, metadata if changed is None else changed)


def _metadata() -> Iterator[Case]:
    """What a trained model says of itself: a text that should be JSON, and every field of it."""
    lines = (("diagnose", "run", "--inputs", "2", "--no-spectra"), ("spectrum", "run"), ("fold", "run", "-o", "out"))

    def case(label: str, line: tuple[str, ...], change: Callable[[dict[str, str]], Any]) -> Case:
        build = prepared(("run",), line, lambda place: _with_metadata(place, "run/model.safetensors", change))
        return Case(f"runs/{line[0]}, a trained model's notes, {label}", build, "either")

    def spoilt(metadata: dict[str, str], spoil: Callable[[bytes], bytes]) -> dict[str, str]:
        return {key: spoil(text.encode()).decode("utf-8", "replace") for key, text in metadata.items()}

    for label, spoil in mutations.RAW.items():
        if label not in ("10 MB of blanks", "UTF-16"):
            for line in lines[:2]:
                yield case(label, line, lambda metadata, spoil=spoil: spoilt(metadata, spoil))
    for number, path in enumerate(mutations.paths(recipe())):
        for place_, kind in enumerate(mutations.other_kinds(mutations.at(recipe(), path))[:2]):

            def change(metadata: dict[str, str], path: Any = path, kind: str = kind) -> dict[str, str]:
                return {key: _inside(text, path, mutations.VALUES[kind]) for key, text in metadata.items()}

            yield case(f"{'.'.join(map(str, path))}: {kind}", lines[(number + place_) % 3], change)
    others: dict[str, Callable[[dict[str, str]], Any]] = {
        "none": lambda _: {},
        "one of its own": lambda metadata: {next(iter(metadata)): "x"},
        "another format": lambda _: {"format": "pt"},
    }
    for label, other in others.items():
        for line in lines:
            yield case(label, line, other)


def _inside(text: str, path: tuple[str | int, ...], value: Any) -> str:
    """A field of a recipe, wherever in a text of JSON the recipe stands."""
    try:
        found = json.loads(text)
        for at in ((), ("recipe",)):
            inner = mutations.at(found, at)
            if isinstance(inner, dict) and path[0] in inner:
                return json.dumps(mutations.changed(found, (*at, *path), value))
    except (ValueError, KeyError, TypeError):
        pass
    return text


def _records() -> Iterator[Case]:
    """What a steered checkpoint says of its steering: in its configuration, or wherever it stands."""

    def case(label: str, name: str, line: tuple[str, ...], change: Callable[[Any], Any]) -> Case:
        def spoil(place: Place) -> None:
            file = place / f"{name}/config.json"
            found = json.loads(file.read_text())
            file.write_text(json.dumps({**found, "oversmooth": change(found.get("oversmooth"))}))

        build = prepared((name,), line, spoil)
        return Case(f"runs/{line[0]} {name}, record of steering, {label}", build, "either")

    for name in ("steered", "neutreno"):
        lines = (("diagnose", name, "--inputs", "2", "--no-spectra"), ("fold", name, "-o", "out"), ("spectrum", name))
        for kind, value in mutations.VALUES.items():
            for line in lines:
                yield case(kind, name, line, lambda _, value=value: value)
        fields = RECORDS[name]
        for number, path in enumerate(mutations.paths(fields)):
            for place_, kind in enumerate(mutations.other_kinds(mutations.at(fields, path))):
                line = lines[(number + place_) % 3]
                where = ".".join(map(str, path))

                def change(found: Any, path: Any = path, kind: str = kind) -> Any:
                    try:
                        return mutations.changed(found, path, mutations.VALUES[kind])
                    except (KeyError, IndexError, TypeError):
                        return mutations.changed(RECORDS["steered"], ("methods",), mutations.VALUES[kind])

                yield case(f"{where}: {kind}", name, line, change)


RECORDS: dict[str, dict[str, Any]] = {
    "steered": {
        "methods": [{"method": "Spectral", "mode": "sharpen", "form": "symmetric", "bounded": False, "range": None}],
        "layers": [0, 1],
        "stack": "x",
        "heads": 2,
        "version": 1,
    },
    "neutreno": {
        "methods": [{"method": "NeuTRENO", "strength": 0.5, "learned": False, "per": "layer"}],
        "layers": [0, 1],
        "stack": "x",
        "heads": 2,
        "version": 1,
    },
}


def _runs_on_their_way() -> Iterator[Case]:
    """A run that was stopped, spoiled before it goes on. Outputs are called so, for what changes in them is meant."""
    go_on = ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--resume", "--minutes", "0")

    def case(
        label: str, spoil: Callable[[Place], Any], expected: Any = "either", line: tuple[str, ...] = go_on
    ) -> Case:
        build = prepared((CIFAR,), line, lambda place: (place.copy_as("stopped", "out"), spoil(place)))
        return Case(f"runs/a stopped run, {label}", build, expected)

    yield case("as it is", lambda _place: None, "fine")
    yield case("of another seed", lambda _place: None, "refused", (*go_on, "--seed", "7"))
    yield case("of another shape", lambda _place: None, "refused", (*go_on, "--width", "32"))
    yield case("without --resume", lambda _place: None, "refused", tuple(w for w in go_on if w != "--resume"))
    for name in ("log.jsonl", "smoothing.jsonl"):
        for label, spoil in mutations.RAW.items():
            if label in ("10 MB of blanks", "UTF-16"):
                continue

            def spoil_log(place: Place, name: str = name, spoil: Any = spoil) -> None:
                file = place / f"out/{name}"
                file.write_bytes(
                    spoil(file.read_bytes().splitlines()[0] if file.exists() and file.stat().st_size else b"{}")
                )

            yield case(f"{name}: {label}", spoil_log)
    for share in (0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):

        def cut(place: Place, share: float = share) -> None:
            for file in place.folder.glob("out/**/*checkpoint*"):
                if file.is_file():
                    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])

        yield case(f"checkpoint cut to {share:.0%}", cut)

    def notes(kind: str) -> Callable[[Place], None]:
        def spoil(place: Place) -> None:
            for file in place.folder.glob("out/**/*.safetensors"):
                _with_metadata(place, str(file.relative_to(place.folder)), lambda m: dict.fromkeys(m, kind))

        return spoil

    for label, text in {
        "empty": "",
        "text": "x",
        "null": "null",
        "list": "[]",
        "deep": "[" * 99999,
        "object": "{}",
    }.items():
        yield case(f"checkpoint's notes: {label}", notes(text))


def _caches() -> Iterator[Case]:
    """What an earlier run kept to be quick: damaged, it is dropped."""

    def spoiled(line: tuple[str, ...], spoil: Callable[[bytes], bytes], needed: str) -> Build:
        def done(place: Place) -> None:
            cache = place.folder.with_name(f"{place.folder.name}-cache")
            _fill(cache, line)
            for file in cache.rglob("*"):
                if file.is_file():
                    file.write_bytes(spoil(file.read_bytes()))

        return prepared((needed,), line, done)

    ways: dict[str, Callable[[bytes], bytes]] = {
        **mutations.RAW,
        "half": lambda held: held[: len(held) // 2],
        "noise": lambda _: bytes((i * 31) % 256 for i in range(3000)),
    }
    for label, spoil in ways.items():
        line = ("spectrum", "vit")
        yield Case(f"runs/a cache of spectra, {label}", spoiled(line, spoil, "vit"), "fine")
    for label in ("empty", "half", "noise", "a list", "zero bytes", "deep lists"):
        line = ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--minutes", "0")
        yield Case(f"runs/a cache of images, {label}", spoiled(line, ways[label], CIFAR), "fine")


def _fill(cache: Path, line: tuple[str, ...]) -> None:
    """A cache as a stopped run leaves it."""
    cache.mkdir(exist_ok=True)
    if line[0] == "spectrum":
        from oversmooth.cli.spectrum import _anatomy
        from oversmooth.diagnosis.weights import layer_spectrum

        _, anatomy, memory = _anatomy("vit", True, None, None, None)
        layer = anatomy.layers[0]
        memory.add(layer.name, layer_spectrum(layer))
    else:
        from oversmooth_papers.tasks.images.data import load_splits

        load_splits(CIFAR)


def _models_of_tables() -> Iterator[Case]:
    """--trained and --models, with folders of all sorts."""
    lines = {
        "table1": ("reproduce", "table1", "--trained", "--results", "results", "--data", "images.npz"),
        "fig2": ("reproduce", "fig2", "--trained", "--results", "results", "--data", "images.npz"),
        "fig5": ("reproduce", "fig5", "--trained", "--results", "results"),
        "table3": ("reproduce", "table3", "--quick", "--data", CIFAR, "--models", "results/models"),
    }
    kept = "results/models/0123456789ab.safetensors"

    def of_noise(place: Place) -> None:
        place.copy_as("run/model.safetensors", kept)
        _with_metadata(place, kept, lambda metadata: dict.fromkeys(metadata, "\x1b[31m{"))

    ways: dict[str, Callable[[Place], Any]] = {
        "none": lambda _: None,
        "an empty file": lambda place: place.write(kept, b""),
        "text": lambda place: place.write(kept, "not weights"),
        "another's": lambda place: place.copy_as("vit/model.safetensors", kept),
        "a folder": lambda place: (place / kept).mkdir(),
        "a pipe": lambda place: os.mkfifo(place / kept),
        "noise of notes": of_noise,
    }
    for name, line in lines.items():
        for label, way in ways.items():

            def spoil(place: Place, way: Any = way) -> None:
                (place / "results/models").mkdir(exist_ok=True)
                way(place)

            build = prepared(("results", "images.npz", CIFAR), line, spoil)
            yield Case(f"runs/{name} of trained models, {label}", build, "either")
