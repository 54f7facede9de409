"""RandAugment as timm's ``rand-m9-mstd1.0-n2`` defines it, for a whole batch at once on its device.

Every image has its own operations, magnitudes and directions. All operations are computed for all images and one is
picked: shapes never depend on what was drawn and nothing is read back to the host, so a step can be compiled and
captured in a CUDA graph. Results are whole grey levels after each operation, as Pillow's are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oversmooth_papers.tasks.images import tones
from oversmooth_papers.tasks.images.settings import HIGHEST_MAGNITUDE, RandAugment
from oversmooth_papers.tasks.images.warp import Move, rotation, warp

OPERATIONS = (
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateXRel",
    "TranslateYRel",
)
"""timm's fifteen, in timm's order; an operation is drawn and stored as its place here."""
_OF = {name: index for index, name in enumerate(OPERATIONS)}
_MOVES = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")

DEGREES, SHEAR, SHIFT = 30.0, 0.3, 0.45
"""What the moves do at the highest magnitude; the shift is a share of the side."""
UNIFORMS = 4
"""Uniform numbers per image and operation: which, whether, which way, which interpolation."""


@dataclass(frozen=True)
class Plan:
    """What happens to each image, one column per operation in the order they are applied; ``(b, operations)`` each."""

    operation: Tensor  # int64, a place in OPERATIONS, or -1 for an image left alone
    magnitude: Tensor  # float32, 0 to HIGHEST_MAGNITUDE
    negated: Tensor  # bool
    cubic: Tensor  # bool


def plan_from(settings: RandAugment, uniform: Tensor, normal: Tensor) -> Plan:
    """What these random numbers mean: ``(b, operations, UNIFORMS)`` in [0, 1) and ``(b, operations)`` normal."""
    which, whether, way, smoothness = uniform.unbind(-1)
    operation = (which * len(OPERATIONS)).long().clamp(max=len(OPERATIONS) - 1)
    cubic = smoothness < 0.5
    if settings.interpolation != "random":
        cubic = torch.full_like(cubic, settings.interpolation == "bicubic")
    return Plan(
        operation=torch.where(whether < settings.probability, operation, -1),
        magnitude=(settings.magnitude + settings.noise * normal).clamp(0, HIGHEST_MAGNITUDE),
        negated=way < 0.5,
        cubic=cubic,
    )


def apply(settings: RandAugment, images: Tensor, plan: Plan, fill: Tensor) -> Tensor:
    """``(b, c, h, w) uint8 -> (b, c, h, w) uint8``, c 1 or 3; ``fill`` (c,) int32, the colour of what moves in."""
    for step in range(plan.operation.shape[1]):
        one = Plan(plan.operation[:, step], plan.magnitude[:, step], plan.negated[:, step], plan.cubic[:, step])
        images = _one(settings, images, one, fill)
    return images


def _one(settings: RandAugment, images: Tensor, plan: Plan, fill: Tensor) -> Tensor:
    """One operation per image; the plan's entries are ``(b,)``."""
    x = images.to(torch.int32)
    luma = tones.grey(x)
    factor = _factor(settings, plan)[:, None, None, None]

    table = _table(settings, x, luma, plan)
    toned = table.gather(2, x.flatten(2).long()).view_as(x)

    towards = torch.where(_is(plan, "Color"), luma, tones.smooth(x))
    mixed = tones.blend(towards, x, factor)

    moved = warp(images, _move(plan, *x.shape[-2:]), plan.cubic, fill)
    result = torch.where(_is(plan, "Color", "Sharpness"), mixed, toned)
    return torch.where(_is(plan, *_MOVES), moved, result).to(torch.uint8)


def _table(settings: RandAugment, x: Tensor, luma: Tensor, plan: Plan) -> Tensor:
    """What becomes of each grey level, ``(b, c, 256)`` int32; the levels themselves where tone is not changed."""
    levels = tones.identity(x)
    flat = x.flatten(2)
    lowest, highest = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    pixels = luma[0].numel()
    mean = (2 * luma.sum((1, 2, 3), dtype=torch.int32) + pixels) // (2 * pixels)  # rounded, halves up
    towards = torch.where(plan.operation == _OF["Contrast"], mean, 0)[:, None, None]
    share = plan.magnitude[:, None, None] / HIGHEST_MAGNITUDE
    bits, threshold = (share * 4).to(torch.int32), (share * 256).to(torch.int32)
    if settings.increasing:
        bits, threshold = 4 - bits, 256 - threshold
    tables = {
        "AutoContrast": tones.auto_contrast(lowest, highest),
        "Equalize": tones.equalize(x, highest),
        "Invert": tones.LEVELS - 1 - levels,
        "Posterize": tones.posterize(bits),
        "Solarize": tones.solarize(threshold),
        "SolarizeAdd": tones.solarize_add((share * 110).to(torch.int32)),
    }
    table = levels.expand(*flat.shape[:2], -1)
    for name, made in tables.items():
        table = torch.where(_is(plan, name)[..., 0], made, table)
    faded = tones.blend(towards, levels, _factor(settings, plan)[:, None, None])
    return torch.where(_is(plan, "Contrast", "Brightness")[..., 0], faded, table)


def _factor(settings: RandAugment, plan: Plan) -> Tensor:
    """How far from the degenerate image, where 1 is no change. ``(b,)``."""
    share = plan.magnitude / HIGHEST_MAGNITUDE
    if not settings.increasing:
        return share * 1.8 + 0.1
    return (1 + torch.where(plan.negated, -0.9, 0.9) * share).clamp(min=0.1)


def _is(plan: Plan, *names: str) -> Tensor:
    """Whether each image gets one of these operations, ``(b, 1, 1, 1)``."""
    chosen = plan.operation == _OF[names[0]]
    for name in names[1:]:
        chosen = chosen | (plan.operation == _OF[name])
    return chosen[:, None, None, None]


def _move(plan: Plan, height: int, width: int) -> Move:
    """Where each pixel comes from; of no meaning for an image that is not moved."""
    level = torch.where(plan.negated, -plan.magnitude, plan.magnitude) / HIGHEST_MAGNITUDE
    turns = plan.operation == _OF["Rotate"]
    turned = rotation(level * DEGREES, height, width)
    most = {"ShearX": SHEAR, "TranslateXRel": SHIFT * width, "ShearY": SHEAR, "TranslateYRel": SHIFT * height}
    along = {name: torch.where(plan.operation == _OF[name], level * value, 0.0) for name, value in most.items()}
    one = torch.ones_like(level)
    straight = (one, along["ShearX"], along["TranslateXRel"], along["ShearY"], one, along["TranslateYRel"])
    return Move(*(torch.where(turns, entry, other) for entry, other in zip(turned, straight, strict=True)))
