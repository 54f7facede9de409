"""Reparametrized H: eigenvalues and their inverse, where it starts, geotorch, and what all heads together do."""

import dataclasses

import pytest
import torch
from geotorch.symmetric import SymF
from hypothesis import given
from hypothesis import strategies as st
from support import conformance_oracle as by_hand
from support.conformance_methods import Row, all_close, close, make, outputs, places, steered
from support.families import FAMILIES, HEADS, WIDTH
from support.family_checks import passages
from support.oracles import dense_radii, is_orthonormal, normal

from oversmooth import InputError
from oversmooth.anatomy import locate
from oversmooth.steering import Spectral, steer, steering_of, verify, warm_start
from oversmooth.steering.reparametrized import ReparametrizedLayer
from oversmooth.theory import dominance

FORMS = {
    "sharpen": Spectral("sharpen"),
    "smooth": Spectral("smooth"),
    "bounded": Spectral("sharpen", bounded=True),
    "bounded, smooth, Cayley": Spectral("smooth", bounded=True, orthogonal="cayley"),
    "bounded by 0.5": Spectral("sharpen", bounded=True, bound=0.5),
    "bounded by 4, smooth": Spectral("smooth", bounded=True, bound=4),
    "exponential": Spectral("sharpen", orthogonal="exp"),
    "general": Spectral("sharpen", form="general"),
    "general, smooth": Spectral("smooth", form="general"),
    "general, a range": Spectral(form="general", interval=(-0.4, 0.3)),
}
ALL_FORMS = pytest.mark.parametrize("method", FORMS.values(), ids=FORMS)
GROUPS = st.sampled_from([(4, 1), (4, 2), (6, 3), (2, 2), (1, 1)])  # heads, heads of a group
SEEDS = st.integers(0, 1000)


# Eigenvalues


@given(st.sampled_from(list(FORMS)), GROUPS, st.floats(0.01, 30.0), SEEDS)
def test_eigenvalues_are_the_written_ones(form, heads_and_group, scale, seed):
    heads, group = heads_and_group
    psi = scale * normal(heads, 3, seed=seed)
    method = FORMS[form]
    got = method.eigenvalues(psi, group)
    if method.interval is None:
        torch.testing.assert_close(got, by_hand.eigenvalues(Row((method,)), psi, group))
    low, high = method.ends
    shared = got.unflatten(0, (heads // group, group)).sum(1)
    for values in (got, shared):
        assert (values >= low - 1e-12).all()
        assert (values <= high + 1e-12).all()
    if method.bounded:
        assert (shared.abs() < method.bound).all()  # never reached: below 1, sharpening cannot flip


@given(st.sampled_from(list(FORMS)), GROUPS, SEEDS)
def test_eigenvalues_there_and_back(form, heads_and_group, seed):
    heads, group = heads_and_group
    method = FORMS[form]
    values = method.nearest(normal(heads, 3, seed=seed), group)
    torch.testing.assert_close(method.eigenvalues(method.psi(values, group), group), values)
    again = method.nearest(values, group)
    torch.testing.assert_close(again, values)


@given(st.sampled_from(["sharpen", "smooth", "general", "general, a range"]), GROUPS, SEEDS)
def test_nearest_eigenvalues_are_clipped_ones(form, heads_and_group, seed):
    heads, group = heads_and_group
    values = 2 * normal(heads, 3, seed=seed)
    low, high = FORMS[form].ends
    share = 1 if FORMS[form].form == "symmetric" else group
    torch.testing.assert_close(FORMS[form].nearest(values, group), values.clamp(low / share, high / share))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (dict(mode="sharper"), "mode is 'sharper'; choose"),
        (dict(form="odd"), "form is 'odd'; choose"),
        (dict(orthogonal="svd"), "orthogonal is 'svd'; choose"),
        (dict(start="lukewarm"), "start is 'lukewarm'; choose"),
        (dict(wiring="mine"), "wiring is 'mine'; choose"),
        (dict(form="general", interval=(0.0, -1.0)), "give its two ends, the lower first"),
        (dict(form="general", interval=(1.0, 1.0)), "the lower first"),
        (dict(form="general", interval=("a", 1)), "give its two ends"),
        (dict(form="general", interval=(1, 2, 3)), "give its two ends"),
        (dict(form="general", interval=3), "give its two ends"),
        (dict(form="general", interval=(float("nan"), 1)), "interval is"),
        (dict(interval=(-1.0, 0.0)), "an interval needs form='general'"),
        (dict(bounded=True, bound=0.0), "give a positive number"),
        (dict(bounded=True, bound=float("inf")), "give a positive number"),
        (dict(bound=0.5), "give bounded=True as well"),
        (dict(form="general", bounded=True), "has no orthogonal V"),
        (dict(form="general", orthogonal="exp"), "has no orthogonal V"),
        (dict(form="general", wiring="code"), "has no orthogonal V"),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        Spectral(**settings)


# Where it starts


def dense_heads(model):
    """Every head's H as a d by d matrix, layer by layer, in float64."""
    return [(layer.W_V.double() @ layer.raw_W_O.double()) for layer in locate(model)]


@ALL_FORMS
@pytest.mark.parametrize("name", ["BERT", "Llama", "GPT-NeoX (parallel)", "torch encoder (Pre-LN)"])
def test_how_far_it_moved_is_true(method, name):
    model = make(name, torch.float64)
    before = dense_heads(model)
    steer(model, method)
    after = dense_heads(model)
    moved = steering_of(model).moved
    assert [m.index for m in moved] == places(FAMILIES[name])
    for entry, old, new in zip(moved, before, after, strict=True):
        expected = (new - old).flatten(1).norm(dim=1) / old.flatten(1).norm(dim=1)
        torch.testing.assert_close(torch.tensor(entry.heads, dtype=torch.float64), expected, rtol=0, atol=2e-6)


def of_the_form(name, method):
    """A model whose weights are ``V Λ Vᵀ`` already, with eigenvalues that the method allows."""
    family, model = FAMILIES[name], make(name, torch.float64)
    modules, group = dict(model.named_modules()), HEADS // family.kv_heads
    for place in places(family):
        theta = torch.linalg.qr(normal(WIDTH, family.kv_heads * family.head_dim, seed=place)).Q
        low, high = method.ends
        size = 0.05 + 0.4 * torch.rand(HEADS, family.head_dim, dtype=torch.float64)
        psi = method.psi(size * max(low, -1.0) if method.mode == "sharpen" else size * min(high, 1.0), group)
        W_V, W_O, _ = by_hand.spectral_weights(
            family, Row((dataclasses.replace(method, orthogonal="qr"),)), theta, psi, None
        )
        by_hand.put(modules, family, place, W_V, W_O)
    return model


@ALL_FORMS
@pytest.mark.parametrize("name", ["ViT", "Llama"])
def test_a_model_of_the_right_form_stays_where_it_is(method, name):
    model = of_the_form(name, method)
    before = dense_heads(model)
    steer(model, method)
    assert max(max(entry.heads) for entry in steering_of(model).moved) < 1e-6
    for new, old in zip(dense_heads(model), before, strict=True):
        close(new, old, 1e-6, "H")


@pytest.mark.parametrize("name", ["Llama", "ViT"])
@torch.no_grad()
def test_a_model_of_the_right_form_computes_what_it_did(name):
    """Value biases too: ``b_V W_O`` is part of what attention adds."""
    model, family = of_the_form(name, FORMS["sharpen"]), FAMILIES[name]
    expected = outputs(model, family)
    steer(model, FORMS["sharpen"])
    all_close(outputs(model, family), expected, 1e-5)


def test_a_model_of_the_codes_form_stays_where_it_is():
    model = make("ViT", torch.float64)
    modules, family = dict(model.named_modules()), FAMILIES["ViT"]
    method = Spectral(wiring="code")
    for place in places(family):
        theta = torch.linalg.qr(normal(WIDTH, WIDTH, seed=place)).Q
        W_V, W_O, _ = by_hand.spectral_weights(family, Row((method,)), theta, normal(HEADS, 8, seed=place), None)
        by_hand.put(modules, family, place, W_V, W_O)
    steer(model, method)
    assert max(max(entry.heads) for entry in steering_of(model).moved) < 1e-6


@pytest.mark.parametrize("form", ["sharpen", "bounded", "smooth"])
@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_a_warm_start_is_nearer_than_any_random_V(form, name):
    method, model = FORMS[form], make(name, torch.float64)
    before = dense_heads(model)
    steer(model, method)
    group = HEADS // FAMILIES[name].kv_heads
    for old, new in zip(before, dense_heads(model), strict=True):
        distance = (new - old).square().sum()
        for seed in range(20):
            m = FAMILIES[name].kv_heads * FAMILIES[name].head_dim
            V = torch.linalg.qr(normal(WIDTH, m, seed=seed)).Q.unflatten(1, (-1, FAMILIES[name].head_dim)).movedim(1, 0)
            V = V.repeat_interleave(group, dim=0)
            best = method.nearest((V.mT @ old @ V).diagonal(dim1=-2, dim2=-1), group)
            drawn = V @ torch.diag_embed(best) @ V.mT
            assert distance < (drawn - old).square().sum()


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_a_start_is_computed_on_one_core_and_the_same_on_many(start, monkeypatch):
    seen, found = [], []
    for where, name in ((warm_start, "_moved"), (ReparametrizedLayer, "rows")):
        real = getattr(where, name)
        counted = lambda *given, real=real: seen.append(torch.get_num_threads()) or real(*given)  # noqa: E731
        monkeypatch.setattr(where, name, counted)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(96, 4, 8, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
        steering = steering_of(steer(model, Spectral("smooth", start=start)))
        found.append([p.detach().clone() for one in steering.reparametrized for p in (one.theta, one.psi)])
    assert seen == [1] * (20 if start == "warm" else 10)  # a warm start reads the new weights: biases follow them
    assert len(found[0]) == 10
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_a_cold_start_is_the_papers():
    """Θ uniform within ±1/√d, ψ² as of a uniform ψ in (0, 1); the seed decides, and layers differ."""
    model = steer(make("ViT"), Spectral("smooth", start="cold", seed=3))
    again = steer(make("BERT"), Spectral("smooth", start="cold", seed=3))
    other = steer(make("ViT"), Spectral("smooth", start="cold", seed=4))
    theta = [layer.theta.detach() for layer in steering_of(model).reparametrized]
    psi = [layer.psi.detach() for layer in steering_of(model).reparametrized]
    assert max(t.abs().max() for t in theta) <= WIDTH**-0.5
    assert all(0.2 < float(t.std() * WIDTH**0.5) < 0.8 for t in theta)
    assert all(((p > 0) & (p < 1)).all() for p in psi)
    assert not torch.equal(theta[0], theta[1])
    assert torch.equal(theta[0], steering_of(again).reparametrized[0].theta)
    assert not torch.equal(theta[0], steering_of(other).reparametrized[0].theta)


def test_a_cold_start_of_shared_value_heads_keeps_their_sum():
    for method in (Spectral(start="cold", bounded=True), Spectral(start="cold", form="general")):
        model = steer(make("Llama"), method)
        for layer in locate(model):
            joined = torch.linalg.eigvals((layer.W_V.double() @ layer.raw_W_O.double()).sum(0))
            assert joined.real.min() > -1 - 1e-6
            assert joined.real.max() < 1e-6


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("mode", ["sharpen", "smooth"])
def test_a_warm_start_of_many_shared_heads_stays_bounded(mode, shared):
    """Groups of 4 and 8 query heads, of which some have nothing to add: what is left to them comes off the others."""
    from transformers import LlamaConfig, LlamaModel

    sizes = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=8, head_dim=8, intermediate_size=16)
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**sizes, num_key_value_heads=shared, vocab_size=8))
    attention = model.layers[0].self_attn
    with torch.no_grad():
        attention.v_proj.weight.mul_(100)
        attention.o_proj.weight.mul_(100)
        attention.o_proj.weight[:, 8:] = 0.0
    steer(model, Spectral(mode, bounded=True))
    (layer,) = steering_of(model).reparametrized
    assert layer.psi.isfinite().all()
    assert verify(model), verify(model).problems


# geotorch


@pytest.mark.parametrize("mode", ["sharpen", "smooth"])
@pytest.mark.parametrize(("orthogonal", "triv", "factor"), [("exp", "expm", 1.0), ("cayley", "cayley", 2.0)])
def test_symmetric_form_is_geotorchs(mode, orthogonal, triv, factor):
    """SymF of the same base, skew entries and eigenvalues: the same H, and the same gradients."""
    sign = -1.0 if mode == "sharpen" else 1.0
    model = make("ViT", torch.float64)
    steer(model, Spectral(mode, orthogonal=orthogonal))
    with torch.no_grad():
        for layer in steering_of(model).reparametrized:
            layer.theta.copy_(0.2 * normal(*layer.theta.shape, seed=1))
            layer.psi.copy_(normal(*layer.psi.shape, seed=2))
    layer = steering_of(model).reparametrized[1]
    symf = SymF((WIDTH, WIDTH), WIDTH, f=lambda x: sign * x * x, triv=triv).double()
    symf[0].base.copy_(layer.base)
    free = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    rows, columns = torch.tril_indices(WIDTH, WIDTH, -1)
    free[rows, columns] = factor * layer.theta.detach()  # its Cayley map halves
    free += torch.diag(layer.psi.detach().flatten())
    free.requires_grad_()
    expected = symf(free)
    values, back = layer.rows()
    got = torch.einsum("hkd,hke->de", values, back)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    weight = normal(WIDTH, WIDTH, seed=3)
    (theirs,) = torch.autograd.grad((expected * weight).sum(), free)
    theta, psi = torch.autograd.grad((got * weight).sum(), (layer.theta, layer.psi))
    torch.testing.assert_close(theta, factor * theirs[rows, columns], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(psi.flatten(), theirs.diagonal(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["ViT", "Llama", "GPT-2"])
@pytest.mark.parametrize("method", ["Spectral: sharpen", "Spectral: smooth, exponential"])
def test_every_head_is_in_geotorchs_manifold(name, method):
    """Symmetric, of rank k, with eigenvalues of one sign: geotorch says so, and finds the way back."""
    sign = -1.0 if "sharpen" in method else 1.0
    family = FAMILIES[name]
    model = steered(name, method, torch.float64)
    manifold = SymF((WIDTH, WIDTH), family.head_dim, f=(torch.square, torch.sqrt)).double()
    for layer in dense_heads(model):
        for H in sign * layer:
            assert manifold.in_manifold(H, eps=1e-7)
            assert not manifold.in_manifold(-H, eps=1e-7)
    together = SymF((WIDTH, WIDTH), WIDTH, f=(torch.square, torch.sqrt)).double()
    assert together.in_manifold(sign * dense_heads(model)[0].sum(0), eps=1e-7)


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_fixed_signs_begin_where_free_ones_do_and_stay(start):
    fixed, free = (steer(make("ViT", torch.float64), Spectral(signs=s, start=start)) for s in ("fixed", "free"))
    torch.testing.assert_close(dense_heads(fixed), dense_heads(free), rtol=1e-5, atol=1e-6)
    begun = [layer.signs.clone() for layer in steering_of(fixed).reparametrized]
    assert all(signs.abs().eq(1).all() and signs.unique().numel() == 2 for signs in begun)
    with torch.no_grad():
        for name, parameter in fixed.named_parameters():
            if name.endswith("original0"):
                parameter.add_(torch.randn_like(parameter))  # as training may
    for H, signs in zip(dense_heads(fixed), begun, strict=True):
        found = torch.linalg.eigvals(H).real.flatten()
        assert (int((found < -1e-9).sum()), int((found > 1e-9).sum())) == (
            int((signs < 0).sum()),
            int((signs > 0).sum()),
        )


# All heads together


@pytest.mark.parametrize("name", ["ViT", "Llama", "Qwen3"])
@pytest.mark.parametrize("form", ["bounded", "smooth", "general"])
def test_what_it_promises_of_real_attention(name, form):
    """The multi-head theorem (THEORY §3) on the whole n·d by n·d matrix: rough wins, or smooth, as it was asked for."""
    model = make(name, torch.float64)
    steer(model, dataclasses.replace(FORMS[form], start="cold"))  # a warm one may have eigenvalues of 0: a tie
    for layer, passage in zip(locate(model), passages(name), strict=True):
        A = passage.A[0]
        # Features that no head reads or writes stay as they are, in both: they are left out.
        B = torch.linalg.qr(layer.W_V[:: HEADS // layer.kv_heads].movedim(0, 1).flatten(1)).Q
        W_V, W_O = B.T @ layer.W_V, layer.raw_W_O @ B
        torch.testing.assert_close(W_O @ B.T, layer.raw_W_O)
        smooth, rough = dense_radii(A, W_V, W_O)
        assert (smooth > rough) == (form == "smooth"), f"{smooth} and {rough}"
        assert dominance(A, W_V, W_O).verdict == ("smooth" if form == "smooth" else "rough")


def test_without_one_V_the_signs_promise_nothing():
    """Heads with negative eigenvalues of their own can smooth together: what slices of one V are for."""
    A = passages("ViT")[0].A[0]
    found = []
    for seed in range(8):
        V = torch.linalg.qr(normal(HEADS, WIDTH, 8, seed=seed)).Q
        V[1:] = V[:1] + 0.3 * V[1:]  # heads that overlap
        V = torch.linalg.qr(V).Q
        smooth, rough = dense_radii(A, V, -0.9 * V.mT)
        found.append(smooth > rough)
    assert any(found)


def test_weights_of_a_model_in_half_precision_are_orthonormal_in_it():
    model = steered("ViT", "Spectral: sharpen").bfloat16()
    for layer in steering_of(model).reparametrized:
        rows, _ = layer.rows()
        assert rows.dtype == torch.bfloat16
        assert is_orthonormal(rows.flatten(0, 1).T, 2e-2)
