"""verify computes what was promised: it must see every way in which the promise can break."""

import re

import pytest
import torch
from support import conformance
from support.conformance_methods import make, outputs, steered
from support.families import FAMILIES

from oversmooth import InputError
from oversmooth.steering import NeuTRENO, Spectral, steer, steering_of, verify

VIT = FAMILIES["ViT"]
SPECTRAL = [name for name in conformance.METHODS if name.startswith("Spectral")]
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # processors without bfloat16


def attention(place):
    """The name of a ViT's."""
    return VIT.block.format(place) + ".attention"


def reparametrized(model, place=0):
    return steering_of(model).reparametrized[place]


@pytest.mark.parametrize("name", ["ViT", "Llama", "GPT-2"])
@pytest.mark.parametrize("method", SPECTRAL)
def test_what_holds(name, method):
    if conformance.refused(name, method):
        return
    model = steered(name, method, torch.float64)
    with torch.no_grad():
        for layer in steering_of(model).reparametrized:
            layer.psi.clamp_(-0.7, 0.7)  # so that ψ² of two shared heads stays below 1
    found = verify(model)
    assert found.ok, found.problems
    assert bool(found)
    assert "every constraint holds" in str(found)
    assert len(found.layers) == 2
    for check, layer in zip(found.layers, steering_of(model).reparametrized, strict=True):
        dense = torch.linalg.eigvals(layer.attention.W_V @ layer.attention.raw_W_O).real
        got = torch.tensor(check.heads, dtype=torch.float64)
        low, high = got[:, 0].clamp(max=0), got[:, 1].clamp(min=0)  # a head's matrix has zeros beside its k eigenvalues
        torch.testing.assert_close(low, dense.amin(1).clamp(max=0), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(high, dense.amax(1).clamp(min=0), rtol=1e-5, atol=1e-7)
        joined = torch.linalg.eigvals((layer.attention.W_V @ layer.attention.raw_W_O).sum(0)).real
        assert min(check.joined[0], 0) == pytest.approx(min(float(joined.min()), 0), abs=1e-7)
        assert max(check.joined[1], 0) == pytest.approx(max(float(joined.max()), 0), abs=1e-7)


@pytest.mark.parametrize("method", SPECTRAL)
def test_what_holds_in_half_precision(method):
    model = steered("ViT", method)
    with torch.no_grad():
        for layer in steering_of(model).reparametrized:
            layer.psi.clamp_(-0.9, 0.9)
    assert verify(model.bfloat16()), verify(model).problems


@pytest.mark.parametrize(("mode", "value"), [("sharpen", 0.3), ("smooth", -0.3)])
def test_one_eigenvalue_of_the_wrong_sign(monkeypatch, mode, value):
    model = steer(make("ViT"), Spectral(mode, bounded=True))
    right = Spectral.eigenvalues

    def wrong(self, psi, *how):
        out = right(self, psi, *how).clone()
        out[..., 2, 3] = value
        return out

    monkeypatch.setattr(Spectral, "eigenvalues", wrong)
    found = verify(model)
    assert not found
    assert [check.heads[2][mode == "sharpen"] for check in found.layers] == pytest.approx([value, value], abs=1e-5)
    assert len(found.problems) == 2
    assert found.problems[0].startswith(f"layer 0 ({attention(0)}): eigenvalues from")
    assert "violate the constraint" in found.problems[0]
    assert found.summary()["ok"] is False


def test_heads_that_overlap(monkeypatch):
    """Each with a V of its own: every sign holds, and together they promise nothing."""
    model = steer(make("ViT", torch.float64), Spectral("sharpen", bounded=True))
    right = Spectral.weights

    def wrong(self, V, eigenvalues, kv_heads):
        rows, back = (x.clone() for x in right(self, V, eigenvalues, kv_heads))
        rows[:, 1] = 0.6 * rows[:, 0] + 0.8 * rows[:, 1]
        back[:, 1] = eigenvalues[:, 1, :, None] * rows[:, 1]
        return rows, back

    monkeypatch.setattr(Spectral, "weights", wrong)
    found = verify(model)
    assert any("its heads overlap" in problem for problem in found.problems)
    assert found.layers[0].coupling > 0.1


def test_eigenvalues_below_minus_one():
    """Unbounded sharpening keeps its sign and can still flip."""
    model = steer(make("ViT", torch.float64), Spectral("sharpen"))
    with torch.no_grad():
        reparametrized(model, 1).psi[0, 0] = 1.5**0.5
    found = verify(model)
    assert [p for p in found.problems if "the least eigenvalue, -1.5, lies below −1" in p]
    assert found.layers[1].margin == pytest.approx(-0.5)
    assert all("layer 1 " in problem for problem in found.problems) or found.layers[0].margin < 0


def test_the_flip_of_query_heads_that_share_a_value_head():
    """Feature by feature they act as one head, whose attention is their mean by eigenvalue: here a mean of symmetric A
    whose smallest eigenvalue is known."""
    model = steer(make("Llama", torch.float64), Spectral("sharpen"))
    layer, n = reparametrized(model), 3
    with torch.no_grad():
        layer.psi.mul_(0.3 + torch.rand(layer.psi.shape, generator=torch.Generator().manual_seed(0)))
    values = -layer.psi.detach().square().unflatten(0, (-1, layer.group))
    kv_heads, group = values.shape[:2]
    assert group > 1
    least = torch.linspace(0.1, 0.9, kv_heads * group, dtype=torch.float64)
    A = least[:, None, None] * torch.eye(n, dtype=torch.float64) + (1 - least[:, None, None]) / n
    mixed = (values * least.unflatten(0, (kv_heads, group))[..., None]).sum(1) / values.sum(1)
    margins = values.sum(1) + 2 / (1 + mixed)
    check = verify(model, {layer.attention.name: A}).layers[0]
    assert check.margin == pytest.approx(float(margins.min()), rel=1e-6)
    assert check.flip == pytest.approx(float(-2 / (1 + mixed).flatten()[margins.argmin()]), rel=1e-6)


@pytest.mark.parametrize(("least", "flips"), [(0.2, False), (0.5, True), (-0.3, False)])
def test_the_flip_for_the_attention_that_was_seen(least, flips):
    """−2/(1 + a) for a symmetric A whose smallest eigenvalue is a (THEORY §3)."""
    model = steer(make("ViT", torch.float64), Spectral("sharpen"))
    with torch.no_grad():
        for layer in steering_of(model).reparametrized:
            layer.psi.copy_(layer.psi.clamp(max=0.9))
        reparametrized(model).psi[0, 0] = 1.5**0.5
    n = 3
    A = least * torch.eye(n, dtype=torch.float64) + (1 - least) / n
    assert A.min() >= 0
    name = reparametrized(model).attention.name
    check = verify(model, {name: A.expand(2, 4, n, n)}).layers[0]
    assert check.flip == pytest.approx(-2 / (1 + least), rel=1e-6)
    assert check.margin == pytest.approx(-1.5 + 2 / (1 + least), rel=1e-6)
    assert bool(check.problems) == flips
    assert verify(model).layers[0].problems  # without attention −1 is what is safe


def test_a_V_that_is_nearly_singular():
    model = steer(make("ViT", torch.float64), Spectral(form="general"))
    with torch.no_grad():
        theta = reparametrized(model, 1).theta
        U, s, Vh = torch.linalg.svd(theta)
        s[-1] = s[0] * 6e-5
        theta.copy_(U @ torch.diag(s) @ Vh)
    found = verify(model)
    assert any("V is nearly singular (condition number 1.7e+04)" in problem for problem in found.problems)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", ["theta", "psi"])
@pytest.mark.parametrize("form", ["symmetric", "general"])
def test_what_is_not_finite_is_named(value, which, form):
    model = steer(make("ViT"), Spectral(form=form))
    with torch.no_grad():
        getattr(reparametrized(model, 1), which)[0, 0] = value
    found = verify(model)
    name = "Θ" if which == "theta" else "ψ"
    (problem,) = found.problems
    assert problem.startswith(f"layer 1 ({attention(1)}): {name} has NaN or infinity in 1 of ")
    assert "go back to the last checkpoint" in problem
    assert found.layers == []


def test_strengths_that_are_not_finite_are_named():
    model = steered("ViT", "NeuTRENO: learned by head")
    with torch.no_grad():
        model.get_submodule(attention(1)).oversmooth.neutreno.strength[2] = torch.nan
    (problem,) = verify(model).problems
    assert problem.startswith(f"layer 1 ({attention(1)}): strength has NaN or infinity in 1 of 4 entries")


def test_methods_without_a_promise_hold():
    found = verify(steered("ViT", "NeuTRENO"))
    assert found.ok
    assert found.layers == []
    assert verify(steer(make("ViT"), [Spectral(), NeuTRENO(0.5)])).layers


def test_a_V_of_dependent_columns_is_reported():
    model = steer(make("ViT"), Spectral(form="general"))
    with torch.no_grad():
        theta = reparametrized(model, 1).theta
        theta[:, 1] = theta[:, 0]
    (problem,) = verify(model).problems
    assert problem.startswith(f"layer 1 ({attention(1)}): V is nearly singular (columns of V depend on")


def test_norms_that_turn_the_sign_are_doubted():
    """γ < 0 negates H as the stream meets it (THEORY §4): no broken promise, but said."""
    model = steer(make("ViT", torch.float64), Spectral("smooth"))
    with torch.no_grad():
        for place in range(2):
            model.get_submodule(VIT.block.format(place)).layernorm_before.weight.fill_(-1.0)
    found = verify(model)
    assert found.ok
    assert len(found.warnings) == 2
    assert found.layers[0].folded[0] < -0.1
    with torch.no_grad():
        for place in range(2):
            model.get_submodule(VIT.block.format(place)).layernorm_before.weight.fill_(1.0)
    assert verify(model).warnings == []


def test_a_summary_is_json():
    import json

    summary = verify(steered("Llama", "Spectral: sharpen")).summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert {"ok", "problems", "layers"} <= set(summary)


# In every pass


def broken(method, which, value=torch.nan):
    model = steer(make("ViT"), method)
    with torch.no_grad():
        getattr(reparametrized(model, 1), which)[0, 0] = value
    return model


@pytest.mark.parametrize("which", ["theta", "psi"])
@pytest.mark.parametrize("method", [Spectral(check_passes=True), Spectral(form="general", check_passes=True)], ids=str)
def test_a_pass_stops_at_NaN(which, method):
    model = broken(method, which)
    name = "Θ" if which == "theta" else "ψ"
    with pytest.raises(InputError, match=rf"layer 1 \({re.escape(attention(1))}\): {name} has NaN or infinity in 1 of"):
        outputs(model, FAMILIES["ViT"])


def test_training_stops_at_the_step_that_broke_it():
    """A learning rate beyond all sense: the first step is taken, the second says where."""
    model = steer(make("ViT"), Spectral(check_passes=True)).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=torch.inf)
    outputs(model, FAMILIES["ViT"])[0].square().sum().backward()
    optimiser.step()
    with pytest.raises(InputError, match=rf"layer 0 \({re.escape(attention(0))}\): Θ has NaN or infinity"):
        outputs(model, FAMILIES["ViT"])


def test_a_V_gone_singular_stops_a_pass():
    model = steer(make("ViT"), Spectral(form="general", check_passes=True))
    with torch.no_grad():
        theta = reparametrized(model, 1).theta
        theta[:, 1] = theta[:, 0]
    with pytest.raises(InputError, match=rf"layer 1 \({re.escape(attention(1))}\): "):
        outputs(model, FAMILIES["ViT"])
