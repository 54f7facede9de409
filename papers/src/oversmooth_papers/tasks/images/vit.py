"""The ViT of Dovonon et al.'s CIFAR experiments: the library's, by its shape."""

from __future__ import annotations

import dataclasses

from oversmooth.models import vit
from oversmooth.models.vit import Attention, Block, Keep, start_weights
from oversmooth_papers.tasks.images.recipe import Shape

__all__ = ["Attention", "Block", "Keep", "ViT", "block_of", "start_weights"]


class ViT(vit.ViT):
    """``(b, channels, image, image) -> (b, classes)``; refused where it exceeds the machine's memory."""

    def __init__(self, shape: Shape | None = None) -> None:
        shape = shape or Shape()
        shape.check_fits()
        super().__init__(**dataclasses.asdict(shape))
        self.shape = shape


def block_of(shape: Shape) -> Block:
    return Block(shape.width, shape.heads, shape.hidden, shape.qkv_bias, shape.eps)
