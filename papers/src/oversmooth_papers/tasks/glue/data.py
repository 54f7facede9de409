"""GLUE's and SuperGLUE's published files, tsv and jsonl, as arrays of a pretrained model's own tokens.

``load_examples("CB")`` looks into OVERSMOOTH_DATA's folders glue and superglue; the test sets' labels were never
published, so the validation sets are what models are tested on, and nothing is chosen by them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oversmooth.inputs.text import PROSE
from oversmooth.models.trained_file import read_metadata
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import data_folder, data_place, read_bytes
from oversmooth_papers.engine.saved_model import notes_of, recipe_of
from oversmooth_papers.tasks.glue.recipe import TASKS
from oversmooth_papers.tasks.language.recipe import Recipe as LanguageRecipe
from oversmooth_papers.tasks.language.tokens import END, Tokenizer

Texts = tuple[tuple[str, ...], ...]  # to read together, one tuple for each choice
_COLA = ["source", "label", "mark", "sentence"]
_MOST = 2**28  # bytes of a file
_LINE_END = "Ċ"
_MULTIPLE = 8  # lengths are multiples of it


class Example(NamedTuple):
    """Texts, what is right, and which question an answer belongs to."""

    texts: Texts
    label: float
    group: int = 0


def load_examples(task: str, folder: Path | None = None) -> tuple[list[Example], list[Example]]:
    """Training and validation examples of a task. folder: of its files; by default where OVERSMOOTH_DATA points."""
    if task == "following":
        return _following()
    benchmark = TASKS[task].benchmark
    folder = folder or (data_folder(benchmark) or Path(benchmark)) / task
    train, dev = ("train.tsv", "dev.tsv") if benchmark == "glue" else ("train.jsonl", "val.jsonl")
    if not (folder / train).is_file() or not (folder / dev).is_file():
        raise InputError(f"{folder} has no {train} or no {dev}; {task} is looked for in {benchmark} in {data_place()}")
    return _read(task, folder / train), _read(task, folder / dev)


def _read(task: str, path: Path) -> list[Example]:
    """Columns of a table by their names; CoLA's has no line of names. Quotes are letters like any other."""
    lines = read_bytes(path, "give the published file", _MOST).removeprefix(codecs.BOM_UTF8).split(b"\n")
    named = path.suffix == ".tsv" and task != "CoLA"
    columns = lines[0].decode(errors="replace").rstrip("\r").split("\t") if named else _COLA
    examples: list[Example] = []
    for number, line in enumerate(lines[named:], 1 + named):
        if not line.strip():
            continue
        try:
            text = line.decode().rstrip("\r")
            tabbed = dict(zip(columns, text.split("\t"), strict=False))
            row = json.loads(text) if path.suffix == ".jsonl" else tabbed
            examples += _answers(row, len(examples)) if task == "MultiRC" else [_example(task, row)]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            why = f"{path}, line {number}: no example of {task} ({error})"
            raise InputError(f"{why}; give the published file") from error
    if not examples:
        raise InputError(f"{path} has no examples; give the published file")
    return examples


def _example(task: str, row: Any) -> Example:
    if task == "STS-B":
        return Example(((row["sentence1"], row["sentence2"]),), float(row["score"]))
    word = str(row["Quality" if task == "MRPC" else "label"]).lower()
    labels = {name: float(number) for number, name in enumerate(TASKS[task].labels)}
    return Example(_TEXTS[task](row), labels[word])


def _cause_or_effect(row: Any) -> Texts:
    asked = {"cause": "What was the cause?", "effect": "What happened as a result?"}[row["question"]]
    premise = f"{row['premise']} {asked}"
    return (premise, row["choice1"]), (premise, row["choice2"])


def _pronoun(row: Any) -> Texts:
    """The pronoun between stars, and beside it the name that it may stand for."""
    words, target = row["text"].split(" "), row["target"]
    begin, count = target["span2_index"], len(target["span2_text"].split(" "))
    marked = [*words[:begin], "*", *words[begin : begin + count], "*", *words[begin + count :]]
    return ((" ".join(marked), target["span1_text"]),)


_TEXTS: dict[str, Callable[[Any], Texts]] = {
    **dict.fromkeys(("CB", "RTE"), lambda row: ((row["premise"], row["hypothesis"]),)),
    # The word before its first sentence, so that it is known which one is meant.
    "WiC": lambda row: ((f"{row['word']}: {row['sentence1']}", row["sentence2"]),),
    **dict.fromkeys(("CoLA", "SST-2"), lambda row: ((row["sentence"],),)),
    "MRPC": lambda row: ((row["#1 String"], row["#2 String"]),),
    "COPA": _cause_or_effect,
    "WSC": _pronoun,
}


def _answers(row: Any, so_far: int) -> list[Example]:
    """MultiRC: question and answer before the passage, whose end is cut where it is too long; groups are questions."""
    passage = row["passage"]
    return [
        Example(((f"{question['question']} {answer['text']}", passage["text"]),), float(answer["label"]), group)
        for group, question in enumerate(passage["questions"], 1000 * so_far)
        for answer in question["answers"]
    ]


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


@dataclass(frozen=True, eq=False)
class Encoded:
    ids: Tensor  # (n, choices, length) int32
    lengths: Tensor  # (n, choices) int32: tokens that are no padding
    labels: Tensor  # (n,) float32
    groups: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class GlueData:
    """A task's examples in a pretrained model's tokens, and that model."""

    task: str
    train: Encoded
    dev: Encoded
    pretrained: Path  # a masked language model that oversmooth train wrote
    language: LanguageRecipe  # what it was trained by
    perplexity: float | None  # on validation, after its training, if its file says it


def load_glue(task: str, pretrained: Path) -> GlueData:
    recipe, notes = recipe_of(pretrained), notes_of(pretrained)
    if not isinstance(recipe, LanguageRecipe) or recipe.shape.causal:
        raise InputError(f"{pretrained} is no masked language model; give one that oversmooth train wrote")
    text = read_metadata(pretrained).get("tokenizer")
    if text is None:
        raise InputError(f"{pretrained} has no tokenizer in its metadata; train it again")
    tokenizer = Tokenizer.from_text(text)
    train, dev = (_encoded(examples, tokenizer, recipe.shape.length) for examples in load_examples(task))
    return GlueData(task, train, dev, pretrained, recipe, notes.get("valid_perplexity"))


def joined(parts: list[list[int]], separator: int, longest: int) -> list[int]:
    """A mark, then each part and a mark after it; the longest part is cut at its end until all fit."""
    parts = [list(part) for part in parts]
    while sum(map(len, parts)) + len(parts) + 1 > longest:
        max(parts, key=len).pop()
    return [separator, *(token for part in parts for token in [*part, separator])]


def _encoded(examples: list[Example], tokenizer: Tokenizer, longest: int) -> Encoded:
    # A line's end, as the model has seen it: of BPE's, the byte by the name that `tokenizers` has for it.
    end = tokenizer.vocabulary.get(_LINE_END, tokenizer.vocabulary.get(END, 0))
    separator = 10 if tokenizer.kind == "bytes" else end
    texts = list(dict.fromkeys(text for example in examples for choice in example.texts for text in choice))
    tokens = dict(zip(texts, tokenizer.encode_each([" ".join(text.split()) for text in texts]), strict=True))
    rows = [
        [joined([tokens[text] for text in choice], separator, longest) for choice in example.texts]
        for example in examples
    ]
    lengths = torch.tensor([[len(row) for row in choices] for choices in rows], dtype=torch.int32)
    length = min(longest, -(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE)
    padded = [[row + [separator] * (length - len(row)) for row in choices] for choices in rows]
    labels = torch.tensor([example.label for example in examples], dtype=torch.float32)
    groups = torch.tensor([example.group for example in examples], dtype=torch.int64)
    return Encoded(torch.tensor(padded, dtype=torch.int32), lengths, labels, groups)
