"""Small random blocks repeated a thousand times: what `oversmooth simulate` shows of norms, depth and its prediction.

Unlike the cases of `theory.toy`, attention is recomputed and there are norms and an MLP. Four blocks differ: a
pre-norm block smooths as a power of depth, a post-norm block geometrically; a rotation behind a norm never settles; and
an attention sink under a causal mask keeps tokens apart, since rows of attention sum to less for early tokens than for
late ones.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from oversmooth import metrics
from oversmooth.report.charts.base import Shown
from oversmooth.report.charts.further import extrapolation
from oversmooth.report.figures import Figure
from oversmooth.report.style import PAPER, ratio
from oversmooth.report.terminal import plain_table
from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import plain
from oversmooth.results.parts import Course, Extrapolation, Layer
from oversmooth.safety.files import write_text
from oversmooth.theory import centre_features, constant_state, dominance, fold_norm, log_time

ENDINGS = (".png", ".svg", ".pdf", ".json")
_EQUAL = -30.0  # log HFC/LFC below which tokens are equal within rounding
_TOKENS, _WIDTH, _HEADS = 16, 16, 2
_SINK = 2.0  # the score of the sink
_TURN, _GAINS = 1.2, (1.0, 0.35)


@dataclass(frozen=True)
class RandomBlock:
    """Attention and an MLP with random weights, two tokens and two features for the rotation."""

    name: str
    norm: str = "pre"
    sink: bool = False
    begin: int = 32  # real repeats, from which the others are predicted
    seed: int = 0

    @cached_property
    def weights(self) -> list[Tensor]:
        """W_Q, W_K, W_V ``(heads, d, k)``, W_O ``(heads, k, d)``, and the MLP's two matrices and bias."""
        generator, d, k = torch.Generator().manual_seed(self.seed), _WIDTH, _WIDTH // _HEADS
        shapes = [(_HEADS, d, k)] * 3 + [(_HEADS, k, d), (d, 4 * d), (4 * d, d), (4 * d,)]
        return [torch.randn(*s, dtype=torch.float64, generator=generator) / math.sqrt(s[-2:][0]) for s in shapes]

    def tokens(self) -> Tensor:
        """``(n, d)``, where it begins."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        shape = (2, 2) if self.norm == "rotation" else (_TOKENS, _WIDTH)
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    def attention(self, y: Tensor) -> Tensor:
        """``(heads, n, n)``, of normed tokens."""
        W_Q, W_K = self.weights[:2]
        scores = (y @ W_Q) @ (y @ W_K).mT / math.sqrt(W_Q.shape[-1])
        if not self.sink:
            return scores.softmax(-1)
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return F.pad(scores.masked_fill(hidden, -torch.inf), (0, 1), value=_SINK).softmax(-1)[..., :-1]

    def __call__(self, x: Tensor) -> Tensor:
        if self.norm == "rotation":
            sine, cosine = math.sin(_TURN), math.cos(_TURN)
            turn = torch.tensor([[cosine, sine], [-sine, cosine]]).to(x)
            return x + F.rms_norm(x, x.shape[-1:], torch.tensor(_GAINS).to(x)) @ turn
        _, _, W_V, W_O, W_1, W_2, bias = self.weights

        def attend(y: Tensor) -> Tensor:
            return (self.attention(y) @ (y @ W_V) @ W_O).sum(-3)

        def mlp(y: Tensor) -> Tensor:
            return F.gelu(y @ W_1 + bias) @ W_2

        def normed(x: Tensor) -> Tensor:
            return F.layer_norm(x, x.shape[-1:])

        if self.norm == "post":
            x = normed(x + attend(x))
            return normed(x + mlp(x))
        x = x + attend(normed(x))
        return x + mlp(normed(x))

    def pull(self, x: Tensor) -> dict[str, Any]:
        """The side to which attention pulls, fixed as it is at x; nothing where rows do not sum to one."""
        if self.sink or self.norm == "rotation":
            return dict(rho_smooth=None, rho_rough=None, verdict="", residual=None, variant="")
        y, W_V, W_O = F.layer_norm(x, x.shape[-1:]), *self.weights[2:4]
        if self.norm == "post":
            found = dominance(self.attention(x), *centre_features(W_V, W_O))
        else:
            inverse = float(x.std(-1, correction=0).reciprocal().mean())
            found = dominance(self.attention(y), fold_norm(W_V, 1.0, inverse_sigma=inverse), W_O)
        radii = dict(rho_smooth=plain(found.rho_smooth), rho_rough=plain(found.rho_rough))
        return dict(**radii, verdict=found.verdict, residual=plain(found.residual), variant="observed")

    def run(self, repeats: int) -> Extrapolation:
        """The block itself, repeated, and what its first repeats predict."""
        x = first = self.tokens()
        found = log_time(self, x, repeats, begin=self.begin)
        state = constant_state(self, found.tokens, found.way)
        depths, logs = [], []
        for depth in range(repeats + 1):
            if depth <= self.begin or depth == repeats or depth % 2 ** (depth.bit_length() - 4) == 0:
                if (log := float(metrics.summary(x, cosines=False).log_hfc_lfc)) < _EQUAL:
                    break
                depths.append(float(depth))
                logs.append(plain(log))
            x = self(x)
        predicted = Course(found.depth.double().tolist(), [plain(log) for log in found.log_hfc_lfc])
        return Extrapolation(
            what=f"{self.name} block",
            input=0,
            **self.pull(first),
            real=Course(depths, logs),
            predicted=Course(predicted.depth[found.run :], predicted.log_hfc_lfc[found.run :]),
            way=found.way,
            error=plain(found.error),
            conclusive=bool(found.conclusive),
            growth=plain(found.growth),
            equal_rate=plain(state.rate),
            equal_reason=state.why,
        )


_BLOCKS = [
    RandomBlock("power-law"),
    RandomBlock("geometric", norm="post", begin=16, seed=1),  # tokens are equal after 40
    RandomBlock("rotation", norm="rotation"),
    RandomBlock("sink", sink=True),
]
PRESETS = {"blocks": _BLOCKS, **{block.name: [block] for block in _BLOCKS}}


def table(entries: list[Extrapolation]) -> Table:
    """A row per block: HFC/LFC as it is at the end and as it was predicted, and the rate of nearly equal tokens."""
    shown = plain_table("", "growth", "HFC/LFC\nat first", "\nend", "\npredicted", "nearly equal\ntokens")
    for entry in entries:
        assert entry.real is not None
        assert entry.predicted is not None
        ends = (entry.real.log_hfc_lfc[0], entry.real.log_hfc_lfc[-1], entry.predicted.log_hfc_lfc[-1])
        words = [ratio(log, 3) for log in ends]
        if entry.real.depth[-1] < entry.predicted.depth[-1]:
            words[1] = "0, rounded"
        if not entry.conclusive:
            words[2] = "inconclusive"
        shown.add_row(entry.what, f"{entry.growth or 0.0:+.2g}", *words, _law(entry))
    return shown


def remarks(entries: list[Extrapolation]) -> list[str]:
    """Where the rate of nearly equal tokens is undecided, why."""
    return [f"{entry.what}: undecided, because {entry.equal_reason}" for entry in entries if entry.equal_reason]


def _law(entry: Extrapolation) -> str:
    if entry.equal_rate is None:
        return "undecided"
    return f"depth^{entry.equal_rate:.2f}" if entry.way == "log time" else f"{math.exp(entry.equal_rate):.3f}^depth"


def chart(entries: list[Extrapolation], title: str) -> Figure:
    """A panel per block."""
    nothing = DiagnosisData({"name": title}, {}, [Layer("", {})], entries)  # type: ignore[typeddict-item]
    panels = extrapolation([Shown(title, "ink", 0, nothing)], PAPER).panels
    return Figure({"title": title, "hconcat": [{**panel.spec, "title": panel.title} for panel in panels]})


def save(entries: list[Extrapolation], path: Path, title: str) -> None:
    """The chart as PNG, SVG or PDF, or the numbers as JSON."""
    if path.suffix.lower() != ".json":
        chart(entries, title).save(path)
        return
    write_text(path, json.dumps({"title": title, "blocks": [asdict(entry) for entry in entries]}, indent=1))
