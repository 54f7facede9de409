"""RandAugment as timm's ``rand-m9-mstd1.0-n2`` defines it, for a whole batch at once on its device.

Every image has its own operations, magnitudes and directions. All operations are computed for all images and one is
picked: shapes never depend on what was drawn and nothing is read back to the host, so a step can be compiled and
captured in a CUDA graph. Results are whole grey levels after each operation, in Pillow's integer arithmetic: changes of
tone are tables of what each of the 256 levels becomes, ``(b, c, 256)``, and moves are one gather, sampled as in Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth_papers.tasks.images.recipe import HIGHEST_MAGNITUDE, RandAugment

OPERATIONS = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast"),
    *("Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
)
"""timm's fifteen, in timm's order; an operation is drawn and stored as its place here."""
_OF = {name: index for index, name in enumerate(OPERATIONS)}
_MOVES = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")

DEGREES, SHEAR, SHIFT = 30.0, 0.3, 0.45
"""What the moves do at the highest magnitude; the shift is a share of the side."""
UNIFORMS = 4  # uniform numbers per image and operation: which, whether, which way, which interpolation
_LEVELS = 256
_RED, _GREEN, _BLUE, _BITS = 19595, 38470, 7471, 16  # Pillow's luma, in 65,536ths


@dataclass(frozen=True)
class Plan:
    """What happens to each image, one column per operation in the order they are applied; ``(b, operations)`` each."""

    operation: Tensor  # int64, a place in OPERATIONS, or -1 for an image left unchanged
    magnitude: Tensor  # float32, 0 to HIGHEST_MAGNITUDE
    negated: Tensor  # bool
    cubic: Tensor  # bool


def plan_from(settings: RandAugment, uniform: Tensor, normal: Tensor) -> Plan:
    """What these random numbers mean: ``(b, operations, UNIFORMS)`` in [0, 1) and ``(b, operations)`` normal."""
    which, whether, way, smoothness = uniform.unbind(-1)
    operation = (which * len(OPERATIONS)).long().clamp(max=len(OPERATIONS) - 1)
    operation = torch.where(whether < settings.probability, operation, -1)
    magnitude = (settings.magnitude + settings.noise * normal).clamp(0, HIGHEST_MAGNITUDE)
    cubic = smoothness < 0.5
    if settings.interpolation != "random":
        cubic = torch.full_like(cubic, settings.interpolation == "bicubic")
    return Plan(operation, magnitude, way < 0.5, cubic)


def apply(settings: RandAugment, images: Tensor, plan: Plan, fill: Tensor) -> Tensor:
    """``(b, c, h, w) uint8 -> (b, c, h, w) uint8``, c 1 or 3; ``fill`` (c,) int32, the colour of what moves in."""
    for step in range(plan.operation.shape[1]):
        one = Plan(plan.operation[:, step], plan.magnitude[:, step], plan.negated[:, step], plan.cubic[:, step])
        images = _one(settings, images, one, fill)
    return images


def _one(settings: RandAugment, images: Tensor, plan: Plan, fill: Tensor) -> Tensor:
    """One operation per image; the plan's entries are ``(b,)``."""
    x = images.to(torch.int32)
    luma = _grey(x)
    share = plan.magnitude / HIGHEST_MAGNITUDE
    # How far from the degenerate image, where 1 is no change.
    factor = share * 1.8 + 0.1
    if settings.increasing:
        factor = (1 + torch.where(plan.negated, -0.9, 0.9) * share).clamp(min=0.1)

    table = _table(settings, x, luma, plan, factor[:, None, None])
    toned = table.gather(2, x.flatten(2).long()).view_as(x)
    towards = torch.where(_is(plan, "Color"), luma, _smooth(x))
    mixed = _blend(towards, x, factor[:, None, None, None])
    moved = _warp(images, _move(plan, *x.shape[-2:]), plan.cubic, fill)

    result = torch.where(_is(plan, "Color", "Sharpness"), mixed, toned)
    return torch.where(_is(plan, *_MOVES), moved, result).to(torch.uint8)


def _is(plan: Plan, *names: str) -> Tensor:
    """Whether each image gets one of these operations, ``(b, 1, 1, 1)``."""
    chosen = plan.operation == _OF[names[0]]
    for name in names[1:]:
        chosen = chosen | (plan.operation == _OF[name])
    return chosen[:, None, None, None]


# --- Tones -----------------------------------------------------------------------------------------------------------


def _table(settings: RandAugment, x: Tensor, luma: Tensor, plan: Plan, factor: Tensor) -> Tensor:
    """What becomes of each grey level, ``(b, c, 256)`` int32; the levels themselves where tone is not changed."""
    levels = torch.arange(_LEVELS, dtype=torch.int32, device=x.device)
    flat = x.flatten(2)
    lowest, highest = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    pixels = luma[0].numel()
    mean = (2 * luma.sum((1, 2, 3), dtype=torch.int32) + pixels) // (2 * pixels)  # rounded, halves up
    towards = torch.where(plan.operation == _OF["Contrast"], mean, 0)[:, None, None]
    share = plan.magnitude[:, None, None] / HIGHEST_MAGNITUDE
    bits, threshold, added = ((share * most).to(torch.int32) for most in (4, 256, 110))
    if settings.increasing:
        bits, threshold = 4 - bits, 256 - threshold
    dropped = 8 - bits
    tables = {
        "AutoContrast": _auto_contrast(levels, lowest, highest),
        "Equalize": _equalize(levels, flat.long(), highest),
        "Invert": _LEVELS - 1 - levels,
        "Posterize": (levels >> dropped) << dropped,
        "Solarize": torch.where(levels < threshold, levels, _LEVELS - 1 - levels),
        "SolarizeAdd": torch.where(levels < _LEVELS // 2, (levels + added).clamp(max=_LEVELS - 1), levels),
    }
    table = levels.expand(*flat.shape[:2], -1)
    for name, made in tables.items():
        table = torch.where(_is(plan, name)[..., 0], made, table)
    return torch.where(_is(plan, "Contrast", "Brightness")[..., 0], _blend(towards, levels, factor), table)


def _grey(x: Tensor) -> Tensor:
    """Luma as Pillow's mode "L" has it. ``(b, c, h, w) int32 -> (b, 1, h, w) int32``, c 1 or 3."""
    if x.shape[1] == 1:
        return x
    weighted = x[:, 0:1] * _RED + x[:, 1:2] * _GREEN + x[:, 2:3] * _BLUE
    return (weighted + (1 << (_BITS - 1))) >> _BITS


def _blend(degenerate: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """``degenerate + factor (x − degenerate)``, cut to 0..255 and truncated, as ``Image.blend``. int32 in and out."""
    value = degenerate + factor * (x - degenerate)
    return value.clamp(0, _LEVELS - 1).to(torch.int32)


def _smooth(x: Tensor) -> Tensor:
    """``ImageFilter.SMOOTH``: 3 by 3, the centre counts five; the frame stays. ``(b, c, h, w) int32 -> same``."""
    if min(x.shape[-2:]) < 3:
        return x
    rows = x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[..., 1:-1, 1:-1]
    inner = (2 * total + 13) // 26  # total / 13, rounded: never a tie, as total is whole
    out = x.clone()
    out[..., 1:-1, 1:-1] = inner
    return out


def _auto_contrast(levels: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    """Stretches lowest..highest to 0..255; as it is where they are one. ``(b, c, 1) int32 -> (b, c, 256) int32``."""
    # In float64 and rounded as Pillow does, which truncates in the end: 255 / x is x's reciprocal times 255 in torch,
    # and that or float32 makes one pixel in 250 a level too low.
    white = torch.full_like(lowest, _LEVELS - 1, dtype=torch.float64)
    scale = white / (highest - lowest).clamp(min=1)
    stretched = (levels * scale + (-lowest) * scale).clamp(0, _LEVELS - 1).to(torch.int32)
    return torch.where(highest > lowest, stretched, levels)


def _equalize(levels: Tensor, flat: Tensor, highest: Tensor) -> Tensor:
    """``ImageOps.equalize``: levels by rank. ``(b, c, pixels) int64, (b, c, 1) int32 -> (b, c, 256) int32``."""
    counts = torch.zeros(*flat.shape[:2], _LEVELS, dtype=torch.int32, device=flat.device)
    counts = counts.scatter_add(2, flat, torch.ones_like(flat, dtype=torch.int32))
    below = counts.cumsum(2, dtype=torch.int32) - counts
    step = (flat.shape[2] - counts.gather(2, highest.long())) // (_LEVELS - 1)
    ranked = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step > 0, ranked.clamp(max=_LEVELS - 1), levels)


# --- Moves -----------------------------------------------------------------------------------------------------------

Move = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Where each pixel of an image comes from: ``x' = xx x + xy y + x0`` and ``y' = yx x + yy y + y0``. ``(b,)`` each.

Six tensors and not one matrix: stacking them would cost a compiled step a launch or two.
"""


def _move(plan: Plan, height: int, width: int) -> Move:
    """Where each pixel comes from; of no meaning for an image that is not moved. Turns are about the middle."""
    level = torch.where(plan.negated, -plan.magnitude, plan.magnitude) / HIGHEST_MAGNITUDE
    angle = -torch.deg2rad(level * DEGREES)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    x, y = width / 2, height / 2
    turned = (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)
    most = {"ShearX": SHEAR, "TranslateXRel": SHIFT * width, "ShearY": SHEAR, "TranslateYRel": SHIFT * height}
    along = {name: torch.where(plan.operation == _OF[name], level * value, 0.0) for name, value in most.items()}
    one = torch.ones_like(level)
    straight = (one, along["ShearX"], along["TranslateXRel"], along["ShearY"], one, along["TranslateYRel"])
    turns = plan.operation == _OF["Rotate"]
    xx, xy, x0, yx, yy, y0 = (torch.where(turns, a, b) for a, b in zip(turned, straight, strict=True))
    return xx, xy, x0, yx, yy, y0


def _warp(images: Tensor, move: Move, cubic: Tensor, fill: Tensor) -> Tensor:
    """``Image.transform(AFFINE)``: bilinear, or bicubic where ``cubic``; ``fill`` where a pixel comes from outside.

    ``images`` (b, c, h, w) uint8, ``move`` with pixel centres at halves, ``cubic`` (b,) bool, ``fill`` (c,) int32 ->
    (b, c, h, w) int32. Pillow cuts hard at the border and its cubic's parameter is −1; torch's grid_sample has neither.
    """
    count, channels, height, width = images.shape
    xx, xy, x0, yx, yy, y0 = (entry[:, None, None] for entry in move)
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    across, down = xx * x + xy * y + x0, yx * x + yy * y + y0
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)

    columns, right = _taps(across, width)
    rows, lower = _taps(down, height)
    index = rows[:, :, None] * width + columns[:, None]  # (b, 4, 4, h, w)
    index = index.view(count, 1, -1).expand(-1, channels, -1)
    taps = images.flatten(2).gather(2, index).view(count, channels, 4, 4, height, width).float()

    curved = cubic[:, None, None, None].float()
    lines = _between(taps.unbind(3), right[:, None, None], curved[..., None])
    value = _between(lines.unbind(2), lower[:, None], curved)
    value = value.clamp(0, 255).to(torch.int32)  # truncated, as Pillow does
    return torch.where(inside[:, None], value, fill[:, None, None])


def _taps(position: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The four pixels about each place ``(b, 4, h, w)``, the border's repeated, and how far beyond the second it is."""
    position = position - 0.5
    first = position.floor()
    pixels = first.long()[:, None] + torch.arange(-1, 3, device=position.device)[:, None, None]
    return pixels.clamp(0, size - 1), position - first


def _between(taps: Sequence[Tensor], part: Tensor, curved: Tensor) -> Tensor:
    """The value ``part`` of the way from the second to the third of four; a line, or where curved 1 a cubic.

    In this form and not as a weighted sum, so that equal taps give their value exactly: it is truncated later.
    """
    a, b, c, d = taps
    slope = (c - b) + curved * (b - a)
    second = curved * (2 * (a - b) + c - d)
    third = curved * (b - a + d - c)
    return b + part * (slope + part * (second + part * third))
