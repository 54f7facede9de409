"""`oversmooth tune`: the table, the files, and what is refused before the model takes its time."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from support.commands import make_gpt, refusal, run
from support.nightly import nightly
from support.tuning_example import classifier, write_parquet

from oversmooth.models import load
from oversmooth.steering import steering_of
from oversmooth_papers.engine.saved_model import save_model

FEW = ("--folds", 3, "--steps", 2, "--batch", 4)


@pytest.fixture
def data(tmp_path):
    return write_parquet(tmp_path / "data.parquet")


def words(text):
    return re.sub(r"\s+", " ", text)


def test_what_it_says_and_writes(vit, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    before = {file: file.read_bytes() for file in vit.iterdir()}
    given = ("tune", vit, "--data", data, *FEW, "--seed", 3, "-o", tmp_path / "tuned.json")
    assert run(monkeypatch, *given) == 0
    shown = words(capsys.readouterr().out)
    assert shown.startswith("12 images: a difference of 18.1 points would be needed")  # said first
    for name in ("NeuTRENO, per", "FeatScale", "AttnScale", "ValueResidual"):
        assert name in shown
    assert "3 folds: each of the 12 images is tested once" in shown
    written = json.loads((tmp_path / "tuned.json").read_text())
    assert written["settings"] == {"folds": 3, "epochs": 1, "steps": 2, "lr": 0.01, "batch": 4, "seed": 3}
    names = ["NeuTRENO", "FeatScale", "AttnScale", "ValueResidual"]
    assert [one["method"]["method"] for one in written["methods"]] == names
    one = written["methods"][0]
    assert one["method"] == {"method": "NeuTRENO", "strength": 0.0, "learned": True, "per": "head"}
    gained = sum(a > b for b, a in zip(one["right"]["before"], one["right"]["after"], strict=True))
    assert one["accuracy"]["gained"] == gained
    assert one["accuracy"]["before"] == one["right"]["before"].count("1") / 12
    assert {file: file.read_bytes() for file in vit.iterdir()} == before
    assert run(monkeypatch, *given[:-1], tmp_path / "again.json") == 0
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tuned.json").read_bytes()


def test_the_tuned_model_is_saved_steered(vit, data, tmp_path, monkeypatch, capsys):
    given = ("tune", vit, "--data", data, *FEW, "--method", "attnscale", "--save", tmp_path / "tuned")
    assert run(monkeypatch, *given) == 0
    capsys.readouterr()
    plain, tuned = load(str(vit)).model, load(str(tmp_path / "tuned")).model
    assert steering_of(tuned) is not None
    weights, learned = plain.state_dict(), tuned.state_dict()
    assert all(torch.equal(learned[name], value) for name, value in weights.items())
    strengths = [value for name, value in learned.items() if name.endswith("attnscale.strength")]
    assert len(strengths) == 2
    assert all(value.abs().min() > 0 and value.abs().max() <= 0.0201 for value in strengths)


def test_a_model_that_train_wrote(tmp_path, monkeypatch, capsys):
    model, recipe = classifier()
    save_model(model, recipe, tmp_path / "model.safetensors")
    data = write_parquet(tmp_path / "data.parquet", size=8)
    given = ("tune", tmp_path / "model.safetensors", "--data", data, *FEW, "-m", "neutreno", "--save", tmp_path / "out")
    assert run(monkeypatch, *given) == 0
    assert "NeuTRENO, per" in capsys.readouterr().out
    assert steering_of(load(str(tmp_path / "out")).model) is not None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--data", "nowhere"), "there is no data at nowhere"),
        (("--data", "unlabelled.parquet"), "unlabelled.parquet has no labels"),
        (("--data", "one.parquet"), "1 images cannot be cut into 5 folds"),
        (("--folds", 13), "12 images cannot be cut into 13 folds; give as many images as folds, or fewer folds"),
        (("--folds", 1), "--folds"),
        (("--inputs", 1), "--inputs"),
        (("--lr", "nan"), "--lr is nan"),
        (("--lr", 0), "lr is 0"),
        (("--lr", 1e30, "--steps", 4), "give a lower --lr"),
        (("--method", "magic"), "there is no method 'magic'"),
        (("--method", "spectral"), "changes weights"),
        (("--method", "neutreno:strength=0.6,learned"), "give it strengths of 0"),
        (("--save", "out"), "4 methods were given; give one --method"),
        (("--save", ".", "--method", "neutreno"), "is not empty"),
        (("-o", "x.txt"), "choose one of .json"),
        (("--device", "abacus"), "device 'abacus' cannot be used"),
    ],
)
def test_bad_options_are_one_sentence(vit, tmp_path, monkeypatch, capsys, options, sentence):
    monkeypatch.chdir(tmp_path)
    write_parquet(tmp_path / "data.parquet")
    write_parquet(tmp_path / "unlabelled.parquet", label=None)
    write_parquet(tmp_path / "one.parquet", count=1)
    there = sorted(tmp_path.iterdir())
    data = () if "--data" in options else ("--data", "data.parquet")
    assert sentence in refusal(monkeypatch, capsys, "tune", vit, *data, "--batch", 4, *options)
    assert sorted(tmp_path.iterdir()) == there


def test_models_that_do_not_classify_are_refused(tmp_path, data, monkeypatch, capsys):
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "features")
    (tmp_path / "features" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": 16})
    )
    for model, said in (
        (tmp_path / "features", "features is no classifier"),
        (make_gpt(tmp_path / "gpt"), "takes no images; give an image classifier"),
    ):
        assert run(monkeypatch, "tune", model, "--data", data) == 2
        assert said in words(capsys.readouterr().err)


def test_a_model_that_is_steered_already_is_refused(vit, tmp_path, data, monkeypatch, capsys):
    assert run(monkeypatch, "steer", vit, "-m", "neutreno:strength=0.1", "-o", tmp_path / "steered") == 0
    capsys.readouterr()
    assert "already steered" in refusal(monkeypatch, capsys, "tune", tmp_path / "steered", "--data", data)


@nightly
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_leaves_nothing_half_written(vit, tmp_path):
    data = write_parquet(tmp_path / "data.parquet", count=40)
    out = tmp_path / "out"
    outputs = ("-o", out / "x.json", "--save", out / "m")
    given = map(str, ("tune", vit, "--data", data, "--steps", 100_000, "-m", "neutreno", *outputs))
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen([sys.executable, "-u", "-m", "oversmooth", *given], **pipes)
    assert "images" in process.stdout.readline()  # what can be seen at all is said before it begins
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped by Ctrl-C; nothing was left half-written" in words(said)
    assert not out.exists()
