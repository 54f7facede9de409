"""The language model against torch's own layers, and generation with a cache against none."""

import math
from dataclasses import replace

import pytest
import torch
from support.language_example import SHAPE
from torch import nn

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.language.model import LanguageModel, sinusoids
from oversmooth_papers.tasks.language.recipe import Shape


def made(seed=0, **changes):
    torch.manual_seed(seed)
    model = LanguageModel(replace(SHAPE, **changes))
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@torch.no_grad()
def torch_layers(model):
    """The blocks as nn.TransformerEncoderLayer has them."""
    shape, layers = model.shape, []
    given = dict(activation=shape.activation, layer_norm_eps=shape.eps, norm_first=shape.norm == "pre")
    for block in model.blocks:
        sizes = shape.width, shape.heads, shape.hidden
        layer = nn.TransformerEncoderLayer(*sizes, dropout=0.0, batch_first=True, **given)
        layer.self_attn.in_proj_weight.copy_(block.attn.qkv.weight)
        layer.self_attn.in_proj_bias.zero_()
        ours = (block.attn.proj, block.mlp.fc1, block.mlp.fc2, block.norm1, block.norm2)
        theirs = (layer.self_attn.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2)
        for own, other in zip(ours, theirs, strict=True):
            other.load_state_dict(own.state_dict())
        layers.append(layer.eval())
    return layers


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_blocks_are_those_of_torch(norm, activation, causal, positions):
    model = made(norm=norm, activation=activation, causal=causal, positions=positions)
    ids = torch.randint(256, (3, 9))
    scale = 4.0 if positions == "sinusoidal" else 1.0  # √16
    x = model.embedding.weight[ids] * scale + model.positions[:9]
    mask = nn.Transformer.generate_square_subsequent_mask(9) if causal else None
    for layer in torch_layers(model):
        x = layer(x, src_mask=mask, is_causal=causal)
    if norm == "pre":
        x = nn.functional.layer_norm(x, (16,), model.norm.weight, model.norm.bias, 1e-5)
    logits = x @ model.embedding.weight.T + model.bias
    with torch.no_grad():
        torch.testing.assert_close(model(ids), logits, rtol=0, atol=2e-5)
        torch.testing.assert_close(model(ids, last=2), logits[:, -2:], rtol=0, atol=2e-5)
        targets = torch.randint(256, (3, 9))
        targets[0, :4] = -100
        counted = [(i, j) for i in range(3) for j in range(9) if targets[i, j] >= 0]
        expected = [-math.log(torch.softmax(logits[at].double(), -1)[targets[at]]) for at in counted]
        assert float(model(ids, targets)) == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_sinusoids_one_by_one():
    waves = sinusoids(7, 6)
    for position in range(7):
        for column in range(6):
            angle = position / 10_000 ** ((column - column % 2) / 6)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert float(waves[position, column]) == pytest.approx(expected, abs=1e-6)


def test_generation_takes_the_likeliest():
    model, ids = made(), torch.randint(256, (2, 4))
    with torch.no_grad():
        plain = ids
        for _ in range(8):
            plain = torch.cat([plain, model(plain)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(model.generate(ids, 8, temperature=0), plain)


def test_generation_draws_by_its_seed_and_leaves_the_rest_alone():
    model = made().train()
    ids = torch.randint(256, (1, 3))
    torch.manual_seed(1)
    one, other, third = (model.generate(ids, 6, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)
    assert model.training
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="vocabulary is 0"):
        LanguageModel(Shape())
    with pytest.raises(InputError, match="over the 12 of a window"):
        made().generate(torch.zeros(1, 4, dtype=torch.int64), 9)
    with pytest.raises(InputError, match="does not generate"):
        made(causal=False).generate(torch.zeros(1, 4, dtype=torch.int64), 1)
    for changes, words in (
        (dict(width=15), "2 heads do not share 15"),
        (dict(width=9, heads=1), "sinusoidal positions need an even"),
        (dict(heads=0), "heads is 0"),
        (dict(dropout=1.0), "dropout is 1"),
        (dict(norm="both"), "norm is 'both'"),
        (dict(width=10**9, heads=1), "has .* weights and"),
    ):
        with pytest.raises(InputError, match=words):
            LanguageModel(replace(SHAPE, **changes))


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_not_seen(causal):
    model, ids = made(causal=causal), torch.randint(256, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    with torch.no_grad():
        padded = model(ids, attention_mask=mask)
        torch.testing.assert_close(padded[0], model(ids[:1])[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(padded[1, :6], model(ids[1:, :6])[0], rtol=0, atol=1e-5)
