"""Blocks made to mislead: nothing about them may be wrong in silence. They note their states themselves."""

import functools
import math

import pytest
import torch
from support.blocks import Block, Stack
from support.families import HEADS, ToyAttention
from support.families import WIDTH as D
from torch import nn

from oversmooth import InputError, diagnose
from oversmooth.theory.reasons import Reason
from oversmooth.trace import plan

N = 12
QUICK = dict(depth=0, joined=0, ranks=0)


class Ruled(Block):
    """rule: how attention, MLP and stream are put together; it notes the state after attention where there is one."""

    def __init__(self, rule):
        super().__init__(D, ToyAttention(), 48)
        self.rule, self.gamma = rule, nn.Parameter(torch.randn(D))

    def forward(self, x):
        self.entered = x
        return self.rule(self, x)


def net(rule):
    return Stack(Ruled(rule), Ruled(rule)).eval()


def made(rule):
    torch.manual_seed(0)
    return net(rule)


def log_ratio(x):
    mean = x.double().mean(1, keepdim=True)
    return ((x.double() - mean).flatten(1).norm(dim=1) / (mean.flatten(1).norm(dim=1) * math.sqrt(x.shape[1]))).log()


def verdicts(found):
    return {word for layer in found.layers[1:] for row in layer.dominance.verdict_heads for word in row}


def of_the_input(x):
    return x.abs().amax((1, 2), keepdim=True).round() / 4


def parallel_gated(b, x):
    z = b.norm1(x)
    return x + of_the_input(x) * b.attn(z) + b.mlp(z)


def parallel(b, x):
    z = b.norm1(x)
    return x + b.attn(z) + b.mlp(z)


def sandwich(b, x):
    a = b.attn(b.norm1(x))
    x = x + a / a.square().mean(-1, keepdim=True).sqrt()
    return x + b.mlp(b.norm2(x))


def parallel_by_channel(b, x):
    a, m = b.attn(b.norm1(x)), b.mlp(b.norm1(x))
    b.after = b.gamma * x + a
    return b.gamma * x + a + m


def off_the_stream(b, x):
    return x + b.mlp(b.norm2(x + b.attn(b.norm1(x))))


def mixed_with_what_entered(b, x):
    h = x + b.attn(b.norm1(x))
    h = h + b.mlp(b.norm2(h))
    return 0.9 * x + 0.1 * h


def different(seed=1):
    torch.manual_seed(seed)
    return torch.randn(3, N, D) * torch.tensor([1.0, 1.0, 4.0])[:, None, None]


def test_a_gate_of_the_input_beside_the_mlp_has_neither_change_nor_verdict():
    found = diagnose(made(parallel_gated), different(), **QUICK)
    assert verdicts(found) == {"undecided"}
    assert found.layers[1].change("attention") is None
    assert math.isfinite(found.layers[1].tokens["log_hfc_lfc"])


def test_an_mlp_beside_which_all_else_is_rounding_is_no_sum_of_itself():
    """Its output is, up to rounding, what enters plus itself plus attention's, and so is the stream."""
    model = made(parallel).bfloat16()
    with torch.no_grad():
        for block in model.blocks:
            block.mlp[2].weight *= 1e3
            block.attn.to_out.weight *= 0.01
            block.attn.to_out.bias.zero_()
    for block in plan(model, (0.01 * torch.randn(2, N, D)).bfloat16()).blocks:
        assert [(stage.part, stage.where) for stage in block.stages] == [("attention", "sum"), ("mlp", "end")]


@pytest.mark.parametrize("first", [1, 2])
def test_few_tokens_first_do_not_make_a_norm_a_factor(first):
    torch.manual_seed(1)
    inputs = [torch.randn(1, first, D), torch.randn(2, N, D)]
    assert verdicts(diagnose(made(sandwich), inputs, **QUICK)) == {"undecided"}


def test_a_stream_that_is_scaled_by_channel_beside_the_mlp():
    model, x = made(parallel_by_channel), different()
    found = diagnose(model, x, **QUICK)
    with torch.no_grad():
        model(x)
    for layer, block in zip(found.layers[1:], model.blocks, strict=True):
        change = (log_ratio(block.after) - log_ratio(block.entered)).mean()
        assert layer.change("attention") == pytest.approx(float(change), abs=1e-4)
    assert verdicts(found) == {"undecided"}


@pytest.mark.parametrize("rule", [off_the_stream, mixed_with_what_entered])
def test_attention_that_does_not_reach_the_stream_as_it_looks(rule):
    found = diagnose(made(rule), different(), **QUICK)
    assert [change.part for change in found.layers[1].changes] == ["attention and mlp"]
    assert verdicts(found) == {"undecided"}
    assert Reason("unexplained") in [note.reason for note in found.notes]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(D, HEADS, 48, batch_first=True) for _ in range(2)])

    def forward(self, x, hidden):
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        return x


@pytest.mark.parametrize("low", [-torch.inf, -1e9, -1e4, torch.finfo(torch.float32).min])
def test_padding_of_torch_attention_in_numbers(low):
    torch.manual_seed(0)
    model, x = Encoder().eval(), torch.randn(1, 8, D)
    padded = torch.cat([x, torch.randn(1, 4, D)], 1)
    hidden = torch.tensor([[0.0] * 8 + [low] * 4])
    found = diagnose(model, {"x": padded, "hidden": hidden}, **QUICK)
    alone = diagnose(model, {"x": x, "hidden": torch.zeros(1, 8)}, **QUICK)
    assert found.provenance["tokens"] == [8, 8]
    for layer, other in zip(found.layers, alone.layers, strict=True):
        assert layer.tokens["log_hfc_lfc"] == pytest.approx(other.tokens["log_hfc_lfc"], abs=1e-4)
        if layer.dominance:
            rows = layer.dominance.rho_rough_heads[0], other.dominance.rho_rough_heads[0]
            assert rows[0] == pytest.approx(rows[1], rel=1e-4)


class Adaptive(nn.Module):
    """Runs its one block as often as the input says."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Ruled(lambda b, x: x + b.attn(b.norm1(x)))])

    def forward(self, x):
        for _ in range(2 if x.shape[1] < 8 else 4):
            x = self.blocks[0](x)
        return x


def test_a_depth_that_depends_on_the_input_is_refused():
    torch.manual_seed(0)
    with pytest.raises(InputError, match="give inputs that take one way"):
        diagnose(Adaptive().eval(), [torch.randn(1, 6, D), torch.randn(1, 9, D)], **QUICK)


def test_a_failure_in_a_later_batch_is_the_one_that_is_told():
    torch.manual_seed(0)
    net = made(lambda b, x: x + b.attn(b.norm1(x)))
    with pytest.raises(InputError, match="does not run on this input"):
        diagnose(net, [torch.randn(1, 6, D), torch.randn(1, 6, D + 1)], **QUICK)


def test_tensors_of_inference_mode():
    net = made(lambda b, x: x + b.attn(b.norm1(x)))
    with torch.inference_mode():
        found = diagnose(net, torch.randn(1, 6, D), **QUICK)
    assert [change.part for change in found.layers[1].changes] == ["attention"]


class TwoStreams(nn.Module):
    """What the last part gave and the sum of all before it go side by side."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Ruled(self.rule) for _ in range(2)])
        for block in self.blocks:
            block.forward = functools.partial(self.rule, block)

    @staticmethod
    def rule(block, x, total=None):
        total = x if total is None else total + x
        total = total + block.attn(block.norm1(total))
        return block.mlp(block.norm2(total)), total

    def forward(self, x):
        total = None
        for block in self.blocks:
            x, total = block(x, total)
        return x + total


def test_two_streams_are_refused():
    torch.manual_seed(0)
    with pytest.raises(InputError, match="receives two arrays of tokens"):
        diagnose(TwoStreams().eval(), torch.randn(1, 6, D), **QUICK)


def test_a_second_attention_is_named():
    torch.manual_seed(0)
    model = net(lambda b, x: b.mlp(b.norm2(y := x + b.attn(b.norm1(x)))) + y + b.temporal_attn(y))
    for block in model.blocks:
        block.temporal_attn = ToyAttention()
    found = diagnose(model, torch.randn(1, 6, D), stack="blocks.*.attn", **QUICK)
    assert [change.part for change in found.layers[1].changes] == ["attention", "temporal_attn and mlp"]


def test_a_projection_after_the_output_projection_is_no_gate():
    torch.manual_seed(0)
    model = net(lambda b, x: x + b.more(b.attn(b.norm1(x))))
    for block in model.blocks:
        block.more = nn.Linear(D, D)
    found = diagnose(model, torch.randn(1, 6, D), **QUICK)
    assert Reason("changed_after_attention") in [note.reason for note in found.notes]
    assert set(found.layers[1].dominance.verdict_heads[0]) == {"undecided"}
