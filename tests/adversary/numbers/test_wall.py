"""V from Θ on the wall det Θ = 0 and beyond it: forward, backward and in training, against Householder's QR."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth.models.vit import ViT
from oversmooth.steering import Spectral, steer, steering_of, verify
from oversmooth.steering.methods import orthogonal

BOUND = 1e-6


def excess(V):
    """max |VᵀV − I|."""
    V = V.detach().double()
    return float((V.mT @ V - torch.eye(V.shape[-1], dtype=V.dtype)).abs().max())


def householder(theta):
    Q, R = torch.linalg.qr(theta)
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def near_wall(d, m, distance, column=-1, seed=0):
    """Θ whose column lies in the span of those before it but for `distance` of a unit vector outside it."""
    theta = normal(d, m, seed=seed) / math.sqrt(d)
    column %= m
    before = theta[:, :column]
    outside = torch.linalg.qr(torch.cat([before, theta[:, column:]], 1)).Q[:, column]
    theta[:, column] = before @ normal(column, seed=seed + 1) / math.sqrt(d) + distance * outside
    return theta


def with_column(theta, place, values):
    theta[:, place] = values
    return theta


def vandermonde(theta):
    return torch.linspace(0, 1, len(theta), dtype=torch.float64)[:, None] ** torch.arange(theta.shape[1])


KINDS = {
    "equal columns": lambda theta: with_column(theta, 1, theta[:, 0]),
    "a zero column": lambda theta: with_column(theta, theta.shape[1] // 2, 0),
    "rank one": lambda theta: theta[:, :1] * normal(theta.shape[1], seed=6),
    "half the rank": lambda theta: theta[:, : (m := theta.shape[1]) // 2] @ normal(m // 2, m, seed=6),
    "zero": torch.zeros_like,
    "ones": torch.ones_like,
    "Vandermonde": vandermonde,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(192, 192), (96, 24), (3, 3), (2, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_dependent_columns_have_an_orthonormal_V_or_none(kind, shape, dtype):
    V = orthogonal.orthonormal(KINDS[kind](normal(*shape, seed=5)).to(dtype))
    assert V.isnan().any() or excess(V) < BOUND


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(192, 192), (96, 24), (3, 3), (2, 2)])
@pytest.mark.parametrize("scale", [1e30, 1.0, 1e-30])
def test_columns_of_any_length_have_an_orthonormal_V_and_a_finite_gradient(scale, shape, dtype):
    theta = (scale * normal(*shape, seed=5)).to(dtype)
    if shape[0] == shape[1]:
        theta[:, -1] = 0
    theta.requires_grad_()
    V = orthogonal.orthonormal(theta)
    assert excess(V) < BOUND
    (grad,) = torch.autograd.grad((V * normal(*shape, seed=7).to(dtype)).sum(), theta)
    assert grad.isfinite().all()
    assert grad.float().square().sum().isfinite()  # as clipping squares it


@settings(deadline=None)
@given(
    st.integers(1, 9).flatmap(lambda d: st.tuples(st.just(d), st.integers(1, d))),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, -3, -8, -30, 20]),
)
def test_any_small_theta(shape, seed, spread):
    """Few values, so that columns repeat, vanish and cancel; each column of a scale of its own."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randint(-1, 2, shape, generator=generator).double()
    theta = theta * 10.0 ** (spread * torch.rand(1, shape[1], generator=generator, dtype=torch.float64))
    V = orthogonal.orthonormal(theta)
    assert V.isnan().any() or excess(V) < BOUND


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("shape", [(192, 192), (192, 64)])
def test_nearly_dependent_columns_have_their_own_q(shape, distance):
    theta = near_wall(*shape, distance, column=20)
    V, expected = orthogonal.orthonormal(theta), householder(theta)
    assert excess(V) < 1e-12
    columns = slice(None, -1) if shape[0] == shape[1] else slice(None)
    torch.testing.assert_close(V[:, columns], expected[:, columns], rtol=0, atol=1e-12 / distance)


@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-7, 1e-8, 1e-12, 0.0])
@pytest.mark.parametrize("d", [192, 6])
def test_on_the_wall_the_last_column_is_what_the_others_leave_over(d, distance):
    """Cholesky of ΘᵀΘ alone is 5e-5 off at 1e-5, and gives NaN from 1e-8 on."""
    theta = near_wall(d, d, distance).requires_grad_()
    V = orthogonal.orthonormal(theta)
    assert excess(V) < 1e-12
    expected = householder(theta.detach()[:, :-1])
    torch.testing.assert_close(V[:, :-1].detach(), expected, rtol=0, atol=1e-9)
    # R_dd enters no derivative: those of H are the derivatives at a distance of 1, where QR's own are good.
    eigenvalues = torch.linspace(-1, -0.1, d, dtype=torch.float64)
    weight = normal(d, d, seed=8)
    (got,) = torch.autograd.grad(((V * eigenvalues) @ V.mT * weight).sum(), theta)
    away = theta.detach().clone()
    away[:, -1] = V.detach()[:, -1]
    away.requires_grad_()
    Q = householder(away)
    (wanted,) = torch.autograd.grad(((Q * eigenvalues) @ Q.mT * weight).sum(), away)
    assert (got[:, -1] == 0).all()
    torch.testing.assert_close(got[:, :-1], wanted[:, :-1], rtol=1e-7, atol=1e-7 * float(wanted.abs().max()))


def test_the_gradient_beside_the_wall_against_many_digits():
    """Divided differences of H in 60 digits, at R_dd = 1e-6: nothing there is rounding."""
    d, step = 4, mpmath.mpf("1e-20")
    theta = near_wall(d, d, 1e-6, seed=3)
    weight, eigenvalues = normal(d, d, seed=4), [-0.9, -0.5, -0.3, -0.1]

    def value(entries):
        Q, _ = mpmath.qr(entries)
        H = Q * mpmath.diag(eigenvalues) * Q.T
        return sum(H[i, j] * mpmath.mpf(float(weight[i, j])) for i in range(d) for j in range(d))

    with mpmath.workdps(60):
        base = mpmath.matrix(theta.tolist())
        wanted = torch.zeros(d, d, dtype=torch.float64)
        for i in range(d):
            for j in range(d):
                up, down = base.copy(), base.copy()
                up[i, j] += step
                down[i, j] -= step
                wanted[i, j] = float((value(up) - value(down)) / (2 * step))
    free = theta.clone().requires_grad_()
    V = orthogonal.orthonormal(free)
    (got,) = torch.autograd.grad(((V * torch.tensor(eigenvalues, dtype=V.dtype)) @ V.mT * weight).sum(), free)
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)
    assert wanted[:, -1].abs().max() < 1e-12  # what the last column of Θ is does not matter


def test_H_is_smooth_on_a_walk_across_the_wall():
    d, eigenvalues = 16, torch.linspace(-1, -0.1, 16, dtype=torch.float64)
    one, other = near_wall(d, d, 1e-3, seed=1), near_wall(d, d, -1e-3, seed=1)
    assert torch.linalg.det(one).sign() == -torch.linalg.det(other).sign()
    steps = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None, None]
    V = orthogonal.orthonormal(one + steps * (other - one))
    assert excess(V) < 1e-12
    H = (V * eigenvalues) @ V.mT
    assert (H[1:] - H[:-1]).abs().max() < 1e-12  # only the last column of Θ moves, and H does not depend on it
    turned = normal(d, d, seed=2)
    H = orthogonal.orthonormal(one + steps * (other - one) + 1e-2 * steps * turned)
    H = (H * eigenvalues) @ H.mT
    assert (H[1:] - H[:-1]).abs().max() < 1e-3


def test_items_of_a_batch_do_not_touch_one_another():
    theta = normal(3, 6, 4, seed=1)
    theta[1, :, 2] = 0.0
    V = orthogonal.orthonormal(theta)
    assert V[1].isnan().any()
    for i in (0, 2):
        assert excess(V[i]) < BOUND
        assert torch.equal(V[i], orthogonal.orthonormal(theta[i : i + 1])[0])


def test_NaN_stays_NaN():
    theta = normal(2, 4, 4, seed=1)
    theta[0, 1, 1] = torch.nan
    V = orthogonal.orthonormal(theta)
    assert V[0].isnan().any()
    assert excess(V[1]) < BOUND


@pytest.mark.parametrize("turn", [orthogonal.cayley, orthogonal.exponential])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e4, 1e6])
def test_rotations_of_any_size_are_orthogonal(turn, scale):
    free = (scale * normal(3, 28, seed=1)).requires_grad_()
    V = turn(orthogonal.skew(free, 8))
    assert excess(V) < BOUND
    (grad,) = torch.autograd.grad((V * normal(8, 8, seed=2)).sum(), free)
    assert grad.isfinite().all()


def test_rotations_of_very_different_sizes():
    free = torch.tensor([1.0, 1e5, 1e-3, 1e6, 10.0, 1e2], dtype=torch.float64)
    for turn in (orthogonal.cayley, orthogonal.exponential):
        assert excess(turn(orthogonal.skew(free, 4))) < BOUND


def test_the_general_form_is_not_inverted_where_V_is_singular():
    V = normal(2, 5, 5, seed=1)
    V[1] = near_wall(5, 5, 1e-9, seed=2)
    back = orthogonal.left_inverse(V, worst=1e6)
    assert back[0].isfinite().all()
    assert back[1].isnan().all()


def test_a_steered_model_with_dependent_columns_says_so():
    model = steer(ViT(image=8, patch=4, channels=3, classes=10, width=16, depth=2, heads=2), Spectral())
    layer = steering_of(model).reparametrized[0]
    with torch.no_grad():
        layer.theta[:, 1] = 0
    assert "columns of V depend on each other" in verify(model).problems[0]
    assert model(torch.randn(2, 3, 8, 8)).isnan().any()
