"""Readers of GLUE's and SuperGLUE's published files: tsv and jsonl, as texts and labels.

``load_examples("CB")`` looks into OVERSMOOTH_DATA's folders glue and superglue; the test sets' labels were never
published, so the validation sets are what models are tested on, and nothing is chosen by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oversmooth.inputs.text import PROSE
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import data_folder, read_bytes
from oversmooth_papers.tasks.glue.settings import TASKS

_MOST = 2**28  # bytes of a file


@dataclass(frozen=True)
class Example:
    """Texts to read together, one tuple for each choice; what is right; and which question an answer belongs to."""

    texts: tuple[tuple[str, ...], ...]
    label: float
    group: int = 0


def load_examples(task: str, folder: Path | None = None) -> tuple[list[Example], list[Example]]:
    """Training and validation examples of a task. folder: of its files; by default where OVERSMOOTH_DATA points."""
    settings = TASKS[task]
    if task == "following":
        return _following()
    if folder is None:
        home = data_folder(settings.benchmark)
        if home is None:
            raise InputError(
                f"{task} needs the folder {settings.benchmark}; set OVERSMOOTH_DATA to a folder that holds it"
            )
        folder = home / task
    ending, names = ("tsv", ("train", "dev")) if settings.benchmark == "glue" else ("jsonl", ("train", "val"))
    parts = []
    for name in names:
        path = folder / f"{name}.{ending}"
        if not path.is_file():
            raise InputError(f"{path} is not there; {task} has {names[0]}.{ending} and {names[1]}.{ending}")
        parts.append(_read(task, path))
    return parts[0], parts[1]


def _read(task: str, path: Path) -> list[Example]:
    text = read_bytes(path, "give the published file", _MOST)
    try:
        lines = text.decode("utf-8-sig").split("\n")  # not splitlines: some sentences have other ends inside
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start:,}); give the published file") from error
    examples: list[Example] = []
    rows = _json_rows if path.suffix == ".jsonl" else _table_rows
    for number, row in rows(task, [line.rstrip("\r") for line in lines]):
        try:
            examples += _READERS[task](row, len(examples))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: no example of {task} ({error}); give the published file"
            ) from error
    if not examples:
        raise InputError(f"{path} has no examples; give the published file")
    return examples


def _json_rows(_task: str, lines: list[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None


def _table_rows(task: str, lines: list[str]) -> Iterator[tuple[int, Any]]:
    """Columns by their names; CoLA's file has no line of names. Quotes are letters like any other."""
    head = ["source", "label", "mark", "sentence"] if task == "CoLA" else lines[0].split("\t")
    for number, line in enumerate(lines[0 if task == "CoLA" else 1 :], 1 if task == "CoLA" else 2):
        if line.strip():
            yield number, dict(zip(head, line.split("\t"), strict=False))


def _label(task: str, value: Any) -> float:
    word = str(value).lower()
    if word not in TASKS[task].labels:
        raise ValueError(f"its label is {value!r}")
    return float(TASKS[task].labels.index(word))


def _pair(task: str, first: str, second: str) -> Callable[[Any, int], list[Example]]:
    return lambda row, _n: [Example(((row[first], row[second]),), _label(task, row["label"]))]


def _mrpc(row: Any, _n: int) -> list[Example]:
    return [Example(((row["#1 String"], row["#2 String"]),), _label("MRPC", row["Quality"]))]


def _single(task: str) -> Callable[[Any, int], list[Example]]:
    return lambda row, _n: [Example(((row["sentence"],),), _label(task, row["label"]))]


def _similarity(row: Any, _n: int) -> list[Example]:
    return [Example(((row["sentence1"], row["sentence2"]),), float(row["score"]))]


def _word_in_context(row: Any, _n: int) -> list[Example]:
    """The word before its first sentence, so that it is known which one is meant."""
    return [Example(((f"{row['word']}: {row['sentence1']}", row["sentence2"]),), _label("WiC", row["label"]))]


def _cause_or_effect(row: Any, _n: int) -> list[Example]:
    asked = {"cause": "What was the cause?", "effect": "What happened as a result?"}[row["question"]]
    premise = f"{row['premise']} {asked}"
    return [Example(((premise, row["choice1"]), (premise, row["choice2"])), _label("COPA", row["label"]))]


def _pronoun(row: Any, _n: int) -> list[Example]:
    """The pronoun between stars, and beside it the name that it may stand for."""
    words, target = row["text"].split(" "), row["target"]
    begin, count = target["span2_index"], len(target["span2_text"].split(" "))
    marked = [*words[:begin], "*", *words[begin : begin + count], "*", *words[begin + count :]]
    return [Example(((" ".join(marked), target["span1_text"]),), _label("WSC", row["label"]))]


def _answers(row: Any, so_far: int) -> list[Example]:
    """Question and answer before the passage, whose end is cut where it is too long; groups are questions."""
    examples = []
    for number, question in enumerate(row["passage"]["questions"]):
        for answer in question["answers"]:
            asked = f"{question['question']} {answer['text']}"
            label = float(int(answer["label"]))
            examples.append(Example(((asked, row["passage"]["text"]),), label, group=1000 * so_far + number))
    return examples


_READERS: dict[str, Callable[[Any, int], list[Example]]] = {
    "CB": _pair("CB", "premise", "hypothesis"),
    "RTE": _pair("RTE", "premise", "hypothesis"),
    "WiC": _word_in_context,
    "CoLA": _single("CoLA"),
    "SST-2": _single("SST-2"),
    "MRPC": _mrpc,
    "STS-B": _similarity,
    "COPA": _cause_or_effect,
    "WSC": _pronoun,
    "MultiRC": _answers,
}


def _following() -> tuple[list[Example], list[Example]]:
    """Of the package's prose: a line and the next, or a line and one from elsewhere."""
    lines = [line.strip() for line in PROSE.read_text(encoding="utf-8").splitlines() if line.strip()]
    examples = []
    for index in range(len(lines) - 1):
        follows = index % 2 == 0
        other = lines[index + 1] if follows else lines[(index + len(lines) // 2) % len(lines)]
        examples.append(Example(((lines[index], other),), float(follows)))
    part = max(2, len(examples) // 5)
    return examples[:-part], examples[-part:]
