"""Searches of several layers side by side: what each finds alone, and work of one kind done at once."""

import pytest
import torch
from support.oracles import attention, weights

from oversmooth.safety.errors import InputError, about
from oversmooth.theory import dominance, shared_weights, spectrum, together
from oversmooth.theory.dominance import search
from oversmooth.theory.operators import DenseAttention, SoftmaxAttention
from oversmooth.theory.systems import JoinedHeads

CASES = {
    "bidirectional": (dict(causal=False), 40, 12),
    "causal": (dict(causal=True), 30, 24),
    "small": (dict(causal=False), 6, 4),
}


def layers(case, count=4):
    how, n, d = CASES[case]
    return [(attention(3, n, n, seed=s, **how), *weights(3, d, 4, scale=0.5 + 0.2 * s, seed=s)) for s in range(count)]


@pytest.fixture(autouse=True)
def by_arnoldi(monkeypatch):
    for name in ("_DENSE_BLOCK", "_DENSE_WEIGHTS"):
        monkeypatch.setattr(shared_weights, name, 0)


@pytest.mark.parametrize("steps", [None, 24])
@pytest.mark.parametrize("case", CASES)
def test_side_by_side_as_alone(case, steps):
    """Layers of one shape, and one of another between them."""
    given = layers(case)
    given.insert(2, layers("small", 1)[0])
    found = together.side_by_side([search(*one, limit=False, steps=steps) for one in given])
    for one, layer in zip(found, given, strict=True):
        alone = dominance(*layer, limit=False, steps=steps)
        assert one.verdict == alone.verdict
        for name in ("rho_smooth", "rho_rough", "error"):
            torch.testing.assert_close(getattr(one, name), getattr(alone, name), rtol=1e-6, atol=1e-8)


def products(monkeypatch):
    """The number of items of every product with all heads jointly."""
    seen, apply = [], JoinedHeads.apply
    monkeypatch.setattr(JoinedHeads, "apply", lambda self, v: seen.append(len(v)) or apply(self, v))
    return seen


@pytest.mark.parametrize(("held", "at_once"), [(None, 4), (2, 2), (0, 1)])
def test_layers_share_products_within_the_memory_set_aside(held, at_once, monkeypatch):
    seen = products(monkeypatch)
    if held is not None:
        monkeypatch.setattr(together, "MOST_ENTRIES", held * (64 * 40 * 12 + 2 * 12 * 12))  # bases and weights
    together.side_by_side([search(*one, limit=False) for one in layers("bidirectional")])
    assert max(seen) == at_once


def test_queries_and_keys_of_several_layers_are_joined(monkeypatch):
    monkeypatch.setattr(spectrum, "_MATERIALISE", 0)
    seen, generator = products(monkeypatch), torch.Generator().manual_seed(0)
    operators = [
        SoftmaxAttention(*(torch.randn(2, 30, 5, generator=generator, dtype=torch.float64) for _ in range(2)))
        for _ in range(3)
    ]
    given = [(A, *weights(2, 10, 5, seed=s)) for s, A in enumerate(operators)]
    found = together.side_by_side([search(*one, limit=False) for one in given])
    assert max(seen) == 3
    for one, (A, W_V, W_O) in zip(found, given, strict=True):
        expected = dominance(DenseAttention(A.dense().A), W_V, W_O, limit=False).rho_rough
        torch.testing.assert_close(one.rho_rough, expected, rtol=1e-6, atol=1e-8)


def named(name, layer):
    with about(name):
        return (yield from search(*layer))


def test_an_error_is_raised_where_it_belongs():
    """Of weights that are refused at once, and of products that only their search together forms."""
    for spoilt in (torch.nan, 1e200):
        one, (A, W_V, W_O) = layers("causal", 2)
        W_V[0, 1, 2] = spoilt
        with pytest.raises(InputError, match=r"^second: "):
            together.side_by_side([named("first", one), named("second", (A, W_V, W_O * spoilt))])
