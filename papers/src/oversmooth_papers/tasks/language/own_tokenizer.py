"""The tokenizer of a language model that `oversmooth train` wrote, with what is asked of those of transformers."""

from __future__ import annotations

from typing import Any

from oversmooth_papers.tasks.language.tokens import Tokenizer


class OwnTokenizer:
    """Calls and answers as a fast tokenizer of transformers does; there are no special tokens."""

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
        return {
            "input_ids": pieces,
            "attention_mask": [[1] * len(piece) for piece in pieces],
            "special_tokens_mask": [[0] * len(piece) for piece in pieces],
        }
