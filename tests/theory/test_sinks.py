"""Attention that one key receives, against loops over queries, for matrices and for queries and keys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import attention, normal

from oversmooth.theory.operators import DenseAttention, SoftmaxAttention
from oversmooth.theory.sinks import received, sink_rate


def by_hand(A, keep, key):
    """Of one head: A as a list of rows, keep as a list of booleans."""
    places = [i for i in range(len(keep)) if keep[i]]
    if key >= len(places):
        return float("nan")
    rows = [i for i in places if i >= places[key]]
    return sum(float(A[i][places[key]]) for i in rows) / len(rows)


@given(
    st.integers(2, 9), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 99)
)
def test_queries_and_keys_give_what_the_matrix_gives(n, causal, masked, biased, known, key, seed):
    q, k = normal(2, 4, n, 3, seed=seed), normal(2, 2, n, 3, seed=seed + 1)
    bias = normal(2, 4, n, n, seed=seed + 2) if biased else None
    keep = torch.ones(2, n, dtype=torch.bool)
    if masked:
        keep[0, 0] = keep[1, -1] = False
    keys = k.repeat_interleave(2, 1)
    scores = q @ keys.mT / 3**0.5 + (0.0 if bias is None else bias)
    hidden = ~keep[:, None, None, :] | (torch.ones(n, n, dtype=torch.bool).triu(1) if causal else False)
    scores = scores.masked_fill(hidden, -torch.inf)
    A = scores.softmax(-1)
    lse = scores.logsumexp(-1) if known else None
    operator = SoftmaxAttention.trusted(q, k, None, keep, bias, causal, lse)
    found = received(operator, key)
    for i in range(2):
        for h in range(4):
            expected = by_hand(A[i, h].tolist(), keep[i].tolist(), key)
            assert float(found[i, h]) == pytest.approx(expected, abs=1e-9, nan_ok=True)
    matrix = torch.where(keep[:, None, :, None], A, 0.0).nan_to_num()
    torch.testing.assert_close(
        received(DenseAttention.trusted(matrix, operator.mask, causal), key), found, equal_nan=True
    )


def test_the_rate_is_a_share_of_heads():
    A = attention(5, 6, 6, sharpness=3.0)
    means = [by_hand(head.tolist(), [True] * 6, 0) for head in A]
    assert float(sink_rate(A)) == sum(mean > 0.3 for mean in means) / 5
    assert float(sink_rate(A, threshold=0.1)) == sum(mean > 0.1 for mean in means) / 5
    assert sink_rate(A, key=6).isnan()
