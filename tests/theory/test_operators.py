"""One suite that every attention operator passes, whatever it is made of."""

import sys

import pytest
import torch
from support.interpreters import python
from support.nightly import nightly
from support.oracles import attention, normal

from oversmooth.theory import DenseAttention, SoftmaxAttention, is_causal, is_row_stochastic, operators
from oversmooth.theory.tokens import centre_tokens

N, K, HEADS, BATCH = 10, 4, 4, 2


def softmax_matrix(q, k, scale, bias=None, causal=False, mask=None):
    """Attention in one line per step, (batch, heads, n, n), with hidden tokens' rows at zero."""
    scores = q @ k.mT * scale
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        return torch.nan_to_num(scores.softmax(-1)) * mask[:, None, :, None]
    return scores.softmax(-1)


def make(kind, variant, dtype=torch.float64):
    """(operator, its matrix) for one implementation and one variant."""
    q = normal(BATCH, HEADS, N, K).to(dtype)
    keys = normal(BATCH, 2 if variant == "grouped" else HEADS, N, K, seed=1).to(dtype)
    settings, scale = {}, K**-0.5
    if "causal" in variant:
        settings["causal"] = True
    if "masked" in variant:
        settings["mask"] = torch.tensor([[0, 0] + [1] * (N - 2), [1] * (N - 1) + [0]]).bool()
    if variant == "bias":
        settings["bias"] = normal(HEADS, N, N, seed=2).to(dtype)
    if variant == "scale":
        scale = 1.7
    full_keys = keys.repeat_interleave(HEADS // keys.shape[1], dim=1)
    A = softmax_matrix(q, full_keys, scale, **settings)
    if kind == "softmax":
        return SoftmaxAttention(q, keys, scale=scale, **settings), A
    return DenseAttention(A, mask=settings.get("mask")), A


VARIANTS = ["plain", "causal", "masked", "causal masked", "bias", "scale", "grouped"]
each = pytest.mark.parametrize("kind", ["dense", "softmax"])
every = pytest.mark.parametrize("variant", VARIANTS)


@each
@every
@pytest.mark.parametrize("columns", [1, 3, K, 9])
def test_product(kind, variant, columns):
    operator, A = make(kind, variant)
    v = normal(BATCH, HEADS, N, columns, seed=3)
    torch.testing.assert_close(operator @ v, A @ v)
    shared = normal(N, columns, seed=4)  # one v for all heads
    torch.testing.assert_close(operator @ shared, A @ shared)


@each
@every
def test_diagonal_and_matrix(kind, variant):
    operator, A = make(kind, variant)
    torch.testing.assert_close(operator.diagonal(), A.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(operator.dense().A, A)
    assert operator.shape == A.shape
    assert operator.causal == ("causal" in variant)


@each
@every
def test_constant_vectors_stay_and_hidden_tokens_take_no_part(kind, variant):
    operator, A = make(kind, variant)
    ones = torch.ones(BATCH, HEADS, N, 1, dtype=A.dtype)
    keep = ones if operator.mask is None else operator.mask[..., None].to(A.dtype)
    torch.testing.assert_close(operator @ keep, keep)
    centred = centre_tokens(normal(BATCH, HEADS, N, 2, seed=5), operator.mask)
    torch.testing.assert_close((centred * keep).sum(-2), torch.zeros(BATCH, HEADS, 2, dtype=A.dtype))
    assert (centred * (1 - keep) == 0).all()
    assert (operator.valid_count() == keep.sum((-2, -1))).all()


@each
@every
def test_flatten_and_select(kind, variant):
    operator, A = make(kind, variant)
    v = normal(3, N, 2, seed=6)
    index = torch.tensor([5, 0, 2])
    torch.testing.assert_close(operator.flatten().select(index) @ v, A.flatten(0, 1)[index] @ v)
    torch.testing.assert_close(operator.flatten(keep=1).select(torch.tensor([1])) @ v[:1], A[1:2] @ v[:1])


@each
@every
def test_blocks_of_queries_agree_with_one_piece(kind, variant, monkeypatch):
    monkeypatch.setattr(operators, "_BLOCK", BATCH * HEADS * N * 3)
    monkeypatch.setattr(operators, "_has_fused_kernel", lambda *_: False)
    operator, A = make(kind, variant)
    v = normal(BATCH, HEADS, N, 2, seed=3)
    torch.testing.assert_close(operator @ v, A @ v)
    torch.testing.assert_close(operator.diagonal(), A.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(operator.dense().A, A)


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float32(kind, dtype):
    operator, _ = make(kind, "plain", dtype)
    assert operator.dtype == torch.float32
    rows = (operator @ torch.ones(N, 1)).squeeze(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-5, atol=0)


LINEAR = """
import torch
from pathlib import Path
from oversmooth.theory import SoftmaxAttention, attention_spectrum
torch.set_num_threads(1)
n = 16384
g = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, n, 64, generator=g) for _ in range(3))
small = SoftmaxAttention(q[:, :64], k[:, :64], causal=True)
small @ v[:, :64, :1], attention_spectrum(small)
def status(name):
    return next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name))
Path("/proc/self/clear_refs").write_text("5")  # forget the peak that importing torch left
before = status("VmRSS")
A = SoftmaxAttention(q, k, causal=True)
diagonal, product = A.diagonal(), A @ v[..., :1]
i = 9000
row = torch.softmax((q[0, i].double() @ k[0, : i + 1].double().T) / 8, -1)
assert abs(diagonal[0, i] - row[i]) < 1e-6 and abs(product[0, i, 0] - row @ v[0, : i + 1, 0].double()) < 1e-5
print((status("VmHWM") - before) // 1024)
"""


@nightly
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's memory counters")
def test_sixteen_thousand_tokens_in_linear_memory():
    # The matrix would take 1 GiB.
    done = python("-c", LINEAR)
    assert 0 < int(done.stdout) < 200


def test_predicates():
    assert is_row_stochastic(attention(2, 5, 5))
    assert not is_row_stochastic(2 * attention(2, 5, 5))
    assert not is_row_stochastic(torch.tensor([[1.5, -0.5], [0.5, 0.5]]))
    assert is_causal(attention(2, 5, 5, causal=True))
    assert not is_causal(attention(2, 5, 5))
