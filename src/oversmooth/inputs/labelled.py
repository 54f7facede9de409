"""Sentences with classes, or pairs of them with similarities, from a .tsv file with a header, as GLUE has them."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oversmooth.inputs.batches import Inputs, check_positive, spread
from oversmooth.inputs.passages import Passage
from oversmooth.inputs.text import batches_of, first_pieces
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import check_plain, read_text

_COLUMNS = {("sentence1", "sentence2"): ("score", "label"), ("sentence",): ("label",), ("text",): ("label",)}
_REMEDY = "give a .tsv file with a header: sentence and label, or sentence1, sentence2 and score"
_MOST_BYTES = 2**30


def labelled_inputs(tokenizer: Any, path: Path, *, count: int, length: int, batch: int) -> tuple[Inputs, Tensor]:
    """Up to ``count`` rows of a .tsv file, evenly spread, and their labels: a class per sentence, or a similarity per
    pair, whose sentences follow one another. length: tokens per sentence.
    """
    check_positive(count=count, length=length, batch=batch)
    check_plain(path, _REMEDY)
    rows = list(csv.DictReader(read_text(path, _REMEDY, _MOST_BYTES).split("\n"), delimiter="\t", quoting=3))
    header = [name for name in rows[0] if name] if rows else []
    found = ((texts, label) for texts, names in _COLUMNS.items() for label in names if {*texts, label} <= {*header})
    texts, label = next(found, ((), ""))
    if not texts:
        raise InputError(f"{path} has the columns {', '.join(header[:8]) or '(none)'}; {_REMEDY}")
    chosen = [(index + 2, rows[index]) for index in spread(len(rows), count)]
    passages = [Passage(f"line {line} of {path.name}", row[name] or "") for line, row in chosen for name in texts]
    pieces = first_pieces(tokenizer, passages, length)
    if len(pieces) < len(passages):
        raise InputError(f"{path} has {len(passages) - len(pieces)} sentences without a token; leave their lines out")
    unit = "pairs of sentences" if len(texts) == 2 else "sentences"
    what = f"{len(chosen):,} {unit} of {path}"
    inputs = Inputs(what, "text", len(pieces), [], partial(batches_of, tokenizer, pieces, batch))
    return inputs, _labels([(line, row[label]) for line, row in chosen], path, label, numbers=len(texts) == 2)


def _labels(rows: list[tuple[int, str | None]], path: Path, name: str, *, numbers: bool) -> Tensor:
    if not numbers:
        classes = {word: index for index, word in enumerate(sorted({word or "" for _, word in rows}))}
        return torch.tensor([classes[word or ""] for _, word in rows])
    values = []
    for line, word in rows:
        try:
            values.append(float(word or ""))
        except ValueError:
            raise InputError(f"line {line} of {path.name} has the {name} {word!r}; give a number") from None
    return torch.tensor(values)
