"""What more depth would do to one input: what the spectra say, attention alone applied again, the real blocks again.

Three answers that need not agree: spectra and simulation freeze attention as it was last seen and know neither MLP nor
(in Post-LN) norm; the real blocks have both, and compute attention again.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from oversmooth import metrics
from oversmooth.anatomy.steered import steered_as
from oversmooth.results.facts import Number, plain
from oversmooth.results.notes import Note
from oversmooth.results.parts import Course, Extrapolation
from oversmooth.safety.errors import InputError, about
from oversmooth.safety.untouched import in_eval_mode
from oversmooth.theory.dominance import dominance
from oversmooth.theory.operators import AttentionOperator, SoftmaxAttention
from oversmooth.theory.radii import AttentionChange
from oversmooth.theory.reasons import Reason
from oversmooth.theory.simulate import Simulation, simulate
from oversmooth.theory.stack import stack_dominance
from oversmooth.theory.weights import centre_features, fold_norm
from oversmooth.trace.layout import attention_batch_first, first_tensor
from oversmooth.trace.plans import Plan, SampleBlock
from oversmooth.trace.reducers.heads import inverse_sigma
from oversmooth.trace.study import Sample
from oversmooth.trace.watch import as_tokens, run_again

_SIMULATED = 96  # layers: enough for what is slow to show, cheap since only the two bands are measured
_MATRICES = (
    1 << 26
)  # entries, a quarter of a GiB, up to which attention is kept as matrices: repeating q kᵀ takes longer
_STILL = 1e-4  # change of log HFC/LFC per layer below which a simulation has settled
_FALL = 0.1  # least fall of log HFC/LFC over the second half of a simulation that counts as smoothing


def last_block(sample: Sample, modules: dict[str, nn.Module], depth: int, seed: int) -> Extrapolation:
    """What repeating the last block so often does. sample: what `study` gave; modules: all of the model's, by name."""
    blocks, block = sample.blocks, sample.blocks[-1]
    real = _real([block], sample.plan, modules, depth)
    if block.plan.undecided:
        return _undecided("last block", block.plan.undecided, real)
    A, keep = _first(block), block.plan.layer.keep
    course, seen, notes = None, "open", []
    change = _change(modules, block, len(blocks))
    with torch.autocast(A.device.type, enabled=False):
        gains = change is not None and change.constant_gain is not None
        W_V, W_O, offset, variant = _effective(block, centre=not gains)
        with about(block.plan.layer.name):
            prediction = dominance(A, W_V, W_O, residual=keep, bias=offset, change=change, limit=False, seed=seed)
        try:
            if change is not None:
                raise InputError("its attention is steered, which simulation does not know")
            course, seen = _simulated([block], [A], [(W_V, W_O)], [offset])
        except InputError as error:
            notes.append(Note("not_simulated", text=str(error)))
    if gains and block.plan.norm_position == "post":
        notes.append(Note("raw_before_norm"))
    (word,), (why,) = prediction.verdict, prediction.reasons
    smooth = prediction.rho_smooth.clamp(min=prediction.smooth_floor)
    rough = prediction.rho_rough.clamp(min=prediction.rough_floor)
    return Extrapolation(
        what="last block",
        input=0,
        rho_smooth=plain(prediction.rho_smooth),
        rho_rough=plain(prediction.rho_rough),
        verdict=word,
        predicted_rate=plain(rough / smooth) if word == "smooth" else None,
        residual=plain(prediction.residual),
        variant=variant,
        simulated=course,
        simulated_verdict=seen,
        real=real,
        reason=why,
        notes=notes,
    )


def whole_stack(sample: Sample, modules: dict[str, nn.Module], passes: int, seed: int) -> Extrapolation:
    """What repeating the whole stack so often does; InputError where its spectra cannot be computed."""
    blocks = sample.blocks
    why = next((block.plan.undecided for block in blocks if block.plan.undecided), None)
    if why is not None:
        return _undecided("stack", why, _real(blocks, sample.plan, modules, passes * len(blocks)))
    if not all(block.plan.layer.keep for block in blocks):
        raise InputError("attention replaces the stream in some of its layers")
    if not all(isinstance(block.A, SoftmaxAttention) and block.A.bias is None for block in blocks):
        raise InputError("it needs scaled_dot_product_attention without a bias in every layer")
    if any(_change(modules, block, run) is not None for run, block in enumerate(blocks)):
        raise InputError("its layers' attention is steered; the last block alone is predicted")
    operators = [_first(block) for block in blocks]
    with torch.autocast(operators[0].device.type, enabled=False):
        effective = [_effective(block) for block in blocks]
        offsets = [offset for _, _, offset, _ in effective]
        biased = any(offset is not None for offset in offsets)
        weights = [(W_V, W_O) for W_V, W_O, _, _ in effective]
        # keep·X + f(X) is keep times X + f(X)/keep.
        keeps = [block.plan.layer.keep for block in blocks]
        if biased and any(keep != 1 for keep in keeps):
            raise InputError("its layers scale the stream and add constants, which the stack's spectra do not know")
        kept = sum(math.log(abs(keep)) for keep in keeps)
        shares = [W_O / keep for (_, W_O), keep in zip(weights, keeps, strict=True)]
        prediction = stack_dominance(
            operators, [v for v, _ in weights], shares, bias=offsets, tolerance=1e-4, seed=seed
        )
        course, seen = _simulated(blocks, operators, weights, offsets)
    return Extrapolation(
        what="stack",
        input=0,
        rho_smooth=plain(math.exp(min(700.0, (prediction.log_rho_smooth + kept) / len(blocks)))),
        rho_rough=plain(math.exp(min(700.0, (prediction.log_rho_rough + kept) / len(blocks)))),
        verdict=prediction.verdict,
        predicted_rate=plain(prediction.rate) if prediction.verdict == "smooth" else None,
        residual=plain(prediction.residual),
        variant=effective[-1][3],
        simulated=course,
        simulated_verdict=seen,
        real=_real(blocks, sample.plan, modules, passes * len(blocks)),
        reason=prediction.why,
        notes=[Note("radii_per_block")],
    )


def _undecided(what: str, why: Reason, real: Course | None) -> Extrapolation:
    """Where neither spectra nor simulation apply: the real blocks still run."""
    return Extrapolation(what, 0, None, None, "undecided", None, None, "raw", None, "open", real, reason=why)


def _change(modules: dict[str, nn.Module], block: SampleBlock, run: int) -> AttentionChange | None:
    """What steering does to a block's attention."""
    steering = steered_as(modules[""])
    site = None if steering is None else steering.steered_layer(block.plan.layer.name)
    return None if site is None else site.change(run)


def _first(block: SampleBlock) -> AttentionOperator:
    assert block.A is not None
    return block.A.select(torch.tensor([0], device=block.A.device))


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
        (W_V, W_O), offset, variant = centre_features(W_V, W_O), _without_mean(offset), "post"
    return W_V, W_O, offset if bool(offset.any()) else None, variant


def _simulated(
    blocks: list[SampleBlock],
    operators: list[AttentionOperator],
    weights: list[tuple[Tensor, Tensor]],
    offsets: list[Tensor | None],
) -> tuple[Course, str]:
    X = blocks[-1].y[:1].to(operators[0].device).float()
    if weights[0][0].shape[-2] < X.shape[-1]:  # features of zero mean, in the basis that the weights are in
        X = _without_mean(X)
    # Whole passes, so that a stack is always seen at the same block.
    period = len(blocks)
    depth = period * max(8, _SIMULATED // period)
    if sum(A.shape.numel() for A in operators) <= _MATRICES:
        operators = [A.dense() for A in operators]
    values, outputs = [v for v, _ in weights], [o for _, o in weights]
    keeps, every = [block.plan.layer.keep for block in blocks], max(period, 4)
    run = simulate(X, operators, values, outputs, depth, residual=keeps, bias=offsets, every=every, bands_only=True)
    course = Course(run.depth.tolist(), [plain(v) for v in run.log_hfc_lfc[:, 0].tolist()])
    return course, _settled(run)


def _without_mean(X: Tensor) -> Tensor:
    """Tokens ``(..., d)`` in the basis of `centre_features`, ``(..., d − 1)``."""
    eye = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)[None]
    basis, _ = centre_features(eye, eye)
    return X @ basis[0].mT


def _settled(run: Simulation) -> str:
    """What a run shows at its end: HFC/LFC falling at a steady rate (smooth), levelling off (rough), or neither."""
    log_ratio, depth = run.log_hfc_lfc[:, 0], run.depth
    half, most = len(depth) // 2, 3 * len(depth) // 4
    if not bool(log_ratio[half:].isfinite().all()):
        return "smooth" if bool(log_ratio[half:].isneginf().any()) else "open"
    before = float((log_ratio[most] - log_ratio[half]) / (depth[most] - depth[half]))
    last = float((log_ratio[-1] - log_ratio[most]) / (depth[-1] - depth[most]))
    if last > -_STILL:
        return "rough"
    # A fall that slows down, or is too small, may end anywhere. One like 1/n, as of a constant part that a bias feeds
    # and no eigenvalue, keeps 0.71 of its slope here.
    return "smooth" if last < 0.85 * before and log_ratio[-1] < log_ratio[half] - _FALL else "open"


def _real(blocks: list[SampleBlock], plan: Plan, modules: dict[str, nn.Module], depth: int) -> Course | None:
    """The blocks themselves, run again on what the last one gave, with their other arguments unchanged."""
    last, layer = blocks[-1], blocks[-1].plan.layer
    given, first = first_tensor(last.args, last.kwargs), plan.layouts.get(layer.block)
    if first is None:
        first = attention_batch_first(modules[layer.name], modules[layer.block])
    # As the blocks take it: `as_tokens` is its own inverse, except for a single array.
    x = last.y[0] if given.ndim == 2 else as_tokens(last.y, first)
    mask = None if last.A is None or last.A.mask is None else last.A.mask[:1, 0]

    def ratio(x: Tensor) -> Number:
        return plain(metrics.summary(as_tokens(x, first)[:1], mask=mask, cosines=False).log_hfc_lfc[0])

    depths, values = [0.0], [ratio(x)]
    try:
        steering = steered_as(modules[""])
        again = nullcontext() if steering is None else steering.resumed(last.running)
        with torch.no_grad(), in_eval_mode(modules[""]), again:
            for step in range(depth):
                block = blocks[step % len(blocks)]
                x = run_again(modules, block, x)
                depths.append(step + 1.0)
                values.append(ratio(x))
    except (TypeError, RuntimeError, ValueError, AttributeError, IndexError):
        return None  # a block that cannot be run by itself
    return Course(depths, values)
