"""The typed facts of a diagnosis: numbers as they are kept, the model, where figures come from, and steering."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypedDict

from torch import Tensor

Number = float | None
Numbers = dict[str, Number]  # metrics by name: those of `metrics.METRICS`
Verdict = Annotated[str, Literal["smooth", "rough", "tie", "undecided"]]
Pull = Annotated[str, Literal["smooth", "rough", "tie", "undecided", ""]]  # empty where no spectra were computed
Alone = Annotated[str, Literal["smooth", "rough", "open"]]  # what weights alone decide


class _ModelAlways(TypedDict):
    name: str
    layers: int
    heads: int
    width: int


class ModelFacts(_ModelAlways, total=False):
    """What is known of the model. More may stand beside it: `diagnose(about=...)`, and its class as "class"."""

    layout: str
    stack: str
    shared: bool  # whether several blocks have the same weights
    kv_heads: int
    head_dim: int
    causal: bool | None
    norm: str | None  # where it stands: "pre", "post", …
    norm_kind: str | None
    dtype: str
    parameters: int
    input_kind: Annotated[str, Literal["image", "text", "other"]]
    """What the model was run on: decides which reference models are of its kind."""
    training: bool
    dropout: bool  # in train mode: whether dropout was active
    recipe: dict[str, Any]  # of a model that `oversmooth train` made
    state: str
    mode: str | None


class _ProvenanceAlways(TypedDict):
    data: str
    inputs: int
    seconds: float


class Provenance(_ProvenanceAlways, total=False):
    """Where the figures come from. The versions of libraries stand beside it."""

    oversmooth: str
    torch: str
    platform: str
    device: str
    created: str
    seed: int
    tokens: list[int]  # valid tokens of the shortest and of the longest input
    rank_inputs: int
    joined_inputs: int
    spectra_inputs: int
    joined: bool
    variant: str
    left_out: list[int]  # positions of the tokens that token metrics leave out: `diagnose(special=...)`
    counting_rule: str
    massive_rule: str
    top1: Number


class Massive(TypedDict):
    """Massive tokens after one block."""

    input_share: Number
    tokens: int
    positions: dict[str, int]  # number of massive tokens by position, for the most frequent positions
    largest_ratio: Number


class _Moved(TypedDict):
    """How far a warm start moved each head of a layer."""

    layer: int
    heads: list[float]


class _Verified(TypedDict):
    ok: bool
    problems: list[str]
    doubts: list[str]
    layers: list[_VerifiedLayer]


class _VerifiedAlways(TypedDict):
    layer: int
    least: Number
    greatest: Number
    room: Number


class _VerifiedLayer(_VerifiedAlways, total=False):
    outside_when_folded: bool
    """Whether H leaves the constraint once the norm before it and the layer scale are folded in."""
    zero_eigenvalues: int


class Steered(TypedDict):
    """What steering did: its settings, and whether its spectral constraint is satisfied."""

    methods: list[dict[str, Any]]
    layers: list[int]
    stack: str
    moved: list[_Moved]
    verified: _Verified | None


def plain(value: float | Tensor, digits: int = 7) -> Number:
    """A number as it is kept: rounded so that files stay small, None where it has no meaning."""
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
