"""Which tokens count, by the mask that attention used: written out pair by pair."""

import pytest
import torch
from support.blocks import own_block
from torch import nn

from oversmooth import diagnose
from oversmooth.results.notes import Note
from oversmooth.trace.valid import read_pairs, valid_of_pairs

N = 7


def pairs(rule):
    return torch.tensor([[bool(rule(i, j)) for j in range(N)] for i in range(N)])


def causal(i, j):
    return j <= i


CASES = {
    "all see all": (lambda _i, _j: True, range(N)),
    "causal": (causal, range(N)),
    "padding at the end": (lambda _i, j: j < 5, range(5)),
    "padding at the end, hidden queries too": (lambda i, j: j < 5 and i < 5, range(5)),
    "causal, padding at the end": (lambda i, j: causal(i, j) and j < 5, range(5)),
    "causal, padding at the start": (lambda i, j: causal(i, j) and j > 1, range(2, N)),
    "causal, padding at the start, rows opened again": (lambda i, j: i < 2 or (causal(i, j) and j > 1), range(2, N)),
    "a prefix that sees itself": (lambda i, j: j < 3 or causal(i, j), range(N)),
    "frames that see those before": (lambda i, j: j // 3 <= i // 3, range(N)),
    "a window": (lambda i, j: causal(i, j) and i - j < 3, range(N)),
    "a token that all see": (lambda i, j: j == 0 or i == 0 or abs(i - j) < 2, range(N)),
    "padding that the others see": (lambda i, j: i < 5 or j < 5, range(N)),
    "two texts": (lambda i, j: (i < 3) == (j < 3), range(N)),
}


@pytest.mark.parametrize("name", CASES)
def test_who_counts(name):
    rule, expected = CASES[name]
    allowed = pairs(rule)[None, None]
    assert valid_of_pairs(allowed)[0].nonzero()[:, 0].tolist() == list(expected)


def test_the_name_decides_where_rows_leave_it_open():
    # One token that sees all and is seen by nobody: the last of a prefix model, or padding whose row was opened.
    allowed = pairs(lambda i, j: i == N - 1 or j < N - 1)[None, None]
    assert bool(valid_of_pairs(allowed)[0, -1])
    named = torch.ones(1, N, dtype=torch.bool)
    named[0, -1] = False
    assert not bool(valid_of_pairs(allowed, named)[0, -1])
    # Padding that sees itself is seen by no token.
    allowed = pairs(lambda i, j: i == j or j < N - 1)[None, None]
    assert not bool(valid_of_pairs(allowed, named)[0, -1])
    # Tokens that the model does see count, whatever the name says.
    assert bool(valid_of_pairs(torch.ones(1, 1, N, N, dtype=torch.bool), named)[0, -1])


def test_texts_that_are_packed():
    def segments(rule):
        return read_pairs(pairs(rule)[None, None], 1, None).segments()

    assert segments(causal) is None
    assert segments(lambda i, j: causal(i, j) and (i < 3) == (j < 3)).tolist() == [[0, 0, 0, 3, 3, 3, 3]]
    assert segments(lambda i, j: abs(i - j) < 2) is None  # neighbours of neighbours


class _Net(nn.Module):
    """Takes a mask under a name of its own, and may put tokens of its own in front."""

    def __init__(self, prefix=0):
        super().__init__()
        self.blocks = nn.ModuleList(own_block(32, 4, 48) for _ in range(2))
        self.prefix = nn.Parameter(torch.randn(prefix, 32))

    def forward(self, x, shown=None, visible=None):
        x = torch.cat([self.prefix.expand(len(x), -1, -1), x], 1)
        if shown is not None:
            shown = torch.cat([torch.ones(len(x), len(self.prefix), dtype=torch.bool), shown], 1)
            visible = shown[:, None, None, :]
        for block in self.blocks:
            x = block(x, visible)
        return x


def figures(found):
    return [
        (layer.tokens, layer.dominance and (layer.dominance.rho_rough_heads, layer.dominance.verdict_heads))
        for layer in found.layers
    ]


def close(a, b):
    for (tokens, dominance), (other, expected) in zip(figures(a), figures(b), strict=True):
        assert tokens == pytest.approx(other, abs=1e-5)
        if dominance:
            assert [v for row in dominance[0] for v in row] == pytest.approx([v for r in expected[0] for v in r], 1e-4)
            assert dominance[1] == expected[1]


@pytest.mark.parametrize("prefix", [0, 2])
def test_a_mask_under_another_name(prefix):
    torch.manual_seed(0)
    model, x = _Net(prefix).eval(), torch.randn(1, 5, 32)
    padded = torch.cat([x, torch.randn(1, 3, 32)], 1)
    shown = torch.tensor([[True] * 5 + [False] * 3])
    found = diagnose(model, {"x": padded, "shown": shown}, depth=0)
    assert found.provenance["tokens"] == [5 + prefix] * 2
    close(found, diagnose(model, x, depth=0))


def test_a_float_mask_that_comes_first_does_not_count_inputs():
    torch.manual_seed(0)
    model, x = _Net().eval(), torch.randn(3, 5, 32)
    found = diagnose(model, {"visible": torch.zeros(5, 5), "x": x}, depth=0)
    assert found.provenance["inputs"] == 3
    close(found, diagnose(model, x, depth=0))


def test_packed_texts_are_measured_one_by_one():
    torch.manual_seed(0)
    model, parts = _Net().eval(), [torch.randn(1, n, 32) for n in (5, 3, 6)]
    text = torch.cat([torch.full((n,), i) for i, n in enumerate((5, 3, 6))])
    visible = (text[:, None] == text)[None, None]
    found = diagnose(model, {"x": torch.cat(parts, 1), "visible": visible}, depth=0)
    assert found.provenance["inputs"] == 3
    assert Note("packed_inputs", 3) in found.notes
    alone = [diagnose(model, part, depth=0) for part in parts]
    for place, layer in enumerate(found.layers):
        mean = sum(one.layers[place].tokens["log_hfc_lfc"] for one in alone) / 3
        assert layer.tokens["log_hfc_lfc"] == pytest.approx(mean, abs=1e-5)
        if layer.dominance:
            rows = [one.layers[place].dominance.rho_rough_heads[0] for one in alone]
            for got, expected in zip(layer.dominance.rho_rough_heads, rows, strict=True):
                assert got == pytest.approx(expected, rel=1e-4)


def test_one_token_inputs_are_in_no_figure():
    torch.manual_seed(0)
    model, x = _Net().eval(), torch.randn(3, 6, 32)
    shown = torch.ones(3, 6, dtype=torch.bool)
    shown[1, 1:] = False
    found = diagnose(model, {"x": x, "shown": shown}, depth=0)
    assert Note("short_inputs", 1, 3) in found.notes
    close(found, diagnose(model, x[[0, 2]], depth=0))
    assert all(len(layer.dominance.verdict_heads) == 2 for layer in found.layers[1:])


def test_without_spectra_the_mask_counts_too():
    torch.manual_seed(0)
    model, x = _Net().eval(), torch.randn(2, 6, 32)
    shown = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    full, tokens = (diagnose(model, {"x": x, "shown": shown}, depth=0, spectra=s) for s in (True, False))
    for one, other in zip(full.layers, tokens.layers, strict=True):
        assert {name: one.tokens[name] for name in one.tokens if not name.startswith("sink")} == other.tokens


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_is_causal_by_whatever_number_it_hides(hidden, padded):
    """A is exactly triangular, and the stack is repeated as with a mask of truth values."""
    torch.manual_seed(0)
    model, x = _Net().eval(), torch.randn(1, N, 32)
    allowed = pairs(lambda i, j: causal(i, j) and (j < 5 or not padded))
    found, expected = (
        diagnose(model, {"x": x, "visible": mask[None, None]}, depth=2)
        for mask in (torch.where(allowed, 0.0, hidden), allowed)
    )
    assert found.model["causal"] is expected.model["causal"] is True
    assert [entry.what for entry in found.extrapolation] == ["last block", "stack"]
    real = [of.extrapolation[1].real.log_hfc_lfc for of in (found, expected)]
    assert real[0] == pytest.approx(real[1], abs=1e-4)
    close(found, expected)
