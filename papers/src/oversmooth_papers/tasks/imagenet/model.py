"""The ViT of the CIFAR experiments with stochastic depth: in training, parts of blocks are left out, image by image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from oversmooth.safety.randomness import seeded
from oversmooth.steering import steer
from oversmooth_papers.tasks.imagenet.recipe import Recipe
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import Block, Keep, ViT


class DroppingBlock(Block):
    """What attention or the MLP adds is left out with probability ``drop``, and is else larger by 1 / (1 − drop)."""

    def __init__(self, shape: Shape, drop: float) -> None:
        super().__init__(shape.width, shape.heads, shape.hidden, shape.qkv_bias, shape.eps)
        self.drop = drop

    def forward(self, x: Tensor, *, keep: Keep | None = None) -> Tensor:
        if not self.training or not self.drop:
            return super().forward(x, keep=keep)
        if keep is None:
            x = x + self._thinned(self.attn(self.norm1(x)))
            return x + self._thinned(self.mlp(self.norm2(x)))
        x = keep("middle", x + keep("attn", self._thinned(self.attn(keep("norm1", self.norm1(x))))))
        return x + keep("mlp", self._thinned(self.mlp(keep("norm2", self.norm2(x)))))

    def _thinned(self, added: Tensor) -> Tensor:
        """``(b, n, d)``: one draw for each image."""
        stays = added.new_empty(len(added), 1, 1).bernoulli_(1 - self.drop)
        return added * stays.div_(1 - self.drop)


class DroppingViT(ViT):
    """Weights, their names and what is computed in evaluation are those of `ViT`."""

    average: dict[str, Tensor] | None = None
    """Of the weights, while it is trained; no part of its state dict."""

    def __init__(self, shape: Shape, drop_path: float) -> None:
        super().__init__(shape)
        for number, plain in enumerate(self.blocks):
            block = DroppingBlock(shape, drop_path * number / max(1, shape.depth - 1))
            block.load_state_dict(plain.state_dict())
            self.blocks[number] = block


def plain_model_of(recipe: Recipe) -> DroppingViT:
    """Unsteered, on the CPU, with random weights."""
    return DroppingViT(recipe.shape, recipe.drop_path)


def model_of(recipe: Recipe) -> DroppingViT:
    """On the CPU, with the weights that the seed gives on any machine; the caller's random state is left alone."""
    with seeded(recipe.seed):
        model = plain_model_of(recipe)
        methods = recipe.methods()
        if methods:
            steer(model, methods)
    return model


def start_average(model: nn.Module) -> dict[str, Tensor]:
    """The weights as they are now, to be averaged from here on; kept at the model."""
    assert isinstance(model, DroppingViT)
    model.average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    return model.average


@contextmanager
def averaged(model: nn.Module) -> Iterator[nn.Module]:
    """The model with the average in place of its weights, which it has again afterwards."""
    assert isinstance(model, DroppingViT)
    own = dict(model.named_parameters())
    average = model.average or {}
    before = {name: own[name].detach().clone() for name in average}
    with torch.no_grad():
        try:
            for name, value in average.items():
                own[name].copy_(value)
            yield model
        finally:
            for name, value in before.items():
                own[name].copy_(value)


@torch.no_grad()
def move_average(model: nn.Module, decay: float) -> None:
    """``average = decay · average + (1 − decay) · weights``, in place."""
    assert isinstance(model, DroppingViT)
    assert model.average is not None
    weights = dict(model.named_parameters())
    torch._foreach_lerp_(list(model.average.values()), [weights[name] for name in model.average], 1 - decay)
