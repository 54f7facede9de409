"""Segmenter: a ViT whose patches, with a token for every class, go through a few more blocks; masks are their products.

Encoder and decoder have blocks of their own and run one after the other, so that each can be steered as a stack.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth_papers.tasks.common import begun
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import block_of, start_weights
from oversmooth_papers.tasks.segmentation.pretrained import load_weights
from oversmooth_papers.tasks.segmentation.recipe import Recipe


class Encoder(nn.Module):
    """``(b, 3, image, image) -> (b, patches, width)``: a ViT without head, whose CLS token is dropped at last."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = nn.Conv2d(shape.channels, shape.width, shape.patch, stride=shape.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, shape.tokens, shape.width))
        self.blocks = nn.ModuleList(block_of(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, eps=shape.eps)
        start_weights(self)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed(images).flatten(2).mT
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 1:]


class MaskDecoder(nn.Module):
    """``(b, patches, width) -> (b, patches, classes)``: how well every patch goes with every class.

    Patches and a learned token per class go through the blocks together. Both are then projected and brought to length
    one; their products are normalised over the classes.
    """

    def __init__(self, shape: Shape) -> None:
        """shape: of its blocks; depth and classes are the decoder's."""
        super().__init__()
        width = shape.width
        self.classes = shape.classes
        self.project = nn.Linear(width, width)
        self.class_tokens = nn.Parameter(torch.zeros(1, shape.classes, width))
        self.blocks = nn.ModuleList(block_of(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(width, eps=shape.eps)
        self.patch_project = nn.Linear(width, width, bias=False)
        self.class_project = nn.Linear(width, width, bias=False)
        self.mask_norm = nn.LayerNorm(shape.classes)
        start_weights(self)
        nn.init.trunc_normal_(self.class_tokens, std=0.02)
        for projection in (self.patch_project, self.class_project):
            nn.init.normal_(projection.weight, std=width**-0.5)

    def forward(self, patches: Tensor) -> Tensor:
        x = torch.cat([self.project(patches), self.class_tokens.expand(len(patches), -1, -1)], dim=1)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        masks = F.normalize(self.patch_project(x[:, : -self.classes]), dim=-1)
        classes = F.normalize(self.class_project(x[:, -self.classes :]), dim=-1)
        with torch.autocast(x.device.type, enabled=False):  # bfloat16 would tell cosines apart by 1/256 only
            return self.mask_norm(masks.to(self.mask_norm.weight.dtype) @ classes.to(self.mask_norm.weight.dtype).mT)


class Segmenter(nn.Module):
    """``(b, 3, image, image) -> (b, classes, image, image)``: logits of every pixel.

    From patches to pixels they are interpolated bilinearly, as two products with a fixed matrix: the same numbers as
    `torch.nn.functional.interpolate`, whose way back adds up in any order on a GPU.
    """

    rise: Tensor

    def __init__(self, encoder: Encoder, decoder: MaskDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.side = encoder.shape.image // encoder.shape.patch
        rise = F.interpolate(torch.eye(self.side)[None], encoder.shape.image, mode="linear")[0].T
        self.register_buffer("rise", rise.contiguous(), persistent=False)  # (image, side)

    def forward(self, images: Tensor) -> Tensor:
        masks = self.decoder(self.encoder(images)).mT.unflatten(2, (self.side, self.side))
        with torch.autocast(images.device.type, enabled=False):
            return self.rise @ masks.to(self.rise.dtype) @ self.rise.T


def plain_model_of(recipe: Recipe) -> Segmenter:
    return Segmenter(Encoder(recipe.shape), MaskDecoder(recipe.decoder_shape))


def model_of(recipe: Recipe) -> Segmenter:
    """As training begins; the encoder's weights are those of the checkpoint that the recipe names, if it does."""

    def build() -> Segmenter:
        model = plain_model_of(recipe)
        if recipe.encoder:
            load_weights(model.encoder, recipe.encoder, model.side)
        return model

    return begun(recipe, build, recipe.steer.split("+"))
