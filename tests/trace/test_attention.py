"""Captured attention against softmax written out in float64; outputs bit for bit; no n by n array."""

import numpy as np
import pytest
import torch
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention, softmax
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import oversmooth
from oversmooth.theory import operators
from oversmooth.trace.attention import CaptureAttention
from oversmooth.trace.valid import ValidTokens

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
    with CaptureAttention(HEADS, None) as capture:
        if by_name:
            multi_head_attention_forward(*first, **masks, **weights)
        else:
            multi_head_attention_forward(*first, *masks.values(), **weights)
    (captured,) = capture.captured
    A, size = captured.A.dense().A.numpy(), WIDTH // HEADS
    assert captured.pairs.valid.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
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


@pytest.mark.parametrize("heads_among_inputs", [False, True])
def test_softmax_by_hand(heads_among_inputs):
    """Some models flatten heads into the batch."""
    scores = torch.randn(3, HEADS, N, N, generator=torch.Generator().manual_seed(0))
    with CaptureAttention(HEADS, None) as capture:
        softmax(scores.flatten(0, 1) if heads_among_inputs else scores, dim=-1)
    (captured,) = capture.captured
    expected = np.exp(scores.double().numpy())
    np.testing.assert_allclose(captured.A.dense().A.numpy(), expected / expected.sum(-1, keepdims=True), rtol=1e-5)


KEEP = torch.arange(37) < torch.tensor([37, 29])[:, None]
START = KEEP.flip(-1)
LOWER = torch.ones(37, 37, dtype=torch.bool).tril()
TEXT = (torch.arange(37) < 20).long()
DISTANCE = (torch.arange(37)[:, None] - torch.arange(37)).abs()
MASKS = {
    "none": (None, None),
    "causal": (None, LOWER.expand(2, 1, 37, 37)),
    "padding": (KEEP[:, None, None], KEEP[:, None, None].expand(2, 1, 37, 37)),
    "causal, padding": (KEEP[:, None, None] & LOWER, KEEP[:, None, None] & LOWER),
    "causal, padding at the start": (START[:, None, None] & LOWER, START[:, None, None] & LOWER),
    "causal, rows hidden whole": (KEEP[:, None, None] & KEEP[:, None, :, None] & LOWER, KEEP[:, None, None] & LOWER),
    "causal, added": (torch.where(KEEP[:, None, None] & LOWER, 0.0, -1e9), KEEP[:, None, None] & LOWER),
    "packed": ((TEXT[:, None] == TEXT) & LOWER, ((TEXT[:, None] == TEXT) & LOWER).expand(2, 1, 37, 37)),
    "window": (LOWER & (DISTANCE < 5), (LOWER & (DISTANCE < 5)).expand(2, 1, 37, 37)),
    "causal, biased": (torch.where(LOWER, -0.3 * DISTANCE, -torch.inf), LOWER.expand(2, 1, 37, 37)),
}


def captured(call, named=None, heads=4, **how):
    with CaptureAttention(heads, named, **how) as capture:
        out = call()
    (found,) = capture.captured
    return out, found


def arrays(dtype, kv_heads, n=37, batch=2):
    source = torch.Generator().manual_seed(0)
    shapes = [(batch, n, heads, 8) for heads in (4, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=source).to(dtype).transpose(1, 2) for shape in shapes]


def oracle(q, k, scale, visible, bias=0.0):
    """A in float64, ``(batch, heads, n, n)``; rows of padding are not to be compared."""
    scores = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale + bias
    return softmax(scores if visible is None else scores.masked_fill(~visible, -torch.inf), -1)


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "blocks"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", MASKS)
def test_the_call_gives_the_same_bits_and_the_diagonal(name, dtype, kv_heads, kernel, monkeypatch):
    """With the kernel's log-sum-exp, and where torch has another version and none is returned."""
    if not kernel:
        monkeypatch.setattr(operators, "_FLASH", -1)
        monkeypatch.setattr(operators, "_BLOCK", 5 * 37 * 8)
    mask, visible = MASKS[name]
    (q, k, v), causal, scale = arrays(dtype, kv_heads), name == "causal", 0.3
    given = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    how = dict(attn_mask=given, is_causal=causal, scale=scale, enable_gqa=kv_heads < 4)
    with torch.no_grad():
        out, found = captured(lambda: scaled_dot_product_attention(q, k, v, **how))
        assert torch.equal(out, scaled_dot_product_attention(q, k, v, **how))
    exact = dtype in (torch.float32, torch.float64)
    assert (found.lse is not None) == (kernel and exact)
    A = oracle(q, k, scale, visible, given.double() if name == "causal, biased" else 0.0)
    valid = torch.ones_like(KEEP) if "padding" not in name and "hidden" not in name and "added" not in name else KEEP
    valid = START if "start" in name else valid
    assert found.pairs.valid is None or torch.equal(found.pairs.valid, valid)
    assert found.pairs.causal == (name not in ("none", "padding"))
    expected = torch.where(valid[:, None], A.diagonal(dim1=-2, dim2=-1), 0.0)
    torch.testing.assert_close(found.A.diagonal().double(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.A.to(torch.float64).diagonal(), expected, rtol=0, atol=1e-9)
    places = valid.byte().argmax(-1)
    first = torch.stack([A[i, ..., place] for i, place in enumerate(places.tolist())])
    column = found.A.column(places[:, None].expand(2, 4)).double()
    torch.testing.assert_close(column, torch.where(valid[:, None], first, 0.0), rtol=0, atol=1e-6)
    rows = torch.where(valid[:, None, 5:9, None], A[..., 5:9, :], 0.0)
    torch.testing.assert_close(found.A.dense().A[..., 5:9, :].double(), rows, rtol=0, atol=1e-6)
    tokens = ValidTokens.of(found.pairs)
    if name == "packed":
        alone = [A.diagonal(dim1=-2, dim2=-1)[i][:, part] for i in range(2) for part in (TEXT == 1, TEXT == 0)]
        for text, one in zip(tokens.operators(found.A).diagonal().double(), alone, strict=True):
            torch.testing.assert_close(text[:, : one.shape[-1]], one, rtol=0, atol=1e-6)
            assert not text[:, one.shape[-1] :].any()


@pytest.mark.parametrize("how", ["gradients", "dropout", "autocast", "one head of keys, broadcast"])
def test_calls_that_another_kernel_answers_are_left_alone(how):
    q, k, v = arrays(torch.float32, 1 if "one head" in how else 4)
    q.requires_grad_(how == "gradients")

    def call():
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            return scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 * (how == "dropout"))

    out, found = captured(call)
    assert torch.equal(out, call())
    assert out.dtype == call().dtype
    assert found.lse is None
    expected = oracle(q, k, 8**-0.5, LOWER).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(found.A.diagonal().double(), expected, rtol=0, atol=1e-6)


class Largest(TorchDispatchMode):
    """Remembers the most entries of an array that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if torch.is_tensor(x)]
        self.entries = max([self.entries, *made])
        return out


@pytest.mark.parametrize(("dtype", "n"), [(torch.float32, 4096), (torch.bfloat16, 8192)])
def test_no_array_of_all_pairs(dtype, n):
    q, k, v = arrays(dtype, 2, n, 1)
    with torch.no_grad(), Largest() as largest:
        how = dict(is_causal=True, enable_gqa=True)
        _, found = captured(lambda: scaled_dot_product_attention(q, k, v, **how))
        tokens = ValidTokens.of(found.pairs)
        diagonals = found.A.diagonal(), tokens.operators(found.A).diagonal()
    assert tokens.valid is None
    assert largest.entries < n**2 // 4
    torch.testing.assert_close(*diagonals, rtol=0, atol=1e-6)


def test_a_diagnosis_of_tokens_makes_no_array_of_all_pairs():
    from transformers import LlamaConfig, LlamaModel

    n = 4096
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64)
    model = LlamaModel(LlamaConfig(**sizes, max_position_embeddings=n, attn_implementation="sdpa")).eval()
    ids = torch.randint(0, 64, (1, n), generator=torch.Generator().manual_seed(0))
    for mask in ({}, {"attention_mask": torch.ones_like(ids)}):
        with Largest() as largest:
            oversmooth.diagnose(model, {"input_ids": ids, **mask}, spectra=False, ranks=0)
        assert largest.entries < n**2 // 4


def test_a_mask_is_read_once_for_all_layers(monkeypatch):
    """And the device is waited for once; without a mask never."""
    waits = []
    for name in ("tolist", "item", "__bool__"):
        own = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, own=own, name=name: waits.append(name) or own(x))
    (q, k, v), known = arrays(torch.float32, 4), {}
    mask = KEEP[:, None, None] & LOWER
    for given in (None, mask, mask.clone()):
        waits.clear()
        how = dict(attn_mask=given, is_causal=given is None)
        for _ in range(3):
            _, found = captured(lambda how=how: scaled_dot_product_attention(q, k, v, **how), known=known)
            found.A.diagonal()
            assert found.pairs.segments() is None
        assert waits == ([] if given is None else ["tolist"])
    waits.clear()
    mask[1, :, :, 20:] = False  # the same array, written to
    found = captured(lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask), known=known)[1]
    assert found.pairs.valid.sum(-1).tolist() == [37, 20]
