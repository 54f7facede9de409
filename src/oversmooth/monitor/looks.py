"""One look at a model in training: a pass of its own over a fixed batch, and its weights. Nothing is left behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.anatomy.steered import steered_as
from oversmooth.diagnosis.layers import changes
from oversmooth.diagnosis.weights import why_undecided
from oversmooth.monitor.reduced import band_norms
from oversmooth.results.facts import plain
from oversmooth.results.parts import share_of_smoothing
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.untouched import untouched
from oversmooth.steering import steering_of, verify
from oversmooth.theory.weights import head_spectrum, joined_asymmetry
from oversmooth.trace import HeadSpectra, Plan, Reducer, TokenMetrics, Trace, study
from oversmooth.trace.attention import CapturedAttention
from oversmooth.trace.blocks import named_blocks, repeated_blocks
from oversmooth.trace.depths import Depths, every_depth, every_stream
from oversmooth.trace.layout import axes_checked
from oversmooth.trace.reducers.heads import Settings
from oversmooth.trace.valid import HeardPadding, Padding, UnknownPaddingError, decodes, mask_of
from oversmooth.trace.watch import Watch

T = TypeVar("T")
Loss = Callable[[Any, Any], Tensor]
"""Gets what the model gave and the probe."""
Counted = Callable[[Tensor], Tensor | None]
"""Gets what enters the first block and says which of its tokens count, ``(batch, n)``; None: all."""
_ZERO = 1e-6  # relative: the sign of a smaller eigenvalue is rounding
_PARTS = ("attention", "mlp", "norm")


@dataclass
class Probe:
    """A fixed batch, in the form in which the model takes it."""

    given: Any
    loss: Loss | None = None

    def __post_init__(self) -> None:
        if not _tensors(self.given):
            raise InputError(
                f"the probe is {arguments.shown(self.given)}; give a batch: a tensor, a dict of the model's arguments, "
                "or a tuple of them"
            )
        values = self.given.values() if isinstance(self.given, Mapping) else self.given
        tensors = [self.given] if isinstance(self.given, Tensor) else [one for one in values if isinstance(one, Tensor)]
        if any(one.ndim and not len(one) for one in tensors):
            raise InputError("the probe has no inputs: one of its tensors has none; give a batch of at least one input")
        self.given = _copied(self.given)  # the batch is its owner's, who may write to it

    def run(self, model: nn.Module) -> Any:
        """What the model gives for it, on the model's device and in its precision."""
        parameter = next(model.parameters(), None)

        def moved(value: Any) -> Any:
            value = _copied(value)  # a model may write to what it gets
            if not isinstance(value, Tensor) or parameter is None:
                return value
            half = value.is_floating_point() and parameter.dtype in (torch.float16, torch.bfloat16, torch.float64)
            return value.to(parameter.device, parameter.dtype if half else value.dtype)

        given = self.given
        try:
            if isinstance(given, Tensor):
                return model(moved(given))
            if isinstance(given, Mapping):
                return model(**{str(name): moved(value) for name, value in given.items()})
            return model(*map(moved, given))
        except InputError:
            raise
        except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"the model does not run on the probe ({reason(error)}); give one that it takes"
            ) from error

    def mask(self, eyes: Eyes) -> Tensor | None:
        """``(batch, n)``: the tokens that are not padding, by the name of an argument.

        Args:
            eyes: whose model takes the probe, and whose blocks are looked at.
        """
        padding = Padding(eyes.model, decodes([name for name, _ in eyes.blocks]))
        given = self.given
        if isinstance(given, Mapping):
            mask = padding.of((), {str(name): value for name, value in given.items()})
        else:
            mask = padding.of((given,) if isinstance(given, Tensor) else given, {})
        return None if mask is None else mask.bool()

    def loss_of(self, out: Any) -> Tensor:
        """A number to differentiate."""
        if self.loss is not None:
            try:
                loss: Any = self.loss(out, _copied(self.given))
            except Exception as error:
                said = f"{type(error).__name__}: {str(error)[:120]}"
                raise InputError(f"loss failed ({said}); it is called as loss(what the model gives, probe)") from error
        else:
            loss = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise InputError(
                "the probe comes without a loss, which gradients need; give labels in it, or loss=, of what the "
                "model gives and the probe"
            )
        return loss


def _copied(value: Any) -> Any:
    """With tensors of its own, as deep as they lie."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_copied, value))
    return value


def _tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(isinstance(one, Tensor) for one in value.values())
    if isinstance(value, (tuple, list)):
        return bool(value) and isinstance(value[0], Tensor)
    return isinstance(value, Tensor)


@dataclass
class Eyes:
    """All that looks need to know of the model."""

    model: nn.Module
    """The module itself, without wrappers."""
    blocks: list[tuple[str, nn.Module]]
    anatomy: Anatomy | None
    """None: its attention is not known."""
    why_unknown: str = ""

    def known(self, what: str) -> Anatomy:
        """The anatomy, for what needs it."""
        if self.anatomy is None:
            why = self.why_unknown or "blocks were named, and their attention is not known"
            raise InputError(f"{what} need attention that is known: {why}; leave them out")
        return self.anatomy


def eyes_of(model: nn.Module, blocks: str | None, stack: str | None, heads: int | None) -> Eyes:
    """The blocks of a model and, where it is known, its attention.

    Args:
        model: the module itself.
        blocks: the pattern of their names; None: found by themselves.
        stack: part of the name of the stack, where there are several.
        heads: the number of heads, where the model does not say.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if blocks is not None:
        return Eyes(model, [(name, modules[name]) for name in named_blocks(model, blocks)], None)
    anatomy: Anatomy | None = None
    why = ""
    try:
        anatomy = locate(model, stack=stack, heads=heads)
        names = list(dict.fromkeys(layer.block for layer in anatomy))
    except InputError as error:
        names, why = repeated_blocks(model), str(error).partition(";")[0]
        if not names:
            raise InputError(f"{why}; name the blocks of the model, such as blocks='layers.*'") from error
    return Eyes(model, [(name, modules[name]) for name in names], anatomy, why)


def in_full_precision(see: Callable[[], T]) -> T:
    """What a function gives outside autocast.

    Args:
        see: which takes nothing.
    """
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        return see()


def tokens(eyes: Eyes, probe: Probe, names: Sequence[str], ranks: int) -> tuple[dict[str, list[float]], list[str]]:
    """Metrics of the tokens at every depth, mean over the probe's inputs; and the names of the blocks as they ran."""

    def measured(counted: Counted) -> tuple[dict[str, list[float]], list[str]]:
        depths, mask = Depths(ranks=ranks, cosines=bool({"cos", "abs_cos"} & set(names))), None

        def seen(depth: int, x: Tensor) -> None:
            nonlocal mask
            if depth == 0:
                mask = counted(x)
                if x.shape[1] < 2 or (mask is not None and not bool((mask.sum(-1) > 1).any())):
                    raise InputError("no input of the probe has two tokens that count; give longer ones")
            depths.add(depth, x, mask_of(x, mask))

        watched, checked = every_depth(eyes.blocks, seen), axes_checked(eyes.model, eyes.blocks)
        with _unsharded_after(eyes.model), untouched(eyes.model), torch.no_grad(), checked, watched as ran:
            probe.run(eyes.model)
        silent = [name for name, _ in eyes.blocks if name not in ran]
        if silent:
            raise InputError(
                f"{len(silent)} of {len(eyes.blocks)} blocks did not run on the probe, {silent[0]} first; give inputs "
                "that pass through all of them, or name the blocks"
            )
        return depths.means(names), list(ran)

    return _knowing_padding(eyes, probe, measured)


def _knowing_padding(eyes: Eyes, probe: Probe, look: Callable[[Counted], T]) -> T:
    """What a look gives that passes the probe through the model and asks which tokens of it count."""
    names = [name for name, _ in eyes.blocks]
    try:
        with HeardPadding(eyes.model, names, strict=eyes.anatomy is not None) as heard:
            return look(heard.of)
    except UnknownPaddingError:  # of samples, say, of which frames were made, or without a token that the model adds
        if eyes.anatomy is None:
            raise
    first = _FirstAttention()
    modules = dict(eyes.model.named_modules(remove_duplicate=False))
    layers = list({layer.block: layer for layer in eyes.anatomy}.values())
    watch = Watch(modules, layers, first, lambda _: [], attention=False)
    with _unsharded_after(eyes.model), untouched(eyes.model), torch.no_grad(), watch:
        probe.run(eyes.model)
    return look(lambda x: mask_of(x, first.tokens))


class _FirstAttention:
    """A listener: which tokens count, by the mask that the first layer's attention uses."""

    tokens: Tensor | None = None

    def attention(
        self, _call: int, _layer: AttentionLayer, caught: CapturedAttention, _x: Tensor | None, _y: Tensor
    ) -> None:
        self.tokens = caught.pairs.valid if self.tokens is None else self.tokens

    def enter(self, *_: Any) -> None: ...

    def part(self, *_: Any) -> None: ...

    def leave(self, *_: Any) -> None: ...


def parts(eyes: Eyes, probe: Probe) -> dict[str, list[float | None]]:
    """By part: the change of log HFC/LFC through it in every block."""
    anatomy = eyes.known("changes by part")
    plan, tokens = observed(eyes, probe, anatomy, lambda plan: TokenMetrics(plan, ranks=0), attention=False)
    found: dict[str, list[float | None]] = {}
    for call in range(len(plan.blocks)):
        for change in changes(plan, tokens, call):
            name = f"change_{change.part if change.part in _PARTS else 'other'}"
            row = found.setdefault(name, [None] * len(plan.blocks))
            if change.log_hfc_lfc is not None:
                row[call] = (row[call] or 0.0) + change.log_hfc_lfc
    return found


def dominance(eyes: Eyes, probe: Probe) -> dict[str, list[float | None]]:
    """The share of (input, head) cases whose smoothing eigenvalue dominates, in every block."""
    anatomy, steering = eyes.known("shares of dominance"), steered_as(eyes.model)
    plan, heads = observed(
        eyes, probe, anatomy, lambda plan: HeadSpectra(plan, Settings(joined=0), steering), attention=True
    )
    cases = [[v for row in heads.verdict.get(call, []) for v in row] for call in range(len(plan.blocks))]
    return {"smoothing_share": [share_of_smoothing(words) if words else None for words in cases]}


def observed(
    eyes: Eyes, probe: Probe, anatomy: Anatomy, reducer: Callable[[Plan], Reducer], *, attention: bool
) -> tuple[Plan, Any]:
    """The plan that one pass of the probe shows, and what a reducer makes of another one.

    Args:
        eyes: the model.
        probe: what runs.
        anatomy: of the model.
        reducer: makes one for a plan.
        attention: whether it wants attention.
    """
    mask = probe.mask(eyes)
    with _unsharded_after(eyes.model), untouched(eyes.model), torch.no_grad():
        plan = study(eyes.model, anatomy, lambda: probe.run(eyes.model), mask, attention=attention).plan
        one = reducer(plan)
        with Trace(eyes.model, plan, [one]) as trace:
            trace.begin(mask=mask)
            probe.run(eyes.model)
    return plan, one.result


@torch.no_grad()
def spectra(eyes: Eyes) -> dict[str, list[float | None]]:
    """Per block, over the eigenvalues of every head's H: the share with negative real part and the largest |keep + λ|;
    and how far the H of all heads together is from symmetric. Layers whose H does not act on the stream alone have no
    radius.
    """
    rows = [_spectrum(eyes.model, layer) for layer in eyes.known("spectra")]
    names = ("negative_share", "rho_smooth", "asymmetry")
    return {name: [plain(row[index]) for row in rows] for index, name in enumerate(names)}


def _spectrum(model: nn.Module, layer: AttentionLayer) -> tuple[float, float, float]:
    with _gathered(model, layer.name):
        W_V, W_O = layer.W_V, layer.W_O
        W_V, W_O = (W.to(torch.promote_types(W.dtype, torch.float32)) for W in (W_V, W_O))
        values = head_spectrum(W_V, W_O).flatten()
        negative = (values.real < -_ZERO * values.abs().max()).double().mean()
        radius = math.nan if why_undecided(layer) else float((layer.keep + values).abs().max())
        return float(negative), radius, float(joined_asymmetry(W_V, W_O))


def steering(eyes: Eyes, promises: bool) -> dict[str, list[float | None] | float]:
    """Of a steered model: the strength in every block.

    Args:
        eyes: the model.
        promises: whether to look at the distance to the flip, and whether every promise holds, which takes eigenvalues.
    """
    record = steering_of(eyes.model)
    if record is None:
        return {}
    found: dict[str, list[float | None] | float] = {}
    layers = list(record.anatomy)
    strengths: list[float | None] = [None] * len(layers)
    for index, layer in enumerate(layers):
        site = record.site(layer.name)
        held = [getattr(part, "strength", None) for part in site.parts.values()] if site is not None else []
        known = [float(s.detach().float().mean()) if isinstance(s, Tensor) else float(s) for s in held if s is not None]
        if known:
            strengths[index] = plain(math.fsum(known) / len(known))
    if any(value is not None for value in strengths):
        found["strength"] = strengths
    if promises and record.reparametrized:
        checked = verify(eyes.model)
        rooms: list[float | None] = [None] * len(layers)
        for check in checked.layers:
            if check.room is not None and check.index < len(rooms):
                rooms[check.index] = plain(check.room)
        found |= {"room": rooms, "verified": float(checked.ok)}
    return found


def gradients(eyes: Eyes, probe: Probe) -> dict[str, list[float | None]]:
    """Of the probe's loss: the norm of the gradient after every block, and the share of it that is HFC."""
    if is_sharded(eyes.model):
        raise InputError("gradients by band of a sharded model come from the passing batch alone; leave them out")
    return _knowing_padding(eyes, probe, lambda counted: _gradients(eyes, probe, counted))


def _gradients(eyes: Eyes, probe: Probe, counted: Counted) -> dict[str, list[float | None]]:
    arrays: list[Tensor] = []
    layouts: list[bool] = []
    mask: Tensor | None = None

    def seen(depth: int, x: Tensor, batch_first: bool) -> None:
        nonlocal mask
        if depth:
            arrays.append(x)
            layouts.append(batch_first)
        else:
            mask = counted(x if batch_first else x.transpose(0, 1))

    with untouched(eyes.model), torch.enable_grad():
        with axes_checked(eyes.model, eyes.blocks), every_stream(eyes.blocks, seen):
            out = probe.run(eyes.model)
        loss = probe.loss_of(out)
        wanted = [x for x in arrays if x.requires_grad]
        if not wanted:
            raise InputError("no block of this model has a gradient, as all before the loss is frozen; leave them out")
        # Of these arrays alone: no parameter gets a .grad.
        given = dict(zip(map(id, wanted), torch.autograd.grad(loss, wanted, allow_unused=True), strict=True))
    norms: list[float | None] = []
    shares: list[float | None] = []
    for x, batch_first in zip(arrays, layouts, strict=True):
        gradient = given.get(id(x))
        if gradient is not None and not batch_first:
            gradient = gradient.transpose(0, 1)
        found = None if gradient is None else band_norms(gradient, mask_of(gradient, mask))
        norm, share = (None, None) if found is None else map(plain, found)
        norms.append(norm)
        shares.append(share)
    return {"gradient_norm": norms, "gradient_hfc": shares}


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters are spread over processes (FSDP2, tensor parallelism): then all of them look, or none."""
    return any(type(p).__name__ == "DTensor" or hasattr(p, "full_tensor") for p in model.parameters())


def _sharded_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if callable(getattr(module, "unshard", None)) and callable(getattr(module, "reshard", None)):
            yield name, module


@contextmanager
def _unsharded_after(model: nn.Module) -> Iterator[None]:
    """What a pass has gathered is let go: the next step of the optimiser would not reach it."""
    try:
        yield
    finally:
        for _, module in _sharded_modules(model):
            module.reshard()


@contextmanager
def _gathered(model: nn.Module, layer: str) -> Iterator[None]:
    """The weights of one layer whole, where they are spread over processes; all of them get here together."""
    around = [m for name, m in _sharded_modules(model) if not name or f"{layer}.".startswith(f"{name}.")
              or name.startswith(f"{layer}.")]  # fmt: skip
    for module in around:
        module.unshard()
    try:
        yield
    finally:
        for module in around:
            module.reshard()
