"""The Segmenter against its formulas written out, steering of its two stacks, and encoders from transformers' files."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.places import shared
from support.segmentation_example import RECIPE

from oversmooth.anatomy import locate
from oversmooth.safety.errors import InputError
from oversmooth.steering import steering_of
from oversmooth_papers.engine.saved_model import load_model, save_model
from oversmooth_papers.tasks.segmentation.model import model_of, plain_model_of
from oversmooth_papers.tasks.segmentation.pretrained import resized_positions, shape_of

PLAIN = replace(RECIPE, variant="plain")


def noisy(recipe, seed=0):
    """With weights that are all away from where they begin."""
    model = model_of(recipe)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


def block_by_hand(x, w, heads):
    """One block in plain sums: x ``(n, d)``, w(name) a weight or None."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return scaled * w(f"{name}.weight") + w(f"{name}.bias")

    def linear(x, name):
        y = x @ w(f"{name}.weight").T
        return y if w(f"{name}.bias") is None else y + w(f"{name}.bias")

    n, d = x.shape
    q, k, v = linear(norm(x, "norm1"), "attn.qkv").split(d, dim=-1)
    mixed = torch.zeros(n, d, dtype=x.dtype)
    size = d // heads
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        A = torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(size), dim=-1)
        mixed[:, part] = A @ v[:, part]
    x = x + linear(mixed, "attn.proj")
    hidden = linear(norm(x, "norm2"), "mlp.fc1")
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return x + linear(hidden, "mlp.fc2")


@torch.no_grad()
def test_it_is_the_papers_formula():
    model = noisy(PLAIN)
    image = torch.randn(3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = model.state_dict()

    def stack(prefix, x, depth):
        for number in range(depth):
            x = block_by_hand(x, lambda name, n=number: weights.get(f"{prefix}.blocks.{n}.{name}"), 2)
        return F.layer_norm(x, (16,), weights[f"{prefix}.norm.weight"], weights[f"{prefix}.norm.bias"], 1e-6)

    kernel, bias = weights["encoder.patch_embed.weight"], weights["encoder.patch_embed.bias"]
    squares = [image[:, y : y + 4, x : x + 4] for y in range(0, 16, 4) for x in range(0, 16, 4)]
    patches = torch.stack([(kernel * square).sum((1, 2, 3)) + bias for square in squares])
    x = torch.cat([weights["encoder.cls_token"][0], patches]) + weights["encoder.pos_embed"][0]
    x = stack("encoder", x, 3)[1:] @ weights["decoder.project.weight"].T + weights["decoder.project.bias"]
    x = stack("decoder", torch.cat([x, weights["decoder.class_tokens"][0]]), 2)
    patches = x[:16] @ weights["decoder.patch_project.weight"].T
    classes = x[16:] @ weights["decoder.class_project.weight"].T
    masks = torch.zeros(16, 5, dtype=torch.float64)
    for p in range(16):
        for c in range(5):
            masks[p, c] = patches[p].dot(classes[c]) / (patches[p].norm() * classes[c].norm())
    masks = F.layer_norm(masks, (5,), weights["decoder.mask_norm.weight"], weights["decoder.mask_norm.bias"])
    grid = masks.T.reshape(1, 5, 4, 4)
    expected = F.interpolate(grid.float(), (16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(model(image[None]).float(), expected, rtol=1e-4, atol=1e-5)


def test_every_weight_learns():
    model = model_of(PLAIN)
    model(torch.randn(2, 3, 16, 16)).square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0] == []


@pytest.mark.parametrize(("steer", "steered"), [("encoder+decoder", (True, True)), ("encoder", (True, False)),
                                                ("decoder", (False, True))])  # fmt: skip
def test_the_recipe_says_which_stacks_are_steered(steer, steered):
    model = model_of(replace(RECIPE, steer=steer))
    assert (len(locate(model.encoder)), len(locate(model.decoder))) == (3, 2)
    assert (steering_of(model.encoder) is not None, steering_of(model.decoder) is not None) == steered


def test_neutreno_takes_the_first_values_of_its_own_stack():
    """Seen by hooks of this test: what enters each output projection is A V + 0.6 (V⁰ − V), by stack."""
    model = noisy(RECIPE)
    qkv, entered = {}, {}
    for name, module in model.named_modules():
        if name.endswith("attn.qkv"):
            module.register_forward_hook(lambda _m, _a, out, name=name: qkv.__setitem__(name[:-4], out))
        if name.endswith("attn.proj"):  # after the hooks of steering, which were put on before
            module.register_forward_pre_hook(lambda _m, args, name=name: entered.__setitem__(name[:-5], args[0]))
    with torch.no_grad():
        model(torch.randn(2, 3, 16, 16, dtype=torch.float64))
    assert len(qkv) == len(entered) == 5
    first = {stack: qkv[f"{stack}.blocks.0.attn"][..., 32:] for stack in ("encoder", "decoder")}
    assert [values.shape[1] for values in first.values()] == [17, 21]  # CLS and patches; patches and classes
    for name, joined in qkv.items():
        q, k, v = joined.unflatten(-1, (3, 2, 8)).unbind(-3)
        A = torch.softmax(torch.einsum("bihk,bjhk->bhij", q, k) / math.sqrt(8), -1)
        U = torch.einsum("bhij,bjhk->bihk", A, v).flatten(2)
        expected = U + 0.6 * (first[name.split(".")[0]] - v.flatten(2))  # in the first layer V⁰ − V is 0
        torch.testing.assert_close(entered[name], expected, rtol=1e-9, atol=1e-9)


def test_neutreno_reaches_the_first_values_on_the_way_back():
    x, kept = torch.randn(1, 3, 16, 16, dtype=torch.float64), []
    for recipe in (replace(RECIPE, steer="decoder"), PLAIN):
        model = noisy(recipe)
        values = model.decoder.blocks[0].attn.qkv
        values.register_forward_hook(lambda _m, _a, out: out.retain_grad() or kept.append(out))
        model(x).square().sum().backward()
    assert not torch.allclose(*(out.grad[..., 32:] for out in kept))


@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6", "sharpen", "neutreno:strength=0.6,learned"])
def test_a_saved_model_comes_back_with_both_stacks_steered(tmp_path, variant):
    recipe = replace(RECIPE, variant=variant)
    model = model_of(recipe).eval()
    save_model(model, recipe, tmp_path / "model.safetensors", dtype=torch.float32)
    again, read = load_model(tmp_path / "model.safetensors", plain_model_of)
    assert read == recipe
    for stack in ("encoder", "decoder"):
        assert (steering_of(again.get_submodule(stack)) is None) == (variant == "plain")
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-5)
    if variant != "plain":
        with pytest.raises(InputError, match="'encoder' was steered, but the model has no such module"):
            load_model(tmp_path / "model.safetensors", lambda _recipe: torch.nn.Linear(2, 2))


@torch.no_grad()
def test_dynamo_traces_it_whole():
    model, x = model_of(RECIPE).eval(), torch.randn(2, 3, 16, 16)
    out = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)(x)
    torch.testing.assert_close(out, model(x))


# Encoders from transformers' files


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A random ViT of transformers, in its folder."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=40, image_size=24, patch_size=4,
        layer_norm_eps=1e-3, initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("small")
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    return folder, model


def recipe_for(folder, crop):
    shape = shape_of(str(folder))
    shape = replace(shape, image=shape.patch, classes=5)
    return replace(RECIPE, encoder=str(folder), variant="plain", shape=shape, crop=crop)


@torch.no_grad()
def last_tokens_are_theirs(folder, theirs, side):
    """At the size it was made for, where positions stay as they are."""
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    expected = theirs(x).last_hidden_state[:, 1:]
    torch.testing.assert_close(model_of(recipe_for(folder, side)).encoder(x), expected, rtol=1e-4, atol=1e-4)


def test_the_encoder_gives_the_last_tokens_of_transformers(small):
    shape = shape_of(str(small[0]))
    assert (shape.eps, shape.qkv_bias, shape.hidden, shape.patch) == (1e-3, True, 40, 4)
    last_tokens_are_theirs(*small, 24)


@pytest.mark.realdata
def test_deit_tiny_gives_its_last_tokens():
    transformers, folder = pytest.importorskip("transformers"), shared("weights", "deit-tiny")
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    last_tokens_are_theirs(folder, theirs.vit, 224)


def test_positions_are_interpolated_to_the_crop(small):
    folder, theirs = small
    with torch.no_grad():
        own = model_of(recipe_for(folder, 40)).encoder.pos_embed
        before = theirs.embeddings.position_embeddings
    assert torch.equal(own[:, :1], before[:, :1])
    grid = before[0, 1:].reshape(6, 6, 16)
    for row, column in ((0, 0), (3, 7), (9, 4)):  # of 10 by 10
        y, x = (min(max((place + 0.5) * 0.6 - 0.5, 0.0), 5.0) for place in (row, column))
        top, left = int(y), int(x)
        down, right = y - top, x - left
        expected = sum(
            weight * grid[min(top + i, 5), min(left + j, 5)]
            for i, j, weight in ((0, 0, (1 - down) * (1 - right)), (0, 1, (1 - down) * right),
                                 (1, 0, down * (1 - right)), (1, 1, down * right))
        )  # fmt: skip
        torch.testing.assert_close(own[0, 1 + 10 * row + column], expected)
    assert resized_positions(before, 6) is before


def test_an_encoder_is_found_by_its_name(small, tmp_path, monkeypatch):
    shutil.copytree(small[0], tmp_path / "weights" / "mine")
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    assert shape_of("mine") == shape_of(str(small[0]))
    with pytest.raises(InputError, match="the encoder 'other' is no folder and not in OVERSMOOTH_DATA"):
        shape_of("other")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "swin"}, "has model_type 'swin'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"hidden_size": "many"}, "hidden_size is 'many'"),
        ({"num_hidden_layers": 4}, r"encoder\.layer\.3"),
        ({"intermediate_size": 48}, r"size mismatch for blocks\.0\.mlp\.fc1\.weight"),
    ],
)
def test_files_that_do_not_fit_are_refused(small, tmp_path, changes, said):
    copy = shutil.copytree(small[0], tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(InputError, match=said):
        model_of(recipe_for(copy, 24))
