"""Which eigenvalue dominates in every head, and in all heads together, per input."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.metrics.moments import reducing
from oversmooth.safety.errors import InputError, about
from oversmooth.theory import one_head
from oversmooth.theory.dominance import JOINT_STEPS, Dominance, search
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.radii import TIE
from oversmooth.theory.reasons import Reason
from oversmooth.theory.spectrum import attention_spectrum
from oversmooth.theory.together import Search, side_by_side
from oversmooth.theory.weights import fold_norm, head_spectrum
from oversmooth.trace.plans import BlockPlan, Plan, Site
from oversmooth.trace.reducers.base import PassFacts, Reducer, fetched

_MOST_WAITING = 1 << 31
# Reasons kept per layer of its undecided cases.
MOST_REASONS = 3
OnAttention = Callable[[int, BlockPlan, AttentionOperator, Tensor, Tensor], None]
"""Gets the number of the call, the block, A ``(b, heads, n, n)``, W_V and W_O."""


@dataclass(frozen=True)
class SpectraSettings:
    """What to compute of attention, and how."""

    joined: int = 1
    """Dominance of all heads together is computed for this many inputs, the first ones."""
    variant: str = "raw"
    """How the norm before attention enters H: raw, folded or observed."""
    rule: str = "complex"
    """Per head: "complex" for eigenvalues as they are, "real" for their real parts alone."""
    seed: int = 0
    exact: bool = False
    """All heads together without a budget: as many products as it takes."""


@dataclass
class HeadNumbers:
    """By call. Inputs with fewer than two valid tokens are left out."""

    inverse_sigma: dict[int, Tensor] = field(default_factory=dict)  # (inputs,): mean 1/σ of the tokens before the norm
    rho_smooth: dict[int, Tensor] = field(default_factory=dict)
    rho_rough: dict[int, Tensor] = field(default_factory=dict)  # (inputs, heads), as is rho_smooth
    verdict: dict[int, list[list[str]]] = field(default_factory=dict)
    joined: dict[int, list[tuple[int, float, float, str, float]]] = field(default_factory=dict)
    """(input, rho_smooth, rho_rough, verdict, residual)."""
    certified: dict[int, list[int]] = field(default_factory=dict)  # by input: heads whose verdict is proven
    undecided_because: dict[int, list[Reason]] = field(default_factory=dict)
    """The reasons of the first few undecided cases."""


class EachAttention(Reducer):
    """Hands the attention and the weights of every layer to a function."""

    attention = True
    _weights: tuple[AttentionLayer, Tensor, Tensor] | None = None

    def __init__(self, call: OnAttention) -> None:
        self.call = call

    def attend(self, call: int, block: BlockPlan, A: AttentionOperator) -> None:
        layer = block.layer
        if self._weights is None or self._weights[0] is not layer:  # read once a layer, and of one layer at a time
            # Copies: sharded weights are gone after their block.
            W_V, W_O = (W.to(torch.float32, copy=True) for W in (layer.W_V, layer.W_O))
            self._weights = (layer, W_V, W_O)
        self.call(call, block, A, *self._weights[1:])


class HeadSpectra(EachAttention):
    """Dominance per head for every input, and for all heads together for the first ones.

    Args:
        plan: of the model.
        settings: what to compute.
        steering: what was done to the model, if anything; dominance is then that of steered attention.
        most_waiting: bytes of attention and weights of layers that wait for others, to be taken jointly with them, of
            which the search needs several times as much; 0: layer by layer. None: on a GPU 2 GiB, or an eighth of what
            is free; on a CPU, which gains nothing, 0.
    """

    STATE = ("_found", "_rows")
    result: HeadNumbers

    def __init__(
        self, plan: Plan, settings: SpectraSettings | None = None, steering: Any = None, most_waiting: int | None = None
    ) -> None:
        self.plan, self.settings, self.steering = plan, settings or SpectraSettings(), steering
        self.most_waiting = most_waiting
        self._found = HeadNumbers()
        self._of_weights: dict[int, one_head.HeadEigenvalues] = {}  # by call: the same for every batch
        self._waiting: list[tuple[int, list[int], Search[Dominance]]] = []
        self._bytes = 0
        self._start = 0
        self._sigma: Tensor | None = None
        self._rows: dict[tuple[str, int], list[Tensor]] = defaultdict(list)

    def begin(self, start: int, inputs: int) -> None:
        del inputs
        self._start = start

    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        block = self.plan.blocks[site.call]
        if site.part == "enter" and block.norm_position == "pre":
            kind = "layer" if block.layer.norm is None else block.layer.norm.kind
            self._sigma = inverse_sigma(x, kind, mask, block.norm_eps)
            self._rows["inverse_sigma", site.call].append(self._sigma)

    def attend(self, call: int, block: BlockPlan, A: AttentionOperator) -> None:
        if not block.why_undecided:
            super().attend(call, block, A)
        else:
            unknown = torch.full(A.shape[:2], torch.nan, device=A.device)
            self._add(call, unknown, unknown, [["undecided"] * A.shape[1]] * A.shape[0], [0] * A.shape[0])
            self._found.undecided_because[call] = [block.why_undecided]

    def call(self, call: int, block: BlockPlan, A: AttentionOperator, W_V: Tensor, W_O: Tensor) -> None:
        layer, W_V = block.layer, self._with_norm(W_V, block)
        steered = None if self.steering is None else self.steering.steered_layer(layer.name)
        change = None if steered is None else steered.change(call)
        with about(layer.name):
            A.check_finite()
            if self.settings.rule == "real":
                if change is not None:
                    raise InputError("rule='real' knows plain attention only, and this model is steered; use 'complex'")
                self._add(call, *real_rule(A, W_V, W_O, layer.keep))
            else:
                # With a change of attention, or a norm as it was observed, they may differ between batches.
                kept = None if change is not None or W_V.ndim > 3 else self._eigenvalues(call, A, W_V, W_O, layer.keep)
                how = dict(residual=layer.keep, change=change, seed=self.settings.seed)
                (heads,) = side_by_side([search(A, W_V, W_O, per_head=True, eigenvalues=kept, **how)])  # type: ignore[arg-type]
                proven = [sum(word == "certified" for word in row) for row in heads.certainty]
                self._add(call, heads.rho_smooth, heads.rho_rough, heads.verdict, proven)
                undecided = zip(heads.undecided.flatten().tolist(), heads.reasons, strict=True)
                if new := [why for is_undecided, why in undecided if is_undecided and why is not None]:
                    reasons = self._found.undecided_because.setdefault(call, [])
                    reasons += new[: MOST_REASONS - len(reasons)]
        if (few := self.settings.joined - self._start) > 0:
            some = torch.arange(min(few, A.shape[0]), device=A.device)
            V = W_V[some] if W_V.ndim == 4 else W_V
            steps = None if self.settings.exact else JOINT_STEPS
            how = dict(residual=layer.keep, change=change, limit=False, steps=steps, seed=self.settings.seed)
            own = A.select(some)
            self._waiting.append((call, (some + self._start).tolist(), _named(layer.name, search(own, V, W_O, **how))))  # type: ignore[arg-type]
            self._bytes += own.nbytes + V.nbytes + W_O.nbytes
            if self._bytes >= (_may_wait(A.device) if self.most_waiting is None else self.most_waiting):
                self._jointly()

    def _eigenvalues(
        self, call: int, A: AttentionOperator, W_V: Tensor, W_O: Tensor, keep: float
    ) -> one_head.HeadEigenvalues | None:
        """Of each head's weights; None where nothing is kept of the stream, which makes sizes relative."""
        if keep and call not in self._of_weights:
            W_V, W_O = (W.to(A.device, A.dtype) for W in (W_V, W_O))
            self._of_weights[call] = one_head.HeadEigenvalues.of(W_V, W_O / keep)
        return self._of_weights.get(call)

    @reducing
    def _jointly(self) -> None:
        """All heads jointly, of the layers that wait."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for (call, inputs, _), every in zip(waiting, side_by_side([one for _, _, one in waiting]), strict=True):
            smooth, rough, residual = (x.tolist() for x in (every.rho_smooth, every.rho_rough, every.residual))
            rows = zip(inputs, smooth, rough, every.verdict, residual, strict=True)
            self._found.joined.setdefault(call, []).extend(rows)

    def _add(self, call: int, smooth: Tensor, rough: Tensor, verdict: Any, certified: list[int] | None = None) -> None:
        self._rows["rho_smooth", call].append(smooth.mT)
        self._rows["rho_rough", call].append(rough.mT)
        self._found.verdict.setdefault(call, []).extend(verdict)
        if certified is not None:
            self._found.certified.setdefault(call, []).extend(certified)

    def _with_norm(self, W_V: Tensor, block: BlockPlan) -> Tensor:
        norm, variant = block.layer.norm, self.settings.variant
        if variant == "raw" or block.norm_position != "pre" or norm is None or not block.norm_agrees:
            return W_V
        folded = fold_norm(W_V, norm.gamma.to(W_V), kind=norm.kind)
        if variant == "observed" and self._sigma is not None:
            folded = folded * self._sigma.to(folded)[:, None, None, None]
        return folded

    def finish(self, facts: PassFacts) -> None:
        self._jointly()
        found, kept = self._found, (facts.lengths > 1).tolist()
        for (name, call), values in fetched(self._rows).items():
            getattr(found, name)[call] = (values.mT if values.ndim > 1 else values)[facts.lengths > 1]
        found.verdict = {call: list(itertools.compress(rows, kept)) for call, rows in found.verdict.items()}
        found.certified = {call: list(itertools.compress(counts, kept)) for call, counts in found.certified.items()}
        found.joined = {call: [row for row in rows if kept[row[0]]] for call, rows in found.joined.items()}
        for call in facts.input_dependent & set(found.verdict):
            found.rho_smooth[call] = found.rho_rough[call] = torch.full_like(found.rho_rough[call], torch.nan)
            found.verdict[call] = [["undecided"] * len(row) for row in found.verdict[call]]
            found.certified[call] = [0] * len(found.verdict[call])
            found.undecided_because[call] = [Reason("input_dependent")]
            found.joined.pop(call, None)
        self.result = found


def _may_wait(device: torch.device) -> int:
    return min(_MOST_WAITING, torch.cuda.mem_get_info(device)[0] // 8) if device.type == "cuda" else 0


def _named(layer: str, one: Search[Dominance]) -> Search[Dominance]:
    """The same search, whose errors name the layer."""
    with about(layer):
        return (yield from one)


def inverse_sigma(x: Tensor, kind: str, mask: Tensor | None, eps: float) -> Tensor:
    """Mean over tokens ``(b, n, d)`` of 1/σ, ``(b,)``, as a norm computes it with its ε: about the mean of a token's
    features (kind "layer") or zero ("rms").
    """
    x = x.float()
    # Two plain passes: torch's var takes five times as long on a CPU.
    centred = x if kind == "rms" else x - x.mean(-1, keepdim=True)
    inverse = (torch.linalg.vector_norm(centred, dim=-1).square() / x.shape[-1] + eps).rsqrt().clamp(max=1e6)
    return inverse.mean(-1) if mask is None else (inverse * mask).sum(-1) / mask.sum(-1)


def real_rule(A: AttentionOperator, W_V: Tensor, W_O: Tensor, keep: float) -> tuple[Tensor, Tensor, list[list[str]]]:
    """Dominance per head by the real parts of both spectra alone, one reading of Dovonon et al.'s table 1: ``|1 + λ
    t|`` is convex in t, so its ends decide (THEORY §3). keep: what multiplies the stream.

    Returns ρ_smooth and ρ_rough, ``(b, heads)`` each, and the verdicts in the same rows and columns.
    """
    t = attention_spectrum(A, method="dense").values.real
    lam = head_spectrum(W_V, W_O).real.to(t).expand(*t.shape[:-1], -1)
    low, high = t.nan_to_num(nan=torch.inf).amin(-1, keepdim=True), t.nan_to_num(nan=-torch.inf).amax(-1, keepdim=True)
    smooth = (keep + lam).abs().amax(-1)
    rough = torch.maximum((keep + lam * low).abs(), (keep + lam * high).abs()).amax(-1)
    tie = TIE[t.dtype] * torch.maximum(smooth, rough).clamp(min=1)
    words = [
        ["tie" if abs(m) <= few else "smooth" if m > 0 else "rough" for m, few in zip(row, near, strict=True)]
        for row, near in zip((smooth - rough).tolist(), tie.tolist(), strict=True)
    ]
    return smooth, rough, words
