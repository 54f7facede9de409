"""What is handed to the theory that is no attention, no weights, or does not fit the rest, is named."""

import math

import pytest
import torch
from support.oracles import attention, normal, weights

from oversmooth import InputError
from oversmooth.theory import (
    DenseAttention,
    SoftmaxAttention,
    attention_spectrum,
    dominance,
    flip_threshold,
    fold_norm,
    head_spectrum,
    is_row_stochastic,
    joined_spectrum,
    simulate,
)
from oversmooth.theory.weights import repeat_shared_heads

EYE, W = torch.eye(3)[None], torch.eye(2)[None]


@pytest.mark.parametrize("call", [flip_threshold, is_row_stochastic, DenseAttention])
@pytest.mark.parametrize("thing", [None, "text", object(), {"a": 1}, torch.eye(3).to(torch.float8_e4m3fn)])
def test_things_that_are_no_attention(call, thing):
    with pytest.raises(InputError, match=r"attention (is|has dtype)"):
        call(thing)


def test_one_matrix_has_no_number():
    with pytest.raises(InputError, match="attention row 0 sums to 3, not 1"):
        DenseAttention(torch.ones(3, 3))
    with pytest.raises(InputError, match=r"attention row 0 of matrix \(0,\) sums to 3"):
        DenseAttention(torch.ones(1, 3, 3))
    with pytest.raises(InputError, match="the mask hides every token; leave"):
        DenseAttention(torch.eye(3), mask=torch.zeros(3, dtype=torch.bool))


A, (W_V, W_O), X = attention(2, 5, 5), weights(2, 4, 2), normal(5, 4)
bad_rows, negative, nan = A.clone(), A.clone(), normal(2, 4, 3)
bad_rows[1, 3] *= 0.9
negative[0, 2, 1], negative[0, 2, 0] = -0.3, negative[0, 2, 0] + negative[0, 2, 1] + 0.3
nan[1, 2, 0] = torch.nan
nothing = torch.zeros(5, dtype=torch.bool)
different = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
block = torch.block_diag(torch.ones(4, 4), torch.ones(1, 1)).double()
blocked = (A * block) / (A * block).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: DenseAttention(bad_rows), r"row 3 of matrix \(1,\) sums to 0\.9,"),
        (lambda: DenseAttention(negative), r"-0\.3 at \(0, 2, 1\)"),
        (lambda: DenseAttention(A[..., :4]), r"\(2, 5, 4\)"),
        (lambda: DenseAttention(torch.ones(0, 0)), r"\(0, 0\)"),
        (lambda: DenseAttention(torch.eye(3, dtype=torch.int64)), "int64"),
        (lambda: DenseAttention(A * torch.nan), "50 of 50 entries"),
        (lambda: DenseAttention(A, mask=nothing), "hides every token"),
        (lambda: DenseAttention(A, mask=torch.ones(4, dtype=torch.bool)), r"\(4,\)"),
        (lambda: DenseAttention(A, mask=torch.ones(5)), "float32"),
        (lambda: DenseAttention(A, mask=torch.tensor([1, 1, 1, 1, 0]).bool()), "over the valid tokens"),
        (lambda: SoftmaxAttention(normal(5, 4), normal(6, 4)), r"\(6, 4\)"),
        (lambda: SoftmaxAttention(normal(3, 5, 4), normal(2, 5, 4)), "3 query heads cannot share 2"),
        (lambda: SoftmaxAttention(normal(2, 3, 5, 4), normal(1, 3, 5, 4)), "batches differ"),
        (lambda: SoftmaxAttention(normal(5, 4) / 0, normal(5, 4)), "20 of 20 entries"),
        (lambda: SoftmaxAttention(normal(5, 4), normal(5, 4), mask=nothing), "hides every token"),
        (lambda: SoftmaxAttention(normal(5, 4), normal(5, 4), bias=normal(4, 4)), r"\(4, 4\)"),
        (
            lambda: SoftmaxAttention(
                normal(5, 4), normal(5, 4), bias=torch.zeros(5, 5).index_fill(0, torch.tensor(2), -torch.inf)
            ),
            "from query 2",
        ),
        (lambda: dominance(A[:1], W_V, W_O), "2 heads"),
        (lambda: dominance(A[0], W_V, W_O), r"\(5, 5\)"),
        (lambda: dominance(2 * A, W_V, W_O), "sums to 2, not 1"),
        (lambda: dominance(A, W_V, W_V), r"W_O \(2, 4, 2\)"),
        (lambda: dominance(A, W_V[None].expand(3, -1, -1, -1), W_O), r"batch \(3,\)"),
        (lambda: dominance(A, W_V / 0, W_O), "W_V has 16 of 16"),
        (lambda: dominance(A, W_V, W_O, method="magic"), "'magic'"),
        (lambda: dominance(DenseAttention(A), W_V, W_O, neutreno=torch.ones(3)), "neutreno"),
        (lambda: simulate(X, A, W_V, W_O, 0), "layers is 0"),
        (lambda: simulate(X, A, W_V, W_O, 3, every=0), "every is 0"),
        (lambda: simulate(X, A, W_V, W_O, 3, norm="batch"), "'batch'"),
        (lambda: simulate(X[:4], A, W_V, W_O, 3), r"\(4, 4\)"),
        (lambda: simulate(X * torch.nan, A, W_V, W_O, 3), "NaN"),
        (lambda: simulate(X, A, W_V, W_O, 3, neutreno=torch.ones(3)), "neutreno"),
        (lambda: simulate(X, A, W_V, W_O, 3, bias=X[0, :3]), r"^bias is an array of shape \(3,\)"),
        (lambda: head_spectrum(normal(2, 4, 3), normal(2, 4, 3)), r"\(2, 4, 3\)"),
        (lambda: head_spectrum(normal(4, 3), normal(3, 4)), r"\(4, 3\)"),
        (lambda: joined_spectrum(nan, normal(2, 3, 4)), "W_V has 1 of 24 entries"),
        (lambda: head_spectrum(normal(2, 4, 3).long(), normal(2, 3, 4)), "int64"),
        (lambda: repeat_shared_heads(normal(2, 4, 3), 5), "5 query heads cannot share 2"),
        (lambda: fold_norm(normal(2, 4, 3), normal(5)), "5 entries"),
        (lambda: fold_norm(normal(2, 4, 3), kind="batch"), "'batch'"),
        (lambda: SoftmaxAttention(normal(2, 4, 3), normal(2, 4, 3)) @ normal(5, 2), r"4 tokens cannot take .*\(5, 2\)"),
        (lambda: DenseAttention(A) @ normal(4, 2), r"5 tokens cannot take .*\(4, 2\)"),
        (lambda: DenseAttention(torch.ones(0, 2, 3, 3)), "not empty"),
        (lambda: SoftmaxAttention(normal(4, 3), normal(4, 3), scale=math.nan), "scale is nan"),
        (lambda: SoftmaxAttention(normal(4, 3), normal(4, 3), bias=normal(4, 4) * torch.nan), "NaN or"),
        (lambda: dominance(DenseAttention(blocked, mask=different), W_V, W_O), "differs between heads"),
        (lambda: dominance(A, W_V, W_O, tolerance=0.0), "tolerance is 0.0"),
        (lambda: dominance(A, W_V, W_O, steps=0), "steps is 0"),
        (lambda: dominance(A, W_V, W_O, neutreno="strong"), "'strong'"),
        (lambda: dominance(A, W_V[..., :0], W_O[:, :0]), "not empty"),
        (lambda: dominance(A, W_V.expand(2, 2, 4, 2), W_O.expand(3, 2, 2, 4)), r"W_V has batch \(2,\)"),
        (lambda: fold_norm(W_V, normal(4) * torch.nan), "NaN"),
        (lambda: simulate(X, A[0], W_V, W_O, 3), r"\(5, 5\)"),
        (lambda: simulate(X, A, W_V, W_O, 2.5), "layers is 2.5"),
        (lambda: simulate(X, A, W_V, W_O, 3, bias=normal(5, 4)), r"bias is an array of shape \(5, 4\)"),
        (lambda: simulate(X, A, W_V, W_O, 3, norm="pre", gamma=normal(3)), r"gamma is an array of shape \(3,\)"),
        (lambda: simulate(X, DenseAttention(blocked, mask=different), W_V, W_O, 3), "differs between heads"),
        (lambda: attention_spectrum(A[0], method="lanczos"), "'lanczos'"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
