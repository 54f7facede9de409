"""What a language recipe is made of beside numbers of its own: plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oversmooth.safety.errors import InputError
from oversmooth.safety.machine import check_fits
from oversmooth.safety.options import option

_BLOCK = 50_000  # bytes of a block's modules, whatever its width


@dataclass(frozen=True)
class Shape:
    """The defaults are Nguyen et al.'s model on WikiText-103, whose 267,735 words the data decide."""

    vocabulary: int = 0
    """Kinds of tokens; the data decide."""
    length: int = option(256, "Tokens of a window.")
    width: int = option(128, "Features of a token.")
    depth: int = option(16, "Blocks.")
    heads: int = option(8, "Attention heads.")
    hidden: int = option(2048, "Features inside the MLP.")
    activation: Literal["relu", "gelu"] = option("relu", "Of the MLP: relu or gelu.")
    norm: Literal["post", "pre"] = option("post", "LayerNorm after each sum (post, as published) or before (pre).")
    positions: Literal["sinusoidal", "learned"] = option("sinusoidal", "sinusoidal or learned.")
    causal: bool = option(True, "Predict the next token, or, with --no-causal, tokens that are masked.")
    dropout: float = option(0.1, "Of embeddings, attention's output and the MLP's.")
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("length", "width", "depth", "heads", "hidden"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.vocabulary < 0:
            raise InputError(f"vocabulary is {self.vocabulary}; give 0 for what the data have, or more")
        if self.width % self.heads:
            raise InputError(f"{self.heads} heads do not share {self.width} features evenly; give a divisor")
        if self.positions == "sinusoidal" and self.width % 2:
            raise InputError(f"width is {self.width}; sinusoidal positions need an even one")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout:g}; give 0 or more, and less than 1")
        if not 0 < self.eps < float("inf"):
            raise InputError(f"eps is {self.eps}; give a number above 0")
        for name, allowed in (
            ("activation", ("relu", "gelu")),
            ("norm", ("post", "pre")),
            ("positions", ("sinusoidal", "learned")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; choose {' or '.join(allowed)}")

    @property
    def parameters(self) -> int:
        """Of the plain model, counted before it is made."""
        width, hidden = self.width, self.hidden
        block = 4 * width**2 + width + 2 * width * hidden + hidden + width + 4 * width
        embedded = self.vocabulary * (width + 1) + (self.length * width if self.positions == "learned" else 0)
        return self.depth * block + embedded + (2 * width if self.norm == "pre" else 0)

    def check_fits(self, copies: int = 1, more: int = 0) -> None:
        """Refuse what exceeds the machine. copies: of the weights, gradients and moments too; more: bytes beside."""
        check_fits(
            copies * 4 * self.parameters + _BLOCK * self.depth + more,
            f"a language model of depth {self.depth:,}, width {self.width:,} and {self.vocabulary:,} tokens has "
            f"{self.parameters:,} weights and",
            "give a smaller one",
        )
