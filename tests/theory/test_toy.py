import pytest
import torch
from support.nightly import nightly, some

from oversmooth import InputError
from oversmooth.theory import head_spectrum, joined_spectrum
from oversmooth.theory.toy import PRESETS, ToyModel, with_options


@pytest.mark.parametrize("preset", [p for p in PRESETS if p not in ("cases", "figure4")])
@pytest.mark.parametrize("seed", some([0, 1], 2))
def test_prediction_and_outcome_agree_in_every_preset(preset, seed):
    (case,) = with_options(PRESETS[preset], seed=seed)
    outcome = case.run()
    assert all(outcome.agrees)
    expected = {"sharpening": "rough", "pre-ln-": "rough"}.get(preset, "smooth")
    assert set(outcome.predicted) == {expected}


@nightly
@pytest.mark.parametrize("heads", some([4, 1], 2))
@pytest.mark.parametrize("causal", [False, True])
def test_several_heads_and_causal_attention_too(heads, causal):
    for case in with_options(PRESETS["cases"], heads=heads, causal=causal, layers=400, tokens=16):
        assert all(case.run().agrees)


def test_the_presets_are_what_they_are_called():
    names = {name: [case.name for case in cases] for name, cases in PRESETS.items()}
    assert names["cases"] == ["smoothing", "sharpening", "flip", "no-residual"]
    assert names["figure4"] == ["post-ln+", "post-ln-", "pre-ln+", "pre-ln-"]
    post = [case.run() for case in with_options(PRESETS["figure4"][:2], layers=50)]
    assert torch.equal(post[0].observed.log_hfc_lfc, post[1].observed.log_hfc_lfc)


def test_eigenvalues_lie_in_the_range_for_every_head_and_for_all():
    _, A, W_V, W_O = ToyModel("x", heads=4, width=16, eigenvalues=(-0.7, -0.2), draws=3)._draw()
    assert A.shape == (3, 4, 32, 32)
    for values in (head_spectrum(W_V, W_O), joined_spectrum(W_V, W_O)):
        assert values.real.min() >= -0.7 - 1e-9
        assert values.real.max() <= -0.2 + 1e-9
        assert values.imag.abs().max() < 1e-9


@nightly
def test_rates_are_predicted():
    for case in with_options(PRESETS["cases"], layers=500):
        outcome = case.run()
        assert outcome.predicted_rate.item() == pytest.approx(outcome.observed.rate.item(), abs=2e-3)


def test_neutreno_keeps_tokens_apart_until_smoothing_beats_one():
    kept = ToyModel("x", eigenvalues=(-0.5, -0.1), residual=True, neutreno=0.6, causal=True).run()
    assert kept.predicted == kept.happened == ["rough"]
    smoothed = ToyModel("x", eigenvalues=(0.5, 1.0), neutreno=0.6).run()
    assert smoothed.predicted == smoothed.happened == ["smooth"]


def test_the_same_seed_gives_the_same_numbers():
    a, b = (ToyModel("x", layers=10, seed=3).run().observed for _ in range(2))
    assert torch.equal(a.log_hfc_lfc, b.log_hfc_lfc)
    assert not torch.equal(a.log_hfc_lfc, ToyModel("x", layers=10, seed=4).run().observed.log_hfc_lfc)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (dict(tokens=1), "tokens is 1"),
        (dict(layers=0), "layers is 0"),
        (dict(width=10, heads=3), "width 10 cannot be split among 3"),
        (dict(eigenvalues=(1.0, -1.0)), "from 1.0 to -1.0"),
        (dict(eigenvalues=(0.0, float("inf"))), "to inf"),
        (dict(gamma=0.0, norm="pre"), "gamma is 0"),
        (dict(gamma=-1.0), "no norm to take it"),
        (dict(neutreno=float("nan")), "neutreno is nan"),
        (dict(norm="pre", width=1), "1 feature"),
        (dict(draws=0), "draws is 0"),
    ],
)
def test_bad_settings_are_named(settings, named):
    with pytest.raises(InputError, match=named):
        ToyModel("x", **settings)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_nothing_is_predicted_of_neutreno_under_a_norm(norm):
    outcome = ToyModel("x", eigenvalues=(0.1, 1.0), norm=norm, neutreno=0.6).run()
    assert outcome.predicted == ["open"]
    assert outcome.agrees == [None]
    assert set(outcome.notions["input_convergence"]) == {"open"}


def test_a_tie_is_no_claim():
    outcome = ToyModel("x", eigenvalues=(0.0, 0.0)).run()
    assert outcome.predicted == ["tie"]
    assert outcome.agrees == [None]
    assert outcome.predicted_rate is None


def test_a_changed_preset_says_so():
    assert with_options(PRESETS["sharpening"], eigenvalues=(0.1, 1.0))[0].name == "sharpening, changed"
    assert with_options(PRESETS["sharpening"], layers=20)[0].name == "sharpening"
