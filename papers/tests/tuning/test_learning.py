"""Strengths alone are learned: weights, flags and gradients are as they were, and the steps are AdamW's."""

import math

import pytest
import torch
from support.tuning_example import classifier, labelled

from oversmooth.safety.errors import InputError
from oversmooth.steering import NeuTRENO, Spectral, steer, steering_of
from oversmooth_papers.tuning import DEFAULT_METHODS, TuningSettings, tune, tuning_method
from oversmooth_papers.tuning.learning import frozen, learn, steered, strengths_of

SETTINGS = dict(steps=3, lr=0.01, batch=8, seed=0)


def bits(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", [*DEFAULT_METHODS, "contranorm", "centred"])
def test_only_strengths_change_and_the_model_is_left_as_it_was(name):
    model, _ = classifier()
    model.train()
    model.head.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones_like(model.head.bias)
    before, data = bits(model), labelled()
    flags = {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()}
    untouched = model.eval()(data.images)
    model.train()
    with steered(model, tuning_method(name)) as strengths:
        assert not model.training
        assert all(p.requires_grad == (n in strengths) for n, p in model.named_parameters())
        assert all(not value.any() for value in strengths.values())
        assert torch.equal(model(data.images), untouched)  # the identity at the start, bit for bit
        learn(model, strengths, data, torch.arange(24), TuningSettings(**SETTINGS), seed=0)
        assert all(value.any() for value in strengths.values())
        assert all(torch.equal(value, bits(model)[name]) for name, value in before.items())
        assert all(p.grad is None for n, p in model.named_parameters() if n in strengths)
    assert model.training
    assert steering_of(model) is None
    assert same(bits(model), before)
    assert {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()} == flags


def test_the_steps_are_those_of_adam_written_out():
    model, _ = classifier()
    data, rows = labelled(), torch.arange(8)  # all of them in every batch: their order does not matter
    with steered(model, NeuTRENO(0.0, learned=True)) as strengths:
        learn(model, strengths, data, rows, TuningSettings(steps=4, lr=0.02, batch=8), seed=5)
        ours = [p.item() for p in strengths.values()]
    with steered(model, NeuTRENO(0.0, learned=True)) as strengths:
        first = second = 0.0
        (strength,) = strengths.values()
        for step in range(1, 5):
            loss = -model(data.images[rows]).log_softmax(-1)[range(8), data.labels[rows]].mean()
            (gradient,) = torch.autograd.grad(loss, strength)
            first = 0.9 * first + 0.1 * gradient.item()
            second = 0.999 * second + 0.001 * gradient.item() ** 2
            move = 0.02 * (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.999**step)) + 1e-8)
            with torch.no_grad():
                strength -= move
        assert ours == pytest.approx([strength.item()], rel=1e-4)


def test_learning_lowers_the_loss_where_it_can():
    model, _ = classifier()
    data = labelled(48)

    def loss():
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(data.images), data.labels).item()

    before = loss()
    with steered(model, tuning_method("featscale")) as strengths:
        learn(model, strengths, data, torch.arange(48), TuningSettings(steps=30, lr=0.02, batch=48), seed=0)
        assert loss() < before - 0.01
    assert loss() == before


def test_every_image_is_seen_before_any_comes_again():
    from oversmooth_papers.tuning.learning import batches_of

    rows = torch.arange(100, 110)
    parts = list(batches_of(rows, 5, 4, seed=0))
    assert [len(part) for part in parts] == [5] * 4
    assert sorted(torch.cat(parts[:2]).tolist()) == rows.tolist() == sorted(torch.cat(parts[2:]).tolist())
    assert torch.cat(parts[:2]).tolist() != torch.cat(parts[2:]).tolist()
    assert [part.tolist() for part in batches_of(rows, 5, 4, seed=0)] == [part.tolist() for part in parts]
    assert [len(part) for part in batches_of(rows, 64, 2, seed=0)] == [10, 10]


def test_tune_leaves_the_method_on_and_the_weights_alone():
    model, _ = classifier()
    before = bits(model)
    tune(model, tuning_method("attnscale"), labelled(), TuningSettings(**SETTINGS))
    assert steering_of(model) is not None
    after = bits(model)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(p.requires_grad for p in model.parameters())


def test_what_fails_leaves_the_model_as_it_was():
    model, _ = classifier()
    before, settings = bits(model), TuningSettings(**SETTINGS)

    def stop(_step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(model, tuning_method("neutreno"), labelled(), settings, on_step=stop)
    assert steering_of(model) is None
    assert same(bits(model), before)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    with torch.no_grad():
        model.head.weight.fill_(math.nan)
    with pytest.raises(InputError, match=r"the loss is nan at step 1 .* give a lower --lr"):
        tune(model, tuning_method("neutreno"), labelled(), settings)
    assert steering_of(model) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "there is no method 'nonsense'"),
        ("spectral", "changes weights"),
        ("neutreno:strength=0.5", "learns nothing; add learned, as in neutreno:strength=0,learned,per=head"),
        ("featscale:learned=no", "learns nothing"),
        ("neutreno:colour=red", "has no setting 'colour'"),
    ],
)
def test_methods_without_strengths_to_learn_are_refused(text, sentence):
    with pytest.raises(InputError, match=sentence):
        tuning_method(text)


def test_strengths_start_from_the_model_as_it_is():
    model, _ = classifier()
    before = bits(model)
    with pytest.raises(InputError, match="give it strengths of 0"), steered(model, tuning_method("neutreno:learned")):
        pass
    assert same(bits(model), before)
    with frozen(model):
        steer(model, Spectral("sharpen"))
        with pytest.raises(InputError, match=r"no strength to learn|strengths of 0"):
            strengths_of(model, Spectral("sharpen"))
