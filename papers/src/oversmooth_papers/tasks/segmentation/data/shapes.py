"""Coloured shapes on textured ground with their masks, painted on the spot: for trials that need no files.

The class of a shape is its form; its colour only hints at it. A line of pixels about each shape is to be ignored, as at
the edges of hand-made masks. Every picture is fixed by its number, on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oversmooth_papers.tasks.segmentation.data.labelled import Labelled, Splits
from oversmooth_papers.tasks.segmentation.settings import IGNORE

NAME = "shapes"
CLASSES = ("ground", "disc", "square", "triangle", "ring")
_COLOURS = np.array([(0.8, 0.3, 0.25), (0.25, 0.6, 0.35), (0.3, 0.4, 0.8), (0.8, 0.7, 0.3)])
_HINT, _GRAIN = 0.16, 0.06  # spread of colours about a class's own, and of pixels about theirs
Plane = NDArray[np.floating[Any]]


def shapes(train: int = 320, val: int = 40, test: int = 80, *, size: int = 64) -> Splits:
    """So many of each part, ``size`` pixels square; no picture is in two parts."""
    parts, first = [], 0
    for count in (train, val, test):
        painted = [_picture(number, size) for number in range(first, first + count)]
        images, masks = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*painted, strict=True))
        parts.append(Labelled(images, masks, list(CLASSES), NAME))
        first += count
    return Splits(*parts)


def _picture(number: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """``(3, size, size)`` and its mask."""
    random = np.random.default_rng([7, number])
    y, x = (np.mgrid[0:size, 0:size] + 0.5) / size
    waves = random.uniform(-20, 20, (2, 3))
    texture = sum(np.sin(a * x + b * y + c) for a, b, c in zip(*waves, random.uniform(0, 6.3, 3), strict=True))
    image = random.uniform(0.3, 0.7, 3)[:, None, None] + 0.05 * texture
    mask = np.zeros((size, size), np.uint8)
    for _ in range(random.integers(2, 5)):
        label = int(random.integers(1, len(CLASSES)))
        radius, turn = random.uniform(0.13, 0.24), random.uniform(0, 6.3)
        across, down = x - random.uniform(0.1, 0.9), y - random.uniform(0.1, 0.9)
        u, v = (across * np.cos(turn) + down * np.sin(turn)), (down * np.cos(turn) - across * np.sin(turn))
        inside = _distance(label, u / radius, v / radius) * radius * size  # pixels, above 0 within
        colour = _COLOURS[label - 1] + _HINT * random.standard_normal(3)
        image = np.where(inside > 0, colour[:, None, None] * (1 + 0.2 * v / radius), image)
        mask = np.where(inside > 0.5, label, np.where(inside > -0.5, IGNORE, mask)).astype(np.uint8)
    image = image + _GRAIN * random.standard_normal(image.shape)
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8), mask


def _distance(label: int, u: Plane, v: Plane) -> Plane:
    """How far a point lies within a form of size 1, and below 0 how far without."""
    around = np.hypot(u, v)
    if CLASSES[label] == "disc":
        return np.asarray(1 - around)
    if CLASSES[label] == "square":
        return np.asarray(0.85 - np.maximum(abs(u), abs(v)))
    if CLASSES[label] == "triangle":
        return np.asarray(0.6 - np.maximum(np.maximum(v, -0.5 * v + 0.866 * u), -0.5 * v - 0.866 * u))
    return np.asarray(0.25 - abs(around - 0.75))
