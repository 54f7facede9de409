"""Recipes, cells, trained models, checkpoints, logs and caches: our own files, spoiled."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversary.inputs.attacks import mutations, names
from adversary.inputs.case import Case, Place, prepared
from adversary.inputs.kit import CIFAR, ROOT, SMALL_RUN

TRAINED = ("-o", "out", *SMALL_RUN, "--minutes", "0")
TRAIN = ("train", "--recipe", "r.json", "--data", CIFAR, "-o", "out", "--device", "cpu", "--minutes", "0")
STATUS = ("reproduce", "status", "--results", "results")


def show(table: str) -> tuple[str, ...]:
    return ("reproduce", table, "--show", "--results", "results", "-o", "out.md")


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
    yield from names.every_text(NAMED)
    yield from names.on_a_terminal("a cell's title", NAMED["a cell's title"])
    yield Case("names/a data set: bytes", lambda place: NAMED["a data set"](place, "red\udcff\udcfe"), "either")


def _case(label: str, needed: str, line: tuple[str, ...], spoil: Callable[[Place], Any], expected: Any) -> Case:
    return Case(f"runs/{label}", prepared((needed,), line, spoil), expected)


def _recipes() -> Iterator[Case]:
    def case(label: str, content: Callable[[], bytes], expected: str = "either") -> Case:
        return _case(f"recipe, {label}", CIFAR, TRAIN, lambda place: place.write("r.json", content()), expected)

    for label, spoil in mutations.RAW.items():
        fine = label in mutations.HARMLESS or label == "an empty object"
        content = functools.partial(_dumped, recipe(), spoil)
        yield case(label, content, "either" if fine else "refused")
    for path in mutations.paths(recipe()):
        for kind in dict.fromkeys((*mutations.other_kinds(mutations.at(recipe(), path))[:4], "10^9")):
            if (path, kind) != (("mixup",), "10^9"):  # trains, to a loss that is not finite
                yield case(f"{mutations.dotted(path)}: {kind}", _changed(recipe(), path, mutations.VALUES[kind]))
    sizes = {"width": 10**6, "depth": 10**7, "heads": 10**6, "patch": 1, "mlp_ratio": 1e9, "image": 10**5}
    for field, value in sizes.items():
        yield case(f"a {field} of {value:g}", _changed(recipe(), ("shape", field), value))


def _dumped(found: Any, spoil: Callable[[bytes], bytes] = lambda held: held) -> bytes:
    return spoil(json.dumps(found).encode())


def _changed(found: Any, path: tuple[str | int, ...], value: Any) -> Callable[[], bytes]:
    return lambda: _dumped(mutations.changed(found, path, value))


def _cells() -> Iterator[Case]:
    def case(label: str, table: str, content: Callable[[], bytes], line: tuple[str, ...], name: str = "") -> Case:
        def spoil(place: Place) -> None:
            first = min((place / f"results/{table}").glob("*.json"))
            (first.with_name(name) if name else first).write_bytes(content())

        return _case(f"{' '.join(line[1:3])}, cell of {table}, {label}", "results", line, spoil, "either")

    for label, spoil in mutations.RAW.items():
        for table, line in (("table2", STATUS), ("table2", show("table2")), ("table3", show("table3"))):
            yield case(label, table, functools.partial(_dumped, cell(table), spoil), line)
    for table in ("table2", "table3"):
        lines, found = (STATUS, show(table)), cell(table)
        for number, path in enumerate(mutations.paths(found)):
            where, deep = mutations.dotted(path), path[0] == "recipe" and len(path) > 1
            kinds = mutations.other_kinds(mutations.at(found, path))
            for turn, kind in enumerate(kinds[: 1 if deep else 3], number):
                yield case(f"{where}: {kind}", table, _changed(found, path, mutations.VALUES[kind]), lines[turn % 2])
            if isinstance(path[-1], str) and not (deep and number % 3):
                gone = lambda found=found, path=path: _dumped(mutations.without(found, path))  # noqa: E731
                yield case(f"{where}: gone", table, gone, lines[number % 2])
    odd = {"a name of no key": "notes.json", "a name in colour": "\x1b[31mred.json", "hidden": ".x.json"}
    for label, name in odd.items():
        yield case(label, "table2", lambda: b"[]", STATUS, name)
    content = json.dumps(cell("table2"))
    elsewhere = lambda place: place.write("results/\x1b[31mred/x.json", content)  # noqa: E731
    yield _case("status, a table in colour", "results", STATUS, elsewhere, "either")


def _with_metadata(place: Place, name: str, change: Callable[[dict[str, str]], Any]) -> None:
    place.edit_arrays(name, lambda _, array: array, change)


def _metadata() -> Iterator[Case]:
    """What a trained model says of itself: a text that should be JSON, and every field of it."""
    lines = (("diagnose", "run", "--inputs", "2", "--no-spectra"), ("spectrum", "run"), ("fold", "run", "-o", "out"))

    def case(label: str, line: tuple[str, ...], change: Callable[[str], str]) -> Case:
        texts = lambda found: {key: change(text) for key, text in found.items()}  # noqa: E731
        spoil = lambda place: _with_metadata(place, "run/model.safetensors", texts)  # noqa: E731
        return _case(f"{line[0]}, a trained model's notes, {label}", "run", line, spoil, "either")

    for label, spoil in mutations.RAW.items():
        if label not in ("10 MB of blanks", "UTF-16"):
            for line in lines[:2]:
                yield case(label, line, lambda text, spoil=spoil: spoil(text.encode()).decode("utf-8", "replace"))
    for number, path in enumerate(mutations.paths(recipe())):
        for turn, kind in enumerate(mutations.other_kinds(mutations.at(recipe(), path))[:2], number):
            change = functools.partial(_inside, path=path, value=mutations.VALUES[kind])
            yield case(f"{mutations.dotted(path)}: {kind}", lines[turn % 3], change)
    others: dict[str, Callable[[dict[str, str]], Any]] = {
        "none": lambda _: {},
        "one of its own": lambda metadata: {next(iter(metadata)): "x"},
        "another format": lambda _: {"format": "pt"},
    }
    for label, other in others.items():
        for line in lines:
            spoiled = lambda place, other=other: _with_metadata(place, "run/model.safetensors", other)  # noqa: E731
            yield _case(f"{line[0]}, a trained model's notes, {label}", "run", line, spoiled, "either")


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
        spoil = lambda place: place.edit_json(  # noqa: E731
            f"{name}/config.json", lambda found: {**found, "oversmooth": change(found.get("oversmooth"))}
        )
        return _case(f"{line[0]} {name}, record of steering, {label}", name, line, spoil, "either")

    for name, fields in RECORDS.items():
        lines = (("diagnose", name, "--inputs", "2", "--no-spectra"), ("fold", name, "-o", "out"), ("spectrum", name))
        for kind, value in mutations.VALUES.items():
            for line in lines:
                yield case(kind, name, line, lambda _, value=value: value)
        for number, path in enumerate(mutations.paths(fields)):
            for turn, kind in enumerate(mutations.other_kinds(mutations.at(fields, path)), number):
                change = functools.partial(_in_record, path=path, value=mutations.VALUES[kind])
                yield case(f"{mutations.dotted(path)}: {kind}", name, lines[turn % 3], change)


def _in_record(found: Any, path: tuple[str | int, ...], value: Any) -> Any:
    try:
        return mutations.changed(found, path, value)
    except (KeyError, IndexError, TypeError):  # this one has no such field
        return mutations.changed(RECORDS["steered"], ("methods",), value)


_WHERE = {"layers": [0, 1], "stack": "x", "heads": 2, "version": 1}
RECORDS: dict[str, dict[str, Any]] = {
    "steered": {
        "methods": [{"method": "Spectral", "mode": "sharpen", "form": "symmetric", "bounded": False, "range": None}],
        **_WHERE,
    },
    "neutreno": {"methods": [{"method": "NeuTRENO", "strength": 0.5, "learned": False, "per": "layer"}], **_WHERE},
}


def _runs_on_their_way() -> Iterator[Case]:
    """A run that was stopped, spoiled before it goes on. Outputs are called so, for what changes in them is meant."""
    go_on = ("train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--resume", "--minutes", "0")

    def case(label: str, spoil: Any = lambda _: None, expected: str = "either", line: tuple[str, ...] = go_on) -> Case:
        done = lambda place: (place.copy_as("stopped", "out"), spoil(place))  # noqa: E731
        return _case(f"a stopped run, {label}", CIFAR, line, done, expected)

    yield case("as it is", expected="fine")
    yield case("of another seed", expected="refused", line=(*go_on, "--seed", "7"))
    yield case("of another shape", expected="refused", line=(*go_on, "--width", "32"))
    yield case("without --resume", expected="refused", line=tuple(word for word in go_on if word != "--resume"))
    for name in ("log.jsonl", "smoothing.jsonl"):
        for label, spoil in mutations.RAW.items():
            if label not in ("10 MB of blanks", "UTF-16"):
                yield case(f"{name}: {label}", functools.partial(_spoil_log, name=name, spoil=spoil))
    for share in (0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        yield case(f"checkpoint cut to {share:.0%}", functools.partial(_cut, share=share))
    texts = {"empty": "", "text": "x", "null": "null", "list": "[]", "deep": "[" * 99999, "object": "{}"}
    for label, text in texts.items():
        yield case(f"checkpoint's notes: {label}", functools.partial(_notes, text=text))


def _spoil_log(place: Place, name: str, spoil: Callable[[bytes], bytes]) -> None:
    file = place / f"out/{name}"
    lines = file.read_bytes().splitlines() if file.exists() else []
    file.write_bytes(spoil(lines[0] if lines else b"{}"))


def _cut(place: Place, share: float) -> None:
    for file in place.folder.glob("out/**/*checkpoint*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])


def _notes(place: Place, text: str) -> None:
    for file in place.folder.glob("out/**/*.safetensors"):
        _with_metadata(place, str(file.relative_to(place.folder)), lambda found: dict.fromkeys(found, text))


def _caches() -> Iterator[Case]:
    """What an earlier run kept to be quick: damaged, it is dropped."""

    def case(what: str, label: str, line: tuple[str, ...], needed: str, fill: Callable[[], Any]) -> Case:
        def spoil(place: Place) -> None:
            cache = place.folder.with_name(f"{place.folder.name}-cache")
            cache.mkdir(exist_ok=True)
            fill()
            for file in cache.rglob("*"):
                if file.is_file():
                    file.write_bytes(ways[label](file.read_bytes()))

        return _case(f"a cache of {what}, {label}", needed, line, spoil, "fine")

    ways: dict[str, Callable[[bytes], bytes]] = {
        **mutations.RAW,
        "half": lambda held: held[: len(held) // 2],
        "noise": lambda _: bytes((i * 31) % 256 for i in range(3000)),
    }
    for label in ways:
        yield case("spectra", label, ("spectrum", "vit"), "vit", _cached_spectra)
    for label in ("empty", "half", "noise", "a list", "zero bytes", "deep lists"):
        yield case("images", label, ("train", "--data", CIFAR, *TRAINED), CIFAR, _cached_images)


def _cached_spectra() -> None:
    """As a stopped run leaves them."""
    from oversmooth.cli.spectrum import _anatomy
    from oversmooth.diagnosis.weights import layer_spectrum

    _, anatomy, memory = _anatomy("vit", True, None, None, None)
    memory.add(anatomy.layers[0].name, layer_spectrum(anatomy.layers[0]))


def _cached_images() -> None:
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
            spoil = lambda place, way=way: (Path(place / "results/models").mkdir(), way(place))  # noqa: E731
            build = prepared(("results", "images.npz", CIFAR), line, spoil)
            yield Case(f"runs/{name} of trained models, {label}", build, "either")


# Names and texts in them that speak to a terminal


def _in_cells(*path: str, line: tuple[str, ...] = STATUS) -> names.Build:
    return names.in_json("results/*/*.json", line, names.at(*path))


def _in_recipe(field: str) -> names.Build:
    def build(place: Place, text: str) -> list[str]:
        place.copy(CIFAR)
        place.write("r.json", json.dumps({**recipe(), field: text}))
        return list(TRAIN)

    return build


NAMED: dict[str, names.Build] = {
    **{f"a cell's {field}": _in_cells(field) for field in ("title", "hardware", "day", "table")},
    "a cell's recipe": _in_cells("recipe", "variant"),
    "a cell's data": _in_cells("recipe", "data", line=show("table2")[:-2]),
    **{f"a recipe's {field}": _in_recipe(field) for field in ("data", "variant", "wiring")},
    "a class": names.line_with(
        "train", "--data", CIFAR, *TRAINED, copy=(CIFAR,), files={f"{CIFAR}/fine_label_names.txt": "{}\n" * 100}
    ),
    "a data set": names.line_with("train", "--data", "{}", *TRAINED, also={CIFAR: "{}"}),
}
