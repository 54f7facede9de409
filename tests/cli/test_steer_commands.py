"""steer, fold, and what reproduces steering, as a user meets them; and diagnoses of steered models."""

import os

import pytest
import torch
from support.commands import refusal, run
from support.interpreters import python
from support.nightly import nightly
from support.places import ROOT

import oversmooth
from oversmooth import Diagnosis
from oversmooth.safety.errors import InputError
from oversmooth.steering import ContraNorm, FeatScale, Laplacian, NeuTRENO, Spectral, ValueResidual
from oversmooth.steering.layer_names import layers_named
from oversmooth.steering.methods.registry import method_named


def logits(model, size=16):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return model.eval()(torch.randn(2, 3, size, size, generator=generator)).logits


def test_steer_diagnose_fold_and_load_with_plain_transformers(monkeypatch, capsys, tmp_path, vit):
    import transformers

    steered, folded = tmp_path / "steered", tmp_path / "folded"
    assert run(monkeypatch, "steer", vit, "-m", "spectral:mode=sharpen,bounded", "-o", steered) == 0
    said = capsys.readouterr().out
    assert "verified: every eigenvalue satisfies its constraint" in said
    assert {p.name for p in steered.iterdir()} == {"config.json", "steered.safetensors", "preprocessor_config.json"}
    assert os.stat(steered / "steered.safetensors").st_mode & 0o044  # others may read it, as any file of the user's
    assert run(monkeypatch, "diagnose", steered, "--inputs", 2, "--json", tmp_path / "d.json") == 0
    found = Diagnosis.load(tmp_path / "d.json")
    assert found.smoothing_share == 0
    assert found.negative_share == 1
    assert found.steering["verified"]["ok"]
    assert found.steering["methods"][0]["method"] == "Spectral"
    assert any(sentence.startswith("Constraint satisfied") for sentence in found.verdict)
    assert run(monkeypatch, "fold", steered, "-o", folded) == 0
    live = oversmooth.load_steered(steered)
    assert type(live).__name__ == "ViTForImageClassification"
    stock = transformers.ViTForImageClassification.from_pretrained(folded)
    assert not hasattr(stock.config, "oversmooth")
    torch.testing.assert_close(logits(stock), logits(live), atol=1e-5, rtol=0)
    # The folded checkpoint has the steered spectrum, from its weights alone.
    assert run(monkeypatch, "spectrum", folded, "--json", tmp_path / "s.json") == 0
    assert Diagnosis.load(tmp_path / "s.json").negative_share == 1


def test_a_timm_model_is_steered_saved_and_folded(tmp_path):
    from support import timm_models

    from oversmooth import models

    timm = timm_models.timm()
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3).eval()
    x = torch.randn(1, 3, 224, 224)
    oversmooth.steer(model, Spectral("smooth"), "last half")
    models.save(models.Loaded(model, "tiny", "vision"), tmp_path / "steered")
    loaded = models.load(str(tmp_path / "steered"))
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(loaded.model(x), expected)
        oversmooth.fold(loaded.model)
        models.save(loaded, tmp_path / "folded")
        with pytest.raises(RuntimeError, match="oversmooth_steered_open_with_oversmooth"):  # timm takes any file
            timm.create_model(f"local-dir:{tmp_path / 'steered'}", pretrained=True)
        again = timm.create_model(f"local-dir:{tmp_path / 'folded'}", pretrained=True).eval()
        torch.testing.assert_close(again(x), expected, atol=1e-5, rtol=0)


def test_a_checkpoint_that_only_we_can_open_stops_everyone_else(monkeypatch, capsys, tmp_path, vit):
    """NeuTRENO's weights are the stock model's: only the name of the file can say that they are not all."""
    import transformers

    steered = tmp_path / "steered"
    assert run(monkeypatch, "steer", vit, "-m", "neutreno:strength=0.6", "-o", steered) == 0
    assert not (steered / "model.safetensors").exists()
    for cls in (transformers.AutoModel, transformers.ViTForImageClassification, transformers.ViTModel):
        with pytest.raises(OSError, match=r"model\.safetensors"):
            cls.from_pretrained(steered)
    stock = transformers.ViTForImageClassification.from_pretrained(vit)
    expected = logits(oversmooth.steer(stock, NeuTRENO(0.6)))
    live = oversmooth.load_steered(steered)
    assert torch.equal(logits(live), expected)
    assert not hasattr(live.config, "transformers_weights")
    for command in ("diagnose", "spectrum"):
        for path in (steered, steered / "steered.safetensors"):
            assert run(monkeypatch, command, path, *(("--inputs", 1) if command == "diagnose" else ())) == 0
    assert "steered by NeuTRENO(strength=0.6)" in " ".join(capsys.readouterr().out.split())


def test_a_sharded_steered_checkpoint_is_renamed_whole(tmp_path, vit, monkeypatch):
    import transformers

    model = oversmooth.steer(transformers.ViTForImageClassification.from_pretrained(vit), NeuTRENO(0.6))
    whole = model.save_pretrained
    monkeypatch.setattr(model, "save_pretrained", lambda folder: whole(folder, max_shard_size="10KB"))
    oversmooth.save_steered(model, tmp_path / "s")
    names = {p.name for p in (tmp_path / "s").iterdir()}
    assert "steered.safetensors.index.json" in names
    assert not any(name.startswith("model") for name in names)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModel.from_pretrained(tmp_path / "s")
    assert torch.equal(logits(oversmooth.load_steered(tmp_path / "s")), logits(model))


def test_what_a_trainer_saves_is_named_in_transformers_report(tmp_path, vit):
    """A Trainer calls save_pretrained, whose file name is not ours to choose: a weight says what it is."""
    import transformers

    model = oversmooth.steer(transformers.ViTForImageClassification.from_pretrained(vit), NeuTRENO(0.6))
    model.save_pretrained(tmp_path / "s")
    _, info = transformers.ViTForImageClassification.from_pretrained(tmp_path / "s", output_loading_info=True)
    assert set(info["unexpected_keys"]) == {"oversmooth_steered_open_with_oversmooth"}
    assert torch.equal(logits(oversmooth.load_steered(tmp_path / "s")), logits(model))
    oversmooth.unsteer(model)
    assert not any("oversmooth" in name for name in model.state_dict())


def test_saves_of_earlier_versions_are_read(tmp_path, vit):
    """They have the usual name and no marker."""
    import transformers
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    from oversmooth import models

    model = oversmooth.steer(transformers.ViTForImageClassification.from_pretrained(vit), NeuTRENO(0.6))
    model.save_pretrained(tmp_path / "s")
    oversmooth.save_steered(model, tmp_path / "m.safetensors")
    stock = transformers.ViTForImageClassification.from_pretrained(vit)
    for file in (tmp_path / "s" / "model.safetensors", tmp_path / "m.safetensors"):
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        arrays = load_file(file)
        del arrays["oversmooth_steered_open_with_oversmooth"]
        save_file(arrays, file, metadata)
    loaded = models.load(str(tmp_path / "s"))
    assert not any("at random" in remark for remark in loaded.remarks)
    assert torch.equal(logits(loaded.model), logits(model))
    assert torch.equal(logits(oversmooth.load_steered(tmp_path / "m.safetensors", stock)), logits(model))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-m", "sharpen"), "there is no method 'sharpen'; choose one of attnscale, centred"),
        (("-m", "neutreno:power=2"), "has no setting 'power'; it has strength"),
        (("-m", "neutreno:strength=0.3,strength=0.5"), "strength appears twice in 'strength=0.3,strength=0.5'"),
        (("-m", "neutreno:strength=much"), "strength is 'much', not a finite number"),
        (("-m", "neutreno:learned=perhaps"), "learned is 'perhaps', not true or false"),
        (("-m", "neutreno", "-m", "laplacian"), "both act on attention"),
        (("-m", "neutreno", "--layers", "0,7"), "layer 7 does not exist"),
        (("-m", "neutreno", "--layers", "2-x"), "cannot be read at '2-x'"),
        (("-m", "neutreno", "--dtype", "int8"), "dtype is 'int8'; give a floating type"),
    ],
)
def test_what_cannot_be_steered_is_named_and_nothing_is_written(monkeypatch, capsys, tmp_path, vit, arguments, says):
    assert says in refusal(monkeypatch, capsys, "steer", vit, *arguments, "-o", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_refusals_of_fold_and_of_full_directories(monkeypatch, capsys, tmp_path, vit, gpt):
    assert "is not a steered model" in refusal(monkeypatch, capsys, "fold", vit, "-o", tmp_path / "x")
    assert run(monkeypatch, "steer", gpt, "-m", "neutreno:strength=0.4", "-o", tmp_path / "steered") == 0
    capsys.readouterr()
    said = refusal(monkeypatch, capsys, "fold", tmp_path / "steered", "-o", tmp_path / "x")
    assert "NeuTRENO(strength=0.4) cannot be folded" in said
    said = refusal(monkeypatch, capsys, "steer", gpt, "-m", "attnscale", "-o", tmp_path / "y")
    assert "a token would see later ones" in said
    said = refusal(monkeypatch, capsys, "steer", vit, "-m", "spectral", "-o", tmp_path / "steered")
    assert "is not empty" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steered"]


def test_a_diagnosis_predicts_with_the_operator_of_the_method(vit):
    """ρ of a layer under A' = gain A − shift I − mean J, against the matrices; the first layer is its own source."""
    import transformers
    from support.oracles import dense_radii

    from oversmooth.anatomy import locate

    model = transformers.ViTForImageClassification.from_pretrained(vit, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    oversmooth.steer(model, [ValueResidual(0.25), Laplacian(0.5)])
    x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        attention = model(x, output_attentions=True).attentions
    found = oversmooth.diagnose(model, x, depth=2)
    for place, layer in enumerate(locate(model)):
        A = attention[place][0].double()
        changed = A - 0.5 * torch.eye(A.shape[-1])
        changed = changed * (0.75 if place else 1.0)
        smooth, rough = dense_radii(changed, layer.W_V.double(), layer.W_O.double())
        d = found.layers[place + 1].dominance
        assert d.joined_rho_smooth[0] == pytest.approx(smooth, rel=1e-3)
        assert d.joined_rho_rough[0] == pytest.approx(rough, rel=1e-3)
    (last,) = [e for e in found.extrapolation if e.what == "last block"]
    assert last.real is not None  # the blocks run again, inside the pass they were part of
    assert any(r.startswith("steered by ValueResidual") for r in found.remarks)


def test_what_is_not_linear_in_attention_is_undecided(vit):
    """Spectra of plain attention would say nothing of the model that runs."""
    from oversmooth import models

    loaded = models.load(str(vit))
    oversmooth.steer(loaded.model, [NeuTRENO(0.3), ContraNorm(0.2)], [1])
    found = oversmooth.diagnose(loaded.model, loaded.inputs(count=2), depth=2)
    plain, steered = found.layers[1].dominance, found.layers[2].dominance
    assert plain.undecided_share == 0
    assert {word for row in steered.verdict_heads for word in row} == {"undecided"}
    assert "ContraNorm(strength=0.2) is not linear in attention" in " ".join(found.remarks)
    assert found.extrapolation[0].verdict == "undecided"


def test_steered_diagnoses_say_what_they_are_of(vit, tmp_path):
    from oversmooth import models

    loaded = models.load(str(vit))
    oversmooth.steer(loaded.model, [NeuTRENO(0.3), FeatScale(0.1, 0.2)], [1])
    found = oversmooth.diagnose(loaded.model, loaded.inputs(count=2), depth=0)
    assert "of attention as the method changes it" in " ".join(found.remarks)
    assert found.layers[2].dominance.undecided_share == 0  # FeatScale is linear
    assert "on layers 1" in " ".join(found.remarks)
    found.save(tmp_path / "d.json")
    assert Diagnosis.load(tmp_path / "d.json").steering == found.steering
    with pytest.raises(InputError, match="rule='real' knows plain attention only"):
        oversmooth.diagnose(loaded.model, loaded.inputs(count=1), rule="real", depth=0)


def test_words():
    assert method_named("NeuTRENO:strength=0.4,learned") == NeuTRENO(0.4, learned=True)
    assert method_named("spectral:form=general,interval=-0.5..0.5").interval == (-0.5, 0.5)
    assert list(layers_named("-1")) == [-1]
    with pytest.raises(InputError, match="interval is 1, not a list"):
        method_named("spectral:form=general,interval=1")


@nightly
def test_the_example_runs():
    done = python(ROOT / "examples" / "steer_train_fold.py", "--steps", 2)
    assert done.returncode == 0, done.stderr
    assert "plain from_pretrained: largest difference of outputs" in done.stdout
