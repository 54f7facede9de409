"""Attention caught from torch's own function, however its arguments are given, against softmax written out."""

import numpy as np
import pytest
import torch
from torch.nn.functional import multi_head_attention_forward

from oversmooth.trace.catch import CatchAttention

N, WIDTH, HEADS = 5, 8, 2


@pytest.mark.parametrize("by_name", [False, True])
def test_masks_given_by_place_or_by_name(by_name):
    """WavLM gives them by their place in some versions of transformers and by name in others."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, WIDTH, generator=source)
    W_q, W_k, W_v, W_o = torch.randn(4, WIDTH, WIDTH, generator=source)
    bias, added = torch.randn(3 * WIDTH, generator=source), torch.randn(2 * HEADS, N, N, generator=source)
    hidden = torch.zeros(2, N)
    hidden[1, 3:] = -torch.inf
    first = (x, x, x, WIDTH, HEADS, torch.empty(0), bias, None, None, False, 0.0, W_o, None, False)
    weights = dict(use_separate_proj_weight=True, q_proj_weight=W_q, k_proj_weight=W_k, v_proj_weight=W_v)
    masks = dict(key_padding_mask=hidden, need_weights=False, attn_mask=added)
    with CatchAttention(HEADS, None) as catch:
        if by_name:
            multi_head_attention_forward(*first, **masks, **weights)
        else:
            multi_head_attention_forward(*first, *masks.values(), **weights)
    (caught,) = catch.caught
    A, size = caught.A.dense().A.numpy(), WIDTH // HEADS
    assert caught.tokens.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    for item, counted in enumerate((5, 3)):
        tokens = x[:, item].double().numpy()
        q = tokens @ W_q.double().numpy().T + bias[:WIDTH].double().numpy()
        k = tokens @ W_k.double().numpy().T + bias[WIDTH : 2 * WIDTH].double().numpy()
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = q[:, part] @ k[:, part].T / np.sqrt(size) + added[item * HEADS + head].double().numpy()
            expected = np.exp(scores[:counted, :counted])
            expected /= expected.sum(-1, keepdims=True)
            np.testing.assert_allclose(A[item, head, :counted, :counted], expected, rtol=1e-4, atol=1e-6)
            assert not A[item, head, :counted, counted:].any()
