"""The Segmenter against its formulas written out, and steering of its two stacks."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.segmentation_example import RECIPE

from oversmooth.anatomy import locate
from oversmooth.safety.errors import InputError
from oversmooth.steering import steering_of
from oversmooth_papers.engine.saved_model import load_model, save_model
from oversmooth_papers.tasks.segmentation.model import model_of, plain_model_of

PLAIN = replace(RECIPE, variant="plain")


def noisy(recipe, seed=0):
    """With weights that are all away from where they begin."""
    model = model_of(recipe)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


def by_hand(x, w, heads):
    """One block in plain sums: x ``(n, d)``."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w(f"{name}.weight") + w(
            f"{name}.bias"
        )

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
    return x + linear(hidden, "mlp.fc2"), norm


def test_it_is_the_papers_formula():
    model = noisy(PLAIN)
    image = torch.randn(3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = model.state_dict()

    def stack(prefix, x, depth):
        for number in range(depth):
            x, norm = by_hand(x, lambda name, n=number: weights.get(f"{prefix}.blocks.{n}.{name}"), 2)
        return x, norm

    with torch.no_grad():
        kernel, bias = weights["encoder.patch_embed.weight"], weights["encoder.patch_embed.bias"]
        patches = []
        for row in range(4):
            for column in range(4):
                square = image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                patches.append((kernel * square).sum((1, 2, 3)) + bias)
        x = torch.cat([weights["encoder.cls_token"][0], torch.stack(patches)]) + weights["encoder.pos_embed"][0]
        x, _ = stack("encoder", x, 3)
        x = F.layer_norm(x, (16,), weights["encoder.norm.weight"], weights["encoder.norm.bias"], 1e-6)[1:]
        x = x @ weights["decoder.project.weight"].T + weights["decoder.project.bias"]
        x, _ = stack("decoder", torch.cat([x, weights["decoder.class_tokens"][0]]), 2)
        x = F.layer_norm(x, (16,), weights["decoder.norm.weight"], weights["decoder.norm.bias"], 1e-6)
        patches = x[:16] @ weights["decoder.patch_project.weight"].T
        classes = x[16:] @ weights["decoder.class_project.weight"].T
        masks = torch.zeros(16, 5, dtype=torch.float64)
        for p in range(16):
            for c in range(5):
                masks[p, c] = patches[p].dot(classes[c]) / (patches[p].norm() * classes[c].norm())
        masks = F.layer_norm(masks, (5,), weights["decoder.mask_norm.weight"], weights["decoder.mask_norm.bias"])
        grid = masks.T.reshape(1, 5, 4, 4)
        expected = F.interpolate(grid.float(), (16, 16), mode="bilinear", align_corners=False)
        out = model(image[None])
    assert out.shape == (1, 5, 16, 16)
    torch.testing.assert_close(out.float(), expected, rtol=1e-4, atol=1e-5)


def test_every_weight_learns():
    model = model_of(PLAIN)
    model(torch.randn(2, 3, 16, 16)).square().mean().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    # A bias that every key shares changes no softmax, but it is joined to those of queries and values.
    assert without == []


def test_both_stacks_are_found_each_for_itself():
    model = plain_model_of(PLAIN)
    assert (len(locate(model.encoder)), len(locate(model.decoder))) == (3, 2)
    assert locate(model, stack="decoder").stack.startswith("decoder")


@pytest.mark.parametrize(("steer", "steered"), [("encoder+decoder", (True, True)), ("encoder", (True, False)),
                                                ("decoder", (False, True))])  # fmt: skip
def test_the_recipe_says_which_stacks_are_steered(steer, steered):
    model = model_of(replace(RECIPE, steer=steer))
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
    assert first["encoder"].shape[1] == 17  # CLS and patches
    assert first["decoder"].shape[1] == 21  # patches and classes
    for name, joined in qkv.items():
        stack = name.split(".")[0]
        q, k, v = joined.unflatten(-1, (3, 2, 8)).unbind(-3)
        A = torch.softmax(torch.einsum("bihk,bjhk->bhij", q, k) / math.sqrt(8), -1)
        U = torch.einsum("bhij,bjhk->bihk", A, v).flatten(2)
        expected = U + 0.6 * (first[stack] - v.flatten(2))  # in the first layer V⁰ − V is 0
        torch.testing.assert_close(entered[name], expected, rtol=1e-9, atol=1e-9)


def test_neutreno_reaches_the_first_values_on_the_way_back():
    model = noisy(replace(RECIPE, steer="decoder"))
    held = {}
    values = model.decoder.blocks[0].attn.qkv
    values.register_forward_hook(lambda _m, _a, out: held.__setitem__("first", out.retain_grad() or out))
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    model(x).square().sum().backward()
    with_term = held["first"].grad[..., 32:]
    plain = noisy(PLAIN)
    plain.decoder.blocks[0].attn.qkv.register_forward_hook(
        lambda _m, _a, out: held.__setitem__("plain", out.retain_grad() or out)
    )
    plain(x).square().sum().backward()
    assert not torch.allclose(with_term, held["plain"].grad[..., 32:])


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


def test_settings_of_a_part_that_is_not_there_are_refused(tmp_path):
    model = model_of(RECIPE)
    save_model(model, RECIPE, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="'encoder' was steered, and its model has no such part"):
        load_model(tmp_path / "model.safetensors", lambda _recipe: torch.nn.Linear(2, 2))


def test_the_seed_decides_the_weights_and_the_caller_keeps_its_numbers():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = model_of(RECIPE).state_dict()
    assert torch.equal(torch.rand(3), expected)
    for name, value in model_of(RECIPE).state_dict().items():
        assert torch.equal(value, one[name])
    other = model_of(replace(RECIPE, seed=1)).state_dict()
    assert not torch.equal(other["decoder.class_tokens"], one["decoder.class_tokens"])


@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6"])
def test_dynamo_traces_it_whole(variant):
    model = model_of(replace(RECIPE, variant=variant)).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(x)
        out = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)(x)
    torch.testing.assert_close(out, expected)
