"""The formulas of the papers, on small arrays and on whole models (THEORY §6 and §7)."""

import pytest
import torch
from support import conformance
from support.blocks import Block, Stack, torch_block
from support.conformance_methods import KeepDouble, all_close, make, outputs
from support.families import FAMILIES, HEADS, TRANSFORMERS, run, text
from support.oracles import attention, normal
from torch import nn

import oversmooth
from oversmooth import InputError
from oversmooth.anatomy import locate
from oversmooth.steering import (
    METHODS,
    AttnScale,
    Centred,
    ContraNorm,
    FeatScale,
    Laplacian,
    NeuTRENO,
    Spectral,
    ValueResidual,
    steer,
    unsteer,
)
from oversmooth.steering.methods.registry import method_from

B, N, K, D = 2, 6, 3, 12


def arrays(shared: int = HEADS):
    """A ``(b, heads, n, n)``; V and V⁰ ``(b, n, kv_heads, k)``; U = A V ``(b, n, heads, k)``."""
    A = attention(B, HEADS, N, N, seed=1)
    V, V0 = normal(B, N, shared, K, seed=2), normal(B, N, shared, K, seed=3)
    return A, V, V0, mixed(A, V)


def mixed(A, V):
    V = V.repeat_interleave(HEADS // V.shape[2], dim=2)
    return torch.einsum("bhij,bjhk->bihk", A, V)


def part(method, name="Llama"):
    layer = locate(make(name)).layers[1]
    return method.part(layer).double()


def set_by_head(part, values):
    with torch.no_grad():
        part.strength.copy_(values)
    return values[:, None, None]


MASK = torch.tensor([[True] * N, [True] * 4 + [False] * 2])
BY_HEAD = torch.tensor([0.3, -0.2, 0.8, 0.0], dtype=torch.float64)


def constant(mask):
    """J: every row the mean over the tokens that count."""
    weight = torch.ones(B, N, dtype=torch.float64) if mask is None else mask.double()
    return (weight / weight.sum(-1, keepdim=True))[:, None, None, :].expand(B, 1, N, N)


@pytest.mark.parametrize("shared", [HEADS, 2])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
def test_methods_on_attention_are_matrices(shared, mask):
    A, V, V0, U = arrays(shared)
    J, eye = constant(mask), torch.eye(N, dtype=torch.float64)
    for method, changed in (
        (AttnScale(learned=True), lambda w: J + (1 + w) * (A - J)),
        (Centred(learned=True), lambda s: A - s * J),
        (Laplacian(learned=True), lambda c: A - c * eye),
    ):
        this = part(method)
        w = set_by_head(this, BY_HEAD)
        torch.testing.assert_close(this(U, V, V0, mask), mixed(changed(w), V))
    this = part(NeuTRENO(learned=True, per="head"))
    w = set_by_head(this, BY_HEAD)
    by_hand = U + w.movedim(0, 1) * (V0 - V).repeat_interleave(HEADS // shared, dim=2)
    torch.testing.assert_close(this(U, V, V0, mask), by_hand)


def test_published_defaults():
    """THEORY §6 and §7: λ̃ = 0.6 for vision, w, s and t from 0 and learned."""
    assert NeuTRENO().strength == 0.6
    assert not NeuTRENO().learned
    assert (AttnScale().strength, AttnScale().learned) == (0.0, True)
    assert (FeatScale().low, FeatScale().high, FeatScale().learned, FeatScale().as_published) == (0, 0, True, False)
    assert (Spectral().form, Spectral().orthogonal, Spectral().wiring) == ("symmetric", "qr", "paper")


@pytest.mark.parametrize("strength", [0.0, 0.4, 0.6])
def test_neutreno_is_a_step_down_its_energy(strength):
    """With queries equal to keys one Euler step of the gradient flow of E is A V + λ̃ (V⁰ − V) (THEORY §6).

    E(u) = ½ Σ ‖u(x) − u(y)‖² k(x, y) + Σ λ(x)/2 ‖u(x) − f(x)‖², Δt(x) = 1/Σ(k(x, y) + k(y, x)), λ(x) = λ̃/Δt(x);
    its gradient is torch's own.
    """
    name = "attention alone (Pre-LN)"
    model, family = make(name, torch.float64), FAMILIES[name]
    attn = model.blocks[1].attn
    width = attn.to_qkv.in_features
    with torch.no_grad():
        attn.to_qkv.weight[width : 2 * width] = attn.to_qkv.weight[:width]
        attn.to_qkv.bias[width : 2 * width] = attn.to_qkv.bias[:width]
    steer(model, NeuTRENO(strength))
    kept = {}
    model.blocks[0].attn.to_qkv.register_forward_hook(lambda _m, _a, out: kept.update(first=out.detach()))
    attn.to_qkv.register_forward_hook(lambda _m, _a, out: kept.update(second=out.detach()))
    attn.to_out.register_forward_pre_hook(lambda _m, a: kept.update(mixed=a[0].detach()))
    run(model, family.inputs(torch.float64))
    heads = lambda x: x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # noqa: E731
    q, k, V = map(heads, kept["second"].chunk(3, -1))
    torch.testing.assert_close(q, k)
    f = heads(kept["first"].chunk(3, -1)[2])
    kernel = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    step = 1 / (kernel + kernel.mT).sum(-1)
    u = V.clone().requires_grad_()
    apart = (u[..., :, None, :] - u[..., None, :, :]).square().sum(-1)
    fidelity = (strength / step) / 2 * (u - f).square().sum(-1)
    E = 0.5 * (apart * kernel).sum() + fidelity.sum()
    (gradient,) = torch.autograd.grad(E, u)
    torch.testing.assert_close(heads(kept["mixed"]), V - step[..., None] * gradient, rtol=1e-9, atol=1e-9)


def test_first_values_are_not_detached():
    """V⁰ is part of the graph: the first layer's value weight is moved by what later layers add."""
    name = "attention alone (no norm)"
    model, family = make(name, torch.float64), FAMILIES[name]
    steer(model, NeuTRENO(0.6))
    out = outputs(model, family)[0].sum()
    (with_it,) = torch.autograd.grad(out, model.blocks[0].attn.to_qkv.weight, retain_graph=True)
    kept = []
    model.blocks[0].attn.to_qkv.register_forward_hook(lambda _m, _a, o: kept.append(o))
    out = outputs(model, family)[0].sum()
    (direct,) = torch.autograd.grad(out, kept[0])
    width = model.blocks[0].attn.to_out.in_features
    assert direct[..., 2 * width :].abs().max() > 0
    given = family.inputs(torch.float64)
    torch.testing.assert_close(with_it, torch.einsum("bno,bni->oi", direct, given))


# With causal attention, caches and masks


@pytest.mark.parametrize("method", [NeuTRENO(0.4), ValueResidual(), Laplacian(0.3), Spectral()], ids=str)
def test_generation_with_a_cache_is_generation_without(method):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    config = LlamaConfig(
        **sizes, intermediate_size=48, vocab_size=64, bos_token_id=1, eos_token_id=None, pad_token_id=0
    )
    model = LlamaForCausalLM(config).eval()
    steer(model, method)
    ids = text()["input_ids"]
    whole = model(ids, use_cache=False).logits
    begun = model(ids[:, :5], use_cache=True)
    rest = [begun.logits]
    for i in range(5, ids.shape[1]):
        begun = model(ids[:, i : i + 1], past_key_values=begun.past_key_values, use_cache=True)
        rest.append(begun.logits)
    torch.testing.assert_close(torch.cat(rest, dim=1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", [NeuTRENO(0.4), ValueResidual(), Laplacian(0.3)], ids=str)
@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_no_token_sees_a_later_one(method, name):
    model = make(name)
    steer(model, method)
    ids = text()["input_ids"]
    other = ids.clone()
    other[:, -1] = (other[:, -1] - 4) % 50 + 5
    with torch.no_grad():
        a, b = (model(input_ids=each).last_hidden_state for each in (ids, other))
    assert torch.equal(a[:, :-1], b[:, :-1])
    assert not torch.equal(a[:, -1], b[:, -1])


@pytest.mark.parametrize("method", ["AttnScale", "FeatScale", "ContraNorm", "Centred"])
def test_padding_does_not_matter(method):
    """A padded text gives its own tokens what it gives alone, whatever form the mask has."""
    model = conformance.steered("BERT", method, torch.float64)
    given = text()
    short = given["attention_mask"][1].sum()
    with torch.no_grad(), KeepDouble():
        alone = model(input_ids=given["input_ids"][1:, :short]).last_hidden_state[0]
        whole = given["attention_mask"][:, None, None, :].bool().expand(-1, 1, 8, 8)
        added = torch.zeros(whole.shape, dtype=torch.float64).masked_fill(~whole, torch.finfo(torch.float64).min)
        pairs = (whole, added) if TRANSFORMERS > 4 else (whole[:, 0],)  # the shapes that BERT takes
        for mask in (given["attention_mask"], *pairs):
            out = model(input_ids=given["input_ids"], attention_mask=mask).last_hidden_state
            all_close([out[1, :short]], [alone], 1e-9)


def test_additive_padding_masks_of_torch():
    """torch's encoders take a mask that is added to the scores as well."""
    name = "torch encoder (Post-LN, batch first)"
    model, family = conformance.steered(name, "Centred"), FAMILIES[name]
    given = family.inputs()
    hidden = given["src_key_padding_mask"]
    added = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    with torch.no_grad():
        a = model(**given)[~hidden]
        b = model(src=given["src"], src_key_padding_mask=added)[~hidden]
    torch.testing.assert_close(a, b)


# Settings


@pytest.mark.parametrize("make_method", [NeuTRENO, AttnScale, ContraNorm, ValueResidual, Centred, Laplacian])
@pytest.mark.parametrize("strength", [float("nan"), float("inf"), "0.5", None, True])
def test_strengths_that_are_no_numbers(make_method, strength):
    with pytest.raises(InputError, match="strength is"):
        make_method(strength)


def test_other_settings_that_make_no_sense():
    with pytest.raises(InputError, match="temperature is 0"):
        ContraNorm(0.1, temperature=0)
    with pytest.raises(InputError, match="per is 'token'; choose 'layer' or 'head'"):
        NeuTRENO(0.5, per="token")
    with pytest.raises(InputError, match="low is"):
        FeatScale(low=float("nan"))


@pytest.mark.parametrize("row", conformance.METHODS.values(), ids=conformance.METHODS)
def test_settings_survive_being_written(row):
    import json

    for method in row.methods:
        assert method_from(json.loads(json.dumps(method.settings()))) == method
    assert {type(m).__name__ for row in conformance.METHODS.values() for m in row.methods} == set(METHODS)


def test_files_with_earlier_names_of_settings_are_read():
    saved = {"method": "Spectral", "form": "general", "range": [-0.5, 0.5], "verify": True}
    assert method_from(saved) == Spectral(form="general", interval=(-0.5, 0.5), check_passes=True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "Magic"}, "there is no method 'Magic'; choose one of"),
        ({}, "there is no method None"),
        ({"method": "NeuTRENO", "speed": 3}, "NeuTRENO has no setting 'speed'"),
        ({"method": "NeuTRENO", "strength": "much"}, "strength is 'much'"),
    ],
)
def test_settings_that_cannot_be_read(settings, says):
    with pytest.raises(InputError, match=says):
        method_from(settings)


def test_unbatched_and_whole_attention_of_torch():
    """nn.MultiheadAttention as people call it: without a batch, with its weights, with a mask of its own."""

    torch.manual_seed(0)
    model = Stack(torch_block(16), torch_block(16)).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    bias = torch.randn(5, 5)
    x = torch.randn(2, 5, 16)
    calls = [
        (x, dict(need_weights=False)),
        (x, dict(need_weights=True)),
        (x, dict(need_weights=True, average_attn_weights=False)),
        (x, dict(attn_mask=bias, need_weights=True)),
        (x, dict(attn_mask=bias, need_weights=False)),
        (x, dict(attn_mask=bias > 0.5, key_padding_mask=None, need_weights=False)),
        (x, dict(attn_mask=bias.expand(4, 5, 5), need_weights=False)),
        (x[0], dict(need_weights=False)),
        (x[0], dict(need_weights=True)),
    ]
    bias.fill_diagonal_(0.0)
    expected = [model(y, **more) for y, more in calls]
    steer(model, NeuTRENO(0.0, learned=True))
    for (y, more), wanted in zip(calls, expected, strict=True):
        torch.testing.assert_close(model(y, **more), wanted, rtol=1e-5, atol=1e-5)
    unsteer(model)
    assert type(model.blocks[0].attn) is nn.MultiheadAttention


def test_attention_over_other_tokens_is_refused():
    attn = nn.MultiheadAttention(16, 2, batch_first=True)

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Module()])
            self.blocks[0].attn = attn
            self.blocks[0].forward = lambda x, y: attn(x, y, y)[0]

        def forward(self, x, y):
            return self.blocks[0](x, y)

    model = Cross()
    steer(model, Laplacian(0.5))
    with pytest.raises(InputError, match="self-attention only"):
        model(torch.randn(1, 3, 16), torch.randn(1, 3, 16))


@pytest.mark.parametrize("settings", [dict(add_zero_attn=True), dict(add_bias_kv=True), dict(kdim=8, vdim=8)])
def test_attention_that_cannot_be_opened(settings):
    model = Stack(torch_block(16, **settings), torch_block(16, **settings))
    before = conformance.snapshot(model)
    with pytest.raises(InputError):
        steer(model, NeuTRENO(0.5))
    conformance.same_snapshot(conformance.snapshot(model), before)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (NeuTRENO(), "NeuTRENO(strength=0.6)"),
        (NeuTRENO(0.4, learned=True), "NeuTRENO(strength=0.4, learned=True)"),
        (AttnScale(), "AttnScale(strength=0.0, learned=True)"),
        (FeatScale(), "FeatScale(low=0.0, high=0.0, learned=True)"),
        (Spectral(form="general", interval=(-0.5, 0.5)), "Spectral(form='general', interval=(-0.5, 0.5))"),
    ],
)
def test_the_name_in_words_has_what_the_method_depends_on(method, said):
    assert str(method) == said


def test_a_steered_model_remembers_the_heads_it_was_told():
    class Attention(nn.Module):
        """Two heads, which nothing but its code says."""

        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out_proj(mixed.transpose(1, 2).flatten(2))

    model, x = Stack(Block(8, Attention()), Block(8, Attention())).eval(), torch.randn(2, 5, 8)
    with pytest.raises(InputError, match="give heads="):
        oversmooth.diagnose(model, x)
    explicit = oversmooth.diagnose(steer(model, Laplacian(0.5), heads=2), x, heads=2)
    found = oversmooth.diagnose(model, x)
    assert found.model["heads"] == 2
    assert [layer.dominance for layer in found.layers] == [layer.dominance for layer in explicit.layers]
