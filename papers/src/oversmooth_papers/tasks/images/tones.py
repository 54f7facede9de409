"""RandAugment's changes of tone as tables: what each of the 256 grey levels becomes, ``(b, c, 256)``.

Integer arithmetic as Pillow's, so that tables agree with ImageOps entry by entry. Not for which image gets which:
randaugment.py picks.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 256
_RED, _GREEN, _BLUE, _BITS = 19595, 38470, 7471, 16  # Pillow's luma, in 65,536ths


def identity(like: Tensor) -> Tensor:
    """Every level as it is, ``(256,)`` int32, on the device of ``like``."""
    return torch.arange(LEVELS, dtype=torch.int32, device=like.device)


def grey(x: Tensor) -> Tensor:
    """Luma as Pillow's mode "L" has it. ``(b, c, h, w) int32 -> (b, 1, h, w) int32``, c 1 or 3."""
    if x.shape[1] == 1:
        return x
    weighted = x[:, 0:1] * _RED + x[:, 1:2] * _GREEN + x[:, 2:3] * _BLUE
    return (weighted + (1 << (_BITS - 1))) >> _BITS


def blend(degenerate: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """``degenerate + factor (x − degenerate)``, cut to 0..255 and truncated, as ``Image.blend``. int32 in and out."""
    value = degenerate + factor * (x - degenerate)
    return value.clamp(0, LEVELS - 1).to(torch.int32)


def smooth(x: Tensor) -> Tensor:
    """``ImageFilter.SMOOTH``: 3 by 3, the centre counts five; the frame stays. ``(b, c, h, w) int32 -> same``."""
    if min(x.shape[-2:]) < 3:
        return x
    rows = x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[..., 1:-1, 1:-1]
    inner = (2 * total + 13) // 26  # total / 13, rounded: never a tie, as total is whole
    padded = torch.nn.functional.pad(inner, (1, 1, 1, 1))
    height, width = x.shape[-2:]
    row = torch.arange(height, device=x.device)[:, None]
    column = torch.arange(width, device=x.device)
    inside = (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    return torch.where(inside, padded, x)


def auto_contrast(lowest: Tensor, highest: Tensor) -> Tensor:
    """Stretches lowest..highest to 0..255; as it is where they are one. ``(b, c, 1) int32 -> (b, c, 256) int32``."""
    levels = identity(lowest)
    # In float64 and rounded as Pillow does, which truncates in the end: 255 / x is x's reciprocal times 255 in torch,
    # and that or float32 makes one pixel in 250 a level too low.
    white = torch.full_like(lowest, LEVELS - 1, dtype=torch.float64)
    scale = white / (highest - lowest).clamp(min=1)
    stretched = (levels * scale + (-lowest) * scale).clamp(0, LEVELS - 1).to(torch.int32)
    return torch.where(highest > lowest, stretched, levels)


def equalize(x: Tensor, highest: Tensor) -> Tensor:
    """``ImageOps.equalize``: levels by rank. ``(b, c, h, w), (b, c, 1) int32 -> (b, c, 256) int32``."""
    flat = x.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], LEVELS, dtype=torch.int32, device=x.device)
    counts = counts.scatter_add(2, flat, torch.ones_like(flat, dtype=torch.int32))
    below = counts.cumsum(2, dtype=torch.int32) - counts
    step = (flat.shape[2] - counts.gather(2, highest.long())) // (LEVELS - 1)
    ranked = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step > 0, ranked.clamp(max=LEVELS - 1), identity(x))


def posterize(bits: Tensor) -> Tensor:
    """Keeps this many of the eight bits. ``(b, 1, 1) int32 -> (b, 1, 256) int32``."""
    dropped = 8 - bits
    return (identity(bits) >> dropped) << dropped


def solarize(threshold: Tensor) -> Tensor:
    """Inverts from the threshold on. ``(b, 1, 1) int32 -> (b, 1, 256) int32``."""
    levels = identity(threshold)
    return torch.where(levels < threshold, levels, LEVELS - 1 - levels)


def solarize_add(added: Tensor) -> Tensor:
    """Adds to the darker half. ``(b, 1, 1) int32 -> (b, 1, 256) int32``."""
    levels = identity(added)
    return torch.where(levels < LEVELS // 2, (levels + added).clamp(max=LEVELS - 1), levels)
