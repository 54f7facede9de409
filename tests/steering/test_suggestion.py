"""The strength that spectra propose, against eigenvalues in numpy of attention written out by hand."""

import numpy as np
import pytest
import torch
from support.conformance_methods import make
from support.families import FAMILIES, HEADS, WIDTH, run
from support.places import DATA

import oversmooth
from oversmooth import InputError, models
from oversmooth.steering import NeuTRENO, steer, suggest
from oversmooth.theory.reasons import Reason

TOY = "attention alone (Pre-LN)"
STRENGTHS = [i / 10 for i in range(13)]


def toy(seed=1, scale=1.0):
    """Two blocks of attention, the value weights near minus or plus the output's: some heads smooth, some do not."""
    model = make(TOY)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in model.blocks:
            W = scale * torch.randn(WIDTH, WIDTH, generator=source) / WIDTH**0.5
            signs = torch.tensor([1.0, 1.0, 1.0, -0.3]).repeat_interleave(WIDTH // HEADS)
            block.attn.to_qkv.weight[2 * WIDTH :] = W
            block.attn.to_out.weight.copy_((signs[:, None] * W).T + 0.1 * torch.randn(WIDTH, WIDTH, generator=source))
    return model


def caught(model, given):
    """For each block A ``(b, heads, n, n)`` and the heads' H, computed here from what the projections gave."""
    outs = {}
    handles = [
        block.attn.to_qkv.register_forward_hook(lambda _m, _a, out, i=i: outs.update({i: out.detach().double()}))
        for i, block in enumerate(model.blocks)
    ]
    run(model, given)
    for handle in handles:
        handle.remove()
    cases = []
    for i, block in enumerate(model.blocks):
        q, k, _ = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in outs[i].chunk(3, -1))
        A = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).numpy()
        W_V = block.attn.to_qkv.weight[2 * WIDTH :].detach().double().unflatten(0, (HEADS, -1)).numpy()
        W_O = block.attn.to_out.weight.detach().double().T.unflatten(0, (HEADS, -1)).numpy()
        cases.append((A, [W_O[h] @ W_V[h].T for h in range(HEADS)]))
    return cases


def smooths(A, H, strength):
    """By brute force over all pairs; None where the radii nearly tie."""
    t = np.linalg.eigvals(A)
    t = np.delete(t, np.argmin(abs(t - 1)))
    lam = np.linalg.eigvals(H)
    smooth = max(abs(1 + (1 - strength) * x) for x in lam)
    rough = max(abs(1 + (z - strength) * x) for z in t for x in lam)
    margin = smooth - max(rough, 1.0 if strength else 0.0)
    return None if abs(margin) < 1e-4 * smooth else margin > 0, rough


def test_the_curve_is_that_of_all_pairs_of_eigenvalues():
    model, given = toy(), FAMILIES[TOY].inputs()
    suggestion = suggest(model, given, strengths=STRENGTHS)
    blocks = caught(model, given)
    b = len(given)
    for point in suggestion.curve:
        shares = []
        for depth, (A, H) in enumerate(blocks):
            acting = point.strength if depth else 0.0  # NeuTRENO leaves the first layer alone
            answers = [smooths(A[i, h], H[h], acting) for i in range(b) for h in range(HEADS)]
            assert all(answer is not None for answer, _ in answers)
            shares.append(np.mean([answer for answer, _ in answers]))
            if depth:
                rough = [rho for _, rho in answers]
                assert point.rho_rough == pytest.approx(np.mean(rough), rel=1e-4)
        assert point.layers == pytest.approx(shares)
        assert point.smoothing_share == pytest.approx(np.mean(shares))
        assert point.steered_share == pytest.approx(shares[1])
        assert point.undecided_share == 0
    assert 0 < suggestion.curve[0].steered_share < 1
    none = [p.strength for p in suggestion.curve if p.steered_share == 0]
    assert suggestion.strength == none[0]
    assert none == STRENGTHS[STRENGTHS.index(none[0]) :]
    assert f"λ̃ = {suggestion.strength:g}" in suggestion.reason
    assert "ρ_rough" in suggestion.reason
    assert str(suggestion) == suggestion.reason


def test_every_case_has_the_strength_at_which_it_turns():
    model, given = toy(), FAMILIES[TOY].inputs()
    suggestion = suggest(model, given, strengths=STRENGTHS)
    blocks = caught(model, given)
    assert len(suggestion.cases) == 2 * HEADS * len(given)
    kinds = set()
    for case in suggestion.cases:
        A, H = blocks[case.layer][0][case.input, case.head], blocks[case.layer][1][case.head]
        if case.layer == 0:
            assert (case.least is None) == smooths(A, H, 0.0)[0]
            continue
        if case.least == 0:
            assert not smooths(A, H, 0.0)[0]
        else:
            assert smooths(A, H, case.least - 2e-3)[0]
            assert not smooths(A, H, case.least + 2e-3)[0]
        kinds.add(case.least == 0)
        assert not case.undecided
    assert kinds == {True, False}


@pytest.mark.parametrize("name", ["BERT", "Llama", "ViT", "ALBERT"])
def test_without_strength_it_is_what_a_diagnosis_counts(name):
    model, given = make(name), FAMILIES[name].inputs()
    suggestion = suggest(model, given, strengths=[0.0, 0.3, 0.6])
    diagnosis = oversmooth.diagnose(model, given, depth=0, joined=0, ranks=0)
    point = suggestion.curve[0]
    assert point.smoothing_share == pytest.approx(diagnosis.smoothing_share)
    assert point.layers == [layer.dominance.smoothing_share for layer in diagnosis.layers[1:]]
    assert point.undecided_share == pytest.approx(diagnosis.undecided_share)


def test_two_layers_with_attention_that_steering_does_not_change():
    """With V⁰ added in the last layer alone, its attention is the plain model's: a diagnosis then counts the same."""
    model, given = toy(), FAMILIES[TOY].inputs()
    suggestion = suggest(model, given, strengths=[0.0, 0.2, 0.5, 0.8])
    for point in suggestion.curve[1:]:
        diagnosis = oversmooth.diagnose(steer(toy(), NeuTRENO(point.strength)), given, depth=0, joined=0, ranks=0)
        assert point.smoothing_share == pytest.approx(diagnosis.smoothing_share)
        assert point.layers == [layer.dominance.smoothing_share for layer in diagnosis.layers[1:]]


def hybrid():
    from transformers import Lfm2Config, Lfm2Model

    torch.manual_seed(0)
    kinds = ["conv", "full_attention", "conv", "full_attention"]
    sizes = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2)
    return Lfm2Model(Lfm2Config(vocab_size=64, num_hidden_layers=4, layer_types=kinds, **sizes)).eval()


def test_the_first_layer_with_attention_may_not_be_the_first_block():
    """NeuTRENO adds nothing in it, whatever comes before it; what follows it does not matter to the other's tokens."""
    ids = torch.arange(24).reshape(2, 12)
    curve = suggest(hybrid(), ids, strengths=[0.0, 0.5, 1.0]).curve
    for point in curve:
        diagnosis = oversmooth.diagnose(steer(hybrid(), NeuTRENO(point.strength)), ids, depth=0, joined=0, ranks=0)
        expected = [None if layer.dominance is None else layer.dominance.smoothing_share for layer in diagnosis.layers]
        assert point.layers == expected[1:]
    assert [point.layers[1] for point in curve] == [1.0] * 3
    assert curve[2].layers[3] == curve[2].steered_share == 0.0


def test_where_no_strength_is_enough():
    suggestion = suggest(toy(), FAMILIES[TOY].inputs(), strengths=[0.0, 0.001])
    assert suggestion.strength is None
    assert "no strength tried" in suggestion.reason
    assert any(case.least is None for case in suggestion.cases if case.layer == 1)


def test_where_nothing_smooths():
    model = toy()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.to_out.weight.copy_(-0.3 * block.attn.to_qkv.weight[2 * WIDTH :].T)
    suggestion = suggest(model, FAMILIES[TOY].inputs(), strengths=STRENGTHS)
    assert suggestion.strength == 0
    assert "no case" in suggestion.reason
    assert all(case.least == 0 for case in suggestion.cases)


def test_what_is_undecided_counts_as_such_and_is_said(monkeypatch):
    """A layer about which the theory says nothing."""
    from oversmooth.steering import suggestion as module

    real = module.study

    def one_unknown(*args, **kwargs):
        sample = real(*args, **kwargs)
        sample.plan = sample.plan.with_undecided([1], Reason("gated_per_token"))
        return sample

    monkeypatch.setattr(module, "study", one_unknown)
    suggestion = suggest(toy(), FAMILIES[TOY].inputs(), strengths=STRENGTHS)
    assert suggestion.strength is None
    assert suggestion.curve[3].undecided_share == 0.5
    assert suggestion.curve[3].layers[1] is None
    assert "undecided" in suggestion.reason
    assert "gated per token" in suggestion.reason
    assert all(case.undecided and case.least is None for case in suggestion.cases if case.layer == 1)


def test_what_is_refused():
    given = FAMILIES[TOY].inputs()
    with pytest.raises(InputError, match="is steered by NeuTRENO"):
        suggest(steer(toy(), NeuTRENO(0.1)), given)
    for strengths in ([0.1, 0.2], [0.0], "much", [0, 0.5, 0.4], None):
        with pytest.raises(InputError, match="strength"):
            suggest(toy(), given, strengths=strengths)
    with pytest.raises(InputError, match="no inputs"):
        suggest(toy(), [])


DEIT, IMAGES = DATA / "weights" / "deit-tiny", DATA / "data" / "imagenet-val-1k"


@pytest.mark.realdata
@pytest.mark.skipif(not (DEIT.is_dir() and IMAGES.is_dir()), reason="no real data here: set OVERSMOOTH_DATA")
def test_deit_tiny():
    """As measured: about 60 % of cases smooth, and none from λ̃ = 0.6 on, where NeuTRENO acts."""
    loaded = models.load(str(DEIT))
    inputs = loaded.inputs(IMAGES, count=2, batch=2)
    suggestion = suggest(loaded.model, inputs, strengths=[0, 0.2, 0.4, 0.6, 0.8])
    shares = [p.steered_share for p in suggestion.curve]
    assert shares == pytest.approx([0.6, 0.43, 0.15, 0.0, 0.0], abs=0.08)
    assert suggestion.strength == 0.6
    growth = [p.rho_rough for p in suggestion.curve]
    assert growth == sorted(growth)
