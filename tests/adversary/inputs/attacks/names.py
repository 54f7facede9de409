"""Names and texts that speak to a terminal: in every place where something foreign is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.case import Case, Outcome, Place
from adversary.inputs.kit import PAYLOADS

Build = Callable[[Place, str], list[str]]
Change = Callable[[Any, str], Any]


def line_with(
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


def in_json(name: str, line: tuple[str, ...], change: Change, *needed: str) -> Build:
    """A command on a JSON file with a foreign text in it; name: a pattern."""

    def build(place: Place, text: str) -> list[str]:
        place.copy(*(needed or (name.partition("/")[0],)))
        for file in place.folder.glob(name):
            place.edit_json(str(file.relative_to(place.folder)), lambda found: change(found, text))
        return list(line)

    return build


def _saved(change: Change, *more: str) -> Build:
    return in_json("d.json", ("diagnose", "d.json", *more), change)


def _config_field(field: str, value: Callable[[str], Any]) -> Build:
    line = ("diagnose", "vit", "--inputs", "2", "--no-spectra")
    return in_json("vit/config.json", line, lambda found, text: {**found, field: value(text)})


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
    place.copy("run")
    place.edit_arrays("run/model.safetensors", lambda _, array: array, lambda found: dict.fromkeys(found, text))
    return ["diagnose", "run", "--inputs", "2"]


def _tensor(place: Place, text: str, times: float = 1.0) -> list[str]:
    from safetensors.torch import load_file, save_file

    place.copy("vit")
    file = place / "vit/model.safetensors"
    arrays = load_file(file).items()
    save_file({f"{text}.{name.replace('vit.', '')}": times * a for name, a in arrays}, file, {"format": "pt"})
    return ["spectrum", "vit"]


def at(*path: Any) -> Change:
    def change(found: Any, text: str) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = text

    return change


PLACES: dict[str, Callable[[Place, str], list[str]]] = {
    "a model's folder": line_with("spectrum", "{}", also={"vit": "{}"}),
    "a model's folder, diagnosed": line_with("diagnose", "{}", "--inputs", "1", "--no-spectra", also={"vit": "{}"}),
    "two models": line_with("diagnose", "{}", "{}", "--inputs", "1", "--no-spectra", also={"vit": "{}"}),
    "a folder to steer": line_with("steer", "{}", "-m", "neutreno", "-o", "out{}", also={"vit": "{}"}),
    "an output": line_with("reproduce", "table1", "d.json", "-o", "out{}.md", copy=("d.json",)),
    "an ending": line_with("diagnose", "d.json", "--html", "out.{}", copy=("d.json",)),
    "a folder that lacks": line_with("diagnose", "./{}/model.safetensors"),
    "a diagnosis that lacks": line_with("diagnose", "{}.json"),
    "a damaged diagnosis": line_with("diagnose", "{}.json", files={"{}.json": "{"}),
    "a diagnosis's name": _saved(at("model", "name")),
    "a diagnosis's layer": _saved(at("layers", 1, "name")),
    "a diagnosis's verdict": _saved(at("verdict", 0)),
    "a diagnosis's remark": _saved(lambda found, text: found["remarks"].append(text)),
    "a diagnosis's data": _saved(at("provenance", "data")),
    "a diagnosis's rule": _saved(at("provenance", "counting_rule")),
    "a diagnosis's part": _saved(at("layers", 1, "changes", 0, "part")),
    "a diagnosis's schema": _saved(at("schema")),
    "a diagnosis's variant": _saved(at("provenance", "variant")),
    "a diagnosis's class": _saved(at("model", "class")),
    "a diagnosis's key": _saved(lambda found, text: found.update({text: 1})),
    "a column": _column,
    "an array": _array,
    "a picture": line_with(
        "diagnose", "vit", "--no-spectra", "--data", "images", copy=("vit", "images"),
        files={"images/{}.png": "not a picture"},
    ),
    "a data file": line_with("diagnose", "vit", "--data", "{}.npz", copy=("vit",), files={"{}.npz": "not an archive"}),
    "a text": line_with(
        "diagnose", "gpt", "--no-spectra", "--inputs", "2", "--data", "{}.txt", copy=("gpt",),
        also={"text.txt": "{}.txt"},
    ),
    "metadata": _metadata,
    "an architecture": _config_field("architectures", lambda text: [text]),
    "a family": _config_field("model_type", lambda text: text),
    "an activation": _config_field("hidden_act", lambda text: text),
    "a label": _config_field("id2label", lambda text: {"0": text, "1": text}),
    "a tensor": _tensor,
    "a damaged tensor": lambda place, text: _tensor(place, text, float("nan")),
    "a stack": line_with("diagnose", "vit", "--inputs", "2", "--stack", "{}", copy=("vit",)),
}  # fmt: skip


def _page_is_safe(place: Place, _outcome: Outcome) -> str | None:
    for page in place.folder.glob("out*.html"):
        if "<script>red" in page.read_text():
            return "a script got into the page"
    return None


ALWAYS = ("colour", "bold", "closing", "newline")


def cases() -> Iterator[Case]:
    yield from every_text(PLACES)
    for where in ("a diagnosis's name", "a diagnosis's layer", "a diagnosis's verdict"):
        for label, text in {
            "script": "<script>red</script>",
            "colour": PAYLOADS["colour"],
            "attribute": "'\"red>",
        }.items():
            page = lambda place, build=PLACES[where], text=text: [*build(place, text), "--html", "out.html"]  # noqa: E731
            yield Case(f"names/{where}, on a page: {label}", page, "either", slow=True, holds=_page_is_safe)
    for where in _IN_A_NAME:
        yield _case(f"{where}: bytes", PLACES[where], "red\udcff\udcfe")
    for where in ("a model's folder", "a diagnosis's name", "a damaged diagnosis", "an output"):
        yield from on_a_terminal(where, PLACES[where])


def _case(label: str, build: Build, text: str, **more: Any) -> Case:
    return Case(f"names/{label}", lambda place: build(place, text), "either", **more)


def every_text(places: dict[str, Build]) -> Iterator[Case]:
    """Some texts everywhere, the others in turn."""
    for number, (where, build) in enumerate(places.items()):
        for turn, (label, text) in enumerate({**PAYLOADS, "long": "red" + "x" * 200}.items()):
            if label in ALWAYS or (turn + number) % 3 == 0:
                yield _case(f"{where}: {label}", build, text, holds=_page_is_safe)


def on_a_terminal(where: str, build: Build) -> Iterator[Case]:
    for label in ("title", "colour", "bold"):
        terminal: Any = dict(process="terminal", environment={"TERM": "xterm-256color"})
        yield _case(f"{where}, on a terminal: {label}", build, PAYLOADS[label], **terminal)


_IN_A_NAME = (
    "a model's folder", "a model's folder, diagnosed", "a folder to steer", "an output", "a folder that lacks",
    "a damaged diagnosis", "a picture", "a data file", "a text", "two models", "a diagnosis that lacks", "an ending",
)  # fmt: skip
