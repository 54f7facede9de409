"""The encoder's weights from a ViT that transformers wrote: config.json and safetensors, without transformers."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import data_folder, data_place
from oversmooth.safety.typed import typed
from oversmooth_papers.tasks.images.recipe import Shape

_SIZES = dict(image="image_size", patch="patch_size", channels="num_channels", width="hidden_size")
_SIZES |= dict(depth="num_hidden_layers", heads="num_attention_heads")
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


def load_weights(encoder: nn.Module, named: str, side: int) -> None:
    """Those of the ViT in a folder, in place. side: patches along a side, to which positions are interpolated."""
    files = Checkpoint(checkpoint_folder(named))
    prefix = "vit." if any(name.startswith("vit.") for name in files.shapes) else ""
    try:
        theirs = {name: _names(name, prefix) for name in encoder.state_dict()}
        arrays = {name: torch.cat([files.read(one) for one in names]).float() for name, names in theirs.items()}
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
