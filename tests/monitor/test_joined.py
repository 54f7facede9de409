"""Spectra of all heads together: against dense matrices, and without a trace in the training."""

import numpy as np
import pytest
import torch
from support import watched
from support.oracles import streams

import oversmooth


def radii(model, x):
    """Per block, from numpy alone: the largest eigenvalue on constant arrays, and the largest of all others."""
    found, layers = [], model.encoder.layers
    arrays = streams(layers, lambda: model.eval()(x))[:-1]
    for layer, given in zip(layers, arrays, strict=True):
        attention = layer.self_attn
        with torch.no_grad():
            h = layer.norm1(given[:1])
            A = attention(h, h, h, average_attn_weights=False)[1][0].double().numpy()
        heads, n, _ = A.shape
        d = given.shape[-1]
        k = d // heads
        W_v = attention.in_proj_weight.detach().double().numpy()[2 * d :]
        W_o = attention.out_proj.weight.detach().double().numpy()
        H = [W_o[:, i * k : (i + 1) * k] @ W_v[i * k : (i + 1) * k] for i in range(heads)]
        smooth = np.linalg.eigvals(np.eye(d) + sum(H))
        # A basis whose first vector is constant makes the others' block the rest of the spectrum.
        Q, _ = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))
        rest = sum(np.kron((Q.T @ A[i] @ Q)[1:, 1:], H[i]) for i in range(heads))
        rough = np.linalg.eigvals(np.eye(len(rest)) + rest)
        found.append((np.abs(smooth).max(), np.abs(rough).max()))
    return [list(column) for column in zip(*found, strict=True)]


def test_they_are_those_of_dense_matrices():
    torch.manual_seed(0)
    model, x = watched.Known(), watched.probe()
    monitor = oversmooth.Monitor(model, probe=x, every=1, joined=2)
    for _ in range(3):
        monitor.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    first, second, third = monitor.history.rows
    assert "joined_rho_smooth" not in second
    assert third["joined_rho_smooth"] > first["joined_rho_smooth"]
    smooth, rough = radii(model, x)
    row = oversmooth.Monitor(model, probe=x, every=1, joined=1).snapshot()
    assert row["joined_rho_smooth"] == pytest.approx(smooth, rel=1e-4)
    assert row["joined_rho_rough"] == pytest.approx(rough, rel=1e-4)
    assert "smoothing_share" not in row
    assert monitor.failures == []


def test_the_training_is_bit_for_bit_the_same():
    losses, model, _ = watched.trained(watched.Known)
    seen, seen_model, monitor = watched.trained(
        watched.Known, lambda m: oversmooth.Monitor(m, probe=watched.probe(), every=2, joined=1)
    )
    monitor.close()
    assert seen == losses
    assert watched.same(model, seen_model)
    assert monitor.failures == []
    assert any("joined_rho_rough" in row for row in monitor.history.rows)
    assert "joined_rho_rough" in monitor.history.to_pandas().columns


def test_steered_attention_is_that_of_the_method():
    torch.manual_seed(0)
    model, x = watched.Known(), watched.probe()
    oversmooth.steer(model, oversmooth.steering.AttnScale(0.5))
    monitor = oversmooth.Monitor(model, probe=x, every=1, joined=1)
    monitor.step()
    monitor.close()
    diagnosis = oversmooth.diagnose(model.eval(), x, joined=1)
    (row,) = monitor.history.rows
    expected = [layer.dominance.joined_rho_rough[0] for layer in diagnosis.layers[1:]]
    assert row["joined_rho_rough"] == pytest.approx(expected, rel=1e-4)
    oversmooth.unsteer(model)
    plain = [layer.dominance.joined_rho_rough[0] for layer in oversmooth.diagnose(model, x).layers[1:]]
    assert expected != pytest.approx(plain, rel=1e-3)
