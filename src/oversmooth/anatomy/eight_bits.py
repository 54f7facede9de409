"""Weights stored as 8-bit floats with scales beside them: one per tensor, per row, or per block of rows and columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.layer import Weights
from oversmooth.safety.errors import InputError

_SCALES = ("_scale_inv", "_scale")  # of transformers' FP8 and of compressed-tensors; both multiply
_TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def with_scale(weights: Weights, name: str, value: Tensor, rows: slice | None, config: dict[str, Any]) -> Tensor:
    """What an array, or these rows of it, stands for, in float32; as it is, where it is no 8-bit float or has no scale.
    config: of the model, which has the size of blocks.
    """
    scale_name = next((name + ending for ending in _SCALES if name + ending in weights.shapes), None)
    if value.dtype not in _TYPES or scale_name is None:
        return value
    shape, scale = weights.shapes[name], weights.read(scale_name).float()
    if scale.numel() == 1:
        return value.float() * scale.reshape(())
    scale = scale[:, None] if scale.ndim == 1 else scale
    blocks = _block_size(config)
    for axis, (size, count) in enumerate(zip(shape, scale.shape, strict=True)):
        block = size if count == 1 else 1 if count == size else blocks[axis]
        if -(-size // block) != count:
            raise InputError(
                f"{scale_name} has shape {tuple(scale.shape)}, which blocks of {block} do not explain for a weight of "
                f"shape {shape}; fix weight_block_size in its configuration"
            )
        scale = scale.repeat_interleave(block, axis).narrow(axis, 0, size)
    return value.float() * (scale if rows is None else scale[rows])


def _block_size(config: dict[str, Any]) -> list[int]:
    """Rows and columns of a block, as one of the two libraries writes it; 128 if neither does."""
    settings = config.get("quantization_config")
    settings = settings if isinstance(settings, dict) else {}
    groups = settings.get("config_groups")
    of_groups = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    said = [settings.get("weight_block_size"), *(one.get("block_structure") for one in of_groups if one)]
    whole = (s for s in said if isinstance(s, (list, tuple)) and len(s) == 2)
    return next((list(s) for s in whole if all(type(n) is int and n > 0 for n in s)), [128, 128])
