"""Names and texts that speak to a terminal: in every place where something foreign is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.attacks.runs import recipe as small_recipe
from adversary.inputs.case import Case, Outcome, Place
from adversary.inputs.kit import CIFAR, PAYLOADS, SMALL_RUN


def _model_folder(place: Place, text: str) -> list[str]:
    place.copy_as("vit", text)
    return ["spectrum", text]


def _model_folder_diagnosed(place: Place, text: str) -> list[str]:
    place.copy_as("vit", text)
    return ["diagnose", text, "--inputs", "1", "--no-spectra"]


def _two_models(place: Place, text: str) -> list[str]:
    place.copy_as("vit", text)
    return ["diagnose", text, text, "--inputs", "1", "--no-spectra"]


def _folder_to_steer(place: Place, text: str) -> list[str]:
    place.copy_as("vit", text)
    return ["steer", text, "-m", "neutreno", "-o", f"out{text}"]


def _output_file(place: Place, text: str) -> list[str]:
    place.copy("d.json")
    return ["reproduce", "table1", "d.json", "-o", f"out{text}.md"]


def _output_wrong(place: Place, text: str) -> list[str]:
    place.copy("d.json")
    return ["diagnose", "d.json", "--html", f"out.{text}"]


def _missing_file(_place: Place, text: str) -> list[str]:
    return ["diagnose", f"./{text}/model.safetensors"]


def _missing_json(_place: Place, text: str) -> list[str]:
    return ["diagnose", f"{text}.json"]


def _damaged_json(place: Place, text: str) -> list[str]:
    place.write(f"{text}.json", "{")
    return ["diagnose", f"{text}.json"]


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


def _picture(place: Place, text: str) -> list[str]:
    place.copy("vit", "images")
    place.write(f"images/{text}.png", b"not a picture")
    return ["diagnose", "vit", "--no-spectra", "--data", "images"]


def _data_file(place: Place, text: str) -> list[str]:
    place.copy("vit")
    place.write(f"{text}.npz", b"not an archive")
    return ["diagnose", "vit", "--data", f"{text}.npz"]


def _text_file(place: Place, text: str) -> list[str]:
    place.copy("gpt")
    place.copy_as("text.txt", f"{text}.txt")
    return ["diagnose", "gpt", "--no-spectra", "--inputs", "2", "--data", f"{text}.txt"]


def _class_name(place: Place, text: str) -> list[str]:
    place.copy(CIFAR)
    place.write(f"{CIFAR}/fine_label_names.txt", f"{text}\n" * 100)
    return ["train", "--data", CIFAR, "-o", "out", *SMALL_RUN, "--minutes", "0"]


def _data_folder(place: Place, text: str) -> list[str]:
    place.copy_as(CIFAR, text)
    return ["train", "--data", text, "-o", "out", *SMALL_RUN, "--minutes", "0"]


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


def _stack(place: Place, text: str) -> list[str]:
    place.copy("vit")
    return ["diagnose", "vit", "--inputs", "2", "--stack", text]


def _set(*path: Any) -> Callable[[dict[str, Any], str], Any]:
    def change(found: Any, text: str) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = text

    return change


PLACES: dict[str, Callable[[Place, str], list[str]]] = {
    "a model's folder": _model_folder,
    "a model's folder, diagnosed": _model_folder_diagnosed,
    "two models": _two_models,
    "a folder to steer": _folder_to_steer,
    "an output": _output_file,
    "an ending": _output_wrong,
    "a folder that lacks": _missing_file,
    "a diagnosis that lacks": _missing_json,
    "a damaged diagnosis": _damaged_json,
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
    "a picture": _picture,
    "a data file": _data_file,
    "a text": _text_file,
    "a class": _class_name,
    "a data set": _data_folder,
    "metadata": _metadata,
    "an architecture": _config_field("architectures", lambda text: [text]),
    "a family": _config_field("model_type", lambda text: text),
    "an activation": _config_field("hidden_act", lambda text: text),
    "a label": _config_field("id2label", lambda text: {"0": text, "1": text}),
    "a tensor": _tensor,
    "a damaged tensor": _tensor_damaged,
    "a stack": _stack,
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
