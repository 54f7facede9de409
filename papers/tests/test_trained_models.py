"""Models that oversmooth train wrote, taken like any other: diagnosed, steered, folded, their weights' spectra."""

import numpy as np
import pytest
import torch
from support.commands import run
from support.train_example import RECIPE, plain

from oversmooth import models
from oversmooth.diagnosis.diagnose import diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.steering import steering_of
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tasks.images.build import augment_of, model_of


@pytest.fixture(params=["plain", "sharpen"])
def trained(request, tmp_path):
    recipe = plain(variant=request.param)
    model = model_of(recipe).eval()
    (tmp_path / "run").mkdir()
    save_model(model, recipe, tmp_path / "run" / "model.safetensors", dtype=torch.float32)
    return model, recipe, tmp_path / "run"


def test_a_run_is_loaded_with_what_its_images_need(trained, tmp_path):
    model, recipe, folder = trained
    side, channels = recipe.shape.image, recipe.shape.channels
    pixels = np.random.default_rng(0).integers(0, 256, (5, side, side, channels), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.arange(5))
    for path in (folder, folder / "model.safetensors"):
        loaded = models.load(str(path))
        assert loaded.name == recipe.title
        (batch,) = loaded.inputs(tmp_path / "images.npz", count=5)
        wanted = augment_of(recipe).normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2).float())
        torch.testing.assert_close(batch.inputs["images"], wanted)
        with torch.no_grad():
            assert torch.equal(loaded.model(**batch.inputs), model(batch.inputs["images"]))
    twin = models.load(str(folder), random=True, seed=1)
    assert (steering_of(twin.model) is None) == (recipe.variant == "plain")
    assert not torch.equal(twin.model.head.weight, model.head.weight)


def test_a_run_is_diagnosed_and_its_spectra_are_those_of_the_live_model(trained, tmp_path, monkeypatch, capsys):
    model, _, folder = trained
    assert run(monkeypatch, "diagnose", folder, "--inputs", 2, "--depth", 0, "--json", tmp_path / "d.json") == 0
    capsys.readouterr()
    assert run(monkeypatch, "spectrum", folder / "model.safetensors", "--json", tmp_path / "s.json") == 0
    live = shares(diagnose(model, models.load(str(folder)).inputs(count=2), depth=0))
    assert len(live) == RECIPE.shape.depth
    for name in ("d.json", "s.json"):
        assert shares(Diagnosis.load(tmp_path / name)) == pytest.approx(live, abs=1e-6)


def shares(diagnosis):
    return [layer.spectrum.negative_share for layer in diagnosis.layers if layer.spectrum is not None]


def test_a_run_is_steered_folded_and_loaded_again(tmp_path, monkeypatch):
    recipe = plain(variant="smooth")
    model = model_of(recipe).eval()
    (tmp_path / "run").mkdir()
    save_model(model, recipe, tmp_path / "run" / "model.safetensors", dtype=torch.float32)
    assert run(monkeypatch, "fold", tmp_path / "run", "-o", tmp_path / "folded") == 0
    folded = models.load(str(tmp_path / "folded")).model
    assert steering_of(folded) is None
    x = torch.randn(2, RECIPE.shape.channels, RECIPE.shape.image, RECIPE.shape.image)
    with torch.no_grad():
        torch.testing.assert_close(folded(x), model(x), atol=1e-5, rtol=1e-4)


def test_one_mean_means_grey():
    from oversmooth.inputs.preprocessing import Preprocessing

    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    pil = pytest.importorskip("PIL.Image")
    grey = Preprocessing(size=(4, 4), mean=(0.0,), std=(1.0,))
    wanted = np.asarray(pil.fromarray(pixels).convert("L")) / 255
    assert grey(pil.fromarray(pixels)).shape == (1, 4, 4)
    np.testing.assert_allclose(grey.tensor(pixels)[0].numpy(), wanted, atol=1.01 / 255)
    same = np.repeat(pixels[..., :1], 3, -1)
    np.testing.assert_array_equal(grey.tensor(same)[0].numpy() * 255, same[..., 0])


def test_what_was_steered_since_says_so(tmp_path, monkeypatch):
    recipe = plain()
    (tmp_path / "run").mkdir()
    save_model(model_of(recipe), recipe, tmp_path / "run" / "model.safetensors")
    assert run(monkeypatch, "steer", tmp_path / "run", "-m", "neutreno:strength=0.6", "-o", tmp_path / "other") == 0
    loaded = models.load(str(tmp_path / "other"))
    assert loaded.name == f"{recipe.title}, steered since"
    assert steering_of(loaded.model) is not None
