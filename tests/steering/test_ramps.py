"""Strengths that change while a model is trained: what acts, what compiled code sees, and what is said and saved."""

import copy
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.conformance_methods import make, outputs
from support.families import FAMILIES
from support.nightly import nightly
from torch import nn
from torch.optim.swa_utils import AveragedModel

import oversmooth
from oversmooth import InputError, load_steered
from oversmooth.steering import (
    ContraNorm,
    FeatScale,
    NeuTRENO,
    Spectral,
    ValueResidual,
    ramp,
    register,
    save_steered,
    steer,
    steering_of,
    unsteer,
)
from oversmooth.steering.methods.base import METHODS, MethodWithStrength, Part

NAME = "ViT"
COMPILED = "torch encoder (Pre-LN, batch first)"
RAMPED = [METHODS[name](0.1) for name in ("NeuTRENO", "Centred", "ContraNorm", "Laplacian", "ValueResidual")]
RAMPED += [METHODS["AttnScale"](0.1, learned=False)]


def given(dtype=torch.float32):
    return FAMILIES[NAME].inputs(dtype)


def same(model, expected, dtype=torch.float32):
    with torch.no_grad():
        for got, wanted in zip(
            outputs(model, FAMILIES[NAME], given(dtype)), outputs(expected, FAMILIES[NAME], given(dtype)), strict=True
        ):
            assert torch.equal(got, wanted), f"off by {(got - wanted).abs().max():.2g}"


def called(model):
    given = FAMILIES[COMPILED].inputs()
    return model(**given) if isinstance(given, dict) else model(given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", RAMPED, ids=lambda method: type(method).__name__)
def test_every_step_is_the_model_steered_with_that_number(method, dtype):
    """Bit for bit: the number on its way is not rounded more than one that stays."""
    model = steer(make(NAME, dtype), method)
    rising = ramp(model, to=0.7, steps=3)
    assert rising.strength == 0.1
    for strength in np.linspace(0.1, 0.7, 4)[1:]:
        rising.step()
        assert rising.strength == pytest.approx(strength, abs=1e-15)
        same(model, steer(make(NAME, dtype), replace(method, strength=rising.strength)), dtype)
    assert rising.done
    assert rising.strength == 0.7
    for _ in range(3):
        rising.step()
    assert rising.strength == 0.7
    assert steering_of(model).methods == [replace(method, strength=0.7)]


def test_a_model_that_starts_from_nothing():
    model = steer(make(NAME), NeuTRENO(0.0))
    rising = ramp(model, to=0.6, steps=2)
    same(model, make(NAME))
    rising.step()
    same(model, steer(make(NAME), NeuTRENO(0.3)))
    rising.step()
    same(model, steer(make(NAME), NeuTRENO(0.6)))
    unsteer(model)
    same(model, make(NAME))
    assert not [name for name, _ in model.named_modules() if "oversmooth" in name]


def test_down_again():
    model = steer(make(NAME), NeuTRENO(0.6))
    falling = ramp(model, to=0.0, steps=3)
    for _ in range(3):
        falling.step()
    assert falling.strength == 0.0
    same(model, make(NAME))


@pytest.mark.parametrize("family", [NAME, "torch encoder (Pre-LN, batch first)"])
def test_beside_what_others_have_learned(family):
    """FeatScale's parameters stay the very same objects when NeuTRENO is put on beside them."""
    model = steer(make(family), [FeatScale(0.2, -0.1), NeuTRENO(0.0)])
    learned = {name: p for name, p in model.named_parameters() if ".oversmooth." in name}
    rising = ramp(model, to=0.5, steps=1, method="neutreno")
    rising.step()
    assert learned
    assert all(dict(model.named_parameters())[name] is p for name, p in learned.items())
    expected = steer(make(family), [FeatScale(0.2, -0.1), NeuTRENO(0.5)])
    with torch.no_grad():
        for got, wanted in zip(outputs(model, FAMILIES[family]), outputs(expected, FAMILIES[family]), strict=True):
            assert torch.equal(got, wanted)


def test_beside_reparametrized_weights():
    model = steer(make(NAME), [Spectral("sharpen"), NeuTRENO(0.0)])
    rising = ramp(model, to=0.5, steps=1)
    rising.step()
    same(model, steer(make(NAME), [Spectral("sharpen"), NeuTRENO(0.5)]))
    torchs = steer(make(COMPILED), [Spectral("sharpen"), NeuTRENO(0.0)])
    with pytest.raises(InputError, match="strength other than 0"):
        ramp(torchs, to=0.5)


def test_other_precision_does_not_round_the_strength():
    model = steer(make(NAME), NeuTRENO(0.0))
    rising = ramp(model, to=1 / 3, steps=2)
    model.bfloat16()
    rising.step()
    rising.step()
    assert steering_of(model).methods == [NeuTRENO(1 / 3)]
    same(model, steer(make(NAME), NeuTRENO(1 / 3)).bfloat16(), torch.bfloat16)
    model.float()
    assert steering_of(model).methods == [NeuTRENO(1 / 3)]


@pytest.mark.filterwarnings("ignore")
def test_compiled_code_follows_without_compiling_again():
    model = steer(make(COMPILED), NeuTRENO(0.1))
    rising = ramp(model, to=0.9, steps=3)
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="eager")
    seen, graphs = [], []
    for _ in range(4):
        with torch.no_grad():
            got, expected = called(compiled), called(model)
        torch.testing.assert_close(got, expected)
        seen.append(got)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        rising.step()
    assert graphs[0] >= 1
    assert graphs == [graphs[0]] * 4
    assert all((a - b).abs().max() > 1e-4 for a, b in itertools.pairwise(seen))


@nightly
@pytest.mark.filterwarnings("ignore")
def test_what_was_compiled_before_the_ramp_is_compiled_once_more():
    model = steer(make(COMPILED), NeuTRENO(0.1))
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        called(compiled)
        rising = ramp(model, to=0.9, steps=2)
        torch._dynamo.utils.counters.clear()
        for _ in range(3):
            torch.testing.assert_close(called(compiled), called(model))
            rising.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_gradients_are_those_of_the_strength_that_acts():
    model, fixed = steer(make(NAME), NeuTRENO(0.0)), steer(make(NAME), NeuTRENO(0.4))
    rising = ramp(model, to=0.8, steps=2)
    rising.step()
    for each in (model, fixed):
        outputs(each, FAMILIES[NAME])[0].square().sum().backward()
    wanted = {name: p.grad for name, p in fixed.named_parameters() if p.grad is not None}
    assert wanted
    for name, p in model.named_parameters():
        if name in wanted:
            torch.testing.assert_close(p.grad, wanted[name])


def test_what_is_saved_and_said_is_the_strength_that_acts(tmp_path):
    model = steer(make(NAME), NeuTRENO(0.2))
    rising = ramp(model, to=0.6, steps=4)
    for _ in range(3):
        rising.step()
    acting = NeuTRENO(rising.strength)
    assert rising.strength == pytest.approx(0.5)
    assert steering_of(model).methods == [acting]
    assert steering_of(model).settings()["methods"] == [acting.settings()]
    assert model.config.oversmooth["methods"] == [acting.settings()]
    assert not [name for name in model.state_dict() if "strength" in name]
    for path in (tmp_path / "folder", tmp_path / "file.safetensors"):
        save_steered(model, path)
    model.save_pretrained(tmp_path / "plain")
    for folder in ("folder", "plain"):
        settings = json.loads((tmp_path / folder / "config.json").read_text())["oversmooth"]
        assert settings["methods"][0]["strength"] == rising.strength
        same(load_steered(tmp_path / folder), model)
    same(load_steered(tmp_path / "file.safetensors", make(NAME)), model)
    diagnosis = oversmooth.diagnose(model, given(), depth=0, joined=0, ranks=0)
    assert diagnosis.steering["methods"] == [acting.settings()]
    assert any(str(acting) in remark for remark in diagnosis.remarks)
    fixed = oversmooth.diagnose(steer(make(NAME), acting), given(), depth=0, joined=0, ranks=0)
    assert [layer.dominance for layer in diagnosis.layers] == [layer.dominance for layer in fixed.layers]


def test_what_is_undecided_says_the_strength_that_acts():
    model = steer(make(NAME), ContraNorm(0.1))
    ramp(model, to=0.3, steps=1).step()
    assert [one for one in steering_of(model).hooks.values() if "strength=0.3" not in one.why_undecided()] == []


def test_averaged_models_say_what_acts_in_them():
    """torch's moving averages copy buffers from the model, but no record of what was done to it."""
    model = steer(make(NAME), NeuTRENO(0.2))
    rising = ramp(model, to=0.6, steps=2)
    average = AveragedModel(model)
    rising.step()
    average.update_parameters(model)
    acting = next(m for m in steering_of(average.module).methods)
    assert acting.strength == pytest.approx(0.4)
    own = copy.deepcopy(model)
    rising.step()
    assert steering_of(own).methods[0].strength == pytest.approx(0.4)
    assert steering_of(model).methods[0].strength == 0.6


def test_resumed():
    model = steer(make(NAME), NeuTRENO(0.1))
    rising = ramp(model, to=0.6, steps=10)
    for _ in range(4):
        rising.step()
    state = json.loads(json.dumps(rising.state_dict()))
    again = steer(make(NAME), NeuTRENO(0.0))
    resumed = ramp(again, to=0.6, steps=10)
    resumed.load_state_dict(state)
    for _ in range(8):
        assert resumed.strength == rising.strength
        assert steering_of(again).methods == steering_of(model).methods
        rising.step()
        resumed.step()
    same(again, model)
    assert resumed.strength == 0.6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"done": 11}, "done"),
        ({"done": -1}, "done"),
        ({"steps": 0}, "steps"),
        ({"to": float("nan")}, "to is nan"),
        ({"start": None}, "start"),
        ({"method": "Laplacian"}, "Laplacian"),
        ({"more": 1}, "state of a ramp"),
    ],
)
def test_states_that_are_refused(change, words):
    rising = ramp(steer(make(NAME), NeuTRENO(0.1)), to=0.6, steps=10)
    rising.step()
    with pytest.raises(InputError, match=words):
        rising.load_state_dict(rising.state_dict() | change)
    assert rising.strength == pytest.approx(0.15)
    with pytest.raises(InputError, match="state of a ramp"):
        rising.load_state_dict(None)


def test_what_cannot_ramp_is_refused():
    with pytest.raises(InputError, match="is not steered"):
        ramp(make(NAME))
    with pytest.raises(InputError, match=r"none of .* that is not learned"):
        ramp(steer(make(NAME), NeuTRENO(0.1, learned=True)))
    with pytest.raises(InputError, match="none of FeatScale"):
        ramp(steer(make(NAME), FeatScale()))
    both = steer(make(NAME), [NeuTRENO(0.1), ValueResidual(0.1)])
    with pytest.raises(InputError, match=r"2 of NeuTRENO.* choose it with method="):
        ramp(both)
    assert ramp(both, to=0.2, method="ValueResidual").strength == 0.1
    with pytest.raises(InputError, match=r"none of .* the name 'Centred'"):
        ramp(both, method="Centred")
    model = steer(make(NAME), NeuTRENO(0.1))
    for arguments, words in (
        ({"to": float("inf")}, "to is"),
        ({"to": "much"}, "to is"),
        ({"steps": 0}, "steps is"),
        ({"steps": 2.5}, "steps is"),
    ):
        with pytest.raises(InputError, match=words):
            ramp(model, **arguments)
    with pytest.raises(InputError, match="is a number"):
        ramp(3)
    assert isinstance(model, nn.Module)


def test_a_method_that_hides_its_strength_is_refused():
    class Hidden(Part):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, U, _V, _V0, _mask):
            return self.factor * U

    @register
    class Louder(MethodWithStrength):
        place = "attention"
        why_no_fold = "a test"

        def part(self, _layer):
            return Hidden(1 + self.strength)

    try:
        with pytest.raises(InputError, match="keeps its strength elsewhere"):
            ramp(steer(make(NAME), Louder(0.5)))
    finally:
        del METHODS["Louder"]


def test_a_ramp_of_a_model_that_was_changed_since_says_so():
    model = steer(make(NAME), NeuTRENO(0.1))
    rising = ramp(model, steps=4)
    rising.step()
    unsteer(model)
    with pytest.raises(InputError, match="no longer steered"):
        rising.step()
