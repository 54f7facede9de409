"""Maps onto orthonormal columns, against Householder's QR, explicit inverses and scipy."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import is_orthonormal, normal

from oversmooth.steering.methods import orthogonal

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda s: (max(s), min(s)))
SEEDS = st.integers(0, 1000)


def conditioned(d: int, m: int, condition: float, seed: int = 0) -> torch.Tensor:
    """A d by m array with this condition number."""
    U = torch.linalg.qr(normal(d, m, seed=seed)).Q
    W = torch.linalg.qr(normal(m, m, seed=seed + 1)).Q
    values = torch.logspace(0, -np.log10(condition), m, dtype=torch.float64)
    return U @ torch.diag(values) @ W.T


def householder(theta: torch.Tensor) -> torch.Tensor:
    """The Q whose R has a positive diagonal."""
    Q, R = torch.linalg.qr(theta)
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


@given(SHAPES, SEEDS)
def test_columns_are_orthonormal(shape, seed):
    theta = normal(*shape, seed=seed)
    V = orthogonal.orthonormal(theta.float())
    assert V.dtype == torch.float32
    assert is_orthonormal(V, 1e-5)
    assert (V.double().T @ V.double() - torch.eye(shape[1])).abs().max() < 1e-5
    # The same space, in the same order: each column of Θ lies in the span of the columns up to it.
    assert ((V.double().T @ theta).tril(-1)).abs().max() < 1e-5 * theta.norm()


@pytest.mark.parametrize("condition", [1e0, 1e2, 1e4, 1e5])
@pytest.mark.parametrize("shape", [(192, 192), (64, 16)])
def test_it_is_the_Q_of_QR(condition, shape):
    theta = conditioned(*shape, condition)
    V = orthogonal.orthonormal(theta)
    assert is_orthonormal(V, 1e-5)
    # Cholesky squares the condition number: 1e-16 · 1e10 at worst.
    assert (V - householder(theta)).abs().max() < 1e-5
    assert orthogonal.orthonormal(theta.float()).isfinite().all()
    assert is_orthonormal(orthogonal.orthonormal(theta.float()), 1e-5)


@pytest.mark.parametrize("shape", [(9, 9), (9, 4), (3, 7, 5)])
def test_gradient_is_that_of_QR(shape):
    theta = normal(*shape, seed=3).requires_grad_()
    weight = normal(*shape, seed=4)
    (expected,) = torch.autograd.grad((householder(theta) * weight).sum(), theta)
    (got,) = torch.autograd.grad((orthogonal.orthonormal(theta) * weight).sum(), theta)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    (single,) = torch.autograd.grad((orthogonal.orthonormal(theta.float()) * weight).sum(), theta)
    torch.testing.assert_close(single, expected, rtol=1e-4, atol=1e-4)


def test_gradients_by_finite_differences():
    theta = normal(6, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(orthogonal.orthonormal, (theta,))
    free = (0.4 * normal(2, 10, seed=2)).requires_grad_()
    for turn in (orthogonal.cayley, orthogonal.exponential):
        assert torch.autograd.gradcheck(lambda f, turn=turn: turn(orthogonal.skew(f, 5)), (free,))
    assert torch.autograd.gradcheck(orthogonal.left_inverse, (normal(2, 5, 3, seed=3).requires_grad_(),))
    assert torch.autograd.gradcheck(orthogonal.left_inverse, (normal(4, 4, seed=3).requires_grad_(),))


@pytest.mark.parametrize("make", ["qr", "qr, square", "cayley", "left inverse"])
def test_second_gradients_are_right_or_refused(make):
    """A penalty on a gradient must not be silently wrong."""
    calls = {
        "qr": (orthogonal.orthonormal, normal(5, 3, seed=1)),
        "qr, square": (orthogonal.orthonormal, normal(4, 4, seed=1)),
        "cayley": (lambda f: orthogonal.cayley(orthogonal.skew(f, 4)), 0.4 * normal(6, seed=2)),
        "left inverse": (orthogonal.left_inverse, normal(5, 3, seed=3)),
    }
    call, x = calls[make]
    x.requires_grad_()
    (grad,) = torch.autograd.grad(call(x).sin().sum(), x, create_graph=True)
    try:
        torch.autograd.grad(grad.square().sum(), x)
    except RuntimeError as error:
        if "differentiable" not in str(error):
            raise
        return
    assert torch.autograd.gradgradcheck(call, (x,))


@given(st.integers(1, 4), SHAPES, SEEDS)
def test_a_batch_is_its_items_one_by_one(items, shape, seed):
    theta = normal(items, *shape, seed=seed)
    size = shape[0] * (shape[0] - 1) // 2
    free = 0.3 * normal(items, size, seed=seed) if size else torch.zeros(items, 0, dtype=torch.float64)
    S = orthogonal.skew(free, shape[0])
    for i in range(items):
        torch.testing.assert_close(orthogonal.orthonormal(theta)[i], orthogonal.orthonormal(theta[i]))
        torch.testing.assert_close(orthogonal.left_inverse(theta)[i], orthogonal.left_inverse(theta[i]))
        torch.testing.assert_close(S[i], orthogonal.skew(free[i], shape[0]))
        torch.testing.assert_close(orthogonal.cayley(S)[i], orthogonal.cayley(S[i]))
        torch.testing.assert_close(orthogonal.exponential(S)[i], orthogonal.exponential(S[i]))


def test_dependent_columns_have_no_inverse_and_leave_the_others_alone():
    theta = normal(3, 6, 4, seed=1)
    theta[1, :, 2] = 0.0
    assert not is_orthonormal(theta[1])
    assert orthogonal.left_inverse(theta)[1].isnan().all()
    assert orthogonal.left_inverse(theta)[0].isfinite().all()


@given(st.integers(1, 9), st.floats(0.0, 30.0), SEEDS)
def test_cayley_and_exponential(size, scale, seed):
    free = scale * normal(size * (size - 1) // 2, seed=seed) if size > 1 else torch.zeros(0, dtype=torch.float64)
    S = orthogonal.skew(free, size)
    assert torch.equal(S, -S.T)
    assert torch.equal(S[np.tril_indices(size, -1)], free)
    eye = np.eye(size)
    by_inverse = (eye + S.numpy()) @ np.linalg.inv(eye - S.numpy())
    np.testing.assert_allclose(orthogonal.cayley(S), by_inverse, atol=1e-8)
    np.testing.assert_allclose(orthogonal.exponential(S), scipy.linalg.expm(S.numpy()), atol=1e-8)
    for V in (orthogonal.cayley(S), orthogonal.exponential(S)):
        assert is_orthonormal(V, 1e-7)
        assert abs(float(torch.linalg.det(V)) - 1) < 1e-6


def test_zero_entries_turn_nothing():
    S = orthogonal.skew(torch.zeros(6), 4)
    for turn in (orthogonal.cayley, orthogonal.exponential):
        assert torch.equal(turn(S), torch.eye(4, dtype=torch.float64))


@given(SHAPES, SEEDS)
def test_completed_keeps_the_columns(shape, seed):
    V = householder(normal(*shape, seed=seed))
    whole = orthogonal.completed(V)
    assert whole.shape == (shape[0], shape[0])
    assert torch.equal(whole[:, : shape[1]], V)
    assert is_orthonormal(whole, 1e-9)


@given(SHAPES, SEEDS)
def test_left_inverse(shape, seed):
    V = normal(*shape, seed=seed)
    if torch.linalg.cond(V) > 1e4:
        return
    got = orthogonal.left_inverse(V)
    np.testing.assert_allclose(got, np.linalg.pinv(V.numpy()), atol=1e-6 * float(got.abs().max()))
    torch.testing.assert_close(got @ V, torch.eye(shape[1], dtype=torch.float64), rtol=0, atol=1e-7)


def test_kaiming_is_torchs():
    source = torch.Generator().manual_seed(4)
    theta = orthogonal.kaiming(300, 200, source)
    expected = torch.nn.init.kaiming_uniform_(torch.empty(200, 300), a=5**0.5)
    assert theta.shape == (300, 200)
    assert theta.abs().max() <= expected.abs().max() * 1.001
    assert abs(float(theta.std() / expected.std()) - 1) < 0.02
