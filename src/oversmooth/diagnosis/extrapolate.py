"""What more depth would do to one input: the real blocks again, and where attention alone pulls by its spectra.

The two need not agree. Spectra freeze attention as it was last seen and know neither MLP nor how norms grow: they say
to which side attention pulls, and no rate. The real blocks have all of it. They are run a few times, and `log_time`
says how that goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth import metrics
from oversmooth.anatomy.steered import steered_as
from oversmooth.results.facts import plain
from oversmooth.results.notes import Note
from oversmooth.results.parts import Course, Extrapolation
from oversmooth.safety.errors import about
from oversmooth.safety.model_state import in_eval_mode
from oversmooth.theory.constant_state import constant_state
from oversmooth.theory.depth import LEAST_RUN, DepthPrediction, log_time
from oversmooth.theory.dominance import JOINT_STEPS, dominance
from oversmooth.theory.weights import centre_features, fold_norm
from oversmooth.trace.layout import as_tokens, first_tensor
from oversmooth.trace.plans import Plan, SampleBlock
from oversmooth.trace.reducers.heads import inverse_sigma
from oversmooth.trace.study import Sample, with_attention
from oversmooth.trace.watch import run_again

RUN = 16
"""Blocks that are really run, before steps in log depth go on from there: see benchmarks/depth.py."""
_FAILURES = (TypeError, RuntimeError, ValueError, AttributeError, IndexError)  # of blocks that are run by themselves
LEAST_FALL = 0.05
"""Of log HFC/LFC, per unit of log depth: with less it levels off, and tokens do not become nearly equal."""


def last_block(
    sample: Sample, modules: dict[str, nn.Module], depth: int, seed: int, *, exact: bool = False
) -> Extrapolation:
    """What repeating the last block so often does, of all modules by name. exact: spectra without a budget."""
    blocks, block = sample.blocks, sample.last
    found = _predicted(sample, modules, depth)
    if block.plan.why_undecided:
        unknown = block.plan.why_undecided
        return Extrapolation("last block", 0, None, None, "undecided", None, "raw", reason=unknown, **found)
    assert block.A is not None
    A, keep = block.A.select(torch.tensor([0], device=block.A.device)), block.plan.layer.keep
    steering = steered_as(modules[""])
    steered = None if steering is None else steering.steered_layer(block.plan.layer.name)
    change = None if steered is None else steered.change(len(blocks))
    with torch.autocast(A.device.type, enabled=False):
        gains = change is not None and change.constant_gain is not None
        W_V, W_O, offset, variant = _effective(block, centre=not gains)
        with about(block.plan.layer.name):
            how = dict(limit=False, seed=seed, steps=None if exact else JOINT_STEPS)
            radii = dominance(A, W_V, W_O, residual=keep, bias=offset, change=change, **how)  # type: ignore[arg-type]
    (word,), (why,) = radii.verdict, radii.reasons
    return Extrapolation(
        what="last block",
        input=0,
        rho_smooth=plain(radii.rho_smooth),
        rho_rough=plain(radii.rho_rough),
        verdict=word,
        residual=plain(radii.residual),
        variant=variant,
        reason=why,
        notes=[
            *([Note("leaky_rows")] if variant == "observed" else []),
            *([Note("raw_before_norm")] if gains and block.plan.norm_position == "post" else []),
        ],
        **found,
    )


def _predicted(sample: Sample, modules: dict[str, nn.Module], depth: int) -> dict[str, Any]:
    """The last block run again, how that goes on, and how well its first half predicts the end of the run."""
    repeat = _repeatable([sample.last], sample.plan, modules)
    run = min(depth, RUN)
    try:
        with repeat.running():
            found = log_time(repeat, repeat.x, depth, begin=RUN, mask=repeat.mask)
            equal = _nearly_equal(repeat, found) if run >= LEAST_RUN else {}
            tried = log_time(repeat, repeat.x, run, begin=LEAST_RUN, mask=repeat.mask) if run > LEAST_RUN else None
    except _FAILURES:
        return {}  # a block that cannot be run by itself
    depths, logs = found.depth.double().tolist(), [plain(value) for value in found.log_hfc_lfc[:, 0].tolist()]
    checked = None if tried is None else plain((tried.log_hfc_lfc[-1, 0] - found.log_hfc_lfc[found.run, 0]).abs())
    return dict(
        real=Course(depths[: found.run + 1], logs[: found.run + 1]),
        predicted=Course(depths[found.run :], logs[found.run :]) if depth > run else None,
        way=found.way if run >= LEAST_RUN else "",
        error=plain(found.error[0]),
        conclusive=bool(found.conclusive[0]),
        checked=checked,
        growth=plain(found.growth[0]),
        **equal,
    )


def _nearly_equal(repeat: _Repeatable, found: DepthPrediction) -> dict[str, Any]:
    """The rate at which HFC/LFC goes once tokens are nearly equal, where it still falls and attention is not causal."""
    A, run, end = repeat.blocks[-1].A, found.run, len(found.depth) - 1
    begin, end = (run, end) if found.way == "log time" and end > run else (run // 2, run)
    fallen, passed = found.log_hfc_lfc[begin, 0] - found.log_hfc_lfc[end, 0], found.depth[end] / found.depth[begin]
    if A is None or A.causal or not bool(fallen > LEAST_FALL * passed.log()):
        return {}
    try:
        state = constant_state(repeat, found.tokens, found.way, mask=repeat.mask)
    except _FAILURES:
        return {}  # a block without a derivative
    return dict(equal_rate=plain(state.rate), equal_reason=state.why)


def whole_stack(sample: Sample, modules: dict[str, nn.Module], passes: int) -> Extrapolation:
    """What repeating the whole stack so often does; nothing if its blocks cannot be run by themselves."""
    repeat = _repeatable(sample.blocks, sample.plan, modules)
    blocks = [replace(repeat, blocks=[block]) for block in sample.blocks]
    entry = Extrapolation("stack", 0, None, None, "", None, "")
    with suppress(*_FAILURES), repeat.running():
        xs = itertools.accumulate(blocks * passes, lambda x, block: block(x), initial=repeat.x)
        logs = [plain(metrics.summary(x, mask=repeat.mask, cosines=False).log_hfc_lfc[0]) for x in xs]
        entry.real = Course([float(depth) for depth in range(len(logs))], logs)
    return entry


def _effective(block: SampleBlock, *, centre: bool = True) -> tuple[Tensor, Tensor, Tensor | None, str]:
    """(W_V, W_O, what is added to every token or None, variant): the layer as the stream meets it.

    Pre-LN: with the norm folded in and the mean 1/σ of this input. Post-LN: on tokens whose features have zero mean.
    Attention's rows sum to one, so what every value has in common, their bias and the β of a folded norm, passes
    through it: ``(b_V + β W_V) W_O + b_O`` is added to every token, under the layer scale like all else. Without centre
    Post-LN weights stay as they are: features are scaled before the norm takes their mean away.
    """
    layer = block.plan.layer
    W_V, W_O = layer.W_V.float(), layer.W_O.float()
    values = torch.zeros(layer.heads, layer.head_dim, device=W_V.device)
    if (bias := layer.value_bias) is not None:
        values = values + bias.float()
    variant = "raw"
    if block.plan.norm_position == "pre" and block.plan.norm_agrees and layer.norm is not None:
        mask = None if block.A is None or block.A.mask is None else block.A.mask[:1, 0]
        inverse = float(inverse_sigma(block.x[:1], layer.norm.kind, mask, block.plan.norm_eps))
        if layer.norm.beta is not None:
            values = values + (layer.norm.beta.float() @ W_V)
        W_V = fold_norm(W_V, layer.norm.gamma.float(), kind=layer.norm.kind, inverse_sigma=inverse)
        variant = "observed"
    offset = torch.einsum("hk,hkd->d", values, W_O)
    if (bias := layer.output_bias) is not None:
        scale = layer.scale
        offset = offset + (bias.float() if scale is None else bias.float() * scale.to(bias).float())
    # An RMSNorm on the stream leaves features' mean alone.
    if centre and block.plan.norm_position == "post" and (layer.norm is None or layer.norm.kind == "layer"):
        eye = torch.eye(len(offset), dtype=offset.dtype, device=offset.device)[None]
        basis, _ = centre_features(eye, eye)
        (W_V, W_O), offset, variant = centre_features(W_V, W_O), offset @ basis[0].mT, "post"
    return W_V, W_O, offset if bool(offset.any()) else None, variant


@dataclass(frozen=True)
class _Repeatable:
    """The blocks of a sample, run once more on other tokens ``(batch, n, d)`` with their other arguments unchanged."""

    blocks: list[SampleBlock]
    modules: dict[str, nn.Module]
    batch_first: bool
    single_array: bool  # whether blocks take ``(n, d)``
    x: Tensor  # what the last block gave, ``(batch, n, d)``; the first of the batch is shown
    mask: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        # `as_tokens` is its own inverse, except for a single array.
        given = x[0] if self.single_array else as_tokens(x, self.batch_first)
        for block in self.blocks:
            given = run_again(self.modules, block, given)
        return as_tokens(given, self.batch_first)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Without gradients and dropout; steering that remembers a run goes on with this one."""
        steering = steered_as(self.modules[""])
        again = nullcontext() if steering is None else steering.states.resumed(self.blocks[-1].running)
        with torch.no_grad(), in_eval_mode(self.modules[""]), again:
            yield


def _repeatable(blocks: list[SampleBlock], plan: Plan, modules: dict[str, nn.Module]) -> _Repeatable:
    last, attending = blocks[-1], with_attention(blocks)
    batch_first = plan.layouts.get(attending.plan.block, True)
    A, given = attending.A, first_tensor(last.args, last.kwargs)
    mask = None if A is None or A.mask is None else A.mask[:, 0]
    return _Repeatable(blocks, modules, batch_first, given.ndim == 2, last.y, mask)
