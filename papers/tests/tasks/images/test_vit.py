"""Named intermediates of the ViT: what hooks see, nothing else changed, and no break in a compiled graph."""

import pytest
import torch

from oversmooth.steering import NeuTRENO, Spectral, steer
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import ViT

SHAPE = Shape(image=8, patch=4, width=16, depth=3, heads=2, classes=5)


@pytest.fixture
def model():
    made = ViT(SHAPE).eval()
    torch.nn.init.normal_(made.cls_token)
    return made


@pytest.fixture
def images():
    return torch.randn(2, 3, 8, 8)


def seen_by_hooks(model, images):
    """Outputs of the modules by name, and what enters those whose input has no module of its own."""
    blocks = [f"blocks.{i}" for i in range(SHAPE.depth)]
    after = [*blocks, *(f"{block}.{part}" for block in blocks for part in ("norm1", "attn", "norm2", "mlp"))]
    before = {"embedding": "blocks.0"} | {f"{block}.middle": f"{block}.norm2" for block in blocks}
    seen, handles = {}, []
    for name in (*after, "norm", "head"):
        hook = lambda _module, _args, out, name=name: seen.__setitem__(name, out)  # noqa: E731
        handles.append(model.get_submodule(name).register_forward_hook(hook))
    for name, module in before.items():
        hook = lambda _module, args, name=name: seen.__setitem__(name, args[0])  # noqa: E731
        handles.append(model.get_submodule(module).register_forward_pre_hook(hook))
    logits = model(images)
    for handle in handles:
        handle.remove()
    return seen, logits


@pytest.mark.parametrize("method", [None, NeuTRENO(0.6), Spectral(mode="sharpen")], ids=str)
@torch.no_grad()
def test_they_are_what_hooks_see(method, model, images):
    if method is not None:
        steer(model, method)
    seen, logits = seen_by_hooks(model, images)
    found = model(images, intermediates=True)
    assert set(found) == set(seen)
    for name, value in found.items():
        assert torch.equal(value, seen[name]), name
    assert torch.equal(found["head"], logits)
    assert next(iter(found)) == "embedding"
    assert list(found)[-1] == "head"
    assert found["blocks.1"].shape == (2, SHAPE.tokens, SHAPE.width)
    assert torch.equal(found["blocks.0.middle"], found["embedding"] + found["blocks.0.attn"])
    assert torch.equal(found["blocks.0"], found["blocks.0.middle"] + found["blocks.0.mlp"])


@torch.no_grad()
def test_both_ways_compile_without_a_break(model, images):
    plain, named = model(images), model(images, intermediates=True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(images), plain)
    for name, value in compiled(images, intermediates=True).items():
        assert torch.equal(value, named[name]), name


def test_gradients_flow_through_them(model, images):
    found = model(images, intermediates=True)
    found["blocks.0.attn"].retain_grad()
    found["head"].sum().backward()
    assert found["blocks.0.attn"].grad.abs().sum() > 0
