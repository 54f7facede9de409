"""Blocks that transpose for the attention inside them are measured along their own tokens."""

import math

import pytest
import torch
from support import blocks, oracles
from support.nightly import some
from support.oracles import mean_metric
from torch import nn

import oversmooth
from oversmooth.trace.layout import check_axes

D, HEADS, DEPTH = 16, 2, 2


class Block(nn.Module):
    """Around torch's own attention, whose axes may be others than the block's."""

    def __init__(self, block_first, attention_first, norm_inside):
        super().__init__()
        self.turns, self.norm_inside = block_first != attention_first, norm_inside
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.MultiheadAttention(D, HEADS, batch_first=attention_first)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def turned(self, x):
        return x.transpose(0, 1) if self.turns else x

    def forward(self, x):
        h = self.norm1(self.turned(x)) if self.norm_inside else self.turned(self.norm1(x))
        x = x + self.turned(self.attn(h, h, h, need_weights=False)[0])
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Takes (batch, n, d) or (n, batch, d), and turns it where its blocks want the other."""

    def __init__(self, model_first=True, block_first=True, attention_first=False, norm_inside=False):
        super().__init__()
        torch.manual_seed(0)
        self.model_first, self.block_first = model_first, block_first
        self.layers = nn.ModuleList(Block(block_first, attention_first, norm_inside) for _ in range(DEPTH))

    def forward(self, x):
        x = x if self.model_first == self.block_first else x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return x if self.model_first == self.block_first else x.transpose(0, 1)


def streams(model, x):
    """Tokens ``(batch, n, d)`` that enter the first block and leave each."""
    arrays = oracles.streams(model.layers, lambda: model(x))
    return [one if model.block_first else one.transpose(0, 1) for one in arrays]


WAYS = [
    pytest.param(dict(block_first=True, attention_first=False), id="batch first, attention not"),
    pytest.param(dict(block_first=True, attention_first=False, norm_inside=True), id="norm on turned arrays"),
    pytest.param(dict(model_first=False, block_first=False, attention_first=True), id="tokens first, attention not"),
    pytest.param(dict(model_first=True, block_first=False, attention_first=True), id="turned twice"),
    pytest.param(dict(model_first=True, block_first=False, attention_first=False), id="turned by the model"),
    pytest.param(dict(model_first=False, block_first=False, attention_first=False), id="tokens first throughout"),
    pytest.param(dict(model_first=True, block_first=True, attention_first=True), id="batch first throughout"),
]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_measured_along_the_right_axis(way):
    model = Model(**way).eval()
    tokens = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(1)) + 0.5
    x = tokens if model.model_first else tokens.transpose(0, 1).contiguous()
    before = model(x)
    diagnosis = oversmooth.diagnose(model, x, depth=0)
    expected = [mean_metric("hfc_lfc", one) for one in streams(model, x)]
    assert [layer.tokens["hfc_lfc"] for layer in diagnosis.layers] == pytest.approx(expected, rel=1e-4)
    assert diagnosis.provenance["inputs"] == 3
    assert torch.equal(model(x), before)
    assert all(layer.dominance is not None for layer in diagnosis.layers[1:])
    probed = oversmooth.Monitor(model, probe=x, every=1, tokens=("cos",), parts=1, dominance=1)
    probed.step()
    assert not probed.failures
    cosines = [mean_metric("cos", array) for array in streams(model, x)]
    assert probed.history.rows[0]["cos"] == pytest.approx(cosines, abs=1e-4)
    assert probed.history.rows[0]["smoothing_share"] == pytest.approx(
        [layer.dominance.smoothing_share for layer in diagnosis.layers[1:]]
    )


@pytest.mark.parametrize("way", some(WAYS, 3))
def test_as_many_inputs_as_tokens(way):
    """Nobody can tell what attention that takes (n, batch, d) is given: that is said. The others are as they are."""
    model = Model(**way).eval()
    tokens = torch.randn(5, 5, D, generator=torch.Generator().manual_seed(1)) + 0.5
    x = tokens if model.model_first else tokens.transpose(0, 1).contiguous()
    if not way["attention_first"]:
        with pytest.raises(oversmooth.InputError, match="give another number of inputs"):
            oversmooth.diagnose(model, x)
        return
    diagnosis = oversmooth.diagnose(model, x, depth=0)
    expected = [mean_metric("hfc_lfc", one) for one in streams(model, x)]
    assert [layer.tokens["hfc_lfc"] for layer in diagnosis.layers] == pytest.approx(expected, rel=1e-4)


class TokensFirst(nn.Module):
    """Pictures or words, and blocks that take (n, batch, d)."""

    block_first = False

    def __init__(self, begin, block):
        super().__init__()
        torch.manual_seed(0)
        self.begin, self.layers = begin, nn.ModuleList(block() for _ in range(DEPTH))

    def forward(self, x):
        x = self.begin(x)
        x = x.flatten(2).permute(2, 0, 1) if x.ndim == 4 else x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return x


def test_pictures_and_words_of_models_whose_encoder_takes_tokens_first():
    for begin, x in (
        (nn.Conv2d(3, D, 4, 4), torch.randn(3, 3, 8, 8)),
        (nn.Embedding(11, D), torch.randint(11, (3, 7))),
    ):
        model = TokensFirst(begin, lambda: nn.TransformerEncoderLayer(D, HEADS, 2 * D)).eval()
        diagnosis = oversmooth.diagnose(model, x, depth=0)
        assert diagnosis.provenance["inputs"] == 3
        with torch.no_grad():
            last = model(x).transpose(0, 1)
        assert diagnosis.layers[-1].tokens["hfc_lfc"] == pytest.approx(mean_metric("hfc_lfc", last), rel=1e-4)


class Silent(nn.Module):
    """Attention over (n, batch, d), which no module says."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (HEADS, -1)).permute(1, 2, 0, 3) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(nn.functional.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2))


def silent(kind):
    torch.manual_seed(1)
    begin, x = {
        "words": (nn.Embedding(11, D), torch.randint(11, (3, 7))),
        "features": (nn.Linear(D, D), torch.randn(3, 7, D)),
        "pictures": (nn.Conv2d(3, D, 4, 4), torch.randn(5, 3, 16, 16)),
    }[kind]
    return TokensFirst(begin, lambda: blocks.Block(D, Silent())).eval(), x


def looked_at(model, x, **how):
    monitor = oversmooth.Monitor(model, every=1, tokens=("hfc_lfc",), dominance=0, **how)
    if "use_training_batch" in how:
        model.train()(x).sum().backward()
    monitor.step()
    monitor.close()
    model.eval()
    return monitor


@pytest.mark.filterwarnings("ignore::oversmooth.monitor.warning.MonitorWarning")
@pytest.mark.parametrize("kind", ["words", "features", "pictures"])
def test_tokens_before_the_batch_that_nobody_tells_of(kind):
    model, x = silent(kind)
    refused = r"layers\.0 receives an array of shape \(\d+, \d, 16\), in which tokens seem to come before the batch"
    for how in ({}, {"spectra": False}, {"spectra": False, "blocks": "layers.*"}):
        with pytest.raises(oversmooth.InputError, match=refused):
            oversmooth.diagnose(model, x, **how)
    for how in (
        {"probe": x},
        {"use_training_batch": True},
        {"probe": x, "gradients": 1, "loss": lambda out: out.sum()},
    ):
        (failure,) = set(looked_at(model, x, **how).failures)
        assert "tokens seem to come before the batch" in failure

    for layer in model.layers:
        layer.batch_first = False
    expected = [mean_metric("hfc_lfc", one) for one in streams(model, x)]
    for how in ({"depth": 0}, {"spectra": False}, {"spectra": False, "blocks": "layers.*"}):
        layers = oversmooth.diagnose(model, x, **how).layers
        assert [layer.tokens["hfc_lfc"] for layer in layers] == pytest.approx(expected, rel=1e-4)
    for how in ({"probe": x}, {"use_training_batch": True}):
        monitor = looked_at(model, x, **how)
        assert not monitor.failures
        found = monitor.history.rows[0]["hfc_lfc"]
        geometric = [math.exp(mean_metric("log_hfc_lfc", one)) for one in streams(model, x)]
        assert found == pytest.approx(geometric, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "stream", "turned"),
    [
        ([(3, 7)], (3, 7, D), False),
        ([(3, 7)], (7, 3, D), True),
        ([(7, 7)], (7, 7, D), False),
        ([(3, 7), (7, 3)], (7, 3, D), False),  # a source and a target
        ([(3, 2, 7)], (6, 7, D), False),  # choices, side by side
        ([(2, 3, 32, 32)], (2, 17, D), False),
        ([(2, 3, 32, 32)], (17, 2, D), True),
        ([(1, 3, 32, 32)], (16, 1, D), True),
        ([(4, 3, 32, 32)], (64, 4, D), False),  # windows of four tokens, or 64 tokens of four inputs: not known
        ([(7, 1)], (1, 7, D), False),  # one input of one number a token
        ([(5, 4), (4, 3, 32, 32)], (4, 5, D), False),  # pictures beside texts
        ([(3, 7)], (7, 3), False),
        ([], (7, 3, D), False),
    ],
)
def test_what_is_taken_for_tokens_before_the_batch(given, stream, turned):
    shapes = [torch.Size(shape) for shape in given]
    if turned:
        with pytest.raises(oversmooth.InputError, match=r"block\.batch_first = False, or True"):
            check_axes("block", shapes, torch.Size(stream))
    else:
        check_axes("block", shapes, torch.Size(stream))
