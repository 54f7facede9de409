"""From text to numbers: words between spaces, pairs of bytes (BPE), or bytes; kept as one text in tokenizers' format.

Words and bytes need no library; BPE is learned and applied by `tokenizers`. A line's end is a token of its own in the
word-level layouts, ``<eos>``, as in the published files of WikiText.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from oversmooth.safety.libraries import import_library

Kind = Literal["word", "bpe", "bytes"]
UNKNOWN, END, MASK = "<unk>", "<eos>", "<mask>"
_LINES = 20_000  # encoded at once: `tokenizers` keeps far more of a token than its number until that is taken


@dataclass(frozen=True)
class Tokenizer:
    """``encode(text)`` and ``decode(ids)``; ``size`` kinds of tokens, the mask among them where it is ``masked``."""

    kind: Kind
    masked: bool = False
    vocabulary: dict[str, int] = field(default_factory=dict, repr=False)
    json: str = field(default="", repr=False)  # in the format of `tokenizers`, which transformers reads

    @property
    def size(self) -> int:
        return 256 + self.masked if self.kind == "bytes" else len(self.vocabulary)

    @property
    def mask(self) -> int:
        return 256 if self.kind == "bytes" else self.vocabulary[MASK]

    def encode(self, text: str) -> Tensor:
        """``(n,) int32``."""
        if self.kind == "bytes":
            return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32))
        if self.kind == "word":
            unknown = self.vocabulary[UNKNOWN]
            return torch.tensor([self.vocabulary.get(word, unknown) for word in _words(text)], dtype=torch.int32)
        lines = [line for line in text.splitlines(keepends=True) if line.strip()]
        tokenizer, ids = _parsed(self.json), [np.zeros(0, dtype=np.int32)]
        for begin in range(0, len(lines), _LINES):
            encodings = tokenizer.encode_batch_fast(lines[begin : begin + _LINES])
            ids += [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
        return torch.from_numpy(np.concatenate(ids))

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """Of short texts without line ends, all at once."""
        if self.kind != "bpe":
            return [self.encode(text).tolist() for text in texts]
        return [encoding.ids for encoding in _parsed(self.json).encode_batch_fast(list(texts))]

    def decode(self, ids: Tensor) -> str:
        """The text again; of words, one space between them."""
        if self.kind == "bytes":
            return bytes(number for number in ids.tolist() if number < 256).decode(errors="replace")
        if self.kind == "word":
            names = list(self.vocabulary)
            return " ".join(names[number] for number in ids.tolist()).replace(f" {END}", "\n")
        return str(_parsed(self.json).decode(ids.tolist()))

    def to_text(self) -> str:
        return json.dumps({"kind": self.kind, "masked": self.masked, "tokenizer": self.json})

    @classmethod
    def from_text(cls, text: str) -> Tokenizer:
        fields = json.loads(text)
        if fields["kind"] == "bytes":
            return cls("bytes", fields["masked"])
        inside = json.loads(fields["tokenizer"])
        added = {token["content"]: token["id"] for token in inside.get("added_tokens", [])}
        return cls(fields["kind"], fields["masked"], inside["model"]["vocab"] | added, fields["tokenizer"])


class OwnTokenizer:
    """A `Tokenizer` that is called and answers as a fast one of transformers; it adds no special tokens."""

    is_fast = True
    pad_token_id = eos_token_id = None

    def __init__(self, inside: Tokenizer) -> None:
        self.inside = inside
        self.all_special_ids = [inside.mask] if inside.masked else []

    def __len__(self) -> int:
        return self.inside.size

    def num_special_tokens_to_add(self) -> int:
        return 0

    def __call__(self, text: str, *, max_length: int, **_asked: Any) -> dict[str, list[list[int]]]:
        """Pieces of at most so many tokens, one after the other."""
        ids = self.inside.encode(text).tolist()
        pieces = [ids[first : first + max_length] for first in range(0, len(ids), max_length)]
        ones, zeros = ([[value] * len(piece) for piece in pieces] for value in (1, 0))
        return {"input_ids": pieces, "attention_mask": ones, "special_tokens_mask": zeros}


@lru_cache(maxsize=4)
def _parsed(text: str) -> Any:
    """The library's tokenizer: reading one takes longer than encoding a sentence with it."""
    return import_library("tokenizers", "BPE").Tokenizer.from_str(text)


def tokenizer_of(text: str, kind: Kind, size: int, *, masked: bool) -> Tokenizer:
    """Made from the training text: every word, the most frequent first, or pairs of bytes that are. size: of bpe."""
    if kind == "bytes":
        return Tokenizer("bytes", masked)
    special = [END, *([MASK] if masked else [])]
    if kind == "word":
        counts = Counter(_words(text))
        words = [word for word, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
        names = dict.fromkeys([UNKNOWN, END, *words, *special])
        vocabulary = {word: number for number, word in enumerate(names)}
        return Tokenizer("word", masked, vocabulary, _word_level(vocabulary, [UNKNOWN, *special]))
    library = import_library("tokenizers", "BPE")
    tokenizer, levels = library.Tokenizer(library.models.BPE()), library.pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = levels(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    sizes = dict(vocab_size=size, special_tokens=special, initial_alphabet=levels.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), library.trainers.BpeTrainer(**sizes))
    return Tokenizer("bpe", masked, dict(tokenizer.get_vocab()), tokenizer.to_str())


def _words(text: str) -> Iterable[str]:
    """Between spaces, with a mark at the end of every line."""
    for line in text.splitlines():
        yield from line.split()
        yield END


def _word_level(vocabulary: dict[str, int], special: list[str]) -> str:
    """The same in the format of `tokenizers`."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    contents = {
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[name], "content": name, "special": True} | flags for name in special],
        "normalizer": {"type": "Replace", "pattern": {"String": "\n"}, "content": f" {END} "},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN},
    }
    return json.dumps(contents, ensure_ascii=False)
