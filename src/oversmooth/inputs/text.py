"""Batches of tokens for a language model: from text files, parquet, an .npz, or the package's prose.

Any Hugging Face tokenizer works. All pieces are cut at once, and only the needed parts of long texts are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oversmooth.inputs import arrays
from oversmooth.inputs.batches import Batch, Inputs, check_positive, spread
from oversmooth.inputs.passages import Passage, lines_of, passages_of
from oversmooth.inputs.sources import Source, read_as, resolve
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

PROSE = Path(__file__).parent / "prose.txt"
REACTIONS = Path(__file__).parent / "reactions.txt"


@dataclass(frozen=True)
class Piece:
    """The tokens of one passage, special tokens included: each of shape (n,)."""

    name: str
    values: dict[str, Tensor]
    special: Tensor

    @property
    def words(self) -> int:
        """Number of tokens that are not special."""
        return int((~self.special).sum())


def text_inputs(
    tokenizer: Any, source: Path | str | None, *, count: int, length: int, batch: int, lines: bool = False
) -> Inputs:
    """Up to ``count`` pieces of up to ``length`` tokens of ``source``, or of the package's prose if it is None.

    Pieces are consecutive and fill their length, so padding is rare. If the text has more than ``count``, they are
    spread evenly over it. Batches have an ``attention_mask``, and ``token_type_ids`` if the tokenizer makes them.
    source: a file or directory of text, or an .npz file of token ids. length: tokens per piece, special ones included.
    batch: pieces per batch. lines: whether each line is a piece, as for reactions or sentences.
    """
    check_positive(count=count, length=length, batch=batch)
    if not callable(tokenizer) or not hasattr(tokenizer, "num_special_tokens_to_add"):
        given = arguments.kind(tokenizer)
        raise InputError(f"the tokenizer is {given}, not a transformers tokenizer; give one of those")
    resolved = resolve(Path(source), "text") if source is not None else Source(PROSE, "text", (PROSE,))
    if resolved.format == "npz":
        pieces, what, skipped = _ready_made(tokenizer, resolved.path, count, length)
        return Inputs(what, "text", len(pieces), skipped, partial(batches_of, tokenizer, pieces, batch))

    room = length - tokenizer.num_special_tokens_to_add()
    if room < 1:
        raise InputError(
            f"length is {length}, which leaves no text beside the tokenizer's {length - room} special tokens; "
            f"give {length - room + 1} or more"
        )
    if lines:
        pieces = first_pieces(tokenizer, lines_of(resolved, count), length)
    else:
        pieces = _cut(tokenizer, passages_of(resolved, count, length), count, length)
    if not pieces:
        raise InputError(f"the tokenizer finds no token in {resolved.path}; give a longer text")
    longest = max(len(piece.special) for piece in pieces)
    where = f"{source}" if source is not None else "the prose that comes with oversmooth"
    unit = "lines" if lines else "pieces"
    what = f"{len(pieces):,} {unit} of up to {longest:,} tokens of {where}"
    return Inputs(what, "text", len(pieces), [], partial(batches_of, tokenizer, pieces, batch))


def _cut(tokenizer: Any, passages: list[Passage], count: int, length: int) -> list[Piece]:
    """Pieces that fill their length, from one whole text or from the beginning of each passage."""
    if len(passages) > 1:
        return first_pieces(tokenizer, passages, length)
    pieces = [piece for piece in _windows(tokenizer, passages[0], length) if piece.words]
    full = [piece for piece in pieces if len(piece.special) == length]
    # The rest at the end is used if pieces are missing, unless it is short.
    rest = [piece for piece in pieces if len(piece.special) < length]
    if len(full) < count and rest and (not full or 2 * len(rest[-1].special) >= length):
        full.append(rest[-1])
    return [full[index] for index in spread(len(full), count)]


def first_pieces(tokenizer: Any, passages: list[Passage], length: int) -> list[Piece]:
    return [piece for passage in passages for piece in _windows(tokenizer, passage, length)[:1] if piece.words]


def _windows(tokenizer: Any, passage: Passage, length: int) -> list[Piece]:
    """One passage cut into pieces of ``length`` tokens, special tokens included."""
    asked = dict(truncation=True, max_length=length, return_special_tokens_mask=True, return_attention_mask=True)
    # Damaged tokenizers may load and then raise anything.
    with read_as(f"the tokenizer fails on {passage.name}", "check the tokenizer's files"):
        if getattr(tokenizer, "is_fast", False):
            encoded = tokenizer(passage.text, return_overflowing_tokens=True, **asked)
            encodings = [{key: encoded[key][i] for key in encoded} for i in range(len(encoded["input_ids"]))]
        else:
            # Tokenizers in Python return the overflow as one list; their second step can be called alone.
            ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(passage.text))
            room = length - tokenizer.num_special_tokens_to_add()
            encodings = [tokenizer.prepare_for_model(ids[i : i + room], **asked) for i in range(0, len(ids), room)]
    pieces = []
    for number, encoding in enumerate(encodings):
        keys = [key for key in ("input_ids", "attention_mask", "token_type_ids") if key in encoding]
        values = {key: torch.tensor(list(encoding[key]), dtype=torch.long) for key in keys}
        special = torch.tensor(list(encoding["special_tokens_mask"]), dtype=torch.bool)
        name = passage.name if len(encodings) == 1 else f"{passage.name}, piece {number + 1} of {len(encodings)}"
        pieces.append(Piece(name, values, special))
    return pieces


def _ready_made(tokenizer: Any, path: Path, count: int, length: int) -> tuple[list[Piece], str, list[str]]:
    table = arrays.token_ids(path, count, len(tokenizer))
    names = torch.tensor(sorted(tokenizer.all_special_ids), dtype=torch.long)
    pieces, skipped, indices = [], [], table.indices
    for index, ids, mask in zip(indices, table.ids, table.mask, strict=True):
        both = {"input_ids": ids, "attention_mask": mask}
        values = {key: torch.from_numpy(row[:length].copy()) for key, row in both.items()}
        special = torch.isin(values["input_ids"], names) & values["attention_mask"].bool()
        if values["attention_mask"].any():
            pieces.append(Piece(f"row {index} of {path.name}", values, special))
        else:
            skipped.append(f"row {index} of {path.name} is all padding and was skipped")
    if not pieces:
        raise InputError(
            f"{path}: attention_mask is zero for all tokens of the {len(indices):,} rows; set it to 1 for text"
        )
    what = f"{len(indices):,} rows of {path}"
    if len(indices) < table.total:
        what = f"{len(indices):,} of the {table.total:,} rows of {path}, evenly spread"
    if table.ids.shape[1] > length:
        what += f", the first {length:,} of {table.ids.shape[1]:,} tokens"
    return pieces, what, skipped


def batches_of(tokenizer: Any, pieces: list[Piece], batch: int) -> Iterator[Batch]:
    # Without a padding token any id works: the attention mask hides it.
    pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    fillers = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0}
    for first in range(0, len(pieces), batch):
        held = pieces[first : first + batch]
        inputs = {key: _padded([piece.values[key] for piece in held], fillers[key]) for key in held[0].values}
        special = _padded([piece.special for piece in held], False)
        yield Batch(inputs, special=special, names=tuple(piece.name for piece in held))


def _padded(rows: list[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
