"""Where long tokens arise and what the first one is, in a model whose MLP makes one."""

import pytest
import torch
from support.blocks import own_block
from torch import nn

from oversmooth import diagnose

N, WIDTH, CHANNEL = 12, 16, 5


class Lengthens(nn.Module):
    """An MLP that makes the token long whose first feature is large."""

    def forward(self, x):
        direction = torch.zeros(WIDTH)
        direction[CHANNEL] = 60.0
        return torch.where(x[..., :1] > 3, direction, 0.0) + 0.01 * x


@pytest.fixture
def model():
    torch.manual_seed(0)
    blocks = nn.Sequential(*(own_block(WIDTH, 2, 24) for _ in range(3))).eval()
    blocks[1].mlp = Lengthens()
    for block in blocks:
        for p in block.attn.parameters():
            p.data.mul_(0.1)
    return blocks


def test_the_sublayer_the_position_and_the_feature(model):
    x = torch.randn(4, N, WIDTH).clamp(-1, 1)
    x[:, 3, 0] = 6.0
    found = diagnose(model, x, depth=0, spectra=False)
    origin = found.massive_origin
    assert origin is not None
    assert (origin.depth, origin.part, origin.position) == (2, "mlp", 3)
    assert origin.channels[0] == CHANNEL
    assert origin.input_share == 1.0
    assert origin.before < 5 < origin.after
    states = [x]
    for block in model:
        states.append(block(states[-1]).detach())
    norms = states[2].norm(dim=-1)
    assert origin.after == pytest.approx(float((norms.amax(-1) / norms.median(-1).values).mean()), rel=1e-3)
    squares = states[2][:, 3].square()
    held = squares.topk(3).values.sum(-1) / squares.sum(-1)
    assert origin.channel_share == pytest.approx(float(held.mean()), rel=1e-2)
    for depth, state in enumerate(states):
        norms = state.norm(dim=-1)
        expected = float((norms[:, 0] / norms.median(-1).values).mean())
        assert found.layers[depth].tokens["first_norm"] == pytest.approx(expected, rel=1e-5)
    assert any("arise in the MLP of block 2" in sentence for sentence in found.verdict)


def test_a_model_without_long_tokens_has_no_origin(model):
    assert diagnose(model, torch.randn(4, N, WIDTH).clamp(-1, 1), depth=0, spectra=False).massive_origin is None
