"""How strong NeuTRENO must be for a trained model, by its spectra: the least λ̃ at which nothing smooths (THEORY §6).

With λ̃ every eigenvalue t of attention becomes t − λ̃, the smoothing one 1 − λ̃. So the eigenvalues of A and H of the
model as it is say what any λ̃ would do to the same tokens. Trained with it, the model will have others.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.live import check_finite, check_is_module, unwrapped
from oversmooth.anatomy.steered import steered_as
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, about
from oversmooth.safety.precision import float32_products
from oversmooth.steering.methods.neutreno import NeuTRENO
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.reasons import Reason
from oversmooth.theory.shifted import ShiftedDominance, shifted_dominance
from oversmooth.trace import ONE_AT_A_TIME, Trace, study
from oversmooth.trace.feed import ModelInput, OnProgress, Runner, batches_for, first_of
from oversmooth.trace.plans import BlockPlan
from oversmooth.trace.reducers import EachAttention

STRENGTHS = tuple(i / 100 for i in range(101))
"""λ̃ that are tried unless others are given: 0 to 1 in hundredths."""
_REASONS = 3
Number = float | None


@dataclass
class StrengthPoint:
    """What one λ̃ does to the cases, one per input, layer and head."""

    strength: float
    smoothing_share: Number
    """Of all cases, as a diagnosis counts them; the first layer, in which NeuTRENO does not act, is as it is."""
    steered_share: Number
    """Of the cases in the layers in which it acts."""
    undecided_share: float
    """Of all cases: neither counted as smoothing nor known not to."""
    rho_rough: Number
    """The mean over cases in the layers in which it acts: how fast differences between tokens grow per layer."""
    rho_rough_largest: Number
    layers: list[Number]
    """The share of smoothing cases in every layer; None where all are undecided."""


@dataclass
class Case:
    """One head of one layer on one input."""

    layer: int
    head: int
    input: int
    least: float | None
    """The least λ̃ from which on it does not smooth; 0 where it does not as it is, None where it does in the whole
    range, is undecided at its end, or is in a layer that λ̃ does not change.
    """
    undecided: bool
    """Whether some λ̃ leave it undecided."""


@dataclass
class Suggestion:
    """A strength for NeuTRENO, and what it rests on."""

    strength: float | None
    """The least λ̃ tried from which on no case smooths where NeuTRENO acts; None where there is none."""
    reason: str
    """Why, in words, and what is open."""
    curve: list[StrengthPoint] = field(repr=False)
    cases: list[Case] = field(repr=False)
    inputs: int = 0
    undecided_because: list[str] = field(default_factory=list)
    """Reasons of layers that no theorem decides."""

    def at(self, strength: float) -> StrengthPoint:
        """The point of the curve at a strength.

        Args:
            strength: one of those that were tried.

        Raises:
            InputError: it was not tried.
        """
        for point in self.curve:
            if math.isclose(point.strength, strength, abs_tol=1e-12):
                return point
        ends = f"{self.curve[0].strength:g} to {self.curve[-1].strength:g}"
        raise InputError(f"strength {arguments.shown(strength)} was not tried; {len(self.curve)} from {ends} were")

    def to_json(self) -> str:
        """Everything, as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)

    def __str__(self) -> str:
        return self.reason


@float32_products("highest")
def suggest(
    model: nn.Module,
    inputs: ModelInput | Iterable[ModelInput],
    *,
    strengths: Sequence[float] = STRENGTHS,
    stack: str | None = None,
    heads: int | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
) -> Suggestion:
    """The least strength of NeuTRENO at which the spectra of a trained model say that nothing smooths.

    Args:
        model: not steered; run as it is.
        inputs: as for `diagnose`.
        strengths: λ̃ to try, ascending from 0.
        stack, heads: for `anatomy.locate`.
        seed: of Arnoldi's random starts.
        progress: called after each batch with (inputs done, inputs in all or None, the current step).

    Returns:
        The strength, the share of smoothing cases and ρ_rough along all strengths, and the reason in words.

    Raises:
        InputError: the model is steered, cannot take NeuTRENO, or cannot be located, run or observed.
    """
    remedy = "give two or more numbers that ascend from 0"
    tried, seed = arguments.several(strengths, "strengths", remedy), arguments.seed(seed)
    if len(tried) < 2 or tried[0] != 0 or any(a >= b for a, b in itertools.pairwise(tried)):
        raise InputError(f"strengths are {arguments.shown(list(tried))}; {remedy}")
    inside = unwrapped(check_is_module(model))
    if (steering := steered_as(inside)) is not None:
        raise InputError(
            f"this model is steered by {' and '.join(map(str, steering.methods))}; call oversmooth.unsteer first"
        )
    anatomy = locate(inside, stack=stack, heads=heads)
    check_finite(inside)
    for index, layer in enumerate(anatomy):
        if (why := NeuTRENO().refusal(layer, anatomy)) is not None:
            raise InputError(f"NeuTRENO cannot act on layer {index} ({layer.name}): {why}")
    run = Runner(inside, anatomy)
    first, batches = first_of(batches_for(inside, inputs))
    with ONE_AT_A_TIME, torch.no_grad():
        one = run.first_input(first)
        plan = study(inside, anatomy, lambda: run(one)).plan
        sweep = _StrengthSweep(anatomy.layers[0].name, tried, seed)
        with Trace(inside, plan, [EachAttention(sweep.record)]) as trace:
            for _ in trace.over(run, batches, inputs, progress):
                pass
        plan = plan.with_undecided(trace.facts.input_dependent, Reason("input_dependent"))
    return sweep.suggestion(plan.blocks)


class _StrengthSweep:
    """Collects the effect of every strength, layer by layer."""

    def __init__(self, first: str, strengths: tuple[float, ...], seed: int) -> None:
        self.first, self.strengths, self.seed = first, strengths, seed
        self.results: dict[int, list[tuple[list[int], int, ShiftedDominance | None]]] = {}
        self.inputs: dict[int, int] = {}

    def record(self, call: int, block: BlockPlan, A: AttentionOperator, W_V: Tensor, W_O: Tensor) -> None:
        """A layer's attention ``(b, heads, n, n)`` on some inputs."""
        start = self.inputs.get(call, 0)
        self.inputs[call] = start + A.shape[0]
        several = (A.valid_count().reshape(A.shape[0], -1)[:, 0] > 1).nonzero()[:, 0]  # a single token mixes with none
        if not len(several):
            return
        answer = None
        if not block.why_undecided:
            with about(block.layer.name):
                answer = shifted_dominance(
                    A.select(several), W_V, W_O, self.strengths, residual=block.layer.keep, seed=self.seed
                )
        self.results.setdefault(call, []).append(((several + start).tolist(), A.shape[1], answer))

    def suggestion(self, blocks: list[BlockPlan]) -> Suggestion:
        layers = [self._layer(call, block) for call, block in enumerate(blocks)]
        if not any(layer.cases for layer in layers):
            raise InputError("every input has fewer than two valid tokens; give longer ones")
        curve = self._curve(layers)
        because = list(dict.fromkeys(str(block.why_undecided) for block in blocks if block.why_undecided))[:_REASONS]
        last = list(itertools.takewhile(lambda point: point.steered_share == 0, reversed(curve)))
        strength = last[-1].strength if last else None
        cases, inputs = [case for layer in layers for case in layer.cases], max(self.inputs.values(), default=0)
        return Suggestion(strength, _reason(strength, curve, layers, because), curve, cases, inputs, because)

    def _layer(self, call: int, block: BlockPlan) -> _Layer:
        acts = not (call == 0 and block.layer is not None and block.layer.name == self.first)
        empty = torch.zeros(0, len(self.strengths))
        smoothing, undecided, rough, cases = [empty.bool()], [empty.bool()], [empty], []
        for which, heads, answer in self.results.get(call, []):
            if answer is None or block.why_undecided:
                unknown = torch.ones(len(which), heads, len(self.strengths), dtype=torch.bool)
                smooths, rho = ~unknown, torch.full(unknown.shape, torch.nan)
                least = rho[..., 0]
            else:
                smooths, unknown = answer.smoothing.cpu(), answer.undecided.cpu()
                rho, least = answer.rho_rough.double().cpu(), answer.least.cpu()
            if not acts:  # as it is, whatever the strength
                smooths, unknown, rho = (x[..., :1].expand(x.shape) for x in (smooths, unknown, rho))
                least = torch.where(smooths[..., 0], torch.inf, torch.where(unknown[..., 0], torch.nan, 0.0))
            for every, new in ((smoothing, smooths), (undecided, unknown), (rough, rho)):
                every.append(new.flatten(0, 1))
            cases += [
                Case(call, head, item, _number(least[row, head]), bool(unknown[row, head].any()))
                for row, item in enumerate(which)
                for head in range(heads)
            ]
        return _Layer(acts, torch.cat(smoothing), torch.cat(undecided), torch.cat(rough), cases)

    def _curve(self, layers: list[_Layer]) -> list[StrengthPoint]:
        acting = [layer for layer in layers if layer.acts]
        every, single = _shares(layers), [_shares([layer]) for layer in layers]
        steered = _shares(acting) if acting else [None] * len(self.strengths)
        undecided = torch.cat([layer.undecided for layer in layers]).double().mean(0).tolist()
        curve = []
        for j, strength in enumerate(self.strengths):
            rho = torch.cat([torch.zeros(0), *(layer.rough[:, j] for layer in acting)])
            rho = rho[rho.isfinite()]
            mean, largest = (_number(rho.mean()), _number(rho.max())) if len(rho) else (None, None)
            shares = [layer[j] for layer in single]
            curve.append(StrengthPoint(strength, every[j], steered[j], undecided[j], mean, largest, shares))
        return curve


@dataclass
class _Layer:
    """All cases of one layer, ``(cases, strengths)`` each."""

    acts: bool
    smoothing: Tensor
    undecided: Tensor
    rough: Tensor
    cases: list[Case]


def _shares(layers: list[_Layer]) -> list[Number]:
    """The share of smoothing cases by strength, undecided ones counted among all; None where all are undecided."""
    none = torch.cat([layer.undecided for layer in layers]).all(0)
    shares = torch.cat([layer.smoothing for layer in layers]).double().mean(0)
    return [None if unknown else share for unknown, share in zip(none.tolist(), shares.tolist(), strict=True)]


def _reason(strength: float | None, curve: list[StrengthPoint], layers: list[_Layer], because: list[str]) -> str:
    start, end = curve[0], curve[-1]
    acting = [case for layer in layers if layer.acts for case in layer.cases]
    if not acting:
        return "NeuTRENO acts in every layer but the first, and no other ran; there is nothing to propose"
    why = f" ({'; '.join(because)})" if because else ""
    if start.steered_share is None:
        return f"every case is undecided{why}, so that the spectra propose nothing"
    now = f"{_percent(start.steered_share)} of {len(acting):,} cases smooth as the model is"
    if strength is None:
        sentences = [f"{now}, and some still do at λ̃ = {end.strength:g}: no strength tried makes all rough"]
    elif strength == 0:
        sentences = [f"no case of {len(acting):,} smooths as the model is: nothing is to be gained from NeuTRENO"]
    else:
        chosen = next(point for point in curve if point.strength == strength)
        sentences = [f"{now}, and from λ̃ = {strength:g} on none does"]
        if chosen.rho_rough is not None and start.rho_rough is not None:
            sentences.append(f"ρ_rough is {chosen.rho_rough:.3g} there on average ({start.rho_rough:.3g} without it)")
    if not layers[0].acts and bool(layers[0].smoothing[:, 0].any()):
        share = _percent(float(layers[0].smoothing[:, 0].double().mean()))
        sentences.append(f"in the first layer, in which NeuTRENO does not act, {share} of cases smooth all the same")
    if unknown := sum(case.undecided for case in acting):
        sentences.append(f"{unknown:,} cases are undecided for some λ̃{why}, and may smooth")
    return "; ".join(sentences)


def _number(value: float | Tensor) -> Number:
    """None where it has no meaning, as JSON has it."""
    return value if math.isfinite(value := float(value)) else None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
