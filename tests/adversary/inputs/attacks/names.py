"""Names and texts that speak to a terminal: in every place where something foreign is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.attacks.runs import recipe as small_recipe
from adversary.inputs.case import Case, Outcome, Place
from adversary.inputs.kit import CIFAR, PAYLOADS, SMALL_RUN


def _line(
    *line: str,
    copy: tuple[str, ...] = (),
    also: dict[str, str] | None = None,
    files: dict[str, str] | None = None,
) -> Callable[[Place, str], list[str]]:
    """A command with a foreign text wherever {} stands: in itself, and in names of inputs and files."""

    def build(place: Place, text: str) -> list[str]:
        place.copy(*copy)
        for name, new in (also or {}).items():
            place.copy_as(name, new.replace("{}", text))
        for name, content in (files or {}).items():
            place.write(name.replace("{}", text), content.replace("{}", text))
        return [word.replace("{}", text) for word in line]

    return build


def _saved(change: Callable[[dict[str, Any], str], Any], *more: str) -> Callable[[Place, str], list[str]]:
    """A diagnosis with a foreign text in it."""

    def build(place: Place, text: str) -> list[str]:
        found = json.loads((place.copy_as("d.json", "d.json")).read_text())
        change(found, text)
        (place / "d.json").write_text(json.dumps(found))
        return ["diagnose", "d.json", *more]

    return build


def _cell(change: Callable[[dict[str, Any], str], Any], *line: str) -> Callable[[Place, str], list[str]]:
    def build(place: Place, text: str) -> list[str]:
        place.copy("results")
        for file in place.folder.glob("results/*/*.json"):
            found = json.loads(file.read_text())
            change(found, text)
            file.write_text(json.dumps(found))
        return list(line or ("reproduce", "status", "--results", "results"))

    return build


def _recipe(field: str) -> Callable[[Place, str], list[str]]:
    def build(place: Place, text: str) -> list[str]:
        place.copy(CIFAR)
        place.write("r.json", json.dumps({**small_recipe(), field: text}))
        return ["train", "--recipe", "r.json", "--data", CIFAR, "-o", "out", "--device", "cpu", "--minutes", "0"]

    return build


def _column(place: Place, text: str) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    place.copy("vit")
    pq.write_table(pa.table({text: [1, 2, 3], f"{text}2": ["a", "b", "c"]}), place / "x.parquet")
    return ["diagnose", "vit", "--data", "x.parquet"]


def _array(place: Place, text: str) -> list[str]:
    import numpy as np

    place.copy("vit")
    np.savez(place / "x.npz", **{text: np.zeros(3)})
    return ["diagnose", "vit", "--data", "x.npz"]


def _metadata(place: Place, text: str) -> list[str]:
    """What our own files say of themselves."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    place.copy("run")
    file = place / "run/model.safetensors"
    with safe_open(file, "pt") as opened:
        metadata = dict.fromkeys(opened.metadata(), text)
    save_file(load_file(file), file, metadata)
    return ["diagnose", "run", "--inputs", "2"]


def _config_field(field: str, value: Callable[[str], Any]) -> Callable[[Place, str], list[str]]:
    def build(place: Place, text: str) -> list[str]:
        place.copy("vit")
        file = place / "vit/config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), field: value(text)}))
        return ["diagnose", "vit", "--inputs", "2", "--no-spectra"]

    return build


def _tensor(place: Place, text: str) -> list[str]:
    from safetensors.torch import load_file, save_file

    place.copy("vit")
    file = place / "vit/model.safetensors"
    arrays = load_file(file)
    named = {f"{text}.{name.replace('vit.', '')}": array for name, array in arrays.items()}
    save_file(named, file, {"format": "pt"})
    return ["spectrum", "vit"]


def _tensor_damaged(place: Place, text: str) -> list[str]:
    from safetensors.torch import load_file, save_file

    _tensor(place, text)
    file = place / "vit/model.safetensors"
    save_file({name: array * float("nan") for name, array in load_file(file).items()}, file, {"format": "pt"})
    return ["spectrum", "vit"]


def _set(*path: Any) -> Callable[[dict[str, Any], str], Any]:
    def change(found: Any, text: str) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = text

    return change


TRAINED = ("-o", "out", *SMALL_RUN, "--minutes", "0")
PLACES: dict[str, Callable[[Place, str], list[str]]] = {
    "a model's folder": _line("spectrum", "{}", also={"vit": "{}"}),
    "a model's folder, diagnosed": _line("diagnose", "{}", "--inputs", "1", "--no-spectra", also={"vit": "{}"}),
    "two models": _line("diagnose", "{}", "{}", "--inputs", "1", "--no-spectra", also={"vit": "{}"}),
    "a folder to steer": _line("steer", "{}", "-m", "neutreno", "-o", "out{}", also={"vit": "{}"}),
    "an output": _line("reproduce", "table1", "d.json", "-o", "out{}.md", copy=("d.json",)),
    "an ending": _line("diagnose", "d.json", "--html", "out.{}", copy=("d.json",)),
    "a folder that lacks": _line("diagnose", "./{}/model.safetensors"),
    "a diagnosis that lacks": _line("diagnose", "{}.json"),
    "a damaged diagnosis": _line("diagnose", "{}.json", files={"{}.json": "{"}),
    "a diagnosis's name": _saved(_set("model", "name")),
    "a diagnosis's layer": _saved(_set("layers", 1, "name")),
    "a diagnosis's verdict": _saved(_set("verdict", 0)),
    "a diagnosis's remark": _saved(lambda found, text: found["remarks"].append(text)),
    "a diagnosis's data": _saved(_set("provenance", "data")),
    "a diagnosis's rule": _saved(_set("provenance", "counting_rule")),
    "a diagnosis's part": _saved(_set("layers", 1, "changes", 0, "part")),
    "a diagnosis's schema": _saved(_set("schema")),
    "a diagnosis's variant": _saved(_set("provenance", "variant")),
    "a diagnosis's class": _saved(_set("model", "class")),
    "a diagnosis's key": _saved(lambda found, text: found.update({text: 1})),
    "a cell's title": _cell(_set("title")),
    "a cell's hardware": _cell(_set("hardware")),
    "a cell's day": _cell(_set("day")),
    "a cell's table": _cell(_set("table")),
    "a cell's recipe": _cell(_set("recipe", "variant")),
    "a cell's data": _cell(_set("recipe", "data"), "reproduce", "table2", "--show", "--results", "results"),
    "a recipe's data": _recipe("data"),
    "a recipe's variant": _recipe("variant"),
    "a recipe's wiring": _recipe("wiring"),
    "a column": _column,
    "an array": _array,
    "a picture": _line(
        *("diagnose", "vit", "--no-spectra", "--data", "images"),
        copy=("vit", "images"),
        files={"images/{}.png": "not a picture"},
    ),
    "a data file": _line("diagnose", "vit", "--data", "{}.npz", copy=("vit",), files={"{}.npz": "not an archive"}),
    "a text": _line(
        *("diagnose", "gpt", "--no-spectra", "--inputs", "2", "--data", "{}.txt"),
        copy=("gpt",),
        also={"text.txt": "{}.txt"},
    ),
    "a class": _line(
        "train", "--data", CIFAR, *TRAINED, copy=(CIFAR,), files={f"{CIFAR}/fine_label_names.txt": "{}\n" * 100}
    ),
    "a data set": _line("train", "--data", "{}", *TRAINED, also={CIFAR: "{}"}),
    "metadata": _metadata,
    "an architecture": _config_field("architectures", lambda text: [text]),
    "a family": _config_field("model_type", lambda text: text),
    "an activation": _config_field("hidden_act", lambda text: text),
    "a label": _config_field("id2label", lambda text: {"0": text, "1": text}),
    "a tensor": _tensor,
    "a damaged tensor": _tensor_damaged,
    "a stack": _line("diagnose", "vit", "--inputs", "2", "--stack", "{}", copy=("vit",)),
}


def _page_is_safe(place: Place, _outcome: Outcome) -> str | None:
    for page in place.folder.glob("out*.html"):
        if "<script>red" in page.read_text():
            return "a script got into the page"
    return None


ALWAYS = ("colour", "bold", "closing", "newline")


def cases() -> Iterator[Case]:
    texts = {**PAYLOADS, "long": "red" + "x" * 200}
    for number, (where, build) in enumerate(PLACES.items()):
        for turn, (label, text) in enumerate(texts.items()):
            if label not in ALWAYS and (turn + number) % 3:
                continue
            yield Case(
                f"names/{where}: {label}",
                lambda place, build=build, text=text: build(place, text),
                "either",
                holds=_page_is_safe,
            )
    for where in ("a diagnosis's name", "a diagnosis's layer", "a diagnosis's verdict"):
        for label, text in {
            "script": "<script>red</script>",
            "colour": PAYLOADS["colour"],
            "attribute": "'\"red>",
        }.items():

            def page(place: Place, build: Any = PLACES[where], text: str = text) -> list[str]:
                return [*build(place, text), "--html", "out.html"]

            yield Case(f"names/{where}, on a page: {label}", page, "either", slow=True, holds=_page_is_safe)
    for where in _IN_A_NAME:
        yield Case(
            f"names/{where}: bytes", lambda place, build=PLACES[where]: build(place, "red\udcff\udcfe"), "either"
        )
    for where in ("a model's folder", "a diagnosis's name", "a cell's title", "a damaged diagnosis", "an output"):
        for label in ("title", "colour", "bold"):
            yield Case(
                f"names/{where}, on a terminal: {label}",
                lambda place, build=PLACES[where], text=PAYLOADS[label]: build(place, text),
                "either",
                process="terminal",
                environment={"TERM": "xterm-256color"},
            )


_IN_A_NAME = (
    "a model's folder", "a model's folder, diagnosed", "a folder to steer", "an output", "a folder that lacks",
    "a damaged diagnosis", "a picture", "a data file", "a text", "a data set", "two models",
    "a diagnosis that lacks", "an ending",
)  # fmt: skip
