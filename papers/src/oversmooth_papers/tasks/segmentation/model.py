"""Segmenter: a ViT whose patches, with a token for every class, go through a few more blocks; masks are their products.

Encoder and decoder have blocks of their own and run one after the other, so that each can be steered as a stack. The
encoder may begin with the weights of a ViT that transformers wrote, read from config.json and safetensors without it.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import data_folder, data_place
from oversmooth.safety.typed import typed
from oversmooth_papers.tasks.common import begun
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import block_of, start_weights
from oversmooth_papers.tasks.segmentation.recipe import Recipe

_SIZES = {
    "image": "image_size",
    "patch": "patch_size",
    "channels": "num_channels",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
}
_NAMES = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.": "embeddings.patch_embeddings.projection.",
    "blocks.": "encoder.layer.",
    ".norm1.": ".layernorm_before.",
    ".attn.proj.": ".attention.output.dense.",
    ".norm2.": ".layernorm_after.",
    ".mlp.fc1.": ".intermediate.dense.",
    ".mlp.fc2.": ".output.dense.",
}
"""Parts of our weights' names, and theirs."""
_REMEDY = "give a folder with a ViT as transformers writes it (model_type vit)"


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
    """Unsteered, on the CPU, with random weights."""
    return Segmenter(Encoder(recipe.shape), MaskDecoder(recipe.decoder_shape))


def model_of(recipe: Recipe) -> Segmenter:
    """As training begins; the encoder's weights are those of the checkpoint that the recipe names, if it does."""

    def build() -> Segmenter:
        model = plain_model_of(recipe)
        if recipe.encoder:
            load_weights(model.encoder, recipe.encoder, model.side)
        return model

    return begun(recipe, build, recipe.steer.split("+"))


def checkpoint_folder(named: str) -> Path:
    """The folder of this name: a path, or one of the weights in OVERSMOOTH_DATA."""
    folder = Path(named) if Path(named).is_dir() else data_folder(named)
    if folder is None:
        raise InputError(f"the encoder {named!r} is no folder and not in {data_place()}; {_REMEDY}, or '' for none")
    return folder


def shape_of(named: str) -> Shape:
    """Of the ViT in a folder, as its configuration says."""
    folder = checkpoint_folder(named)
    config = read_config(folder)
    kind, activation = config.get("model_type"), config.get("hidden_act", "gelu")
    if (kind, activation) != ("vit", "gelu"):
        raise InputError(f"{folder} has model_type {kind!r} and hidden_act {activation!r}, not vit and gelu; {_REMEDY}")
    try:
        sizes = {ours: typed(int, config.get(theirs), theirs) for ours, theirs in _SIZES.items()}
        hidden = typed(int, config.get("intermediate_size"), "intermediate_size")
        eps = typed(float, config.get("layer_norm_eps", 1e-12), "layer_norm_eps")
    except ValueError as error:
        raise InputError(f"{folder / 'config.json'} cannot be read ({error}); {_REMEDY}") from error
    qkv_bias = bool(config.get("qkv_bias", True))
    return Shape(**sizes, classes=1, mlp_ratio=hidden / max(1, sizes["width"]), qkv_bias=qkv_bias, eps=eps)


def load_weights(encoder: Encoder, named: str, side: int) -> None:
    """Those of the ViT in a folder, in place. side: patches along a side, to which positions are interpolated."""
    files = Checkpoint(checkpoint_folder(named))
    prefix = "vit." if any(name.startswith("vit.") for name in files.shapes) else ""
    try:
        arrays = {
            name: torch.cat([files.read(theirs) for theirs in _names(name, prefix)]).float()
            for name in encoder.state_dict()
        }
        arrays["pos_embed"] = resized_positions(arrays["pos_embed"], side)
        encoder.load_state_dict(arrays)
    except (KeyError, RuntimeError) as error:  # no such weight, or of another size
        raise InputError(f"{files.what} has not the weights of the recipe ({reason(error)}); {_REMEDY}") from error


def _names(ours: str, prefix: str) -> list[str]:
    """Theirs for one of our weights: three for the joined one of queries, keys and values."""
    if ours.startswith("norm."):
        return [f"{prefix}layer{ours}"]
    for part, theirs in _NAMES.items():
        ours = ours.replace(part, theirs)
    each = ("query", "key", "value") if ".attn.qkv." in ours else ("",)
    return [prefix + ours.replace(".attn.qkv.", f".attention.attention.{name}.") for name in each]


def resized_positions(positions: Tensor, side: int) -> Tensor:
    """``(1, 1 + s², d) -> (1, 1 + side², d)``: those of the patches interpolated bilinearly, as Segmenter has it."""
    first, grid = positions[:, :1], positions[:, 1:]
    before = round(grid.shape[1] ** 0.5)
    if before == side:
        return positions
    image = grid.mT.unflatten(2, (before, before))
    return torch.cat([first, F.interpolate(image, (side, side), mode="bilinear").flatten(2).mT], dim=1)
