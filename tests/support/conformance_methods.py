"""The ways of steering that are tested, and models that are steered with them; places and packing written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from support.families import FAMILIES, HEADS, WIDTH, Family, run, tensors
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from oversmooth import InputError
from oversmooth.steering import (
    AttnScale,
    Centred,
    ContraNorm,
    FeatScale,
    GatedAttention,
    Inversion,
    Laplacian,
    LayerNormScaling,
    Method,
    NeuTRENO,
    OrthogonalUpdate,
    Spectral,
    ValueResidual,
    steer,
)


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    methods: tuple[Method, ...]
    zeros: tuple[tuple[Method, ...], ...] = ()
    """The same with strength 0: fixed (empty where it is always learned), then learned. None for methods without a
    strength.
    """

    @property
    def spectral(self) -> Spectral | None:
        return next((m for m in self.methods if isinstance(m, Spectral)), None)

    def has(self, *kinds: type[Method]) -> bool:
        return any(isinstance(m, kinds) for m in self.methods)

    @property
    def norms(self) -> bool:
        return self.has(LayerNormScaling)


def _tested(*methods: Method, zeros: tuple[Method, ...] = ()) -> Row:
    return Row(methods, tuple((zero,) for zero in zeros))


METHODS: dict[str, Row] = {
    "Spectral: sharpen": _tested(Spectral("sharpen")),
    "Spectral: smooth, bounded, Cayley, cold": _tested(
        Spectral("smooth", bounded=True, orthogonal="cayley", start="cold")
    ),
    "Spectral: sharpen, general": _tested(Spectral("sharpen", form="general")),
    "Spectral: smooth, exponential": _tested(Spectral("smooth", orthogonal="exp")),
    "Spectral: sharpen, the code's wiring": _tested(Spectral("sharpen", wiring="code")),
    "NeuTRENO": _tested(NeuTRENO(0.6), zeros=(NeuTRENO(0), NeuTRENO(0, learned=True))),
    "NeuTRENO: learned by head": _tested(
        NeuTRENO(0.4, learned=True, per="head"), zeros=(NeuTRENO(0, per="head"), NeuTRENO(0, learned=True, per="head"))
    ),
    "AttnScale": _tested(AttnScale(0.3), zeros=(AttnScale(0, learned=False), AttnScale())),
    "FeatScale": _tested(FeatScale(0.2, -0.3), zeros=(FeatScale(learned=False), FeatScale())),
    "FeatScale: as published": _tested(
        FeatScale(0.2, -0.3, as_published=True),
        zeros=(FeatScale(learned=False, as_published=True), FeatScale(as_published=True)),
    ),
    "ContraNorm": _tested(
        ContraNorm(0.3, learned=True, temperature=0.7), zeros=(ContraNorm(0), ContraNorm(0, learned=True))
    ),
    "ValueResidual": _tested(
        ValueResidual(0.4, learned=True), zeros=(ValueResidual(0), ValueResidual(0, learned=True))
    ),
    "Centred": _tested(Centred(0.7, learned=True), zeros=(Centred(0), Centred(0, learned=True))),
    "Laplacian": _tested(Laplacian(0.8), zeros=(Laplacian(0), Laplacian(0, learned=True))),
    "Inversion": Row((Inversion(),), ((), (Inversion(),))),
    "GatedAttention": Row((GatedAttention(),), ((), (GatedAttention(),))),
    "OrthogonalUpdate": _tested(
        OrthogonalUpdate(0.8, learned=True), zeros=(OrthogonalUpdate(0), OrthogonalUpdate(0, learned=True))
    ),
    "LayerNormScaling": _tested(LayerNormScaling(), zeros=(LayerNormScaling(0),)),
    "NeuTRENO with FeatScale": Row(
        (NeuTRENO(0.6), FeatScale(0.2, -0.3)),
        ((NeuTRENO(0), FeatScale(learned=False)), (NeuTRENO(0, learned=True), FeatScale())),
    ),
}


# What must be refused, said without asking the product.

CAUSAL = "it averages over all tokens, and this attention is causal: a token would see later ones"
TOO_WIDE = (
    "its value heads together are wider than a token, so no V has that many independent columns; this is the T5 with "
    "d_kv · heads > d_model, and one where they are equal takes it"
)
NOT_SQUARE = "the code's wiring needs as many value features as a token has, and value heads that are not shared"
LOCAL = "it averages over all tokens, and some layers see only a window of them; those that see all take it (`layers=`)"
AFTER = "it scales norms before attention, and this family has none there"
SHARED = "it scales norms by depth, and these layers share theirs"
BY_CHANNEL = "a layer scale turns what attention adds, so that it would not stay orthogonal"
REASONS = {
    CAUSAL: "averages over all tokens",
    TOO_WIDE: "exceed the",
    NOT_SQUARE: "wiring='code' needs",
    LOCAL: "hides those beyond",
    AFTER: "norm",
    SHARED: "share their norms",
    BY_CHANNEL: "a layer scale",
}
"""Why, and what the message says."""


def refused(name: str, method: str) -> str | None:
    """Why this family cannot take this method; None if it can."""
    family, tested = FAMILIES[name], METHODS[method]
    inner = family.kv_heads * family.head_dim
    if tested.has(AttnScale, FeatScale, ContraNorm, Centred) and (family.causal or family.local):
        return CAUSAL if family.causal else LOCAL
    if tested.spectral and inner > WIDTH:
        return TOO_WIDE
    if tested.spectral and tested.spectral.wiring == "code" and (inner != WIDTH or family.kv_heads != HEADS):
        return NOT_SQUARE
    if tested.norms and len(set(family.runs)) < len(family.runs):
        return SHARED
    if tested.norms and family.norm != "pre":
        return AFTER
    return BY_CHANNEL if isinstance(family.factor, str) and tested.has(OrthogonalUpdate) else None


# Where weights are

_TWO = ("norm1", "norm2")
_RMS = ("input_layernorm", "post_attention_layernorm")
_GEMMA = ("input_layernorm", "pre_feedforward_layernorm")
NORMS = {
    **dict.fromkeys(("ViT", "DeiT"), ("layernorm_before", "layernorm_after")),
    "CLIP (vision)": ("layer_norm1", "layer_norm2"),
    "ModernBERT": ("attn_norm", "mlp_norm"),
    "GPT-2": ("ln_1", "ln_2"),
    **dict.fromkeys(("OPT", "Whisper (encoder)"), ("self_attn_layer_norm", "final_layer_norm")),
    **dict.fromkeys(("GPT-NeoX (parallel)", "GPT-NeoX (one after another)"), _RMS),
    **dict.fromkeys(("Llama", "Mistral", "Qwen3", "SmolLM3", "Phi-3"), _RMS),
    **dict.fromkeys(("Gemma 2", "Gemma 3"), _GEMMA),
    "T5 (encoder)": ("layer.0.layer_norm", "layer.1.layer_norm"),
    "attention alone (Pre-LN)": ("norm1",),
}
"""The norms before attention and MLP in a block; norm1 and norm2 where none are written here."""


def norms(family: Family, place: int) -> list[str]:
    return [f"{family.block.format(place)}.{name}" for name in NORMS.get(family.name, _TWO)]


def value_weight(family: Family, place: int) -> tuple[str, str]:
    """Module and weight."""
    return family.value.format(place), "in_proj_weight" if family.library == "torch" else "weight"


def output_weight(family: Family, place: int) -> tuple[str, str]:
    return family.output.format(place) + (".out_proj" if family.library == "torch" else ""), "weight"


def places(family: Family) -> list[int]:
    return sorted(set(family.runs))


# Steered models


def make(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    return FAMILIES[name].make(dtype)


def steered(name: str, method: str, dtype: torch.dtype = torch.float32, *, stirred: bool = True) -> nn.Module:
    """A model with everything that is learned away from where it starts."""
    model = steer(make(name, dtype), list(METHODS[method].methods))
    return stir(model, FAMILIES[name]) if stirred else model


def free_parameters(model: nn.Module, family: Family) -> dict[str, nn.Parameter]:
    """What steering learns: Θ, ψ and strengths, by name."""
    modules, found = dict(model.named_modules()), {}
    for place in places(family):
        for module, weight in (value_weight(family, place), output_weight(family, place)):
            if hasattr(modules[module], "parametrizations"):
                last = len(dict(modules[module].parametrizations[weight].named_parameters(recurse=False))) - 1
                found[f"{module}.parametrizations.{weight}.original{last}"] = None
    found.update((name, None) for name, _ in model.named_parameters() if ".oversmooth." in name)
    parameters = dict(model.named_parameters())
    return {name: parameters[name] for name in found}


def stir(model: nn.Module, family: Family, seed: int = 5) -> nn.Module:
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in free_parameters(model, family).items():
            # V must stay far from singular, and Θ is as large as one column of an orthogonal matrix.
            scale = 0.2 if ".oversmooth." in name or p.shape == (HEADS, family.head_dim) else 0.3 / math.sqrt(WIDTH)
            p.add_(scale * torch.randn(p.shape, generator=source, dtype=torch.float64).to(p))
    return model


def numbers(model: nn.Module, family: Family, tested: Row, place: int) -> dict[str, Tensor | float]:
    """What the methods of one layer are set to: "neutreno.strength" and the like, in float64."""
    block = family.block.format(place) + "."
    found: dict[str, Tensor | float] = {}
    for method in tested.methods:
        name = type(method).__name__.lower()
        if isinstance(method, FeatScale):
            found.update({f"{name}.s": method.low, f"{name}.t": method.high})
        elif isinstance(method, Inversion):
            found.update({f"{name}.low": 0.0, f"{name}.high": 0.0})
        elif isinstance(method, GatedAttention):
            found[f"{name}.gate"] = 0.0
        elif not isinstance(method, (Spectral, LayerNormScaling)):
            found[f"{name}.strength"] = method.strength
    for name, p in model.named_parameters():
        if name.startswith(block) and ".oversmooth." in name:
            key = name.partition(".oversmooth.")[2]
            assert key in found, f"{name} is not expected"
            found[key] = p.detach().double()
    return found


# Runs


class KeepDouble(TorchFunctionMode):
    """What models compute in float32 whatever they are given, such as norms and softmax, stays in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float:
                return args[0]
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        if func in (Tensor.matmul, Tensor.__matmul__) and len({a.dtype for a in args}) > 1:
            args = tuple(a.double() for a in args)  # rotary frequencies and whole numbers, in transformers 4
        return func(*args, **kwargs)


def outputs(model: nn.Module, family: Family, given: Any = None, **more: Any) -> list[Tensor]:
    """All arrays that come out, tokens first where there are tokens, without padding."""
    given = family.inputs(next(model.parameters()).dtype) if given is None else given
    return [counted(family, out) for out in tensors(run(model, given, **more))]


def counted(family: Family, out: Tensor) -> Tensor:
    """Tokens that are not padding, in one row; what has no tokens as it is."""
    mask = family.mask()
    if out.ndim < 3:
        return out
    out = out if family.batch_first else out.transpose(0, 1)
    return out.flatten(0, 1) if mask is None else out[mask[: len(out)]]


def loss(outs: list[Tensor]) -> Tensor:
    """A number that every entry has a say in."""
    total = sum((out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape).sin()).sum() for out in outs)
    assert isinstance(total, Tensor)
    return total


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same_gradients(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    """Relative to the largest entry of all."""
    assert got.keys() == expected.keys()
    largest = max(g.abs().max().item() for g in expected.values())
    for key, g in expected.items():
        off = (got[key] - g).abs().max().item()
        assert off <= tolerance * largest, f"gradient of {key} off by {off / largest:.2g}"


def seeded(seed: int, call: Callable[[], Any]) -> Any:
    torch.manual_seed(seed)
    return call()


def close(got: Tensor, expected: Tensor, tolerance: float, what: str = "") -> None:
    """Relative to the largest entry."""
    assert got.shape == expected.shape, f"{what}: {tuple(got.shape)} and {tuple(expected.shape)}"
    got, expected = got.detach().double(), expected.detach().double()
    off = float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    assert off <= tolerance, f"{what}: off by {off:.2g}"


def all_close(got: list[Tensor], expected: list[Tensor], tolerance: float, what: str = "outputs") -> None:
    assert len(got) == len(expected) > 0
    for a, b in zip(got, expected, strict=True):
        close(a, b, tolerance, what)


def input_error(call: Callable[[], Any]) -> str:
    """The message of the InputError that must come."""
    try:
        call()
    except InputError as error:
        return str(error)
    raise AssertionError("no InputError")
