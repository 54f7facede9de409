"""A ViT that transformers wrote, read from its files into ours: config.json and safetensors, without transformers."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import ViT

_BLOCK = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
"""Our names of a block's parts, and theirs."""
_QKV = tuple(f"attention.attention.{name}" for name in ("query", "key", "value"))
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
    width, classes = _number(config, folder, "hidden_size"), config.get("id2label")
    return Shape(
        image=_number(config, folder, "image_size"),
        patch=_number(config, folder, "patch_size"),
        channels=_number(config, folder, "num_channels"),
        classes=max(1, len(classes)) if isinstance(classes, dict) else 1,
        width=width,
        depth=_number(config, folder, "num_hidden_layers"),
        heads=_number(config, folder, "num_attention_heads"),
        mlp_ratio=_number(config, folder, "intermediate_size") / width,
        qkv_bias=bool(config.get("qkv_bias", True)),
        eps=float(config.get("layer_norm_eps", 1e-12)),
    )


def vit_from_checkpoint(named: str | Path) -> ViT:
    """The ViT in a folder, ours with its weights: the same logits, or random ones where it has no classifier."""
    folder = checkpoint_folder(str(named))
    shape, files = shape_of(folder), Checkpoint(folder)
    prefix = "vit." if any(name.startswith("vit.") for name in files.shapes) else ""
    if "classifier.weight" in files.shapes:
        shape = dataclasses.replace(shape, classes=files.shapes["classifier.weight"][0])
    model = ViT(shape)
    arrays = {}
    for name, own in model.state_dict().items():
        if name.startswith("head.") and "classifier.weight" not in files.shapes:
            arrays[name] = own
            continue
        value = torch.cat([_read(files, prefix, theirs) for theirs in _names(name)]).float()
        if value.shape != own.shape:
            raise InputError(
                f"{folder}: {_names(name)[0]} is {tuple(value.shape)} and config.json asks for {tuple(own.shape)}; "
                "fetch it again"
            )
        arrays[name] = value
    model.load_state_dict(arrays)
    return model


def resized_positions(positions: Tensor, side: int) -> Tensor:
    """``(1, 1 + s², d) -> (1, 1 + side², d)``: those of the patches interpolated bilinearly, as Segmenter has it."""
    first, grid = positions[:, :1], positions[:, 1:]
    before = round(grid.shape[1] ** 0.5)
    if before == side:
        return positions
    image = grid.mT.unflatten(2, (before, before))
    return torch.cat([first, F.interpolate(image, (side, side), mode="bilinear").flatten(2).mT], dim=1)


def _names(ours: str) -> list[str]:
    """Theirs for one of our weights: three for the joined one of queries, keys and values."""
    outside = {
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed": "embeddings.patch_embeddings.projection",
        "norm": "layernorm",
        "head": "classifier",
    }
    if ours in outside:
        return [outside[ours]]
    module, _, kind = ours.rpartition(".")
    if not module.startswith("blocks."):
        return [f"{outside[module]}.{kind}"]
    _, number, part = module.split(".", 2)
    parts = _QKV if part == "attn.qkv" else (_BLOCK[part],)
    return [f"encoder.layer.{number}.{part}.{kind}" for part in parts]


def _read(files: Checkpoint, prefix: str, name: str) -> Tensor:
    stored = name if name.startswith("classifier.") else prefix + name
    if stored not in files.shapes:
        raise InputError(f"{files.what} has no weight {stored}; {_REMEDY}")
    return files.read(stored)


def _number(config: dict[str, Any], folder: Path, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{folder / 'config.json'}: {name} is {value!r}; it must be a whole number of at least 1")
    return value
