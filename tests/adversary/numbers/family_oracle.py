"""What the diagnosis of every family must say, by routes that share no code with the package.

Each case is a small random model with a description written by hand from the family's own source: where the stream can
be read, what attention adds with which factor, and where W_V and W_O lie. `passages` runs the model once in float64
with eager attention and hooks of its own, and *proves* the description on what it heard: the state after attention is
``keep · stream + factor · attention`` and attention is ``Σ_h A_h (x W_V^h + b_V^h) W_O^h + b_O``, to 1e-9. A
description that is wrong fails here, before anything is held against it.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from families import FAMILIES, HEADS, LAYERS, TOKENS, WIDTH, Family, HandBlock, Stack, ToyAttention, randomise, run
from torch import Tensor, nn

PROOF = 1e-9
KEPT_BACK = ("plain", "left")
"""Ways to give inputs beside the usual one, in which the second input is padded on the right."""

Modules = dict[str, nn.Module]


# The nouns


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
    enter: Tensor
    end: Tensor = field(default_factory=lambda: torch.empty(0))
    heard: dict[str, Tensor] = field(default_factory=dict)
    """By "in:module" and "out:module", the module's name as the case has it."""
    A: Tensor = field(default_factory=lambda: torch.empty(0))
    states: list[Tensor] = field(default_factory=list)
    """Entering, then after each part of the case's course."""
    other_states: list[Tensor] = field(default_factory=list)
    """The same by the case's other course, if it has one."""
    heads: Heads | None = None


@dataclass(frozen=True)
class Step:
    """A part of the block, and where the stream can be read after it.

    read: "in:module" (what a reader gets), "out:module" (what a norm on the stream gives), "end" of the block, "sum"
    (nobody reads it: what it added to, with the factor), or "note:key" of a module written here.
    """

    part: str
    read: str


@dataclass(frozen=True)
class Packing:
    """Where values lie in the rows of the weight that makes them: (rows, …) -> (kv_heads, k, …)."""

    name: str
    rows: Callable[[Tensor, int, int, int], Tensor] = field(repr=False)
    transposed: bool = False


@dataclass(frozen=True)
class Case:
    """A model and its description. Names of modules have {} for the number of the layer."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    given: Callable[[str], Any] = field(repr=False)
    """How ("padded", "plain", "left") -> what the model gets; None where it cannot be had."""
    block: str
    value: str
    """The module whose input values are made of."""
    output: str
    """The module whose output is what W_O and its bias gave."""
    course: tuple[Step, ...]
    packing: Packing
    branch: str = ""
    """The module whose output is added, if a norm or the like stands between."""
    factor: Callable[[Modules, int], float | Tensor] = field(default=lambda modules, place: 1.0, repr=False)
    keep: float = 1.0
    base: int = 0
    """Which state attention adds to: 0 what enters, 1 what the first part left, and so on."""
    beside: tuple[tuple[str, float], ...] = ()
    """Modules whose outputs, so often, are added together with attention's (a Mamba, a parallel MLP)."""
    other_course: tuple[Step, ...] = ()
    """Another way to tell the parts apart that is as right."""
    kv_heads: int = HEADS
    head_dim: int = WIDTH // HEADS
    runs: tuple[int, ...] = tuple(range(LAYERS))
    library: str = "transformers"
    weights_of: str = ""
    """The module that returns the weights of eager attention, where the model does not."""
    mix: Callable[[Case, Modules, Passage], Tensor] | None = field(default=None, repr=False)
    """Attention's output where it is more than A times values: a gate, a norm on the values."""
    also: tuple[str, ...] = ()
    """Modules that `mix` wants to hear."""
    product: Callable[[Modules, int], list[Tensor]] | None = field(default=None, repr=False)
    """W_V where it is no single weight: all that may be called so."""
    gated: str = ""
    """Why there is no verdict: "token" (a factor by token) or "sink" (rows sum to less than one)."""
    settings: dict[str, Any] = field(default_factory=dict)
    """For `diagnose` and `locate`."""
    on_disk: bool = True
    """Whether a checkpoint holds all that is needed."""
    massive: str = ""
    """The weight whose first row, times 1e3, makes a massive token of the stream."""
    may_decline: bool = False
    """Whether a remark and no number is right as well."""
    batch_first: bool = True
    norm: str = "pre"
    """Where attention's norm stands: pre, post or none; "" where none of the words fits."""
    tokens_of: Callable[[Any], Tensor | None] | None = field(default=None, repr=False)
    """What counts, (batch, n), where the mask given is not of the stream's tokens."""

    def make(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        return copy.deepcopy(_made(self.name)).to(dtype)

    def inputs(self, how: str = "padded", dtype: torch.dtype = torch.float32) -> Any:
        return _cast(self.given(how), dtype)

    def counted(self, how: str = "padded") -> Tensor | None:
        """The tokens that count, (batch, n); None: all."""
        given = self.given(how)
        if self.tokens_of is not None:
            return self.tokens_of(given)
        if isinstance(given, Tensor):
            return None
        if "src_key_padding_mask" in given:
            return ~given["src_key_padding_mask"]
        return given["attention_mask"].bool() if "attention_mask" in given else None

    @property
    def attention_step(self) -> int:
        return next(i for i, step in enumerate(self.course) if step.part.startswith("attention"))

    def takes_padding(self) -> bool:
        return self.counted() is not None


def _cast(given: Any, dtype: torch.dtype) -> Any:
    if isinstance(given, Tensor):
        return given.to(dtype) if given.is_floating_point() else given.clone()
    return {name: _cast(value, dtype) for name, value in given.items()}


@functools.cache
def _made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = randomise(CASES[name].build()).eval()
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if parameter.rpartition(".")[2] in ("gate_attn", "gate_ffn", "sinks", "zeta"):
                p.copy_(torch.linspace(0.7, -0.5, p.numel()).reshape(p.shape))  # neither shut nor all alike
    return model


# Where values lie


def _separate(W: Tensor, heads: int, kv: int, k: int) -> Tensor:
    return W.reshape(kv, k, *W.shape[1:])


def _stacked(W: Tensor, heads: int, kv: int, k: int) -> Tensor:
    return W[(heads + kv) * k :].reshape(kv, k, *W.shape[1:])


def _per_head(W: Tensor, heads: int, kv: int, k: int) -> Tensor:
    return W.reshape(heads, 3, k, *W.shape[1:])[:, 2]


def _per_group(W: Tensor, heads: int, kv: int, k: int) -> Tensor:
    return W.reshape(kv, heads // kv + 2, k, *W.shape[1:])[:, -1]


def _codegen(W: Tensor, heads: int, kv: int, k: int) -> Tensor:
    """Four parts, each with its queries, then its values, then its keys."""
    return W.reshape(4, 3, heads * k // 4, *W.shape[1:])[:, 1].reshape(heads, k, *W.shape[1:])


SEPARATE = Packing("separate", _separate)
STACKED = Packing("stacked", _stacked)
CONV = Packing("stacked, (in, out)", _stacked, transposed=True)
PER_HEAD = Packing("per head", _per_head)
PER_GROUP = Packing("per group", _per_group)
CODEGEN = Packing("codegen", _codegen)


def _value_weight(case: Case, modules: Modules, place: int) -> tuple[Tensor, Tensor | None]:
    """(W_V, b_V) by query head, (heads, d, k) and (heads, k)."""
    module = modules[case.value.format(place)]
    if isinstance(module, nn.MultiheadAttention):
        W, b = module.in_proj_weight, module.in_proj_bias
    else:
        module = getattr(module, "v_proj", module)  # WavLM hands the weights to a function
        W, b = module.weight, getattr(module, "bias", None)
    b_V = None if b is None else _by_query_head(case, b, bias=True)
    around = modules[case.value.format(place).rpartition(".")[0]]
    if isinstance(getattr(around, "v_bias", None), Tensor):  # DeBERTa has it beside the weight
        b_V = around.v_bias.detach().double().reshape(HEADS, case.head_dim)
    return _by_query_head(case, W).mT, b_V


def _by_query_head(case: Case, W: Tensor, bias: bool = False) -> Tensor:
    W = W.detach().double()
    W = W.mT if case.packing.transposed and not bias else W
    values = case.packing.rows(W, HEADS, case.kv_heads, case.head_dim)
    return values.repeat_interleave(HEADS // len(values), 0)


def _output_weight(case: Case, modules: Modules, place: int) -> tuple[Tensor, Tensor | None]:
    module = modules[case.output.format(place)]
    module = getattr(module, "out_proj", module)
    W = module.weight.detach().double()
    W = W if case.packing.transposed else W.mT
    bias = getattr(module, "bias", None)
    return W.reshape(HEADS, case.head_dim, WIDTH), None if bias is None else bias.detach().double()


def heads_of(case: Case, modules: Modules, place: int) -> Heads:
    W_O = _output_weight(case, modules, place)[0] * case.factor(modules, place)
    W_V = case.product(modules, place)[0] if case.product else _value_weight(case, modules, place)[0]
    return Heads(W_V, W_O, case.keep)


# One run, heard and proven


def _stream(value: Any) -> Tensor | None:
    """The first array of the stream's width."""
    if isinstance(value, Tensor):
        return value.detach() if value.is_floating_point() and value.shape[-1:] == (WIDTH,) else None
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        if (found := _stream(part)) is not None:
            return found
    return None


def listen(case: Case, model: nn.Module) -> list[Passage]:
    """Hooks on everything the description names; what the model then does is added to the list that comes back."""
    modules, found = dict(model.named_modules()), []

    def order(x: Tensor) -> Tensor:
        x = x if case.batch_first else x.transpose(0, 1)
        return x.reshape(len(found[-1].enter), -1, x.shape[-1]) if found else x  # OPT's norms see all texts in a row

    def enter(place: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        x = _stream((args, kwargs))
        found.append(Passage(place, (x if case.batch_first else x.transpose(0, 1)).clone()))

    def leave(_: nn.Module, args: Any, out: Any) -> None:
        found[-1].end = order(_stream(out)).clone()

    def hear(name: str, _: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        given, gave = _any((args, kwargs)), _any(out)
        found[-1].heard["in:" + name], found[-1].heard["out:" + name] = order(given).clone(), order(gave).clone()

    names = {
        step.read.partition(":")[2] for step in (*case.course, *case.other_course) if step.read[:2] in ("in", "ou")
    }
    names |= {case.value, case.output, case.branch, *case.also, *(name for name, _ in case.beside)} - {""}
    for place in sorted(set(case.runs)):
        block = modules[case.block.format(place)]
        block.register_forward_pre_hook(functools.partial(enter, place), with_kwargs=True)
        for name in names:
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


def _states(case: Case, modules: Modules, passage: Passage, course: tuple[Step, ...]) -> list[Tensor]:
    """Entering, and after each part. In the precision the model runs in, widened."""
    states, block = [passage.enter.double()], modules[case.block.format(passage.place)]
    for step in course:
        if step.read == "end":
            states.append(passage.end.double())
        elif step.read == "sum":
            added = passage.heard["out:" + (case.branch or case.output)].double()
            factor = 1.0 if case.branch else case.factor(modules, passage.place)
            states.append(case.keep * states[case.base] + factor * added)
        elif step.read.startswith("note:"):
            states.append(block.notes[step.read[5:]].double())
        else:
            states.append(passage.heard[step.read].double())
    return states


def tell(case: Case, modules: Modules, passage: Passage) -> None:
    """The stream after each part, from what was heard."""
    passage.states = _states(case, modules, passage, case.course)
    passage.other_states = _states(case, modules, passage, case.other_course) if case.other_course else []


@functools.cache
def passages(name: str, how: str = "padded") -> list[Passage]:
    """In float64, with attention computed step by step, and the description proven."""
    case = CASES[name]
    # In float64 eager attention turns rows that are masked whole, as padding on the left has them, into NaN.
    dtype = torch.float32 if how == "left" else torch.float64
    model = case.make(dtype)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped kernel has no float64
    found = listen(case, model)
    modules = dict(model.named_modules())
    with _weights_of_attention(case, model, modules, case.counted(how)) as weights:
        more = {"output_attentions": True} if case.library == "transformers" and not case.weights_of else {}
        # With gradients: torch's encoders would take a fast path that calls none of their parts.
        out = run(model, case.inputs(how, dtype), **more)
    if more:
        weights = [A for A in out.attentions if A is not None and A.ndim == 4]
    assert len(found) == len(case.runs), f"{name}: {len(found)} passages"
    assert len(weights) == len(case.runs), f"{name}: {len(weights)} attentions"
    for passage, A in zip(found, weights, strict=True):
        passage.A = A.detach().double()
        tell(case, modules, passage)
        passage.heads = heads_of(case, modules, passage.place)
        _prove(case, modules, passage, case.counted(how))
    _prove_it_is_what_runs(case, how, found)
    return found


def _prove_it_is_what_runs(case: Case, how: str, found: list[Passage]) -> None:
    """Eager attention in float64 must give what the model gives as people run it."""
    model, counted = case.make(), case.counted(how)
    as_run = listen(case, model)
    run(model, case.inputs(how))
    for a, b in zip(as_run, found, strict=True):
        keep = torch.ones(a.end.shape[:2], dtype=torch.bool) if counted is None else counted
        off = float((a.end.double() - b.end.double())[keep].abs().max() / b.end[keep].abs().max())
        assert off < 1e-4, f"the oracle's {case.name} is not the model that runs: off by {off:.2g} after {a.place}"


@contextmanager
def _weights_of_attention(
    case: Case, model: nn.Module, modules: Modules, counted: Tensor | None
) -> Iterator[list[Tensor]]:
    """Attention, where the library does not give it away; the list fills as the model runs."""
    weights: list[Tensor] = []
    original = F.multi_head_attention_forward

    def all_heads(*args: Any, **kwargs: Any) -> Any:
        out, A = original(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
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


def _prove(case: Case, modules: Modules, passage: Passage, counted: Tensor | None) -> None:
    """The description against what the model did, on the tokens that count."""
    rounding = PROOF if passage.enter.dtype == torch.float64 else 1e-5

    def agree(what: str, got: Tensor, expected: Tensor) -> None:
        off = float((got[keep] - expected[keep]).abs().max() / expected[keep].abs().max())
        assert off < rounding, f"the oracle's description of {case.name} is wrong: {what}: off by {off:.2g}"

    keep = torch.ones(passage.enter.shape[:2], dtype=torch.bool) if counted is None else counted
    out = passage.heard["out:" + case.output].double()
    if case.mix is not None:
        attended = case.mix(case, modules, passage)
    else:
        W_V, b_V = _value_weight(case, modules, passage.place)
        values = passage.heard["in:" + case.value].double()[:, None] @ W_V
        values = values if b_V is None else values + b_V[:, None]
        attended = _project(case, modules, passage.place, passage.A @ values)
    agree("attention is A times values", attended, out)
    added = case.factor(modules, passage.place) * out
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
    after = passage.end.double() if step.read == "sum" else passage.states[case.attention_step + 1]
    agree(f"the state after attention, {step.read}", total, after)


def _project(case: Case, modules: Modules, place: int, mixed: Tensor) -> Tensor:
    W_O, b_O = _output_weight(case, modules, place)
    out = (mixed @ W_O).sum(1)
    return out if b_O is None else out + b_O


# Numbers of tokens, from the definitions


Sequence = tuple[int, Tensor]
"""A row of the batch and the places in it of the tokens that are measured together."""


def sequences(counted: Tensor | None, like: Tensor) -> list[Sequence]:
    keep = torch.ones(like.shape[:2], dtype=torch.bool) if counted is None else counted
    return [(i, row.nonzero()[:, 0]) for i, row in enumerate(keep) if int(row.sum()) > 1]


def metrics(X: Tensor) -> dict[str, float]:
    """Of one array (n, d): the mean over tokens is the low frequency, the rest the high one."""
    X = X.double()
    low = X.mean(0).expand_as(X)
    high = X - low
    unit = X / X.norm(dim=-1, keepdim=True)
    cos = (unit @ unit.T)[~torch.eye(len(X), dtype=torch.bool)]
    s = torch.linalg.svdvals(X)
    p = s[s > 0] / s.sum()
    return {
        "log_hfc": math.log(high.norm()),
        "log_lfc": math.log(low.norm()),
        "log_hfc_lfc": math.log(high.norm() / low.norm()),
        "hfc_lfc": float(high.norm() / low.norm()),
        "cos": float(cos.mean()),
        "abs_cos": float(cos.abs().mean()),
        "effective_rank": math.exp(-float((p * p.log()).sum())),
        "stable_rank": float(s.square().sum() / s[0] ** 2),
        "sigma_ratio": float(s[1] / s[0]),
        "rank_one_distance": float((s[1:].square().sum() / s.square().sum()).sqrt()),
    }


def over_sequences(X: Tensor, which: list[Sequence]) -> dict[str, Tensor]:
    rows = [metrics(X[i, places]) for i, places in which]
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


# Families that are described elsewhere already


_READER = {
    "ViT": "layernorm_after",
    "DeiT": "layernorm_after",
    "DINOv2": "norm2",
    "CLIP (vision)": "layer_norm2",
    "ModernBERT": "mlp_norm",
    "GPT-2": "ln_2",
    "GPT-NeoX (one after another)": "post_attention_layernorm",
    "OPT": "final_layer_norm",
    "Gemma 2": "pre_feedforward_layernorm",
    "Gemma 3": "pre_feedforward_layernorm",
    "Whisper (encoder)": "final_layer_norm",
    "T5 (encoder)": "layer.1.layer_norm",
    "timm ViT": "norm2",
    "timm ViT (q/k norm, LayerScale)": "norm2",
    "torch encoder (Pre-LN)": "norm2",
    "torch encoder (Pre-LN, batch first)": "norm2",
    "around nn.MultiheadAttention": "norm2",
    **dict.fromkeys(("Llama", "Mistral", "Qwen3", "SmolLM3", "Phi-3"), "post_attention_layernorm"),
}
_PACKED = {"ModernBERT": STACKED, "GPT-2": CONV, "GPT-NeoX (parallel)": PER_HEAD, "Phi-3": STACKED}
_PACKED["GPT-NeoX (one after another)"] = PER_HEAD
_MASSIVE = {"GPT-2": "wte.weight", "GPT-NeoX (one after another)": "embed_in.weight", "ViT": "embeddings.cls_token"}
_MASSIVE |= dict.fromkeys(("Llama", "Mistral", "Qwen3", "SmolLM3", "Phi-3"), "embed_tokens.weight")
_MASSIVE |= {"GPT-NeoX (parallel)": "embed_in.weight", "timm ViT": "cls_token"}
_SCALES = {"DINOv2": ("layer_scale1", "lambda1"), "timm ViT (q/k norm, LayerScale)": ("ls1", "gamma")}
END = Step("mlp", "end")


def _post(after: str, last: str) -> tuple[Step, ...]:
    return (
        Step("attention", f"in:{after}"),
        Step("norm", f"out:{after}"),
        Step("mlp", f"in:{last}"),
        Step("norm", "end"),
    )


def _then_mlp(reader: str) -> tuple[Step, ...]:
    return (Step("attention", f"in:{reader}"), END)


PARALLEL = (Step("attention", "sum"), END)


def _known(family: Family) -> Case:
    name, packing = family.name, _PACKED.get(family.name, SEPARATE)
    if family.library != "transformers":
        packing = STACKED
    if family.after:
        course = _post(family.after, family.last)
    elif family.parts == ("attention",):
        course = (Step("attention", "end"),)
    elif "parallel" in name:
        course = PARALLEL
    else:
        course = _then_mlp(family.block + "." + _READER[name])
    scale = _SCALES.get(name)

    def factor(modules: Modules, place: int) -> float | Tensor:
        if scale is None:
            return 1.0
        return getattr(modules[f"{family.block.format(place)}.{scale[0]}"], scale[1]).detach().double()

    return Case(
        name,
        family.build,
        lambda how: _otherwise(family.given(), how),
        family.block,
        family.value,
        family.output,
        course,
        packing,
        branch=family.branch,
        factor=factor,
        beside=((family.block + ".mlp", 1.0),) if course is PARALLEL else (),
        kv_heads=family.kv_heads,
        head_dim=family.head_dim,
        runs=family.runs,
        library=family.library,
        gated="token" if name.startswith("Gemma") else "",
        massive=_MASSIVE.get(name, ""),
        batch_first=family.batch_first,
        norm=family.norm,
    )


def _otherwise(given: Any, how: str) -> Any:
    """What a family usually gets, without padding or with it on the left."""
    if how == "padded" or isinstance(given, Tensor):
        return given
    given = dict(given)
    for name in ("attention_mask", "src_key_padding_mask"):
        if name in given and how == "plain":
            del given[name]
        elif name in given:
            given[name] = given[name].flip(1)
    return given


# Families described here


_SIZES = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=48)
_WORDS = dict(vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
_GQA = dict(**_SIZES, **_WORDS, num_key_value_heads=2)


def hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build


def words(how: str) -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (2, TOKENS), generator=torch.Generator().manual_seed(7))
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, 5:] = 0
    if how == "plain":
        return {"input_ids": ids}
    return {"input_ids": ids, "attention_mask": mask.flip(1) if how == "left" else mask}


def array(how: str = "plain") -> Tensor:
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(7))


def waves(how: str) -> dict[str, Tensor]:
    sound = torch.randn(2, 100, generator=torch.Generator().manual_seed(7))
    mask = torch.ones(2, 100, dtype=torch.long)
    mask[1, 70:] = 0
    return {"input_values": sound} if how != "padded" else {"input_values": sound, "attention_mask": mask}


def frames(given: Any) -> Tensor | None:
    """The frames of two convolutions, kernels 10 and 3, strides 5 and 2, that samples make."""
    if "attention_mask" not in given:
        return None
    lengths = [((int(n) - 10) // 5 + 1 - 3) // 2 + 1 for n in given["attention_mask"].sum(-1)]
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def tiles(how: str) -> dict[str, Tensor]:
    """Two pictures of two tiles each. Padding patches are seen by the others, and so count."""
    pixels = torch.randn(2, 1, 2, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    ones = torch.ones(2, 1, 2, dtype=torch.long)
    return {"pixel_values": pixels, "aspect_ratio_ids": torch.full((2, 1), 2), "aspect_ratio_mask": ones}


_LLAMA = dict(
    given=words,
    block="layers.{}",
    value="layers.{}.self_attn.v_proj",
    output="layers.{}.self_attn.o_proj",
    course=_then_mlp("layers.{}.post_attention_layernorm"),
    packing=SEPARATE,
    kv_heads=2,
    massive="embed_tokens.weight",
)
_MINIMAX = dict(
    **_GQA,
    head_dim=8,
    num_local_experts=2,
    num_experts_per_tok=1,
    full_attn_alpha_factor=3.5,
    full_attn_beta_factor=0.8,
    linear_attn_alpha_factor=2.5,
    linear_attn_beta_factor=0.7,
    mlp_alpha_factor=1.5,
    mlp_beta_factor=0.6,
    block_size=4,
)
_IN_MINIMAX = _LLAMA | dict(
    # What is kept is what its first norm gave.
    course=(
        Step("norm", "out:layers.{}.input_layernorm"),
        Step("attention", "in:layers.{}.post_attention_layernorm"),
        Step("norm", "out:layers.{}.post_attention_layernorm"),
        END,
    ),
    keep=3.5,
    base=1,
    factor=lambda modules, place: 0.8,
    norm="",  # before attention, and on the stream
)
_WAV = dict(
    **_SIZES,
    vocab_size=32,
    conv_dim=(8, 8),
    conv_kernel=(10, 3),
    conv_stride=(5, 2),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    layerdrop=0.0,
)
_IN_WAV = dict(
    given=waves,
    tokens_of=frames,
    block="encoder.layers.{}",
    value="encoder.layers.{}.attention.v_proj",
    output="encoder.layers.{}.attention.out_proj",
    packing=SEPARATE,
)
_WAV_POST = _IN_WAV | dict(
    course=_post("encoder.layers.{}.layer_norm", "encoder.layers.{}.final_layer_norm"), norm="post"
)
_WAV_PRE = _IN_WAV | dict(course=_then_mlp("encoder.layers.{}.final_layer_norm"))
_MLLAMA = dict(
    hidden_size=WIDTH,
    num_hidden_layers=3,
    num_global_layers=2,
    attention_heads=HEADS,
    intermediate_size=48,
    image_size=8,
    patch_size=4,
    max_num_tiles=2,
    supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]],
    intermediate_layers_indices=[0],
    vision_output_dim=2 * WIDTH,
)


def _mllama(stack: str) -> dict[str, Any]:
    return dict(
        given=tiles,
        block=stack + ".layers.{}",
        value=stack + ".layers.{}.self_attn.v_proj",
        output=stack + ".layers.{}.self_attn.o_proj",
        weights_of=stack + ".layers.{}.self_attn",
        course=_then_mlp(stack + ".layers.{}.post_attention_layernorm"),
        packing=SEPARATE,
        settings={"stack": "global"} if "global" in stack else {},  # the other one is deeper
    )


def _tanh_gate(modules: Modules, place: int) -> Tensor:
    return modules[f"global_transformer.layers.{place}"].gate_attn.detach().double().tanh()


def _falcon(**more: Any) -> dict[str, Any]:
    sizes = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, alibi=False, **_WORDS)
    return dict(build=hf("FalconModel", "FalconConfig", **sizes, **more), given=words) | dict(
        block="h.{}",
        value="h.{}.self_attention.query_key_value",
        output="h.{}.self_attention.dense",
        massive="word_embeddings.weight",
    )


def _beside(mlp: str) -> dict[str, Any]:
    """The MLP runs beside attention and nobody reads the sum; `mlp` gives what is added."""
    return dict(course=PARALLEL, beside=((mlp, 1.0),))


_BIGCODE = dict(
    given=words,
    block="h.{}",
    value="h.{}.attn.c_attn",
    output="h.{}.attn.c_proj",
    course=_then_mlp("h.{}.ln_2"),
    massive="wte.weight",
)
_BIGCODE_SIZES = dict(n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, n_inner=48, **_WORDS)
_DEBERTA = dict(
    given=words,
    block="encoder.layer.{}",
    output="encoder.layer.{}.attention.output.dense",
    course=_post("encoder.layer.{}.attention.output.LayerNorm", "encoder.layer.{}.output.LayerNorm"),
    norm="post",
)
_DEBERTA_SIZES = dict(
    **_SIZES, **_WORDS, relative_attention=True, pos_att_type=["c2p", "p2c"], max_position_embeddings=32
)


def _latent_values(modules: Modules, place: int) -> list[Tensor]:
    """W_V by head through the latent, the inner norm's weight on the way; and without it."""
    attention = modules[f"layers.{place}.self_attn"]
    down = attention.kv_a_proj_with_mqa.weight[:16].detach().double()
    up = attention.kv_b_proj.weight.detach().double().reshape(HEADS, 8 + 8, 16)[:, 8:]
    gamma = attention.kv_a_layernorm.weight.detach().double()
    return [down.T @ (up * gamma).mT, down.T @ up.mT]


def _through_latent(case: Case, modules: Modules, passage: Passage) -> Tensor:
    """Values are x W_V over the size of the token's latent: one number a token."""
    attention = modules[f"layers.{passage.place}.self_attn"]
    x = passage.heard["in:" + case.value].double()
    latent = x @ attention.kv_a_proj_with_mqa.weight[:16].T.double()
    scale = (latent.square().mean(-1, keepdim=True) + attention.kv_a_layernorm.variance_epsilon).rsqrt()
    W_V, _ = _latent_values(modules, passage.place)
    # The norm computes in float32, whatever it is given; what it gave is heard at the next module.
    exact = x[:, None] @ W_V * scale[:, None]
    heard = passage.heard["in:layers.{}.self_attn.kv_b_proj"].double()
    up = attention.kv_b_proj.weight.double().reshape(HEADS, 16, 16)[:, 8:]
    values = heard[:, None] @ up.mT
    assert float((values - exact).abs().max() / exact.abs().max()) < 1e-5, "the latent's norm is not as described"
    return _project(case, modules, passage.place, passage.A @ values)


def _output_gate(case: Case, modules: Modules, passage: Passage) -> Tensor:
    """Qwen3-Next: the second half of each head's queries opens and shuts its channels, token by token."""
    gate = passage.heard["out:layers.{}.self_attn.q_proj"].double().unflatten(-1, (HEADS, 2, -1))[..., 1, :].sigmoid()
    W_V, _ = _value_weight(case, modules, passage.place)
    mixed = passage.A @ (passage.heard["in:" + case.value].double()[:, None] @ W_V)
    return _project(case, modules, passage.place, mixed * gate.transpose(1, 2))


_QWEN3_NEXT = dict(
    **_GQA,
    head_dim=8,
    num_experts=0,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
)
_FALCON_H1 = dict(
    **_GQA,
    mamba_d_ssm=32,
    mamba_n_heads=4,
    mamba_d_state=8,
    mamba_chunk_size=4,
    attention_out_multiplier=0.3,
    ssm_out_multiplier=0.4,
    key_multiplier=0.7,
    embedding_multiplier=1.3,
    mlp_multipliers=[0.8, 0.6],
    ssm_multipliers=[0.9, 0.8, 0.7, 1.1, 1.2],
)

_DESCRIBED = [
    Case(
        "Granite",
        hf("GraniteModel", "GraniteConfig", **_GQA, residual_multiplier=0.22, embedding_multiplier=2.0),
        **_LLAMA,
        factor=lambda modules, place: 0.22,
    ),
    Case(
        "GraniteMoe",
        hf(
            "GraniteMoeModel",
            "GraniteMoeConfig",
            **_GQA,
            residual_multiplier=0.6,
            num_local_experts=2,
            num_experts_per_tok=1,
        ),
        **_LLAMA,
        factor=lambda modules, place: 0.6,
    ),
    Case("MiniMax", hf("MiniMaxModel", "MiniMaxConfig", **_MINIMAX, layer_types=["full_attention"] * 2), **_IN_MINIMAX),
    Case(
        # The linear layer is no softmax and is left out with a remark; its block is where the first one starts.
        "MiniMax (linear, then full)",
        hf("MiniMaxModel", "MiniMaxConfig", **_MINIMAX, layer_types=["linear_attention", "full_attention"]),
        **_IN_MINIMAX | dict(massive=""),
        weights_of="layers.{}.self_attn",
        runs=(1,),
    ),
    Case(
        "FalconH1",
        hf("FalconH1Model", "FalconH1Config", **_FALCON_H1),
        **_LLAMA | dict(course=_then_mlp("layers.{}.pre_ff_layernorm")),
        other_course=(Step("attention", "sum"), Step("mamba", "in:layers.{}.pre_ff_layernorm"), END),
        factor=lambda modules, place: 0.3,
        beside=(("layers.{}.mamba", 0.4),),
    ),
    Case(
        "Mllama vision",
        hf("MllamaVisionModel", "MllamaVisionConfig", **_MLLAMA),
        **_mllama("transformer"),
        runs=(0, 1, 2),
    ),
    Case(
        "Mllama vision (global, gated)",
        hf("MllamaVisionModel", "MllamaVisionConfig", **_MLLAMA),
        **_mllama("global_transformer"),
        factor=_tanh_gate,
    ),
    Case("Wav2Vec2", hf("Wav2Vec2Model", "Wav2Vec2Config", **_WAV), **_WAV_POST),
    Case(
        "Wav2Vec2 (stable layer norm)",
        hf("Wav2Vec2Model", "Wav2Vec2Config", **_WAV, do_stable_layer_norm=True, feat_extract_norm="layer"),
        **_WAV_PRE,
    ),
    Case("HuBERT", hf("HubertModel", "HubertConfig", **_WAV), **_WAV_POST),
    Case(
        "HuBERT (stable layer norm)",
        hf("HubertModel", "HubertConfig", **_WAV, do_stable_layer_norm=True, feat_extract_norm="layer"),
        **_WAV_PRE,
    ),
    Case(
        "WavLM",
        hf("WavLMModel", "WavLMConfig", **_WAV, num_buckets=8, max_bucket_distance=16),
        **_WAV_POST | dict(value="encoder.layers.{}.attention", output="encoder.layers.{}.attention"),
        weights_of="multi_head_attention_forward",
    ),
    Case(
        "Phi",
        hf("PhiModel", "PhiConfig", **_SIZES, **_WORDS),
        **_LLAMA | _beside("layers.{}.mlp") | dict(output="layers.{}.self_attn.dense", kv_heads=HEADS),
    ),
    Case(
        "Falcon (one after another, per head)",
        **_falcon(multi_query=False, parallel_attn=False, bias=True),
        course=_then_mlp("h.{}.post_attention_layernorm"),
        packing=PER_HEAD,
    ),
    Case(
        "Falcon (parallel, one key and value)",
        **_falcon(multi_query=True, parallel_attn=True),
        **_beside("h.{}.mlp"),
        packing=STACKED,
        kv_heads=1,
    ),
    Case(
        "Falcon (new, groups)",
        **_falcon(new_decoder_architecture=True, num_kv_heads=2),
        **_beside("h.{}.mlp"),
        packing=PER_GROUP,
        kv_heads=2,
    ),
    Case(
        "MPT",
        hf("MptModel", "MptConfig", d_model=WIDTH, n_heads=HEADS, n_layers=2, max_seq_len=32, vocab_size=64),
        words,
        "blocks.{}",
        "blocks.{}.attn.Wqkv",
        "blocks.{}.attn.out_proj",
        _then_mlp("blocks.{}.norm_2"),
        STACKED,
        massive="wte.weight",
    ),
    Case(
        "GPTBigCode (multi-query)",
        hf("GPTBigCodeModel", "GPTBigCodeConfig", **_BIGCODE_SIZES, multi_query=True),
        **_BIGCODE,
        packing=STACKED,
        kv_heads=1,
    ),
    Case(
        "GPTBigCode (all heads)",
        hf("GPTBigCodeModel", "GPTBigCodeConfig", **_BIGCODE_SIZES, multi_query=False),
        **_BIGCODE,
        packing=PER_HEAD,
    ),
    Case(
        "CodeGen",
        hf(
            "CodeGenModel",
            "CodeGenConfig",
            n_embd=WIDTH,
            n_layer=2,
            n_head=HEADS,
            rotary_dim=4,
            n_positions=32,
            **_WORDS,
        ),
        words,
        "h.{}",
        "h.{}.attn.qkv_proj",
        "h.{}.attn.out_proj",
        packing=CODEGEN,
        **_beside("h.{}.mlp"),
        massive="wte.weight",
    ),
    Case(
        "DeBERTa",
        hf("DebertaModel", "DebertaConfig", **_DEBERTA_SIZES),
        **_DEBERTA,
        value="encoder.layer.{}.attention.self.in_proj",
        packing=PER_HEAD,
    ),
    Case(
        "DeBERTa v2",
        hf("DebertaV2Model", "DebertaV2Config", **_DEBERTA_SIZES, position_buckets=8),
        **_DEBERTA,
        value="encoder.layer.{}.attention.self.value_proj",
        packing=SEPARATE,
    ),
    Case(
        "DeepSeek-V3",
        hf(
            "DeepseekV3Model",
            "DeepseekV3Config",
            **_SIZES,
            **_WORDS,
            num_key_value_heads=HEADS,
            kv_lora_rank=16,
            q_lora_rank=16,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=8,
            first_k_dense_replace=2,
        ),
        **_LLAMA
        | dict(value="layers.{}.self_attn.kv_a_proj_with_mqa", kv_heads=HEADS, massive="")
        | dict(product=_latent_values, mix=_through_latent, also=("layers.{}.self_attn.kv_b_proj",), gated="token"),
    ),
    Case(
        "GPT-OSS",
        hf(
            "GptOssModel",
            "GptOssConfig",
            **_GQA,
            head_dim=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=4,
        ),
        **_LLAMA,
        gated="sink",
    ),
    Case(
        "Qwen3-Next",
        hf("Qwen3NextModel", "Qwen3NextConfig", **_QWEN3_NEXT, layer_types=["full_attention"] * 2),
        **_LLAMA,
        mix=_output_gate,
        also=("layers.{}.self_attn.q_proj",),
        gated="token",
    ),
    Case(
        "Qwen3-Next (linear, then full)",
        hf("Qwen3NextModel", "Qwen3NextConfig", **_QWEN3_NEXT, layer_types=["linear_attention", "full_attention"]),
        **_LLAMA | dict(massive=""),
        mix=_output_gate,
        also=("layers.{}.self_attn.q_proj",),
        gated="token",
        runs=(1,),
    ),
    Case(
        "ModernBERT decoder",
        hf("ModernBertDecoderModel", "ModernBertDecoderConfig", **_SIZES, **_WORDS, cls_token_id=1, sep_token_id=2),
        words,
        "layers.{}",
        "layers.{}.attn.v_proj",
        "layers.{}.attn.Wo",
        _then_mlp("layers.{}.mlp_norm"),
        SEPARATE,
        may_decline=True,
    ),
]


# Modules as people write them


class Own(nn.Module):
    """A block that takes notes of its stream in plain attributes, which no module reads."""

    def __init__(self, scale: str = "") -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = ToyAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))
        self.notes: dict[str, Tensor] = {}
        self.setup()

    def setup(self) -> None: ...

    def note(self, part: str, x: Tensor) -> Tensor:
        self.notes[part] = x.detach().clone()
        return x


class Halved(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + 0.5 * self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class OneGate(Own):
    def setup(self) -> None:
        self.zeta = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + self.zeta.tanh() * self.attn(self.norm1(x)))
        return x + self.zeta.tanh() * self.mlp(self.norm2(x))


class ChannelGate(Own):
    def setup(self) -> None:
        self.zeta = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + self.zeta * self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class TokenGate(Own):
    def setup(self) -> None:
        self.opens = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = self.note("attention", x + self.opens(h).sigmoid() * self.attn(h))
        return x + self.mlp(self.norm2(x))


class Deep(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.note("attention", 2.2 * x + self.attn(x)))
        return self.norm2(2.2 * x + self.mlp(x))


class NoResidual(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class MlpFirst(Own):
    def forward(self, x: Tensor) -> Tensor:
        x = self.note("mlp", x + self.mlp(self.norm2(x)))
        return x + self.attn(self.norm1(x))


class Beside(Own):
    def forward(self, x: Tensor) -> Tensor:
        attended = 0.6 * self.attn(self.norm1(x))
        self.note("attention", x + attended)
        return x + attended + 0.4 * self.mlp(self.norm2(x))


class Functional(Own):
    """No module reads the sum: the MLP's norm is a function."""

    def setup(self) -> None:
        del self.norm2

    def forward(self, x: Tensor) -> Tensor:
        x = self.note("attention", x + 0.7 * self.attn(self.norm1(x)))
        return x + self.mlp(F.layer_norm(x, (WIDTH,)))


class HalvedHand(HandBlock):
    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + 0.5 * self.attn(h, h, h, need_weights=False)[0]
        self.notes["attention"] = x.detach().clone()
        return x + self.mlp(self.norm2(x))


def _own(name: str, block: type[nn.Module], *course: Step, **more: Any) -> Case:
    own = dict(
        given=array,
        block="blocks.{}",
        value="blocks.{}.attn.to_qkv",
        output="blocks.{}.attn.to_out",
        packing=STACKED,
        library="toy",
        on_disk=False,  # the factor is in no weight of a known name
    )
    return Case(
        name, lambda: Stack(block(), block()), course=course or (Step("attention", "note:attention"), END), **own | more
    )


_OWN = [
    _own("own: 0.5 of attention", Halved, factor=lambda modules, place: 0.5),
    _own(
        "own: one unnamed gate",
        OneGate,
        factor=lambda modules, place: modules[f"blocks.{place}"].zeta.detach().double().tanh(),
    ),
    _own(
        "own: an unnamed gate by channel",
        ChannelGate,
        factor=lambda modules, place: modules[f"blocks.{place}"].zeta.detach().double(),
    ),
    _own("own: a gate by token", TokenGate, gated="token"),
    _own(
        "own: DeepNorm",
        Deep,
        *_post("blocks.{}.norm1", "blocks.{}.norm2"),
        keep=2.2,
        norm="post",
    ),
    _own("own: no residual around attention", NoResidual, keep=0.0),
    _own("own: MLP before attention", MlpFirst, Step("mlp", "note:mlp"), Step("attention", "end"), base=1),
    _own(
        "own: parallel, both with a factor",
        Beside,
        Step("attention", "sum"),
        END,
        factor=lambda modules, place: 0.6,
        beside=(("blocks.{}.mlp", 0.4),),
    ),
    _own("own: a functional norm reads the sum", Functional, factor=lambda modules, place: 0.7, may_decline=True),
    _own(
        "own: 0.5 of nn.MultiheadAttention",
        HalvedHand,
        factor=lambda modules, place: 0.5,
        value="blocks.{}.attn",
        output="blocks.{}.attn",
        library="torch",
    ),
]

CASES: dict[str, Case] = {case.name: case for case in [*(_known(f) for f in FAMILIES.values()), *_DESCRIBED, *_OWN]}
"""All that must be right, by name."""
KNOWN, DESCRIBED, OWN = list(FAMILIES), [case.name for case in _DESCRIBED], [case.name for case in _OWN]
