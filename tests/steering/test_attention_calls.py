"""What is recorded of attention's calls: how far values are only weighted, and what may be a mask."""

import pytest
import torch
from torch import nn

from oversmooth.steering.attention_calls import AttentionCall, may_be_masked


def weighted(seed=0):
    """Weights A, values of two heads for four queries' heads, and what attention makes of them, in loops."""
    torch.manual_seed(seed)
    A, V = torch.randn(2, 4, 5, 5).softmax(-1), torch.randn(2, 5, 2, 3)
    U = torch.zeros(2, 5, 4, 3)
    for b in range(2):
        for head in range(4):
            U[b, :, head] = A[b, head] @ V[b, :, head // 2]
    return A, V, U


@pytest.mark.parametrize("form", [lambda A: A, lambda A: A.flatten(0, 1)])
def test_eager_attention_that_only_weights_its_values(form):
    A, V, U = weighted()
    call = AttentionCall(A.shape, None, A=form(A))
    assert call.distance(V, U) < 1e-6
    assert call.distance(V, 1.1 * U) == pytest.approx(1 / 11, rel=1e-5)
    assert call.distance(V.flip(1), U) > 0.1
    assert call.distance(V[:1], U[:1]) is None  # of another batch


def test_fused_attention_that_only_weights_its_values():
    A, V, U = weighted()
    values = V.repeat_interleave(2, 2).transpose(1, 2)
    call = AttentionCall(A.shape, None, value=values, out=U.transpose(1, 2))
    assert call.distance(V, U) < 1e-6
    assert call.distance(1.1 * V, U) == pytest.approx(1 / 11, rel=1e-5)
    assert call.distance(V, 1.1 * U) == pytest.approx(1 / 11, rel=1e-5)
    assert call.distance(V[..., :2], U[..., :2]) is None  # of other features


@pytest.mark.parametrize(
    ("more", "masked"),
    [
        ({}, False),
        ({"need_weights": False, "rope": None, "scale": 0.5, "layer": 3, "kind": "full"}, False),
        ({"positions": torch.arange(5)}, False),
        ({"mask": torch.ones(2, 5).bool()}, True),
        ({"bias": torch.zeros(2, 5, 5)}, True),
        ({"cache": object()}, True),
    ],
)
def test_what_may_be_a_mask(more, masked):
    x = torch.randn(2, 5, 4)
    assert may_be_masked(nn.Identity(), (x,), more) == masked
    assert may_be_masked(nn.Identity(), (x,), {**more, "is_causal": True})
    assert not may_be_masked(nn.MultiheadAttention(4, 1), (x, x, x), {"is_causal": False})
