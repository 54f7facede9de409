"""What the diagnosis of every family must say, by routes that share no code with the package.

Each case (`family_cases`) is a small random model with a description written by hand from the family's own source:
where the stream can be read, what attention adds with which factor, and where W_V and W_O lie. `passages` runs the
model once in float64 with eager attention and hooks of its own, and *proves* the description on what it heard: the
state after attention is ``keep · stream + factor · attention``, and attention is ``Σ_h A_h (x W_V^h + b_V^h) W_O^h +
b_O``, to 1e-9. A description that is wrong fails here, before anything is held against it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from support.families import FAMILIES, HEADS, WIDTH, Family, Modules, Sequence, Step, run
from support.oracles import token_metrics
from torch import Tensor, nn

PROOF = 1e-9
CASES: dict[str, Family] = dict(FAMILIES)
"""All that must be right, by name; `family_cases` adds its own."""


@dataclass(frozen=True)
class Heads:
    """How one layer acts on the stream, in float64, the factor of what is added folded into W_O."""

    W_V: Tensor
    """(heads, d, k)"""
    W_O: Tensor
    """(heads, k, d), with the factor."""
    keep: float = 1.0
    """What multiplies the stream that attention adds to."""

    @property
    def H(self) -> Tensor:
        return self.W_V @ self.W_O


@dataclass
class Passage:
    """One run through one block."""

    place: int
    x: Tensor
    y: Tensor = field(default_factory=lambda: torch.empty(0))
    heard: dict[str, Tensor] = field(default_factory=dict)
    """By "in:module" and "out:module", the module's name as the case has it."""
    A: Tensor = field(default_factory=lambda: torch.empty(0))
    states: list[Tensor] = field(default_factory=list)
    """Entering, then after each part of the case's course."""
    other_states: list[Tensor] = field(default_factory=list)
    """The same by the case's other course, if it has one."""
    heads: Heads | None = None


# Where values lie


def value_rows(case: Family, W: Tensor) -> Tensor:
    """A view of the values in the weight that makes them: ``(kv_heads, k, …)``, … being d, or nothing for a bias."""
    kv, k = case.kv_heads, case.head_dim
    W = W.mT if case.packing == "conv" and W.ndim > 1 else W
    rest = W.shape[1:]
    if case.packing == "separate":
        return W.reshape(kv, k, *rest)
    if case.packing in ("stacked", "conv"):
        return W[(HEADS + kv) * k :].reshape(kv, k, *rest)
    if case.packing == "per head":
        return W.reshape(HEADS, 3, k, *rest)[:, 2]
    if case.packing == "per group":
        return W.reshape(kv, HEADS // kv + 2, k, *rest)[:, -1]
    assert case.packing == "codegen"  # four parts, each with its queries, then its values, then its keys
    return W.reshape(4, 3, HEADS * k // 4, *rest)[:, 1].reshape(HEADS, k, *rest)


def output_rows(case: Family, W: Tensor) -> Tensor:
    """A view of the output weight: ``(heads, k, d)``."""
    return (W if case.packing == "conv" else W.mT).unflatten(0, (HEADS, case.head_dim))


def value_weight(case: Family, modules: Modules, place: int) -> tuple[Tensor, Tensor | None]:
    """(W_V, b_V) by query head, (heads, d, k) and (heads, k)."""
    module = modules[case.value.format(place)]
    if isinstance(module, nn.MultiheadAttention):
        W, b = module.in_proj_weight, module.in_proj_bias
    else:
        module = getattr(module, "v_proj", module)  # WavLM hands the weights to a function
        W, b = module.weight, getattr(module, "bias", None)
    b_V = None if b is None else _by_query_head(case, b)
    around = modules[case.value.format(place).rpartition(".")[0]]
    if isinstance(getattr(around, "v_bias", None), Tensor):  # DeBERTa has it beside the weight
        b_V = around.v_bias.detach().double().reshape(HEADS, case.head_dim)
    return _by_query_head(case, W).mT, b_V


def _by_query_head(case: Family, W: Tensor) -> Tensor:
    values = value_rows(case, W.detach().double())
    return values.repeat_interleave(HEADS // len(values), 0)


def output_weight(case: Family, modules: Modules, place: int) -> tuple[Tensor, Tensor | None]:
    """(W_O, b_O), (heads, k, d) and (d,)."""
    module = modules[case.output.format(place)]
    module = getattr(module, "out_proj", module)
    bias = getattr(module, "bias", None)
    return output_rows(case, module.weight.detach().double()), None if bias is None else bias.detach().double()


def heads_of(case: Family, modules: Modules, place: int) -> Heads:
    W_O = output_weight(case, modules, place)[0] * case.scale(modules, place)
    W_V = case.product(modules, place)[0] if case.product else value_weight(case, modules, place)[0]
    return Heads(W_V, W_O, case.keep)


# One run, heard and proven


def stream(value: Any) -> Tensor | None:
    """The first array of the stream's width."""
    if isinstance(value, Tensor):
        return value.detach() if value.is_floating_point() and value.shape[-1:] == (WIDTH,) else None
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        if (found := stream(part)) is not None:
            return found
    return None


def listen(case: Family, model: nn.Module) -> list[Passage]:
    """Hooks on everything the description names; what the model then does is added to the list that comes back."""
    modules, found = dict(model.named_modules()), []

    def order(x: Tensor) -> Tensor:
        x = x if case.batch_first else x.transpose(0, 1)
        return x.reshape(len(found[-1].x), -1, x.shape[-1]) if found else x  # OPT's norms see all texts in a row

    def enter(place: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        x = stream((args, kwargs))
        found.append(Passage(place, (x if case.batch_first else x.transpose(0, 1)).clone()))

    def leave(_: nn.Module, _args: Any, out: Any) -> None:
        found[-1].y = order(stream(out)).clone()

    def hear(name: str, _: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        given, gave = _any((args, kwargs)), _any(out)
        found[-1].heard["in:" + name], found[-1].heard["out:" + name] = order(given).clone(), order(gave).clone()

    names = {
        step.read.partition(":")[2] for step in (*case.course, *case.other_course) if step.read[:2] in ("in", "ou")
    }
    names |= {case.value, case.output, case.branch, *case.also, *(name for name, _ in case.beside)} - {""}
    for place in sorted({*case.runs, *case.others}):
        block = modules[case.block.format(place)]
        block.register_forward_pre_hook(functools.partial(enter, place), with_kwargs=True)
        for name in names if place in case.runs else ():
            modules[name.format(place)].register_forward_hook(functools.partial(hear, name), with_kwargs=True)
        block.register_forward_hook(leave)
    return found


def _any(value: Any) -> Tensor:
    """The first floating array."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach()
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        try:
            return _any(part)
        except AssertionError:
            continue
    raise AssertionError("a module got no array")


def _states(case: Family, modules: Modules, passage: Passage, course: tuple[Step, ...]) -> list[Tensor]:
    """Entering, and after each part. In the precision the model runs in, widened."""
    states, block = [passage.x.double()], modules[case.block.format(passage.place)]
    for step in course:
        if step.read == "end":
            states.append(passage.y.double())
        elif step.read == "sum":
            added = passage.heard["out:" + (case.branch or case.output)].double()
            factor = 1.0 if case.branch else case.scale(modules, passage.place)
            states.append(case.keep * states[case.base] + factor * added)
        elif step.read.startswith("note:"):
            states.append(block.notes[step.read[5:]].double())
        else:
            states.append(passage.heard[step.read].double())
    return states


def tell(case: Family, modules: Modules, passage: Passage) -> None:
    """The stream after each part, from what was heard."""
    if passage.place in case.others:
        return
    passage.states = _states(case, modules, passage, case.course)
    passage.other_states = _states(case, modules, passage, case.other_course) if case.other_course else []


@functools.cache
def passages(name: str, how: str = "padded") -> list[Passage]:
    """In float64, with attention computed step by step, and the description proven."""
    case = CASES[name]
    # In float64 eager attention turns rows that are masked whole, as padding on the left has them, into NaN.
    dtype = torch.float32 if how == "left" else torch.float64
    model = case.make(dtype)
    if hasattr(model, "_can_set_attn_implementation") and not model._can_set_attn_implementation():
        model = _made_eager(model).to(dtype)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped kernel has no float64
    found = listen(case, model)
    modules = dict(model.named_modules())
    with _weights_of_attention(case, model, modules, case.mask(how)) as weights:
        more = {"output_attentions": True} if case.library == "transformers" and not case.weights_of else {}
        # With gradients: torch's encoders would take a fast path that calls none of their parts.
        out = run(model, case.inputs(dtype, how), **more)
    if more:
        weights = [A for A in out.attentions if A is not None and A.ndim == 4]
    for passage in found:
        tell(case, modules, passage)
    attending = [passage for passage in found if passage.place not in case.others]
    assert len(found) == len(case.runs) + len(case.others), f"{name}: {len(found)} passages"
    assert len(weights) == len(case.runs), f"{name}: {len(weights)} attentions"
    for passage, A in zip(attending, weights, strict=True):
        passage.A = A.detach().double()
        passage.heads = heads_of(case, modules, passage.place)
        _prove(case, modules, passage, case.mask(how))
    if how == "padded":
        _prove_it_is_what_runs(case, how, found)
    return found


def _made_eager(model: nn.Module) -> nn.Module:
    """The same model where its attention is chosen once, as it is made (Nemotron in transformers 5.10)."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    again = type(model)(config).eval()
    again.load_state_dict(model.state_dict())
    return again


def _prove_it_is_what_runs(case: Family, how: str, found: list[Passage]) -> None:
    """Eager attention in float64 must give what the model gives as people run it."""
    model, counted = case.make(), case.mask(how)
    as_run = listen(case, model)
    run(model, case.inputs(how=how))
    for a, b in zip(as_run, found, strict=True):
        keep = torch.ones(a.y.shape[:2], dtype=torch.bool) if counted is None else counted
        off = float((a.y.double() - b.y.double())[keep].abs().max() / b.y[keep].abs().max())
        assert off < 1e-4, f"the oracle's {case.name} is not the model that runs: off by {off:.2g} after {a.place}"


@contextmanager
def _weights_of_attention(
    case: Family, model: nn.Module, modules: Modules, counted: Tensor | None
) -> Iterator[list[Tensor]]:
    """Attention, where the library does not give it away; the list fills as the model runs."""
    weights: list[Tensor] = []
    original = F.multi_head_attention_forward

    def all_heads(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(original).bind(*args, **kwargs)  # need_weights comes by name or by its place
        call.arguments.update(need_weights=True, average_attn_weights=False)
        out, A = original(*call.args, **call.kwargs)
        weights.append(A)
        return out, A.mean(1)

    def keep_square(_: nn.Module, __: Any, out: Any) -> None:
        weights.extend(x for x in out if isinstance(x, Tensor) and x.ndim == 4 and x.shape[-1] == x.shape[-2])

    def softmax(_: nn.Module, __: Any, out: Tensor) -> None:
        q, k, _v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in out.chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if counted is not None:
            scores = scores.masked_fill(~counted[:, None, None], -torch.inf)
        weights.append(scores.softmax(-1))

    if case.library == "transformers":
        model.set_attn_implementation("eager")
        model.config._attn_implementation = "eager"  # Falcon would make a mask for the fused kernel
    for place in sorted(set(case.runs)):
        if case.library == "timm":
            attention = modules[f"blocks.{place}.attn"]
            attention.fused_attn = False
            attention.attn_drop.register_forward_pre_hook(lambda _, args: weights.append(args[0]))
        elif case.library == "toy":
            modules[case.value.format(place)].register_forward_hook(softmax)
        elif case.weights_of and case.weights_of != "multi_head_attention_forward":
            modules[case.weights_of.format(place)].register_forward_hook(keep_square)
    if case.library == "torch" or case.weights_of == "multi_head_attention_forward":
        F.multi_head_attention_forward = all_heads
    try:
        yield weights
    finally:
        F.multi_head_attention_forward = original


def _prove(case: Family, modules: Modules, passage: Passage, counted: Tensor | None) -> None:
    """The description against what the model did, on the tokens that count."""
    rounding = PROOF if passage.x.dtype == torch.float64 else 1e-5

    def agree(what: str, got: Tensor, expected: Tensor) -> None:
        off = float((got[keep] - expected[keep]).abs().max() / expected[keep].abs().max())
        assert off < rounding, f"the oracle's description of {case.name} is wrong: {what}: off by {off:.2g}"

    keep = torch.ones(passage.x.shape[:2], dtype=torch.bool) if counted is None else counted
    out = passage.heard["out:" + case.output].double()
    if case.mix is not None:
        attended = case.mix(case, modules, passage)
    else:
        W_V, b_V = value_weight(case, modules, passage.place)
        values = passage.heard["in:" + case.value].double()[:, None] @ W_V
        values = values if b_V is None else values + b_V[:, None]
        attended = project(case, modules, passage.place, passage.A @ values)
    agree("attention is A times values", attended, out)
    added = case.scale(modules, passage.place) * out
    if case.branch:
        if not case.gated:
            agree("the branch is scaled", added, passage.heard["out:" + case.branch].double())
        added = passage.heard["out:" + case.branch].double()
    total = case.keep * passage.states[case.base] + added
    for name, times in case.beside:
        total = total + times * passage.heard["out:" + name].double()
    step = case.course[case.attention_step]
    if case.gated == "token" and step.read.startswith("note:"):
        return  # the module's own notes are the truth
    after = passage.y.double() if step.read == "sum" else passage.states[case.attention_step + 1]
    agree(f"the state after attention, {step.read}", total, after)


def project(case: Family, modules: Modules, place: int, mixed: Tensor) -> Tensor:
    W_O, b_O = output_weight(case, modules, place)
    out = (mixed @ W_O).sum(1)
    return out if b_O is None else out + b_O


# Numbers of tokens, from the definitions


def over_sequences(X: Tensor, which: list[Sequence]) -> dict[str, Tensor]:
    rows = [token_metrics(X[i, places]) for i, places in which]
    return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}


def changes(states: list[Tensor], which: list[Sequence]) -> list[dict[str, float]]:
    """What each part changed, mean over sequences."""
    course = [over_sequences(X, which) for X in states]
    names = ("log_hfc_lfc", "log_hfc", "log_lfc")
    return [{m: float((b[m] - a[m]).mean()) for m in names} for a, b in itertools.pairwise(course)]


# Spectra, from dense matrices


def _quotient(n: int) -> Tensor:
    """An orthonormal basis of the vectors that sum to zero, (n, n − 1): cosines."""
    i, j = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(1, n, dtype=torch.float64)[None]
    return (2 / n) ** 0.5 * torch.cos(math.pi * (i + 0.5) * j / n)


def head_radii(heads: Heads, A: Tensor) -> tuple[Tensor, Tensor]:
    """(ρ_smooth, ρ_rough) of each head, over all pairs of eigenvalues; A is (heads, n, n) of the tokens that count."""
    Q, smooth, rough = _quotient(A.shape[-1]), [], []
    for a, V, out in zip(A, heads.W_V, heads.W_O, strict=True):
        lam, t = torch.linalg.eigvals(out @ V), torch.linalg.eigvals(Q.T @ a @ Q)
        smooth.append((heads.keep + lam).abs().max())
        rough.append((heads.keep + lam[:, None] * t[None]).abs().max())
    return torch.stack(smooth), torch.stack(rough)


def joined_radii(heads: Heads, A: Tensor) -> tuple[float, float]:
    n, d = A.shape[-1], heads.W_V.shape[-2]
    Q, eye = _quotient(n), torch.eye(d, dtype=torch.float64)
    rough = heads.keep * torch.eye((n - 1) * d, dtype=torch.float64)
    for a, H in zip(A, heads.H, strict=True):
        rough = rough + torch.kron((Q.T @ a @ Q).contiguous(), H.T.contiguous())
    smooth = heads.keep * eye + heads.H.sum(0)
    return float(torch.linalg.eigvals(smooth).abs().max()), float(torch.linalg.eigvals(rough).abs().max())


def attention_among(passage: Passage, sequence: Sequence) -> Tensor:
    i, places = sequence
    return passage.A[i][:, places][:, :, places]
