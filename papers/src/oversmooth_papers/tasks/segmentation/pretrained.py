"""A ViT that transformers wrote, read from its files into ours: config.json and safetensors, without transformers."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.safety.errors import InputError
from oversmooth.safety.typed import typed
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import ViT

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


def checkpoint_folder(named: str) -> Path:
    """The folder of this name: a path, or one of the weights in OVERSMOOTH_DATA."""
    home = os.environ.get("OVERSMOOTH_DATA")
    folders = [Path(named), *([Path(home) / "weights" / named, Path(home) / named] if home else [])]
    for folder in folders:
        if (folder / "config.json").is_file():
            return folder
    looked = " and ".join(str(folder) for folder in folders)
    raise InputError(f"there is no config.json of the encoder {named!r} in {looked}; {_REMEDY}, or '' for none")


def shape_of(named: str | Path) -> Shape:
    """Of the ViT in a folder, as its configuration says."""
    folder = checkpoint_folder(str(named))
    config = read_config(folder)
    if (kind := config.get("model_type")) != "vit":
        raise InputError(f"{folder} holds a model of type {kind!r}; {_REMEDY}")
    if (activation := config.get("hidden_act", "gelu")) != "gelu":
        raise InputError(f"{folder} has the activation {activation!r}, and ours is gelu; give another encoder")
    try:
        sizes = {ours: typed(int, config.get(theirs), theirs) for ours, theirs in _SIZES.items()}
        hidden = typed(int, config.get("intermediate_size"), "intermediate_size")
        eps = typed(float, config.get("layer_norm_eps", 1e-12), "layer_norm_eps")
    except ValueError as error:
        raise InputError(f"{folder / 'config.json'} cannot be read ({error}); {_REMEDY}") from error
    qkv_bias = bool(config.get("qkv_bias", True))
    return Shape(**sizes, classes=1, mlp_ratio=hidden / max(1, sizes["width"]), qkv_bias=qkv_bias, eps=eps)


def vit_from_checkpoint(named: str | Path) -> ViT:
    """The ViT in a folder, ours with its weights: the same logits, or random ones where it has no classifier."""
    folder = checkpoint_folder(str(named))
    files = Checkpoint(folder)
    prefix = "vit." if any(name.startswith("vit.") for name in files.shapes) else ""
    classes = files.shapes.get("classifier.weight", (1,))[0]
    model = ViT(dataclasses.replace(shape_of(folder), classes=classes))
    arrays = model.state_dict()
    for name, own in arrays.items():
        if name.startswith("head.") and "classifier.weight" not in files.shapes:
            continue
        theirs = _names(name, prefix)
        if missing := [each for each in theirs if each not in files.shapes]:
            raise InputError(f"{files.what} has no weight {missing[0]}; {_REMEDY}")
        value = torch.cat([files.read(each) for each in theirs]).float()
        if value.shape != own.shape:
            raise InputError(
                f"{folder}: {theirs[0]} is {tuple(value.shape)} and config.json asks for {tuple(own.shape)}; "
                "fetch it again"
            )
        arrays[name] = value
    model.load_state_dict(arrays)
    return model


def _names(ours: str, prefix: str) -> list[str]:
    """Theirs for one of our weights: three for the joined one of queries, keys and values."""
    module, _, kind = ours.rpartition(".")
    if module in ("norm", "head"):
        return [f"{prefix}layernorm.{kind}" if module == "norm" else f"classifier.{kind}"]
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
