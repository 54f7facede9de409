"""Examples as arrays: tokens of a pretrained model's own tokenizer, padded to the longest of the task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.saved_model import notes_of, recipe_of
from oversmooth_papers.tasks.glue.readers import Example, load_examples
from oversmooth_papers.tasks.glue.settings import TASKS
from oversmooth_papers.tasks.language.recipe import Recipe as LanguageRecipe
from oversmooth_papers.tasks.language.tokens import END, Tokenizer

_LINE_END = "Ċ"
_MULTIPLE = 8  # lengths are multiples of it


@dataclass(frozen=True, eq=False)
class Encoded:
    """One split."""

    ids: Tensor
    """``(n, choices, length)`` int32."""
    lengths: Tensor
    """``(n, choices)`` int32: tokens that are no padding."""
    labels: Tensor
    """``(n,)`` float32."""
    groups: Tensor
    """``(n,)`` int64."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class GlueData:
    """A task's examples in a pretrained model's tokens, and that model."""

    task: str
    train: Encoded
    dev: Encoded
    pretrained: Path
    """A masked language model that oversmooth train wrote."""
    key: str
    """Of the recipe that it was trained by."""
    perplexity: float | None
    """On validation, after its training, if its file says it."""


def load_glue(task: str, pretrained: Path, folder: Path | None = None) -> GlueData:
    """A task for a model. folder: of the task's files; by default where OVERSMOOTH_DATA points."""
    if task not in TASKS:
        raise InputError(f"there is no task {task!r}; choose {', '.join(TASKS)}")
    recipe, notes = language_recipe(pretrained), notes_of(pretrained)
    with safe_open(pretrained, framework="pt") as opened:
        text = (opened.metadata() or {}).get("tokenizer")
    if text is None:
        raise InputError(f"{pretrained} has no tokenizer in its metadata; train it again")
    tokenizer = Tokenizer.from_text(text)
    splits = load_examples(task, folder)
    train, dev = (_encoded(examples, tokenizer, recipe.shape.length) for examples in splits)
    return GlueData(task, train, dev, pretrained, recipe.key, notes.get("valid_perplexity"))


def language_recipe(pretrained: Path) -> LanguageRecipe:
    """Of a model that can be fine-tuned."""
    recipe = recipe_of(pretrained)
    if not isinstance(recipe, LanguageRecipe) or recipe.shape.causal:
        what = "no language model" if not isinstance(recipe, LanguageRecipe) else "causal"
        raise InputError(f"{pretrained} is {what}; give a masked model that oversmooth train wrote")
    return recipe


def joined(parts: list[list[int]], separator: int, longest: int) -> list[int]:
    """A mark, then each part and a mark after it; the longest part is cut at its end until all fit."""
    parts = [list(part) for part in parts]
    while (over := sum(map(len, parts)) + len(parts) + 1 - longest) > 0:
        ranked = sorted(map(len, parts), reverse=True)
        cut = min(over, max(1, ranked[0] - (ranked[1] if len(ranked) > 1 else 0)))
        part = max(parts, key=len)
        del part[len(part) - cut :]
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
    most = max(len(row) for choices in rows for row in choices)
    length = min(longest, -(-most // _MULTIPLE) * _MULTIPLE)
    ids = torch.full((len(rows), len(rows[0]), length), separator, dtype=torch.int32)
    for number, choices in enumerate(rows):
        for choice, row in enumerate(choices):
            ids[number, choice, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return Encoded(
        ids,
        torch.tensor([[len(row) for row in choices] for choices in rows], dtype=torch.int32),
        torch.tensor([example.label for example in examples], dtype=torch.float32),
        torch.tensor([example.group for example in examples], dtype=torch.int64),
    )
