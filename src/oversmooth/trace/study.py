"""One input through the model, to learn where the residual stream passes and to check anatomy against what happens.

Names say little about whether a norm stands before a layer or on the stream, or what is added to what; the arrays do.
Everything here is found by comparing them, and what the weights and the caught attention give is checked against what
each layer returned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy import layouts, locate
from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.anatomy.steered import STEERING_PARTS, steered_as
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode
from oversmooth.theory.operators import AttentionOperator, SoftmaxAttention
from oversmooth.theory.reasons import Reason
from oversmooth.trace.attention import CapturedAttention
from oversmooth.trace.blocks import named_blocks
from oversmooth.trace.feed import ONE_AT_A_TIME, Runner, batches_for, first_of
from oversmooth.trace.plans import BlockPlan, Plan, SampleBlock, Stage
from oversmooth.trace.residual_fit import BlockArrays, ModuleCall, fit_residual
from oversmooth.trace.sums import same
from oversmooth.trace.tracing import run
from oversmooth.trace.watch import Watch

_USUAL_EPS = (0.0, 1e-8, 1e-6, 1e-5, 1e-3)
# Tokens on which sums are searched for and fitted, of so many numbers at most; every later batch is held against them.
_TOKENS, _FEWEST, _NUMBERS = 64, 16, 1 << 16


@dataclass
class Sample:
    """What one call of the model showed."""

    plan: Plan
    blocks: list[SampleBlock]

    @property
    def last(self) -> SampleBlock:
        """The last block with attention."""
        return with_attention(self.blocks)


@dataclass
class _Record:
    """One call of a block."""

    few: BlockArrays  # of a few tokens
    x: Tensor
    args: Any
    kwargs: Any
    values_in: Tensor | None = None
    mixed: Tensor | None = None  # the input of the output projection
    out: Tensor | None = None
    captured: CapturedAttention | None = None


def study(model: nn.Module, anatomy: Anatomy, run: Callable[[], object], *, attention: bool = True) -> Sample:
    """What one call of a model on one input, by ``run``, shows about each call of a block, in order.

    Without ``attention``, where only tokens matter, it is neither captured nor checked.
    """
    listener = Study(model, anatomy, attention)
    with in_eval_mode(model), listener.watching():
        run()
    if not listener.blocks:
        name = next(iter(listener.layers))
        raise InputError(f"the model ran without running {name}; give inputs that pass through its layers")
    plans = [block.plan for block in listener.blocks]
    return Sample(Plan(anatomy, plans, listener.windows, listener.layouts, attention), listener.blocks)


def plan(
    model: nn.Module,
    inputs: Any,
    anatomy: Anatomy | None = None,
    *,
    attention: bool = False,
    blocks: str | None = None,
) -> Plan:
    """Where the residual stream of a model is, and how attention enters it: learned from the first input.

    Args:
        model: a module; it runs as it is.
        inputs: a tensor, a dict of the model's arguments, or an iterable of either. Only the first input runs, and of a
            text only its beginning; with ``blocks`` all of the first batch.
        anatomy: the model's attention layers; None: located.
        attention: whether reducers will want attention, which is then checked against the weights.
        blocks: names of the blocks, such as "layers.*", of a model whose attention is not known: any modules that map
            (batch, n, d) to (batch, n, d). They are read at their ends alone.
    """
    inside = unwrapped(check_is_module(model))
    first, _ = first_of(batches_for(inside, inputs))
    if blocks is not None:
        found = Plan.of_names(dict.fromkeys(named_blocks(inside, blocks)))
        run(inside, [first], found, [])
        return found
    call = Runner(inside, anatomy or locate(inside))
    one = call.short_input(first)
    with ONE_AT_A_TIME, torch.no_grad():
        return study(inside, call.anatomy, lambda: call(one), attention=attention).plan


class Study:
    """The listener that remembers one input's way through the model."""

    STATE = ("apart", "left", "layouts")
    watch: Watch
    record: _Record

    def __init__(self, model: nn.Module, anatomy: Anatomy, attention: bool) -> None:
        self.modules, self.checks = dict(model.named_modules(remove_duplicate=False)), attention
        self.layers, self.width = anatomy.blocks, anatomy.layers[0].width
        self.layouts: dict[str, bool] = {}
        self.steering = steered_as(model)
        self.first_values: Tensor | None = None
        self.blocks: list[SampleBlock] = []
        self.apart: list[bool] = []
        self.arrays: dict[Any, tuple[Tensor, Tensor]] = {}
        self.positions: dict[int, Tensor] = {}
        self.left: Tensor | None = None  # a few tokens of the previous block's output

    @property
    def windows(self) -> bool:
        """Whether some layers keep tokens apart that others connect."""
        return any(self.apart) and not all(self.apart)

    def watching(self, only: str | None = None) -> Watch:
        """The context in which the model runs; only: the one block that is watched, the next in order."""
        how = dict(attention=self.checks, layouts=self.layouts, only=only)
        self.watch = Watch(self.modules, self.layers, self, self.parts, **how)  # type: ignore[arg-type]
        self.watch.calls = len(self.blocks)
        return self.watch

    def parts(self, block: str) -> list[str]:
        """Every module of the block, but for what methods keep there and the insides of torch's own attention."""
        if (layer := self.layers[block]) is None:
            return []
        inside = [name for name in self.modules if name.startswith(layer.block + ".") or (not layer.block and name)]
        # Parametrizations run whenever somebody reads a weight.
        inside = [n for n in inside if f".{STEERING_PARTS}." not in n and ".parametrizations" not in n]
        if isinstance(self.modules[layer.name], nn.MultiheadAttention):
            # Its projections do not run as modules, or, opened, run with their axes in another order.
            return [name for name in inside if not name.startswith(layer.name + ".")]
        return inside

    def enter(self, _call: int, block: str, x: Tensor, args: Any, kwargs: Any) -> None:
        if x.shape[-1] != self.width:
            expected = f"tokens must be (batch, n, {self.width})"
            raise InputError(f"{block} receives an array of shape {tuple(x.shape)}; {expected}")
        few = BlockArrays(self.layers[block], self._few(x))  # type: ignore[arg-type]
        self.record = _Record(few, x.clone(), args, kwargs)

    def part(self, _call: int, block: str, name: str, x: Tensor, y: Tensor) -> None:
        record, layer, module = self.record, self.layers[block], self.modules[name]
        assert layer is not None
        few = record.few
        if name == _value(layer):
            self._record_values(x)
        if not layer.value_runs and layer.norm is not None and name == layer.norm.name and _within(name, layer.name):
            self._record_values(y)  # the norm stands inside attention, whose value weight is a bare parameter
        if name == _output(layer):
            record.mixed = x
        # Where no module projects, what attention returns is the output.
        whole = isinstance(module, nn.MultiheadAttention) or not layer.output_runs
        if name == _output(layer) or (whole and name == layer.name and few.out is None):
            self._record_attention(y)
        acts, later, alike = _acts_on_features(module, layer.width), few.out is not None, x.shape == record.x.shape
        nth = sum(event.name == name for event in few.events)
        few_x = self._few(x) if alike else None
        few_y = self._few(y) if y.shape == record.x.shape else None
        norms = acts and later and "norm" in type(module).__name__.lower()
        few.events.append(ModuleCall(name, nth, few_x, few_y, acts, later, norms))

    def _record_values(self, x: Tensor) -> None:
        self.record.few.values_in = self._few(x)
        self.record.values_in = x.clone() if self.checks else None

    def _record_attention(self, y: Tensor) -> None:
        self.record.few.out = self._few(y)
        self.record.out = y.clone() if self.checks else None

    def attention(self, _call: int, _block: str, captured: CapturedAttention, x: Tensor | None, y: Tensor) -> None:
        self.record.captured = captured
        entered = x if x is not None else captured.values_in
        if self.record.few.values_in is None and entered is not None:
            self._record_values(entered)
        self.apart.append(captured.pairs.segments() is not None)  # whether this layer keeps some tokens apart
        if self.apart[0] and self.blocks and self.blocks[0].plan.layer is None:
            raise InputError("texts that share an input are not told apart before the first attention; give one each")
        if self.record.few.out is None:
            self._record_attention(y)

    def _few(self, x: Tensor) -> Tensor:
        """A few tokens, copied to the CPU, where small fits are fastest; the same copy for the same array."""
        version = None if x.is_inference() else x._version  # inference tensors do not count changes
        key = (x.data_ptr(), version, x.shape, x.stride())
        if key not in self.arrays:
            # The array is kept too, so that its address is not used again.
            self.arrays[key] = (x, x[:, self._tokens(x)].to("cpu", copy=True))
        return self.arrays[key][1]

    def _tokens(self, x: Tensor) -> Tensor:
        """Positions of a few tokens: the first ones, which may be unlike all others, and some spread over the rest."""
        n = x.shape[1]
        if n not in self.positions:
            valid, mask = torch.arange(n), self.watch.argument_mask
            if mask is not None and mask.shape == x.shape[:2]:
                valid = mask.any(0).nonzero()[:, 0].cpu()
            few = max(_FEWEST, min(_TOKENS, _NUMBERS // x.shape[-1]))
            spread = torch.linspace(0, len(valid) - 1, min(len(valid), few)).long()
            self.positions[n] = valid[torch.cat([torch.arange(min(4, len(valid))), spread]).unique()].to(x.device)
        return self.positions[n]

    def leave(self, call: int, block: str, y: Tensor, _returned: Tensor) -> None:
        record, layer, few_y = self.record, self.layers[block], self._few(y)
        continues, self.left = self.left is not None and same(self.left, record.few.x), few_y
        running = None if self.steering is None else self.steering.states.hold()
        if layer is None:
            self.arrays.clear()
            plan = BlockPlan(block, [Stage("block", "end")], continues=continues)
            self.blocks.append(SampleBlock(plan, None, record.x, y, record.args, record.kwargs, running))
            return
        if record.few.out is None:
            raise InputError(f"{block} ran without its attention {layer.name}; it cannot be observed")
        A = record.captured.A if self.checks and record.captured is not None else None
        why = None if A is None else self._check_attention(call, layer, record)
        steered = None if self.steering is None else self.steering.steered_layer(layer.name)
        fit = fit_residual(record.few, few_y, self._rest(layer))
        self.arrays.clear()
        eps: float | None = 0.0
        if fit.norm_position == "pre":
            # A norm that reads anything but what entered the block is known by name only.
            eps = self._agreeing_eps(layer) if fit.stages[0].part.startswith("attention") else None
        if steered is not None and (unknown := steered.why_undecided()):
            why = why or Reason("steering", detail=unknown)
        for before in self.blocks:  # n by n arrays are not kept beyond their layer, but for the last
            before.A = before.A if is_light(before.A) else None
        known = dict(norm_eps=eps or 0.0, norm_agrees=eps is not None, continues=continues)
        plan = dataclasses.replace(fit, **known, why_undecided=fit.why_undecided or why)  # type: ignore[arg-type]
        self.blocks.append(SampleBlock(plan, A, record.x, y, record.args, record.kwargs, running))

    def _rest(self, layer: AttentionLayer) -> str:
        """The block's other part: it may have a second attention, of another sequence or of its own, over time."""
        inside = (name[len(layer.block) :].lower() for name in self.modules if name.startswith(layer.block + "."))
        if any(word in name for name in inside for word in layouts.CROSS_ATTENTION):
            return "cross-attention and mlp"
        for event in self.record.few.events:
            own, apart = event.name.rpartition(".")[2], not _within(event.name, layer.name)
            named = own.lower().endswith(("attn", "attention"))
            if apart and named and any(True for _ in self.modules[event.name].children()):
                return f"{own} and mlp"
        return "mlp"

    def _check_attention(self, call: int, layer: AttentionLayer, record: _Record) -> Reason | None:
        """``Σ_h A_h (x W_V^h + b_V^h) W_O^h + b_O``, steered as the model is, against what the layer returned: why the
        theorems do not apply although the weights are known; None where they do.
        """
        captured, returned = record.captured, record.out
        assert captured is not None
        assert returned is not None
        if captured.A.shape[-3] != layer.heads:
            raise InputError(
                f"{layer.name}: attention ran with {captured.A.shape[-3]} heads and not {layer.heads}; "
                "give the right number of heads"
            )
        if record.values_in is None:
            raise InputError(f"{layer.name}: its value projection {_value(layer)} did not run; register its layout")
        mixed, expected = self._attend(call, layer, record, captured, record.values_in)
        exact = returned.dtype in (torch.float32, torch.float64)
        # In 8 bits tokens are rounded too.
        exact &= all(p.element_size() > 1 for p in self.modules[layer.name].parameters())
        error = _disagreement(expected, returned, captured.A.mask, 1.0 if exact else 0.9)
        if error < (2e-3 if exact else 5e-2):
            if captured.row_sums is not None:
                return Reason("attention_sink")
            return Reason("values_normed") if layer.values_normed else None
        if record.mixed is not None and _is_gated(mixed, record.mixed, captured.A.mask, exact):
            return Reason("gated_inside_attention")
        if layer.mixing is not None:
            return Reason("other_mixing", detail=layer.mixing)
        remedy = "register another"
        if not layer.value_runs:  # only the module around bare parameters shows what goes in and what comes out
            remedy = "name norm= and biases in register, and let attention be a module of its own"
        raise InputError(
            f"{layer.name}: its weights and its attention give a result {error:.2g} off what it returned; "
            f"the layout {layer.layout.name.split(' (')[0]!r} with {layer.heads} heads does not describe it: {remedy}"
        )

    def _attend(
        self, call: int, layer: AttentionLayer, record: _Record, captured: CapturedAttention, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(values mixed by attention ``(b, n, heads, k)``, what the layer makes of them ``(b, n, d)``)."""
        A = captured.A
        x = x.to(A.device, A.dtype)
        mask = None if A.mask is None else A.mask[:, 0]
        V = layer.values(x).transpose(1, 2)
        self.first_values = V if self.first_values is None else self.first_values
        left = 1.0 if captured.row_sums is None else captured.row_sums.to(V)[..., None]
        steered = None if self.steering is None else self.steering.steered_layer(layer.name)

        def attend(V: Tensor) -> Tensor:
            return (left * (A @ V.transpose(1, 2))).transpose(1, 2)

        mixed = attend(V) if steered is None else steered.formula(call, V, attend, mask, self.first_values, x)
        out = (mixed.transpose(1, 2) @ layer.raw_W_O.to(x)).sum(-3)
        out = out if layer.output_bias is None else out + layer.output_bias.to(out)
        return mixed, out if steered is None else steered.projected(out, mask, record.x.to(out))

    def _agreeing_eps(self, layer: AttentionLayer) -> float | None:
        """The ε with which the norm before attention is what anatomy says it is; None: with none.

        Its own, if it says it; of norms that keep it under another name, the usual one that fits best. Only where
        tokens are small does it matter which.
        """
        norm = layer.norm
        for event in self.record.few.events:
            if norm is None or event.name != norm.name or event.input is None or event.output is None:
                continue
            x, y = event.input.float(), event.output.float()
            centred = x - x.mean(-1, keepdim=True) if norm.kind == "layer" else x
            variance = centred.square().mean(-1, keepdim=True)
            own = (getattr(self.modules[norm.name], name, None) for name in ("eps", "variance_epsilon", "epsilon"))
            errors = {}
            for eps in [one for one in own if isinstance(one, float)] or _USUAL_EPS:
                z = centred / (variance + max(eps, 1e-12)).sqrt() * norm.gamma.to(centred)
                z = z if norm.beta is None else z + norm.beta.to(z)
                errors[eps] = float((z - y).norm() / y.norm().clamp(min=1e-12))
            best = min(errors, key=errors.__getitem__)
            return best if errors[best] < 5e-2 else None
        return None


def with_attention(blocks: list[SampleBlock]) -> SampleBlock:
    """The last block that has any."""
    return next(block for block in reversed(blocks) if block.plan.layer is not None)


def is_light(A: AttentionOperator | None) -> bool:
    """Whether attention is held as queries and keys, and not as an array of n by n."""
    return isinstance(A, SoftmaxAttention) and A.bias is None


def _disagreement(expected: Tensor, returned: Tensor, mask: Tensor | None, share: float) -> float:
    """The largest relative error among this share of the tokens, each relative to its own size, so that a massive one
    hides no other.
    """
    returned = returned.to(expected)
    error = torch.linalg.vector_norm(expected - returned, dim=-1)
    size = torch.linalg.vector_norm(returned, dim=-1)
    if mask is not None:
        error, size = error[mask[:, 0]], size[mask[:, 0]]
    size = size + 0.1 * size.median()
    return float((error / size.clamp(min=1e-12)).flatten().quantile(share))


def _is_gated(mixed: Tensor, returned: Tensor, mask: Tensor | None, exact: bool) -> bool:
    """Whether every entry of what attention mixed was multiplied by some number between 0 and 1."""
    mixed = mixed.flatten(2)
    if returned.shape != mixed.shape:
        return False
    returned = returned.to(mixed)
    if mask is not None:
        mixed, returned = mixed[mask[:, 0]], returned[mask[:, 0]]
    # Where what was mixed is clearly not zero, in this precision.
    tolerance = 1e-2 if exact else 0.1
    ratio = (returned / mixed)[mixed.abs() > tolerance * mixed.abs().mean()]
    return bool(((ratio > -tolerance) & (ratio < 1 + tolerance)).all())


def _within(a: str, b: str) -> bool:
    """Whether one of two modules holds the other."""
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


def _value(layer: AttentionLayer) -> str:
    return f"{layer.name}.{layer.layout.value}".removesuffix("weight").removesuffix(".")


def _output(layer: AttentionLayer) -> str:
    return f"{layer.name}.{layer.layout.output}".removesuffix("weight").removesuffix(".")


def _acts_on_features(module: nn.Module, width: int) -> bool:
    """A leaf with nothing but one number per feature, a norm or a scale; norms without parameters, too."""
    if any(name != "parametrizations" for name, _ in module.named_children()):
        return False
    parameters = [p for p in module._parameters.values() if p is not None]
    if parameters:
        return all(p.ndim == 1 and p.shape[0] == width for p in parameters)
    return "norm" in type(module).__name__.lower()
