"""What must hold for a model of every family, by routes that share nothing with what is checked.

The tests run these one by one; each raises AssertionError with what is wrong. docs/models.md is made from the oracle of
tests/adversary/numbers, which knows more families and takes nothing from the package, not even where weights lie.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from adversary.numbers.family_cases import CASES
from adversary.numbers.family_columns import on_disk, same_layer
from adversary.numbers.family_oracle import Passage, passages, stream
from support.families import FAMILIES, HEADS, WIDTH, Family, run, tensors
from support.oracles import centred_basis, dense_radii
from support.oracles import token_metrics as slow_metrics
from torch import Tensor, nn

from oversmooth import Diagnosis, diagnose
from oversmooth.anatomy import Anatomy, locate
from oversmooth.trace import HeadSpectra, TokenMetrics, Trace, study
from oversmooth.trace.watch import Watch


@functools.cache
def anatomy(name: str) -> Anatomy:
    return locate(FAMILIES[name].make())


@functools.cache
def diagnosis(name: str) -> Diagnosis:
    family = FAMILIES[name]
    return diagnose(family.make(), family.inputs(), name=name, joined=2, depth=4)


def near(got: Any, expected: Any, what: str, tolerance: float = 1e-4) -> None:
    got, expected = torch.as_tensor(got).double(), torch.as_tensor(expected).double()
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


# Checks


def check_located(name: str) -> None:
    family, found = FAMILIES[name], anatomy(name)
    assert len(found) == len(family.runs), f"{len(found)} layers"
    for layer, place in zip(found, family.runs, strict=True):
        assert layer.block == family.block.format(place)
        assert (layer.heads, layer.kv_heads, layer.head_dim) == (HEADS, family.kv_heads, family.head_dim)
        assert layer.width == WIDTH
        assert layer.causal == family.causal
        assert layer.W_V.shape == (HEADS, WIDTH, family.head_dim)
        assert layer.W_O.shape == (HEADS, family.head_dim, WIDTH)
        first_of_modernbert = name == "ModernBERT" and place == 0  # its embedding is normed already
        assert layer.norm_position == ("none" if first_of_modernbert else family.norm)
        assert (layer.norm.kind if layer.norm else None) == (None if first_of_modernbert else family.kind)
        assert bool(family.branch and "norm" not in family.branch) == (layer.layer_scale is not None)


def check_weights(name: str) -> None:
    """``Σ_h A_h (x W_V^h + b_V^h) W_O^h + b_O`` is what attention returned and, scaled, what was added."""
    case = CASES[name]
    found = locate(case.make(torch.float64), **case.settings)
    attending = [passage for passage in passages(name) if passage.heads is not None]
    for layer, passage in zip(found, attending, strict=True):
        assert (layer.kv_heads, layer.head_dim) == (case.kv_heads, case.head_dim)
        same_layer(case, layer, passage)
        x = passage.heard["in:" + case.value].double()
        values = layer.values(x)
        if not layer.values_normed:
            bias = 0.0 if layer.value_bias is None else layer.value_bias[:, None]
            near(values, x[:, None] @ layer.raw_W_V + bias, f"{layer}: its values", 1e-6)
        if case.mix is not None and not layer.values_normed:
            continue  # a gate on what attention gives
        out = ((passage.A @ values) @ layer.raw_W_O).sum(1)
        out = out if layer.output_bias is None else out + layer.output_bias
        for i, keep in enumerate(case.rows()):
            near(out[i][keep], passage.heard["out:" + case.output][i][keep], f"{layer}: attention's output", 1e-6)
        if layer.layer_scale is not None and case.branch:
            scale = layer.weights.read(layer.layer_scale)
            near(out * scale, passage.heard["out:" + case.branch], f"{layer}: what is added", 1e-6)
        if layer.norm is not None and name in FAMILIES:
            check_norm(case, layer, passage)


def check_norm(family: Family, layer: Any, passage: Passage) -> None:
    """The norm, written out with what anatomy says, against what it gave."""
    pre = layer.norm_position == "pre"
    x = passage.x if pre else passage.x + passage.heard["out:" + (family.branch or family.output)]
    z = x - x.mean(-1, keepdim=True) if layer.norm.kind == "layer" else x
    z = z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.gamma
    z = z if layer.norm.beta is None else z + layer.norm.beta
    near(z, passage.heard["in:" + family.value if pre else "out:" + family.after], f"{layer}: its norm", 1e-3)


FIELDS = ("heads", "kv_heads", "head_dim", "width", "keep", "feed", "values_normed", "leak")
NORM_NOT_SAID = ("BLIP (vision)", "InternVL (vision)", "Nemotron-H (Mamba 2, attention, MLP)")
"""Families whose checkpoints do not say where attention's norm stands."""


def same_anatomy(live: Anatomy, disk: Anatomy) -> None:
    """The same layers with the same weights; names on disk may be another version's."""
    assert len(live) == len(disk), f"{len(disk)} layers on disk"
    for a, b in zip(live, disk, strict=True):
        assert bool(a.causal) == bool(b.causal), f"{a}: causal"  # encoders: False, or not said
        for each in ("block", "layer_scale"):  # libraries rename modules between memory and disk
            assert (getattr(a, each) is None) == (getattr(b, each) is None), f"{a}: {each}"
        for each in FIELDS:
            assert getattr(a, each) == getattr(b, each), f"{a}: {each} is {getattr(b, each)} on disk"
        for each in ("factor", "W_V", "W_O", "value_bias", "output_bias"):
            _equal(getattr(a, each), getattr(b, each), f"{a}: {each}")
        assert a.layout.packing == b.layout.packing, f"{a}: packing"
        if b.norm_position == "unknown":
            continue
        assert a.norm_position == b.norm_position, f"{a}: the norm is {b.norm_position} on disk"
        assert (a.norm is None) == (b.norm is None), f"{a}: norm"
        if a.norm is not None and b.norm is not None:
            assert (a.norm.kind, a.norm.offset) == (b.norm.kind, b.norm.offset), f"{a}: kind of norm"
            _equal(a.norm.gamma, b.norm.gamma, f"{a}: gamma")
            _equal(a.norm.beta, b.norm.beta, f"{a}: beta")


def _equal(a: Tensor | float | None, b: Tensor | float | None, what: str) -> None:
    assert (a is None) == (b is None), f"{what} is missing in one"
    if isinstance(a, float):
        assert a == float(b), f"{what} differs"
    elif a is not None and b is not None:
        assert a.dtype == b.dtype, f"{what}: {a.dtype} and {b.dtype}"
        assert torch.equal(a, b), f"{what} differs"


def has_config(name: str) -> bool:
    return CASES[name].library == "transformers"


def check_disk(name: str) -> None:
    """What anatomy finds in a live model it finds in its checkpoint."""
    case = CASES[name]
    with on_disk(case) as disk:
        same_anatomy(locate(case.make(), **case.settings), disk)
        assert any(layer.norm_position == "unknown" for layer in disk) == (name in NORM_NOT_SAID), "where norms stand"


def observed(model: nn.Module, given: Any, seed: int | None = None) -> Any:
    """The model's output while it is watched, after a look at it as `diagnose` takes."""
    found = locate(model)
    with torch.no_grad():
        plan = study(model, found, lambda: run(model, given)).plan
    with Trace(model, plan, [TokenMetrics(plan), HeadSpectra(plan)]) as trace:
        trace.begin()
        if seed is not None:
            torch.manual_seed(seed)
        return run(model, given)


def check_untouched(model: nn.Module) -> None:
    for name, module in model.named_modules():
        assert "forward" not in module.__dict__, f"{name}: forward was left replaced"
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            assert not hooks, f"{name}: a hook was left"


def check_identical(name: str, dtype: torch.dtype = torch.float32) -> None:
    """The same bits come out, watched or not, of torch's own layers step by step; in train mode too, with the same
    chance afterwards.
    """
    family = FAMILIES[name]
    model, given = family.make(dtype), family.inputs(dtype)
    with torch.no_grad():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            expected = tensors(run(model, given))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        same_bits(tensors(observed(model, given)), expected)
        assert torch.backends.mha.get_fastpath_enabled()
    check_untouched(model)
    with_dropout(model)
    torch.manual_seed(3)
    expected = tensors(run(model, given))
    after = torch.get_rng_state()
    same_bits(tensors(observed(model, given, seed=3)), expected)
    assert torch.equal(torch.get_rng_state(), after), "other random numbers come next"
    assert model.training
    check_untouched(model)


def with_dropout(model: nn.Module) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
        for each in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, each, None), float):
                setattr(module, each, 0.2)


def same_bits(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(got) == len(expected) > 0
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)), f"off by {(a - b).abs().max():.2g}"


class _Caught:
    """A listener that keeps attention and nothing else."""

    def __init__(self) -> None:
        self.attentions: list[tuple[Any, Any]] = []

    def attention(self, _call, block, captured, _x, _y) -> None:
        self.attentions.append((block, captured.A))

    def enter(self, *_) -> None: ...

    def part(self, *_) -> None: ...

    def leave(self, *_) -> None: ...


def check_attention(name: str) -> None:
    """What was caught, as a matrix, is attention computed step by step."""
    family = FAMILIES[name]
    model = family.make()
    seen = _Caught()
    layers = {layer.block: layer for layer in locate(model)}
    with torch.no_grad(), Watch(dict(model.named_modules()), layers, seen, lambda _: []):
        run(model, family.inputs())
    for (layer, A), passage in zip(seen.attentions, passages(name), strict=True):
        caught = A.dense().A
        for i, keep in enumerate(family.rows()):
            part = caught[i] if isinstance(keep, slice) else caught[i][:, keep][:, :, keep]
            expected = passage.A[i] if isinstance(keep, slice) else passage.A[i][:, keep][:, :, keep]
            near(part, expected, f"{layer}: A of input {i}", 1e-5)
            if not isinstance(keep, slice):
                assert not caught[i][:, keep][:, :, ~keep].any(), "padding is looked at"


def largest(M: Tensor, rank: int) -> Tensor:
    """The eigenvalues that can differ from zero in a d by d matrix of this rank."""
    values = torch.linalg.eigvals(M)
    return values[values.abs().argsort(descending=True)[:rank]]


def check_negative_share(name: str, variant: str = "raw") -> None:
    """Of the eigenvalues that can differ from zero; the zero that centring leaves is not negative either."""
    for layer, found in zip(anatomy(name), diagnosis(name).layers[1:], strict=True):
        V, W_O = layer.W_V.double(), layer.W_O.double()
        assert found.spectrum is not None
        if variant not in found.spectrum.joined:
            continue
        if variant == "folded":
            V = torch.diag(layer.norm.gamma.double()) @ V
            V = V - V.mean(-2, keepdim=True) if layer.norm.kind == "layer" else V
        values = largest((V @ W_O).sum(0), layer.kv_heads * layer.head_dim)
        expected = (values.real < -1e-6 * values.abs().max()).double().mean()
        near(found.spectrum.joined[variant].negative_share, expected, f"{layer}: negative share, {variant}", 1e-6)


def check_extrapolation(name: str) -> None:
    """The last block once more: its radii from dense matrices, and the block itself."""
    family, found = FAMILIES[name], diagnosis(name)
    entry = found.extrapolation[0]
    assert entry.what == "last block"
    passage, layer = passages(name)[-1], anatomy(name).layers[-1]
    last = family.runs[-1:] * 4
    near(entry.real.log_hfc_lfc, real_course(name, last), "the last block itself", 1e-3)
    if family.gated:
        assert (entry.verdict, entry.rho_rough) == ("undecided", None)
        return
    W_V, W_O, offset = _effective(layer, passage)
    A = passage.A[0]  # the first input has no padding
    smooth, rough = dense_radii(A, W_V, W_O)
    near(entry.rho_smooth, smooth, "rho_smooth of the last block")
    near(entry.rho_rough, rough, "rho_rough of the last block")
    margin = (max(smooth, 1.0) if bool(offset.any()) else smooth) - rough
    assert entry.verdict == ("smooth" if margin > 0 else "rough")


def _effective(layer: Any, passage: Passage) -> tuple[Tensor, Tensor, Tensor]:
    """(W_V, W_O, what is added to every token) in float64, from THEORY §4."""
    W_V, W_O = layer.W_V.double(), layer.W_O.double()
    values = 0.0 if layer.value_bias is None else layer.value_bias.double()[:, None]
    if layer.norm_position == "pre":
        if layer.norm.beta is not None:
            values = values + layer.norm.beta.double() @ W_V.double()[:, None]
            values = values.reshape(HEADS, 1, -1)
        C = torch.eye(WIDTH, dtype=torch.float64) - (1 / WIDTH if layer.norm.kind == "layer" else 0.0)
        entered = passage.x[0]
        square = entered.var(-1, unbiased=False) if layer.norm.kind == "layer" else entered.square().mean(-1)
        W_V = C @ torch.diag(layer.norm.gamma.double()) @ W_V * square.rsqrt().mean()
    offset = torch.zeros(WIDTH, dtype=torch.float64)
    if isinstance(values, Tensor):
        offset = offset + (values @ W_O).sum((0, 1))
    if layer.output_bias is not None:
        scale = 1.0 if layer.layer_scale is None else layer.weights.read(layer.layer_scale).double()
        offset = offset + layer.output_bias.double() * scale
    if layer.norm_position == "post":
        B = centred_basis(WIDTH)
        return B.T @ W_V, W_O @ B, offset @ B
    return W_V, W_O, offset


def check_stack(name: str) -> None:
    """The whole stack once more: the blocks themselves."""
    family, entries = FAMILIES[name], diagnosis(name).extrapolation[1:]
    if not entries:
        return
    (entry,) = entries
    assert (entry.what, entry.verdict, entry.rho_rough) == ("stack", "", None)
    passes = len(entry.real.depth) // len(family.runs)
    near(entry.real.log_hfc_lfc, real_course(name, family.runs * passes), "the blocks themselves", 1e-3)


def real_course(name: str, places: tuple[int, ...]) -> list[float]:
    """log HFC/LFC of the first input after these blocks, called by hand on what the model ends with."""
    family = FAMILIES[name]
    model = family.make(torch.float64)
    modules, calls, given = dict(model.named_modules()), {}, family.inputs(torch.float64)
    if isinstance(given, Tensor):
        given = given[:1]
    else:
        axis = 0 if family.batch_first else 1
        given = {k: v.narrow(axis if v.is_floating_point() else 0, 0, 1) for k, v in given.items()}
    blocks = {place: modules[family.block.format(place)] for place in set(family.runs)}
    hooks = [
        block.register_forward_pre_hook(lambda _, *call, place=place: calls.update({place: call}), with_kwargs=True)
        for place, block in blocks.items()
    ]
    run(model, given)
    for hook in hooks:
        hook.remove()
    x = passages(name)[-1].y[:1]
    x = x if family.batch_first else x.transpose(0, 1)
    out = [slow_metrics(x.reshape(-1, WIDTH))["log_hfc_lfc"]]
    for place in places:
        args, kwargs = calls[place]
        old = stream((args, kwargs))
        args = tuple(x if isinstance(a, Tensor) and a.shape == old.shape else a for a in args)
        kwargs = {k: x if isinstance(v, Tensor) and v.shape == old.shape else v for k, v in kwargs.items()}
        x = stream(blocks[place](*args, **kwargs))
        out.append(slow_metrics(x.reshape(-1, WIDTH))["log_hfc_lfc"])
    return out
