"""The controls of sharpening: its form with random or free signs, in some layers, or as initial weights alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.train_example import RECIPE, SHAPE, splits, train

from oversmooth import InputError
from oversmooth.steering import Spectral, fold, steer, steering_of, verify
from oversmooth.steering.methods.registry import method_from, method_named
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tasks.images.build import load_vit, model_of
from oversmooth_papers.tasks.images.vit import ViT

DEEP = replace(RECIPE, shape=replace(SHAPE, depth=4))


def spectrum(block):
    """Eigenvalues of all heads' H together, by numpy from the weights in use: H = W_V W_O, d by d."""
    width = block.attn.proj.in_features
    values = block.attn.qkv.weight[2 * width :].detach().double().numpy().T
    return np.sort(np.linalg.eigvals(values @ block.attn.proj.weight.detach().double().numpy().T).real)


def test_signs_are_fixed_at_random_beside_the_lambda_of_sharpening():
    sharpened, fixed, free = (
        model_of(replace(RECIPE, variant=words, seed=3))
        for words in ("sharpen", "spectral:signs=fixed,start=cold", "spectral:signs=free,start=cold")
    )
    for one, other, third in zip(sharpened.blocks, fixed.blocks, free.blocks, strict=True):
        np.testing.assert_allclose(np.sort(np.abs(spectrum(one))), np.sort(np.abs(spectrum(other))), atol=1e-5)
        np.testing.assert_allclose(spectrum(other), spectrum(third), atol=1e-5)
        assert (spectrum(one) < 0).all()
        assert 2 < (spectrum(other) < 0).sum() < SHAPE.width - 2  # of both signs
    assert not np.allclose(spectrum(fixed.blocks[0]), spectrum(fixed.blocks[1]))
    another = model_of(replace(RECIPE, variant="spectral:signs=fixed,start=cold", seed=4))
    assert not np.allclose(spectrum(fixed.blocks[0]), spectrum(another.blocks[0]))


@pytest.mark.parametrize("signs", ["fixed", "free"])
def test_psi_makes_the_eigenvalues_and_a_warm_start_keeps_the_signs_of_the_weights(signs):
    model = model_of(replace(RECIPE, variant=f"spectral:signs={signs},start=cold"))
    layer = steering_of(model).reparametrized[0]
    with torch.no_grad():
        layer.psi.copy_(torch.linspace(-2, 1, layer.psi.numel()).view_as(layer.psi))
    psi = layer.psi.detach().double().numpy().ravel()
    wanted = layer.signs.numpy().ravel() * psi**2 if signs == "fixed" else psi
    np.testing.assert_allclose(spectrum(model.blocks[0]), np.sort(wanted), atol=1e-5)
    assert verify(model)  # no sign is promised, so none is broken
    model = ViT(SHAPE)
    steer(model, Spectral("sharpen", signs=signs))
    kept = [spectrum(block) for block in model.blocks]
    assert all(2 < (values < 0).sum() < SHAPE.width - 2 for values in kept)
    fold(model)
    for values, block in zip(kept, model.blocks, strict=True):
        np.testing.assert_allclose(spectrum(block), values, atol=1e-5)


def test_signs_survive_training_and_files(tmp_path):
    recipe = replace(RECIPE, variant="spectral:signs=fixed,start=cold", epochs=1, rand_augment=None)
    before = [(spectrum(block) < 0).sum() for block in model_of(recipe).blocks]
    result = train(recipe, splits())
    assert [(spectrum(block) < 0).sum() for block in result.model.blocks] == before
    save_model(result.model, recipe, tmp_path / "m.safetensors", dtype=torch.float32)
    again, _ = load_vit(tmp_path / "m.safetensors")
    for one, other in zip(result.model.blocks, again.blocks, strict=True):
        np.testing.assert_array_equal(spectrum(one), spectrum(other))


def test_settings_in_words_and_files():
    method = method_named("spectral:signs=free,start=cold")
    assert (method.signs, str(method)) == ("free", "Spectral(signs='free', start='cold')")
    assert method_from(method.settings()) == method
    old = {name: value for name, value in Spectral().settings().items() if name != "signs"}
    assert method_from(old) == Spectral()
    for wrong in (dict(bounded=True), dict(form="general")):
        with pytest.raises(InputError, match="constrains no sign"):
            Spectral(signs="fixed", **wrong)
    with pytest.raises(InputError, match="signs is 'both'"):
        Spectral(signs="both")


# What recipes make of it


@pytest.mark.parametrize(("layers", "chosen"), [("0-1", {0, 1}), ("3", {3}), ("-1", {3}), ("first half", {0, 1})])
def test_only_the_named_layers_are_steered(layers, chosen):
    model = model_of(replace(DEEP, variant="sharpen", layers=layers))
    negative = {number for number, block in enumerate(model.blocks) if (spectrum(block) < 0).all()}
    assert negative == chosen
    plain = model_of(DEEP)
    for number, (one, other) in enumerate(zip(model.blocks, plain.blocks, strict=True)):
        if number not in chosen:
            assert torch.equal(one.attn.qkv.weight, other.attn.qkv.weight)


def test_freed_weights_begin_as_the_constrained_ones_and_go_where_they_like():
    constrained, freed = (model_of(replace(RECIPE, variant="sharpen", freed=freed)) for freed in (False, True))
    assert steering_of(freed) is None
    assert [name for name, _ in freed.named_parameters()] == [name for name, _ in ViT(SHAPE).named_parameters()]
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(freed(x), constrained(x))
    recipe = replace(RECIPE, variant="sharpen", freed=True, lr=0.05, epochs=1, rand_augment=None)
    result = train(recipe, splits())
    assert not all((spectrum(block) < 0).all() for block in result.model.blocks)


def test_recipes_name_what_they_do_not_take_and_keys_are_those_they_had():
    for changes, words in (
        (dict(layers="0-9"), "has the layers 0 to 3"),
        (dict(layers="most"), "give all, first half"),
        (dict(variant="neutreno:strength=0.6", freed=True), "freed needs"),
    ):
        with pytest.raises(InputError, match=words):
            replace(DEEP, **changes)
    assert replace(RECIPE, layers="all", freed=False).key == RECIPE.key
    keys = {replace(DEEP, variant="sharpen", **c).key for c in ({}, dict(layers="0-1"), dict(freed=True))}
    assert len(keys) == 3
    assert replace(DEEP, variant="sharpen", layers="0-1", freed=True).label.startswith("ViT⁻, layers 0-1, freed")
