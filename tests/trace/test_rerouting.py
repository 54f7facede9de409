"""Blocks left out or run twice, against models that are built without these blocks, or with them twice."""

import copy
from typing import NamedTuple

import pytest
import torch
import transformers
from support.blocks import Stack, moved, own_block
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

import oversmooth
from oversmooth import InputError, trace
from oversmooth.steering import NeuTRENO

IDS = {"input_ids": torch.tensor([[5, 3, 9, 1, 7, 0], [2, 8, 4, 6, 1, 3]])}
PADDED = IDS | {"attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])}
SIZES = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24, vocab_size=11)


class InPlace(nn.Module):
    """A block that writes to its input."""

    def __init__(self, width):
        super().__init__()
        self.block = own_block(width)
        self.attn = self.block.attn

    def forward(self, x):
        return x.add_(self.attn(self.block.norm1(x)))


class Returned(NamedTuple):
    tokens: torch.Tensor
    weights: None


class Wrapped(nn.Module):
    """A block that returns, and takes, something with its tokens inside."""

    def __init__(self, width, wrap):
        super().__init__()
        self.block, self.wrap = own_block(width), wrap
        self.attn = self.block.attn

    def forward(self, x):
        return self.wrap(self.block(x if isinstance(x, torch.Tensor) else x[0]), None)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=1, use_cache=False))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(nn.Linear(4, 16), nn.TransformerEncoder(layer, 4))


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
MODELS = {
    "llama": (llama, "model.layers", IDS),
    "bert, padded": (bert, "bert.encoder.layer", PADDED),
    "torch's encoder": (encoder, "1.layers", X[..., :4].clone()),
    "a stack": (lambda: Stack(*(own_block(16) for _ in range(4))), "blocks", X),
    "blocks that return named tuples": (lambda: Stack(*(Wrapped(16, Returned) for _ in range(4))), "blocks", X),
    "blocks that return model outputs": (lambda: Stack(*(Wrapped(16, BaseModelOutput) for _ in range(4))), "blocks", X),
    "blocks that write to their input": (lambda: Stack(*(InPlace(16) for _ in range(4))), "blocks", X),
}


def called(model, given):
    out = model(given.clone()) if isinstance(given, torch.Tensor) else model(**given)
    return out if isinstance(out, torch.Tensor) else out[0]


def with_blocks(model, name, order):
    """A copy of the model whose list of blocks holds these."""
    other = copy.deepcopy(model)
    parent, _, last = name.rpartition(".")
    blocks = other.get_submodule(name)
    setattr(other.get_submodule(parent), last, nn.ModuleList([blocks[i] for i in order]))
    if hasattr(other, "config"):
        other.config.num_hidden_layers = len(order)
    return other


@pytest.fixture
def no_fast_path():
    """torch's encoder layers in steps, as they are rerouted: the fast path differs in the last bits."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.usefixtures("no_fast_path")
@pytest.mark.parametrize("name", MODELS)
def test_spans_are_left_out_and_repeated_exactly(name):
    make, blocks, given = MODELS[name]
    model = moved(make())
    weights = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        unchanged = called(model, given)
        with trace.Rerouting(model, trace.plan(model, given, attention=False)) as route:
            assert torch.equal(route.record(lambda: called(model, given)), unchanged)
            route.check(unchanged)
            places = route.spans(3)
            assert places == [(i, i + length) for length in (1, 2, 3) for i in range(5 - length)]
            for i, j in places:
                without, twice = [*range(i), *range(j, 4)], [*range(j), *range(i, 4)]
                assert torch.equal(route.without((i, j)), called(with_blocks(model, blocks, without), given))
                assert torch.equal(route.twice((i, j)), called(with_blocks(model, blocks, twice), given))
        assert torch.equal(called(model, given), unchanged)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_shared_block_counts_as_often_as_it_runs():
    torch.manual_seed(0)
    config = transformers.AlbertConfig(**SIZES | {"num_hidden_layers": 3}, embedding_size=8)
    model = moved(transformers.AlbertModel(config))
    shorter = copy.deepcopy(model)
    shorter.config.num_hidden_layers = 2
    longer = copy.deepcopy(model)
    longer.config.num_hidden_layers = 4
    with torch.no_grad(), trace.Rerouting(model, trace.plan(model, IDS, attention=False)) as route:
        route.record(lambda: model(**IDS))
        for i in range(3):
            assert torch.equal(route.without((i, i + 1))[0], shorter(**IDS)[0])
            assert torch.equal(route.twice((i, i + 1))[0], longer(**IDS)[0])


def test_blocks_that_share_more_than_tokens_are_refused():
    model = moved(Stack(*(own_block(16) for _ in range(3))))
    oversmooth.steer(model, NeuTRENO(0.6))  # every layer adds the values of the first
    with torch.no_grad(), trace.Rerouting(model, trace.plan(model, X, attention=False)) as route:
        out = route.record(lambda: model(X))
        with pytest.raises(InputError, match="receive more than the tokens of the block before; unsteer it"):
            route.check(out)
