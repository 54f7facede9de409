"""Pooled vectors and sampled tokens of every depth, against the hidden states that a model returns."""

import pytest
import torch

from oversmooth.anatomy import locate
from oversmooth.metrics.across import curvature, token_entropy
from oversmooth.trace import Plan, run
from oversmooth.trace.reducers.vectors import TOKENS, PooledVectors

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertModel(config).eval()


@pytest.mark.parametrize("pool", ["mean", "last", "first"])
def test_every_depth_of_every_input(bert, pool):
    lengths = (12, 5, 9)
    ids = torch.randint(0, 50, (3, 12))
    mask = (torch.arange(12) < torch.tensor(lengths)[:, None]).long()
    plan = Plan.of_names({layer.block: layer for layer in locate(bert)})
    vectors = PooledVectors(pool)
    batches = [{"input_ids": ids[part], "attention_mask": mask[part]} for part in (slice(0, 2), slice(2, 3))]
    run(bert, batches, plan, [vectors])
    with torch.no_grad():
        states = bert(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert len(vectors.result) == 3
    for found, state in zip(vectors.result, states, strict=True):
        for i, n in enumerate(lengths):
            tokens = state[i, :n]
            pooled = {"mean": tokens.mean(0), "last": tokens[-1], "first": tokens[0]}[pool]
            torch.testing.assert_close(found.pooled[i], pooled, atol=1e-5, rtol=1e-5)
            places = [(2 * k + 1) * n // (2 * TOKENS) for k in range(TOKENS)]
            torch.testing.assert_close(found.tokens[i], tokens[places], atol=1e-5, rtol=1e-5)
            assert float(found.entropy[i]) == pytest.approx(float(token_entropy(tokens)), abs=1e-5)
            assert float(found.curvature[i]) == pytest.approx(float(curvature(tokens)), abs=1e-2)
