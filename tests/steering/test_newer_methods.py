"""Inversion, gates, orthogonal updates and scaled norms: the formulas in plain numpy, and what a diagnosis says."""

import copy
import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.blocks import Stack, moved, torch_block
from support.conformance_methods import make, outputs
from support.families import FAMILIES, HEADS, WIDTH
from support.oracles import attention, normal
from torch import nn

import oversmooth
from oversmooth import InputError
from oversmooth.anatomy import locate
from oversmooth.steering import (
    GatedAttention,
    Inversion,
    LayerNormScaling,
    NeuTRENO,
    OrthogonalUpdate,
    Spectral,
    fold,
    ramp,
    steer,
    steering_of,
    unsteer,
)
from oversmooth.testing import check_method

B, N, K = 2, 6, 3


def arrays(shared=HEADS):
    A = attention(B, HEADS, N, N, seed=1)
    V = normal(B, N, shared, K, seed=2)
    U = torch.einsum("bhij,bjhk->bihk", A, V.repeat_interleave(HEADS // shared, dim=2))
    return A.numpy(), V, U, normal(B, N, WIDTH, seed=4)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_gates_of_zero_are_one_in_half_precision(half):
    _, V, U, x = arrays()
    for method in (Inversion(), GatedAttention()):
        layer = locate(make("ViT")).layers[1]
        some = U.repeat(1, 1, 1, 3)[..., : layer.head_dim].to(half)
        values = V.repeat(1, 1, 1, 3)[..., : layer.head_dim].to(half)
        part = method.part(layer).to(half)
        with torch.no_grad():
            assert torch.equal(part(some, values, None, None, x.to(half)), some)


def update(strength, learned=False):
    return OrthogonalUpdate(strength, learned=learned).part(locate(make("ViT")).layers[0]).double()


@given(seed=st.integers(0, 10**6), strength=st.floats(0, 1), size=st.sampled_from([1e-200, 1e-30, 1.0, 1e30, 1e200]))
def test_orthogonal_updates(seed, strength, size):
    """By projecting with an explicit matrix, for tokens of any length; the length of what is left never grows."""
    x, f = size * normal(B, N, 5, seed=seed), normal(B, N, 5, seed=seed + 1)
    got = update(strength)(f, None, x)
    for b in range(B):
        for i in range(N):
            unit = x[b, i].numpy() / np.linalg.norm(x[b, i].numpy() / size) / size
            expected = (np.eye(5) - strength * np.outer(unit, unit)) @ f[b, i].numpy()
            np.testing.assert_allclose(got[b, i].numpy(), expected, rtol=1e-9, atol=1e-9)
    assert bool((got.norm(dim=-1) <= f.norm(dim=-1) * (1 + 1e-12)).all())
    whole = update(1.0)(f, None, x)
    assert float((whole * x / size).sum(-1).abs().max()) < 1e-9
    torch.testing.assert_close(update(1.0)(whole, None, x), whole)


@given(seed=st.integers(0, 10**6), ratio=st.sampled_from([1.0, 20.0, 100.0]))
def test_an_orthogonal_update_in_half_precision_is_rounded_once(seed, ratio):
    """Where attention gives mostly what is taken away, a projection that is rounded first leaves its error instead."""
    x = normal(B, N, 64, seed=seed).float()
    f = (ratio * x * normal(B, N, 1, seed=seed + 1) + normal(B, N, 64, seed=seed + 2)).bfloat16()
    got = OrthogonalUpdate(1.0).part(locate(make("ViT")).layers[0])(f, None, x)
    assert got.dtype == torch.bfloat16
    for token, row, seen in zip(x.double().numpy().reshape(-1, 64), f.double().numpy().reshape(-1, 64),
                                got.double().numpy().reshape(-1, 64), strict=True):  # fmt: skip
        exact = row - (token @ row) / (token @ token) * token
        assert np.linalg.norm(seen - exact) <= 2**-8 * np.linalg.norm(exact) + 1e-5 * np.linalg.norm(row)


def test_a_stream_of_zeros_leaves_the_update_alone():
    x, f = normal(B, N, 5, seed=1), normal(B, N, 5, seed=2).requires_grad_()
    x[0, 2] = 0
    x.requires_grad_()
    out = update(1.0)(f, None, x)
    assert torch.equal(out[0, 2], f[0, 2])
    out.square().sum().backward()
    assert bool(x.grad.isfinite().all() and f.grad.isfinite().all())
    both = tuple(normal(2, 3, 4, seed=seed).requires_grad_() for seed in (3, 4))
    assert torch.autograd.gradcheck(lambda a, b: update(0.7)(b, None, a), both)


@pytest.mark.parametrize("name", ["ViT", "Llama", "torch encoder (Pre-LN)", "torch encoder (Post-LN, batch first)"])
def test_what_attention_adds_is_orthogonal_to_the_stream(name):
    model, family = make(name, torch.float64), FAMILIES[name]
    steer(model, OrthogonalUpdate())
    kept, dots = {}, []
    for place in sorted(set(family.runs)):
        block = model.get_submodule(family.block.format(place))
        output = model.get_submodule(family.output.format(place))
        block.register_forward_pre_hook(lambda _m, a, k: kept.update(x=next(iter((*a, *k.values())))), with_kwargs=True)

        def compare(_module, _args, out):
            y = out[0] if isinstance(out, tuple) else out
            dots.append((kept["x"] * y).sum(-1) / (kept["x"].norm(dim=-1) * y.norm(dim=-1)))

        output.register_forward_hook(compare)
    with torch.no_grad():
        outputs(model, family)
    assert len(dots) == len(family.runs)
    assert max(float(d.abs().max()) for d in dots) < 1e-9


def test_an_orthogonal_update_may_ramp():
    model = steer(make("ViT"), OrthogonalUpdate(0.0))
    rising = ramp(model, to=1.0, steps=2)
    with torch.no_grad():
        before = outputs(model, FAMILIES["ViT"])
        for got, plain in zip(before, outputs(make("ViT"), FAMILIES["ViT"]), strict=True):
            assert torch.equal(got, plain)
        rising.step()
        fixed = outputs(steer(make("ViT"), OrthogonalUpdate(0.5)), FAMILIES["ViT"])
        assert all(torch.equal(a, b) for a, b in zip(outputs(model, FAMILIES["ViT"]), fixed, strict=True))
    with pytest.raises(InputError, match="strength"):
        ramp(model, to=1.2)


# Norms


def deep():
    torch.manual_seed(0)
    return moved(Stack(*(torch_block(WIDTH, HEADS) for _ in range(4))))


X = normal(2, 5, WIDTH, seed=9, dtype=torch.float32)


@pytest.mark.parametrize("strength", [1.0, 0.5, -1.0])
def test_norms_are_multiplied_by_depth(strength):
    """As hooks on the outputs of all norms do it: layer ℓ by ℓ^(−s/2)."""
    by_hand = deep()
    for index, block in enumerate(by_hand.blocks):
        for norm in (block.norm1, block.norm2):
            norm.register_forward_hook(lambda _m, _a, y, by=(index + 1.0) ** (-strength / 2): by * y)
    model = steer(deep(), LayerNormScaling(strength))
    with torch.no_grad():
        torch.testing.assert_close(model(X), by_hand(X))
        folded = fold(copy.deepcopy(model))
        assert torch.equal(folded(X), model(X))
    gamma = deep().blocks[3].norm2.weight
    torch.testing.assert_close(folded.blocks[3].norm2.weight, gamma / 4 ** (strength / 2))
    assert torch.equal(folded.blocks[0].norm1.weight, deep().blocks[0].norm1.weight)


def test_some_layers_only_and_beside_other_methods():
    model = steer(deep(), [LayerNormScaling(), NeuTRENO(0.4), Spectral("sharpen")], layers=[1, 3])
    parametrized = [name for name, m in model.named_modules() if hasattr(m, "parametrizations") and "norm" in name]
    assert parametrized == [f"blocks.{i}.norm{j}" for i in (1, 3) for j in (1, 2)]
    unsteer(model)
    plain = deep()
    assert list(model.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        assert torch.equal(model(X), plain(X))


def test_what_is_trained_is_the_norm_before_its_factor():
    model = deep()
    before = model.blocks[2].norm1.weight
    steer(model, LayerNormScaling())
    trained = dict(model.named_parameters())["blocks.2.norm1.parametrizations.weight.original"]
    assert trained is before
    model(X).square().sum().backward()
    assert trained.grad is not None
    unsteer(model)
    assert model.blocks[2].norm1.weight is before
    assert type(model.blocks[2].norm1) is nn.LayerNorm


def test_norms_that_are_not_known_are_refused():
    model = deep()
    for block in model.blocks:
        block.norm3, block.norm4 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
    with pytest.raises(InputError, match="has 4 norms, and which one"):
        steer(model, LayerNormScaling())
    assert steering_of(model) is None
    assert type(model.blocks[1].norm1) is nn.LayerNorm
    for name in ("BERT", "ALBERT", "attention alone (no norm)"):
        with pytest.raises(InputError, match="norm"):
            steer(make(name), LayerNormScaling())


# What a diagnosis says


@pytest.mark.parametrize("method", [Inversion(), GatedAttention(), OrthogonalUpdate()], ids=str)
@pytest.mark.parametrize("name", ["ViT", "Llama", "torch encoder (Pre-LN)"])
def test_spectra_decide_nothing(name, method):
    """Rows of what multiplies V no longer sum to one, so constant arrays are not kept: no theorem applies."""
    model = steer(make(name), method)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if ".oversmooth." in key:
                p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    diagnosis = oversmooth.diagnose(model, FAMILIES[name].inputs(), depth=2, joined=1, ranks=0)
    assert diagnosis.smoothing_share is None
    for layer in diagnosis.layers[1:]:
        assert layer.dominance.undecided_share == 1
        assert any(type(method).__name__ in why for why in layer.dominance.undecided_because)
        rows = "rows of attention" in layer.dominance.undecided_because[0]
        assert rows != isinstance(method, OrthogonalUpdate)


@pytest.mark.parametrize("name", ["ViT", "Llama", "torch encoder (Pre-LN)", "GPT-2"])
def test_a_diagnosis_sees_scaled_norms(name):
    """Folded and not, the same numbers come out; the norm is recognised, and H with it is smaller."""
    steered = steer(make(name), LayerNormScaling())
    folded = fold(steer(make(name), LayerNormScaling()))
    both = [
        oversmooth.diagnose(m, FAMILIES[name].inputs(), depth=2, joined=1, ranks=0, variant="folded")
        for m in (steered, folded)
    ]
    for a, b in zip(*(d.layers for d in both), strict=True):
        assert a.tokens == pytest.approx(b.tokens, nan_ok=True)
        if a.dominance is not None:
            assert a.dominance.verdict_heads == b.dominance.verdict_heads
            assert a.spectrum.joined.keys() == b.spectrum.joined.keys()
            assert a.spectrum.joined["folded"].rho_smooth == pytest.approx(b.spectrum.joined["folded"].rho_smooth)
            assert [c.part for c in a.changes] == [c.part for c in b.changes]
    assert both[0].model["norm"] == "pre"
    assert "LayerNormScaling(strength=1.0)" in " ".join(both[0].remarks)


@pytest.mark.parametrize("method", [Inversion(), GatedAttention(), OrthogonalUpdate(0.7), LayerNormScaling()], ids=str)
def test_promises(method):
    check_method(method, deep(), X)
    model = steer(deep(), method)
    assert steering_of(model).methods == [method]


@pytest.mark.parametrize(
    ("ties", "said"),
    [
        ({"2.norm1.weight": "1.norm1.weight"}, r"1\.norm1 shares its weights"),
        ({"2.norm2.bias": "2.norm1.bias"}, r"2\.norm1 shares its weights"),
        ({f"{i}.norm1": "0.norm1" for i in (1, 2, 3)}, r"1\.norm1 shares its weights"),
        ({"3.norm2": "3.norm1"}, r"3\.norm1 shares its weights"),
        ({"4": "2.norm1"}, r"2\.norm1 shares its weights"),
        ({"4.weight": "3.norm2.weight"}, r"3\.norm2 shares its weights"),
        ({}, ""),
    ],
)
def test_norms_that_are_also_something_elses_take_no_factor(ties, said):
    """What is multiplied in one place would be in the other too, and folded twice."""
    torch.manual_seed(0)
    model = nn.Sequential(*(torch_block(16) for _ in range(4)), nn.LayerNorm(16)).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    for place, other in ties.items():
        holder, _, name = place.rpartition(".")
        setattr(model.get_submodule(holder), name, operator.attrgetter(other)(model))
    x = torch.randn(2, 5, 16)
    plain = model(x)
    if ties:
        with pytest.raises(InputError, match=f"LayerNormScaling cannot act on layer .*: {said}.*; give each a copy"):
            steer(model, LayerNormScaling())
        assert torch.equal(model(x), plain)
        return
    by_hand = copy.deepcopy(model)
    for index in range(1, 4):
        for norm in (by_hand[index].norm1, by_hand[index].norm2):
            norm.weight.data *= (index + 1) ** -0.5
            norm.bias.data *= (index + 1) ** -0.5
    steered = steer(model, LayerNormScaling())(x)
    assert torch.allclose(steered, by_hand(x), atol=1e-5)
    assert torch.allclose(fold(model)(x), steered, atol=1e-5)
