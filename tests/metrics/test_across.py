"""Vectors of different inputs, against loops over pairs and numpy."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import normal

from oversmooth import InputError
from oversmooth.metrics.across import anisotropy, anisotropy_by_feature, curvature, linear_cka, token_entropy


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("centred", [False, True])
def test_anisotropy_is_the_mean_over_pairs_of_tokens_of_different_inputs(centred):
    x = normal(5, 3, 4) + 0.5
    loose = x.numpy() - (x.numpy().mean((0, 1)) if centred else 0.0)
    pairs = itertools.permutations(range(5), 2)
    expected = np.mean([cosine(loose[i, a], loose[j, b]) for i, j in pairs for a in range(3) for b in range(3)])
    assert float(anisotropy(x, centred=centred)) == pytest.approx(expected, abs=1e-12)
    if not centred:
        parts = anisotropy_by_feature(x)
        assert float(parts.sum()) == pytest.approx(expected, abs=1e-12)
        unit = x / x.norm(dim=-1, keepdim=True)
        by_hand = [float(unit[i, :, 2].mean() * unit[j, :, 2].mean()) for i, j in itertools.permutations(range(5), 2)]
        assert float(parts[2]) == pytest.approx(np.mean(by_hand), abs=1e-12)


def test_token_entropy_is_that_of_the_eigenvalues_of_the_gram_matrix():
    x, mask = normal(2, 6, 4), torch.tensor([[True] * 6, [True, False, True, True, True, False]])
    for one, shown, found in zip(x, mask, token_entropy(x, mask=mask), strict=True):
        tokens = one[shown].numpy()
        values = np.linalg.eigvalsh(tokens @ tokens.T / np.trace(tokens @ tokens.T)).clip(1e-300)
        assert float(found) == pytest.approx(-(values * np.log(values)).sum() / math.log(len(tokens)), abs=1e-9)
    assert token_entropy(torch.ones(1, 3)).isnan()


def test_curvature_is_the_mean_angle_of_successive_steps_that_are_valid():
    x, shown = normal(7, 3), [True, True, True, True, False, True, True]
    steps = [(x[i + 1] - x[i]).numpy() for i in range(6)]
    angles = [math.degrees(math.acos(cosine(steps[i], steps[i + 1]))) for i in range(5) if all(shown[i : i + 3])]
    assert len(angles) == 2
    assert float(curvature(x, mask=torch.tensor(shown))) == pytest.approx(np.mean(angles), abs=1e-9)
    line = torch.arange(9.0)[:, None] * torch.tensor([1.0, 2.0])
    assert float(curvature(line)) == pytest.approx(0.0, abs=1e-3)
    assert curvature(torch.ones(5, 2)).isnan()
    assert curvature(normal(2, 3)).isnan()


def kernel_cka(x, y):
    """By U-centred kernels, entry by entry."""

    def centred(k):
        n = len(k)
        k = k - np.diag(np.diag(k))
        rows, total = k.sum(1), k.sum()
        k = k - (rows[:, None] + rows[None]) / (n - 2) + total / ((n - 1) * (n - 2))
        return k - np.diag(np.diag(k))

    a, b = centred(x @ x.T), centred(y @ y.T)
    return (a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum())


@given(st.integers(5, 30), st.integers(1, 40), st.integers(1, 8), st.integers(0, 99))
def test_cka_is_that_of_centred_kernels_and_does_not_see_rotations(inputs, width, other, seed):
    x = normal(inputs, width, seed=seed) + 3.0
    y = x[:, :1] + normal(inputs, other, seed=seed + 100)
    found = float(linear_cka(x, y))
    assert found == pytest.approx(kernel_cka(x.numpy(), y.numpy()), abs=1e-8)
    rotation = torch.linalg.qr(normal(width, width, seed=seed + 1)).Q
    assert float(linear_cka(5 * x @ rotation, y)) == pytest.approx(found, abs=1e-8)


def test_cka_of_independent_vectors_is_zero_on_average_where_the_plain_one_is_not():
    found = [float(linear_cka(normal(20, 40, seed=i), normal(20, 40, seed=1000 + i))) for i in range(200)]
    assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(200)
    assert linear_cka(normal(3, 2), normal(3, 2)).isnan()
    with pytest.raises(InputError, match="give \\(N, d\\)"):
        linear_cka(normal(5, 2), normal(6, 2))
