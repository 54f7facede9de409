"""Attention whose projections are bare parameters (`x @ self.w_qkv`): registered, diagnosed, steered and folded."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import oversmooth
from oversmooth import InputError
from oversmooth.anatomy import locate, register
from oversmooth.steering import (
    FeatScale,
    LayerNormScaling,
    NeuTRENO,
    Spectral,
    ValueResidual,
    fold,
    steer,
    steering_of,
    unsteer,
    verify,
)

WIDTH, HEADS, DEPTH, REGISTERS = 96, 4, 6, 3


class RMSNorm(nn.Module):
    """As people write it, with a name of its own for γ."""

    def __init__(self, width):
        super().__init__()
        self.g = nn.Parameter(1 + 0.2 * torch.randn(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.g


class Attention(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.w_qkv = nn.Parameter(torch.randn(width, 3 * width) / width**0.5)
        self.w_out = nn.Parameter(torch.randn(width, width) / width**0.5)
        if bias:
            self.b_qkv, self.b_out = nn.Parameter(torch.randn(3 * width)), nn.Parameter(torch.randn(width))
        else:
            self.b_qkv = self.b_out = 0.0

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (x @ self.w_qkv + self.b_qkv).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(b, n, d) @ self.w_out + self.b_out


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.pre_a, self.mix = RMSNorm(width), Attention(width, heads, bias)
        self.pre_m = RMSNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.mix(self.pre_a(x))
        return x + self.mlp(self.pre_m(x))


class HandWrittenViT(nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.registers = nn.Parameter(torch.randn(1, REGISTERS, WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS, bias) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.registers.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, REGISTERS:].mean(1))


NAMES = dict(value="w_qkv", output="w_out", packing="stacked", transposed=True, norm="pre_a")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return HandWrittenViT().eval()


@pytest.fixture
def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def registered(request):
    return register("mine", **{**NAMES, **getattr(request, "param", {})})


@pytest.mark.usefixtures("registered")
def test_it_is_located(model):
    found = locate(model)
    assert [layer.name for layer in found] == [f"blocks.{i}.mix" for i in range(DEPTH)]
    k = WIDTH // HEADS
    for layer, block in zip(found, model.blocks, strict=True):
        W = block.mix.w_qkv.detach()[:, 2 * WIDTH :].reshape(WIDTH, HEADS, k).transpose(0, 1)
        assert torch.equal(layer.W_V, W)
        assert torch.equal(layer.W_O, block.mix.w_out.detach().reshape(HEADS, k, WIDTH))
        assert (layer.norm_position, layer.norm.name) == ("pre", f"{layer.block}.pre_a")
        assert (layer.norm.kind, layer.norm.offset) == ("rms", 0.0)
        assert torch.equal(layer.norm.gamma, block.pre_a.g.detach())


@pytest.mark.usefixtures("registered")
def test_tokens_alone_are_the_same_numbers(model, images):
    whole, tokens = (oversmooth.diagnose(model, images, depth=0, spectra=spectra) for spectra in (True, False))
    for one, other in zip(whole.layers, tokens.layers, strict=True):
        assert {name: one.tokens[name] for name in other.tokens} == other.tokens
        assert one.attention_out == other.attention_out


@pytest.mark.usefixtures("registered")
def test_it_is_diagnosed(model, images):
    before = model(images)
    diagnosis = oversmooth.diagnose(model, images, depth=2)
    assert torch.equal(model(images), before)
    assert len(diagnosis.layers) == DEPTH + 1
    assert diagnosis.model["norm"] == "pre"
    for layer, block in zip(diagnosis.layers[1:], model.blocks, strict=True):
        assert [change.part for change in layer.changes] == ["attention", "mlp"]
        assert layer.dominance is not None
        W_V = (block.pre_a.g.diag() @ block.mix.w_qkv[:, 2 * WIDTH :]).detach().numpy().astype(np.float64)
        H = W_V @ block.mix.w_out.detach().numpy().astype(np.float64)  # of all heads jointly
        radius = np.abs(1 + np.linalg.eigvals(H)).max()
        assert layer.spectrum.joined["folded"].rho_smooth == pytest.approx(radius, rel=1e-3)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "registered", [dict(value_bias="b_qkv", output_bias="b_out")], indirect=True, ids=["biases are named"]
)
def test_biases_have_names_of_their_own(images):
    torch.manual_seed(0)
    model = HandWrittenViT(bias=True).eval()
    layer = locate(model).layers[2]
    assert torch.equal(layer.value_bias.flatten(), model.blocks[2].mix.b_qkv.detach()[2 * WIDTH :])
    assert torch.equal(layer.output_bias, model.blocks[2].mix.b_out.detach())
    assert oversmooth.diagnose(model, images, depth=2).layers[3].dominance is not None
    steered = steer(copy.deepcopy(model), Spectral("sharpen"))
    assert not torch.equal(steered.blocks[2].mix.b_out, model.blocks[2].mix.b_out)  # takes up what values had in common
    for kept, now in zip(model.parameters(), unsteer(steered).parameters(), strict=True):
        assert torch.equal(kept, now)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "method", [Spectral("sharpen", bounded=True), Spectral("smooth", form="general", start="cold")], ids=str
)
def test_it_is_steered_and_folded(model, images, method, tmp_path):
    names, plain = list(dict(model.named_parameters())), copy.deepcopy(model)
    steer(model, method)
    assert verify(model)
    queries_and_keys = slice(0, 2 * WIDTH)
    for block, before in zip(model.blocks, plain.blocks, strict=True):
        assert torch.equal(block.mix.w_qkv[:, queries_and_keys], before.mix.w_qkv[:, queries_and_keys])
        H = block.mix.w_qkv[:, 2 * WIDTH :] @ block.mix.w_out
        real = torch.linalg.eigvals(H.detach().double()).real
        assert bool((real <= 1e-5).all() if method.mode == "sharpen" else (real >= -1e-5).all())
    out = model(images)
    out.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for n, p in model.named_parameters() if "mix" in n)
    oversmooth.steering.save_steered(model, tmp_path / "steered.safetensors")
    fold(model)
    assert steering_of(model) is None
    assert list(dict(model.named_parameters())) == names
    assert type(model.blocks[0].mix) is Attention
    torch.testing.assert_close(model(images), out, rtol=1e-5, atol=1e-5)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(images), model(images))


@pytest.mark.usefixtures("registered")
def test_unsteer_gives_the_same_parameters_back(model, images):
    expected, before = model(images), dict(model.named_parameters())
    unsteer(steer(model, Spectral("sharpen")))
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in before.items()}
    assert torch.equal(model(images), expected)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("method", [NeuTRENO(0.5), ValueResidual(), FeatScale()], ids=str)
def test_methods_that_need_module_outputs_are_refused(model, method):
    with pytest.raises(InputError, match=r"cannot act on layer 0 \(blocks\.0\.mix\): its weights are bare parameters"):
        steer(model, method)
    assert steering_of(model) is None


@pytest.mark.usefixtures("registered")
def test_norms_whose_weight_has_another_name_are_not_scaled(model):
    with pytest.raises(InputError, match=r"layer 1 \(blocks\.1\.mix\): the weight of its norm is called 'g'"):
        steer(model, LayerNormScaling())


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (dict(norm="pre_x"), r"blocks\.0\.mix: there is no norm 'pre_x' of 96 features around it; .*pre_a, pre_m"),
        (dict(transposed=False), r"give heads=, or register the layout with other packing= or transposed="),
        (dict(heads=3), r"blocks\.0\.mix has 4 heads, not 3"),
    ],
    ids=["norm", "transposed", "heads"],
)
def test_names_that_do_not_fit(model, names, match):
    register("mine", **{**NAMES, **names})
    with pytest.raises(InputError, match=match):
        locate(model)


def test_heads_that_the_model_does_not_state(model):
    for block in model.blocks:
        block.mix.h, block.mix.heads = block.mix.heads, None
    register("mine", **NAMES, heads=HEADS)
    assert locate(model).layers[0].heads == HEADS


class Separate(nn.Module):
    """Value and output parameters by themselves, the latter used as torch's Linear stores it; the norm inside."""

    def __init__(self, width):
        super().__init__()
        self.num_heads = 2
        self.pre_a = RMSNorm(width)
        self.ask, self.tell = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(2))
        self.worth, self.back = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(2))

    def forward(self, x):
        x = self.pre_a(x)
        q, k, v = ((x @ W).unflatten(-1, (2, -1)).transpose(1, 2) for W in (self.ask, self.tell, self.worth))
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return nn.functional.linear(mixed.transpose(1, 2).flatten(2), self.back)


class SeparateBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix, self.mlp = Separate(width), nn.Linear(width, width)

    def forward(self, x):
        x = x + self.mix(x)
        return x + self.mlp(x)


def test_separate_parameters_one_of_them_transposed_and_a_norm_inside_attention():
    torch.manual_seed(0)
    model, x = nn.Sequential(SeparateBlock(16), SeparateBlock(16)).eval(), torch.randn(2, 5, 16)
    with pytest.raises(InputError, match=r"0\.mix has ask 16 × 16, tell 16 × 16, worth 16 × 16.*anatomy\.register"):
        locate(model)
    register("mine", value="worth", output="back", transposed="value", norm="pre_a")
    layer = locate(model).layers[1]
    assert torch.equal(layer.W_V.transpose(0, 1).flatten(1), model[1].mix.worth)
    assert torch.equal(layer.W_O.flatten(0, 1), model[1].mix.back.T)
    diagnosis = oversmooth.diagnose(model, x, depth=2)
    assert diagnosis.layers[2].dominance is not None
    out = steer(model, Spectral("sharpen"))(x)
    torch.testing.assert_close(fold(model)(x), out, rtol=1e-5, atol=1e-5)


def test_a_module_named_in_place_of_its_parameter(model):
    for block in model.blocks:
        block.mix = nn.ModuleDict({"everything": nn.Linear(WIDTH, 3 * WIDTH), "merge": nn.Linear(WIDTH, WIDTH)})
    register("mine", value="everything", output="merge", packing="stacked")
    with pytest.raises(InputError, match=r"'everything' is a module; .*value='everything\.weight'"):
        locate(model)
