"""The example of a report: token similarities of one input after every block, and the attention each token receives.

Eight bits a number. Inputs with too many tokens to plot are shown in groups: the similarity of two groups is exactly
the mean over their pairs of tokens.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from oversmooth.diagnosis.provenance import is_image
from oversmooth.inputs.batches import Batch
from oversmooth.results.parts import OneInput, Picture
from oversmooth.safety.errors import InputError
from oversmooth.safety.foreign import shortened, visible
from oversmooth.theory.operators import AttentionOperator
from oversmooth.trace.plans import SampleBlock

MOST_TOKENS = 256
_MOST_PIXELS = 64  # of a picture's longer side: enough to recognise it by
_MOST_LEADING = 8  # tokens before an image's patches: a class, registers
_MOST_LETTERS = 24
_AT_ONCE = 1 << 24  # numbers of A times groups that are held at once


@dataclass(frozen=True)
class _Groups:
    """Which group each token is shown in; one group per token if there are few."""

    of_token: Tensor  # ``(n,)``
    grid: list[int] | None
    leading: int
    aggregated: str

    @property
    def count(self) -> int:
        return int(self.of_token.max()) + 1

    def means(self, device: torch.device) -> Tensor:
        """``(groups, n)``: a row averages the tokens of its group."""
        table = torch.zeros(self.count, len(self.of_token), device=device)
        table[self.of_token.to(device), torch.arange(len(self.of_token), device=device)] = 1.0
        return table / table.sum(-1, keepdim=True)


class ExampleInput:
    """The first input inside the model, gathered block by block. first: the batch that it is from; mask: ``(1, n)``:
    tokens that are not padding, None for all.
    """

    STATE = ("_shape", "_same", "_kept", "_groups", "_similarity", "_received")

    def __init__(self, first: Batch | Tensor, one: Batch | Tensor, mask: Tensor | None, tokenizer: Any) -> None:
        self.first, self.one, self.mask, self.tokenizer = first, one, mask, tokenizer
        given = [one] if isinstance(one, Tensor) else list(one.inputs.values())
        self._image = next((x[0] for x in given if is_image(x)), None)
        self._shape: torch.Size | None = None
        self._same = True  # whether all blocks have the same tokens
        self._similarity: list[str] = []
        self._received: list[tuple[str, float | None]] = []

    def add(self, block: SampleBlock) -> None:
        """The next block, with its arrays."""
        if self._shape is None:
            self._begin(block.x)
        self._same &= block.y.shape[:2] == self._shape
        if self._same:
            self._similarity.append(_similarity(block.y[0], self._groups, self._kept))
            self._received.append(_received(block.A, self._groups, self._kept))

    def _begin(self, x: Tensor) -> None:
        self._shape, n = x.shape[:2], x.shape[1]
        mask, image = self.mask, self._image
        self._kept = torch.arange(n) if mask is None or mask.shape[-1] != n else mask[0].cpu().nonzero()[:, 0]
        self._same = len(self._kept) > 1
        if self._same:
            self._groups = _groups(len(self._kept), None if image is None else (image.shape[-2], image.shape[-1]))
            self._similarity.append(_similarity(x[0], self._groups, self._kept))

    def result(self) -> OneInput | None:
        """None if blocks have different tokens."""
        if not self._same or self._shape is None:
            return None
        groups, first = self._groups, self.first
        texts = _texts(self.one, self.tokenizer, self._shape[1])
        kind = "image" if groups.grid else "text" if texts else "tokens"
        return OneInput(
            what=first.names[0] if isinstance(first, Batch) and first.names else "the first input",
            kind=kind,
            tokens=len(self._kept),
            groups=groups.count,
            grid=groups.grid,
            leading=groups.leading,
            labels=_labels([texts[i] for i in self._kept.tolist()], groups) if texts else [],
            picture=_picture(self._image) if self._image is not None and groups.grid else None,
            similarity=self._similarity,
            received=[code for code, _ in self._received],
            received_most=[most for _, most in self._received],
            aggregated=groups.aggregated,
        )


def _groups(n: int, size: tuple[int, int] | None) -> _Groups:
    """size: height and width of the image, if it is one."""
    grid = _grid(n, *size) if size else None
    if grid:
        leading, rows, columns = grid
        side = 1
        while leading + math.ceil(rows / side) * math.ceil(columns / side) > MOST_TOKENS:
            side += 1
        across = math.ceil(columns / side)
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        patches = (row // side) * across + column // side + leading
        said = f"{rows} × {columns} patches, shown in groups of {side} × {side}: means over pairs" if side > 1 else ""
        of_token = torch.cat([torch.arange(leading), patches.flatten()])
        return _Groups(of_token, [math.ceil(rows / side), across], leading, said)
    length = math.ceil(n / MOST_TOKENS)
    said = f"{n:,} tokens, shown in groups of {length} that follow each other: means over pairs" if length > 1 else ""
    return _Groups(torch.arange(n) // length, None, 0, said)


def _grid(n: int, height: int, width: int) -> tuple[int, int, int] | None:
    """(tokens before the patches, rows, columns) of square patches; None where the tokens make no such grid."""
    for leading in range(min(_MOST_LEADING, n - 1) + 1):
        rows = math.isqrt((n - leading) * height // width)
        if rows and (n - leading) % rows == 0:
            columns = (n - leading) // rows
            # At least two pixels a patch, and patches as high as they are wide.
            if rows * width == columns * height and height % rows == 0 and height >= 2 * rows and n - leading > 3:
                return leading, rows, columns
    return None


def _picture(image: Tensor) -> Picture:
    """Small, between its own darkest and brightest value: how it was normalized is not known here."""
    image = image.detach().float().cpu()
    low, high = image.amin(), image.amax()
    image = (image - low) / (high - low).clamp(min=1e-12)
    longer = max(image.shape[-2:])
    if longer > _MOST_PIXELS:
        size = [max(1, round(side * _MOST_PIXELS / longer)) for side in image.shape[-2:]]
        image = interpolate(image[None], size=size, mode="area")[0]
    pixels = image.expand(3, -1, -1).permute(1, 2, 0)
    return Picture(width=image.shape[-1], height=image.shape[-2], pixels=as_bytes(255 * pixels))


def _texts(one: Batch | Tensor, tokenizer: Any, n: int) -> list[str]:
    """Of every token; empty where they are not known."""
    ids = None if isinstance(one, Tensor) else one.inputs.get("input_ids")
    if ids is None or ids.shape[-1] != n or not hasattr(tokenizer, "convert_ids_to_tokens"):
        return []
    try:
        found = tokenizer.convert_ids_to_tokens(ids.reshape(-1).tolist())
    except Exception:  # tokenizers of others raise what they like, and nothing but a label is lost
        return []
    # Signs for a space, or for a piece inside a word, of the usual tokenizers.
    signs = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "↵"})
    return ["" if token is None else str(token).translate(signs) for token in found]


def _labels(texts: list[str], groups: _Groups) -> list[str]:
    joined = [""] * groups.count
    for text, group in zip(texts, groups.of_token.tolist(), strict=True):
        joined[group] += text
    return [shortened(visible(text), _MOST_LETTERS) for text in joined]


def _similarity(stream: Tensor, groups: _Groups, kept: Tensor) -> str:
    """Cosines of all pairs, row by row above the diagonal: byte / 127 − 1."""
    units = normalize(stream.float()[kept.to(stream.device)].nan_to_num(), dim=-1)
    means = groups.means(units.device) @ units  # whose products are means over pairs
    rows, columns = torch.triu_indices(groups.count, groups.count, offset=1)
    return as_bytes(127 * (1 + (means @ means.mT).cpu()[rows, columns].clamp(-1, 1)))


def _received(A: AttentionOperator | None, groups: _Groups, kept: Tensor) -> tuple[str, float | None]:
    """For each head, what a token of each group receives from the tokens that attend, on average, and the largest of
    these, which is 255.
    """
    if A is None:
        return "", None
    A = A.select(torch.tensor([0], device=A.device))
    (heads, n) = A.shape[-3], A.shape[-1]
    if n < len(kept):
        return "", None
    share = torch.zeros(n, groups.count, device=A.device, dtype=A.dtype)
    share[kept.to(A.device)] = groups.means(A.device).mT.to(A.dtype)
    columns = []
    for part in share.split(max(1, _AT_ONCE // (heads * n)), dim=-1):
        try:
            given = (A @ part.expand(1, heads, -1, -1))[0][:, kept.to(A.device)]
        except InputError:
            return "", None
        columns.append(given.float().mean(1).cpu())
    mean = torch.cat(columns, dim=-1).nan_to_num()
    most = max(float(mean.max()), 1e-12)
    return as_bytes(255 * mean / most), float(f"{most:.5g}")


def as_bytes(values: Tensor) -> str:
    """Whole numbers from 0 to 255, a byte each, in base64."""
    return base64.b64encode(values.round().clamp(0, 255).to(torch.uint8).contiguous().numpy().tobytes()).decode()
