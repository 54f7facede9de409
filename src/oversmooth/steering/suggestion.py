"""How strong NeuTRENO must be for a trained model, by its spectra: the least λ̃ at which nothing smooths (THEORY §6).

With λ̃ every eigenvalue t of attention becomes t − λ̃, the smoothing one 1 − λ̃. So the eigenvalues of A and H of the
model as it is say what any λ̃ would do to the same tokens. Trained with it, the model will have others.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
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
        sweep = _StrengthSweep(tried, seed)
        with Trace(inside, plan, [EachAttention(sweep.record)]) as trace:
            for _ in trace.over(run, batches, inputs, progress):
                pass
        plan = plan.with_undecided(trace.facts.input_dependent, Reason("input_dependent"))
    return sweep.suggestion(plan.blocks)


class _StrengthSweep:
    """Collects the effect of every strength, layer by layer."""

    def __init__(self, strengths: tuple[float, ...], seed: int) -> None:
        self.strengths, self.seed = strengths, seed
        self.found: list[tuple[int, list[int], int, ShiftedDominance | None]] = []
        self.inputs: Counter[int] = Counter()

    def record(self, call: int, block: BlockPlan, A: AttentionOperator, W_V: Tensor, W_O: Tensor) -> None:
        """A layer's attention ``(b, heads, n, n)`` on some inputs."""
        start = self.inputs[call]
        self.inputs[call] += A.shape[0]
        several = (A.valid_count().reshape(A.shape[0], -1)[:, 0] > 1).nonzero()[:, 0]  # a single token mixes with none
        if not len(several):
            return
        answer = None
        if not block.why_undecided:
            with about(block.layer.name):
                answer = shifted_dominance(
                    A.select(several), W_V, W_O, self.strengths, residual=block.layer.keep, seed=self.seed
                )
        self.found.append((call, (several + start).tolist(), A.shape[1], answer))

    def suggestion(self, blocks: list[BlockPlan]) -> Suggestion:
        if not self.found:
            raise InputError("every input has fewer than two valid tokens; give longer ones")
        first = next(call for call, block in enumerate(blocks) if block.layer is not None)  # NeuTRENO leaves it alone
        parts, cases = [], []
        for call, which, heads, answer in sorted(self.found, key=lambda one: one[0]):
            if answer is None or blocks[call].why_undecided:
                undecided = torch.ones(len(which), heads, len(self.strengths), dtype=torch.bool)
                smoothing, rough = ~undecided, torch.full(undecided.shape, torch.nan)
                least = rough[..., 0]
            else:
                smoothing, undecided = answer.smoothing.cpu(), answer.undecided.cpu()
                rough, least = answer.rho_rough.double().cpu(), answer.least.cpu()
            if call == first:
                smoothing, undecided, rough = (x[..., :1].expand(x.shape) for x in (smoothing, undecided, rough))
                least = torch.where(smoothing[..., 0], torch.inf, torch.where(undecided[..., 0], torch.nan, 0.0))
            parts.append([x.flatten(0, 1) for x in (smoothing, undecided, rough)])
            cases += [
                Case(call, head, item, _number(least[row, head]), bool(undecided[row, head].any()))
                for row, item in enumerate(which)
                for head in range(heads)
            ]
        smoothing, undecided, rough = (torch.cat(part) for part in zip(*parts, strict=True))
        layer = torch.tensor([case.layer for case in cases])

        def shares(chosen: Tensor) -> list[Number]:
            """Of smoothing cases by strength, undecided ones counted among all; None where all are undecided."""
            unknown, share = undecided[chosen].all(0).tolist(), smoothing[chosen].double().mean(0).tolist()
            return [None if unknown[j] else share[j] for j in range(len(share))]

        every, steered = shares(layer >= 0), shares(layer != first)
        by_layer = [shares(layer == call) for call in range(len(blocks))]
        curve = []
        for j, strength in enumerate(self.strengths):
            rho = rough[layer != first, j]
            mean, unknown = _number(rho[rho.isfinite()].mean()), float(undecided[:, j].double().mean())
            curve.append(StrengthPoint(strength, every[j], steered[j], unknown, mean, [share[j] for share in by_layer]))
        because = list(dict.fromkeys(str(block.why_undecided) for block in blocks if block.why_undecided))[:_REASONS]
        last = list(itertools.takewhile(lambda point: point.steered_share == 0, reversed(curve)))
        chosen = last[-1].strength if last else None
        acting = [case for case in cases if case.layer != first]
        return Suggestion(chosen, _reason(chosen, curve, acting, by_layer[first][0], because), curve, cases)


def _reason(strength: Number, curve: list[StrengthPoint], acting: list[Case], first: Number, because: list[str]) -> str:
    """acting: the cases in layers in which NeuTRENO acts; first: the share that smooths in the first layer."""
    start, end = curve[0], curve[-1]
    if not acting:
        return "NeuTRENO acts in every layer but the first, and no other ran; there is nothing to propose"
    why = f" ({'; '.join(because)})" if because else ""
    if start.steered_share is None:
        return f"every case is undecided{why}, so that the spectra propose nothing"
    unknown = sum(case.undecided for case in acting)
    now = f"{_percent(start.steered_share)} of {len(acting):,} cases smooth as the model is"
    if strength is None:
        sentences = [f"{now}, and some still do at λ̃ = {end.strength:g}: no strength tried makes all rough"]
    elif strength == 0:
        sentences = [f"no case of {len(acting):,} smooths as the model is: nothing is to be gained from NeuTRENO"]
    else:
        chosen = next(point for point in curve if point.strength == strength)
        sentences = [f"{now}, and from λ̃ = {strength:g} on none {'is known to' if unknown else 'does'}"]
        if chosen.rho_rough is not None and start.rho_rough is not None:
            sentences.append(f"ρ_rough is {chosen.rho_rough:.3g} there on average ({start.rho_rough:.3g} without it)")
    if first:
        share = _percent(first)
        sentences.append(f"in the first layer, in which NeuTRENO does not act, {share} of cases smooth all the same")
    if unknown:
        sentences.append(f"{unknown:,} cases are undecided for some λ̃{why}, and may smooth")
    return "; ".join(sentences)


def _number(value: float | Tensor) -> Number:
    """None where it has no meaning, as JSON has it."""
    return value if math.isfinite(value := float(value)) else None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
