"""The energies of models, and the flow that brings them down: against loops, scipy's solvers, and torch's gradients."""

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.commands import refusal
from support.oracles import normal

from oversmooth import InputError
from oversmooth.models import load
from oversmooth_papers.tables.neutreno import energy
from oversmooth_papers.tables.neutreno.energy import case_energies, energies, gradient_flow
from oversmooth_papers.tables.neutreno.kernel import Layer

N, K = 6, 3


def arrays(seed, scale=1.0):
    return scale * normal(2, N, N, seed=seed), normal(2, N, K, seed=seed + 1), normal(2, N, K, seed=seed + 2)


def field(S, f, strength):
    """−Δt ∇E, token by token, of one head."""
    kernel = np.exp(S)

    def at(u):
        out = np.zeros_like(u)
        for i in range(len(u)):
            weights = kernel[i] + kernel[:, i]
            gradient = sum(weights[j] * (u[i] - u[j]) for j in range(len(u)))
            gradient = gradient + strength * weights.sum() * (u[i] - f[i])
            out[i] = -gradient / weights.sum()
        return out

    return at


@given(seed=st.integers(0, 10**6), strength=st.sampled_from([0.0, 0.4, 0.6, 2.0]))
def test_the_flow_against_a_solver(seed, strength):
    scores, V, f = arrays(seed)
    times = (0.3, 1.0)
    got = gradient_flow(scores, V, f, strength, times).numpy()
    for h in range(2):
        slope = field(scores[h].numpy(), f[h].numpy(), strength)
        solved = scipy.integrate.solve_ivp(
            lambda _t, u, slope=slope: slope(u.reshape(N, K)).ravel(),
            (0, 1),
            V[h].numpy().ravel(),
            t_eval=times,
            rtol=1e-9,
            atol=1e-11,
        )
        for i in range(2):
            np.testing.assert_allclose(got[i, h], solved.y[:, i].reshape(N, K), rtol=1e-6, atol=1e-7)


def test_the_flow_ends_where_the_energy_is_least():
    scores, V, f = arrays(7)
    end = gradient_flow(scores, V, f, 0.6, [200.0])[0].requires_grad_()
    kernel = scores.exp()
    apart = (end[:, :, None] - end[:, None]).square().sum(-1)
    lam = 0.6 * (kernel.sum(-1) + kernel.sum(-2))
    E = 0.5 * (kernel * apart).sum() + 0.5 * (lam * (end - f).square().sum(-1)).sum()
    (gradient,) = torch.autograd.grad(E, end)
    assert float(gradient.abs().max()) < 1e-9
    still = gradient_flow(scores, V, f, 0.0, [1e4])[0]
    torch.testing.assert_close(still, still.mean(-2, keepdim=True).expand_as(still))


@given(seed=st.integers(0, 10**6), strength=st.sampled_from([0.0, 0.6]))
def test_the_numbers_of_a_case(seed, strength):
    scores, V, f = arrays(seed, scale=2.0)
    J, G, attention, attention_falls, step, step_falls, flow, flow_falls, euler = case_energies(
        scores, V, f, strength
    ).values()

    def energy(h, u):
        kernel = np.exp(scores[h].numpy())
        pairs = sum(kernel[i, j] * np.sum((u[i] - u[j]) ** 2) for i in range(N) for j in range(N)) / 2
        degrees = kernel.sum(0) + kernel.sum(1)
        held = sum(strength * degrees[i] * np.sum((u[i] - f[h, i].numpy()) ** 2) for i in range(N)) / 2
        return pairs, held, sum(degrees[i] * np.sum(u[i] ** 2) for i in range(N)) / 2

    for h in range(2):
        v = V[h].numpy()
        pairs, held, size = energy(h, v)
        assert float(J[h]) == pytest.approx(pairs / size)
        assert float(G[h]) == pytest.approx(held / size)
        assert 0 <= float(J[h]) <= 2
        A = scores[h].softmax(-1).numpy()
        after = sum(energy(h, A @ v + strength * (f[h].numpy() - v))[:2])
        assert float(attention[h]) == pytest.approx(after / (pairs + held))
        assert bool(attention_falls[h]) == (after < pairs + held)
        stepped = v + field(scores[h].numpy(), f[h].numpy(), strength)(v)
        assert float(step[h]) == pytest.approx(sum(energy(h, stepped)[:2]) / (pairs + held))
        assert bool(step_falls[h]) == (float(step[h]) < 1)
        end = gradient_flow(scores, V, f, strength, [1.0])[0, h].numpy()
        assert float(flow[h]) == pytest.approx(sum(energy(h, end)[:2]) / (pairs + held))
        assert float(euler[h]) == pytest.approx(np.linalg.norm(stepped - end) / np.linalg.norm(end - v))
    assert bool(flow_falls.all())


def test_a_model(vit):
    """Queries that are keys: attention is the step. The first layer is its own V⁰."""
    loaded = load(str(vit))
    for layer in loaded.model.vit.layers:
        layer.attention.k_proj.load_state_dict(layer.attention.q_proj.state_dict())
    layers = energies(loaded, loaded.inputs(count=2, batch=1), 0.6)
    assert layers[0].figures["G"] == 0
    assert all(layer.figures["G"] > 0 for layer in layers[1:])
    for layer in layers:
        assert layer.figures["attention"] == pytest.approx(layer.figures["step"], rel=1e-4)
        assert layer.figures["flow_falls"] == 1
        assert layer.cases == 2 * loaded.model.config.num_attention_heads
    for layer in energies(loaded, loaded.inputs(count=1, batch=1), 0.0):
        assert layer.figures["G"] == 0
    assert not any(module._forward_hooks for module in loaded.model.modules())


def test_the_first_layer_by_hand(vit):
    loaded = load(str(vit))
    inputs = loaded.inputs(count=1, batch=1).kept()
    layer = loaded.model.vit.layers[0]
    heads = loaded.model.config.num_attention_heads
    with torch.no_grad():
        x = layer.layernorm_before(loaded.model.vit.embeddings(next(iter(inputs)).inputs["pixel_values"]))
        q, k, V = (
            module(x)[0].unflatten(-1, (heads, -1)).transpose(0, 1).double()
            for module in (layer.attention.q_proj, layer.attention.k_proj, layer.attention.v_proj)
        )
    kernel = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    apart = (V[:, :, None] - V[:, None]).square().sum(-1)
    J = (kernel * apart).sum((-2, -1)) / ((kernel.sum(-1) + kernel.sum(-2)) * V.square().sum(-1)).sum(-1)
    first = energies(loaded, inputs)[0].figures
    assert float(J.mean()) == pytest.approx(first["J"], rel=1e-4)


@pytest.mark.parametrize("strength", ["-1", "nan"])
def test_strengths_below_zero_are_refused(strength, vit, monkeypatch, capsys):
    given = ("reproduce", "neutreno", "energy", vit, "--inputs", 1, "--strength", strength)
    assert "--strength is" in refusal(monkeypatch, capsys, *given)


def test_scores_beyond_any_number_are_refused():
    scores = torch.zeros(3, 3, dtype=torch.float64)
    scores[0] = scores[:, 0] = -3000
    with pytest.raises(InputError, match="scale them down"):
        gradient_flow(scores, torch.ones(3, 2), torch.ones(3, 2), 0.6, [1.0])


def test_the_conclusion_is_the_mean_over_blocks():
    falls = [dict(attention_falls=1.0, flow_falls=1.0), dict(attention_falls=0.5, flow_falls=1.0)]
    said = energy.conclusion([Layer(2, figures) for figures in falls])
    assert said.startswith("In 2 blocks, attention lowers the paper's energy in 75.0% of (input, head) pairs")
    assert said.endswith("in 100.0%.")
