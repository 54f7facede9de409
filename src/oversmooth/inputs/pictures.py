"""Painted pictures for vision models without data: the same on every machine.

Three kinds of scene share statistics of photographs: a 1/f spectrum, edges by occlusion, shading, texture. Index and
seed determine a picture, at every size. They belong to no class of any data set, so accuracies mean nothing on them;
samples.py finds photographs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oversmooth.inputs.preprocessing import sides
from oversmooth.safety import arguments

_FINER = 2  # painted at this multiple of the size and averaged, against jagged edges
Plane = NDArray[np.floating[Any]]  # (h, w)
Colours = NDArray[np.floating[Any]]  # (h, w, 3), or (3,) for one colour; 0 to 1


def picture(index: int, size: int | tuple[int, int] = 224, *, seed: int = 0) -> NDArray[np.uint8]:
    """Picture number ``index`` of this seed: ``(h, w, 3)``, 0 to 255. size: of a square, or height and width.

    >>> picture(3, (32, 48)).shape
    (32, 48, 3)
    """
    height, width = sides(size, "size")
    index, seed = arguments.whole(index, "index"), arguments.whole(seed, "seed")
    random = np.random.default_rng([seed, index])
    scene = (_leaves, _hills, _land)[index % 3](_Canvas(height * _FINER, width * _FINER, random))
    grain = 0.012 * random.standard_normal((height, width, 1))
    smooth = scene.reshape(height, _FINER, width, _FINER, 3).mean(axis=(1, 3)) + grain
    return np.rint(np.clip(smooth, 0, 1) * 255).astype(np.uint8)


class _Canvas:
    """Coordinates, random numbers, colours and clouds. y goes from 0 to 1, and x from 0 to width/height."""

    def __init__(self, height: int, width: int, random: np.random.Generator) -> None:
        self.shape, self.random = (height, width), random
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        self.x: Plane = (x + 0.5) / height
        self.y: Plane = (y + 0.5) / height

    def number(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def colour(self, hue: float, saturation: float, value: float) -> Colours:
        """By hue from 0 to 1: red, yellow, green, cyan, blue, magenta, red."""
        ramp = np.abs((hue * 6 + np.array([0, 4, 2])) % 6 - 3) - 1
        return (value * (1 - saturation + saturation * np.clip(ramp, 0, 1))).astype(np.float32)

    def noise(self, first: float, octaves: int, fall: float = 1.0, rows: int | None = None) -> Plane:
        """Clouds of mean 0 and deviation 1: smooth grids, each twice as fine and 2^-fall as strong as the last."""
        shape = rows or self.shape[0], self.shape[1]
        total = np.zeros(shape, np.float32)
        for octave in range(octaves):
            cells = round(first * 2.0**octave) + 2
            # Independent of the size, so that the scene is the same at every size.
            grid = torch.from_numpy(self.random.standard_normal((1, 1, cells, cells)).astype(np.float32))
            fine = torch.nn.functional.interpolate(grid, shape, mode="bicubic", align_corners=True)
            total += fine[0, 0].numpy() * 2.0 ** (-fall * octave)
        return np.asarray((total - total.mean()) / (total.std() + 1e-6), np.float32)


def _leaves(c: _Canvas) -> Colours:
    """Overlapping shapes of all sizes: the dead-leaves model, whose spectrum falls as those of photographs do."""
    across, hue = c.shape[1] / c.shape[0], c.number(0, 1)
    image = np.broadcast_to(c.colour(hue, 0.4, 0.3), (*c.shape, 3)).copy()
    texture = c.noise(4, 8, 0.7)
    for radius in (np.geomspace(0.3, 0.025, 150) * c.random.uniform(0.8, 1.2, 150)).tolist():
        x, y, turn, thin = c.number(0, across), c.number(0, 1), c.number(0, np.pi), c.number(0.35, 0.9)
        colour = c.colour(hue + c.random.normal(0, 0.11), c.number(0.25, 0.8), c.number(0.25, 0.95))
        grain, tilt, reach = c.number(0.02, 0.2), c.number(-0.5, 0.5), 1.25 * radius
        # Only the region that the shape and its shadow can touch.
        rows = slice(*(np.clip((y - reach, y + reach), 0, 1) * c.shape[0]).astype(int))
        columns = slice(*(np.clip((x - reach, x + reach), 0, across) * c.shape[0]).astype(int))
        part, dx, dy = image[rows, columns], c.x[rows, columns] - x, c.y[rows, columns] - y
        u = (dx * np.cos(turn) + dy * np.sin(turn)) / radius
        v = (dy * np.cos(turn) - dx * np.sin(turn)) / radius
        part *= (1 - 0.5 * _step(1.12 - np.hypot(u - 0.1, (v - 0.1) / thin), 0.3))[..., None]
        shade = 0.95 + tilt * v + 0.25 * u + grain * texture[rows, columns]
        part[:] = _mix(part, colour * shade[..., None], _step(1 - np.hypot(u, v / thin), 0.03))
    return image


def _hills(c: _Canvas) -> Colours:
    """A sky with clouds, and ranges of hills that fade into haze."""
    horizon, hue, land = c.number(0.35, 0.6), c.number(0.52, 0.64), c.number(0.0, 0.4)
    haze = c.colour(hue + 0.45, 0.22, 0.97)
    image = _mix(c.colour(hue, 0.6, c.number(0.45, 0.8)), haze, (c.y / horizon) ** 1.5)
    image = _mix(image, np.full(3, 0.96, np.float32), 0.85 * _step(c.noise(1.6, 8) - 0.3, 1.8))
    for near in (0.2, 0.4, 0.6, 0.8, 1.0):
        edge = horizon + 0.45 * near - 0.13 + c.noise(1.5 + near, 7, 1.1, rows=1) * 0.035 * (0.6 + near)
        texture = 1 + 0.28 * near * c.noise(4 + 8 * near, 7, 0.6)
        ground = c.colour(land + 0.2 * near, 0.55, c.number(0.25, 0.45)) * texture[..., None]
        image = _mix(image, haze + (ground - haze) * near**0.7, _step(c.y - edge, 0.004))
    return image


def _land(c: _Canvas) -> Colours:
    """Coast and mountains from above, lit from one side."""
    height, rough, hue = c.noise(1.8, 8, 1.05), c.noise(20, 4, 0.4), c.number(0.45, 0.72)
    down, right = np.gradient(height)
    light = np.clip(1 - (right + down) * c.shape[0] / 60, 0.35, 1.7)
    image = np.broadcast_to(c.colour(hue, 0.75, 0.35), (*c.shape, 3))
    heights = ((-0.8, 0.8, -0.08, 0.62), (-0.3, 0.05, 0.53, 0.85), (-0.15, 0.3, 0.66, 0.5), (0.6, 0.7, 0.49, 0.6))
    for level, width, turn, value in (*heights, (1.3, 0.4, 0.5, 1.0)):
        image = _mix(image, c.colour(hue + turn, 0.45, value), _step(height - level + 0.06 * rough, width))
    sea = _step(-0.32 - height, 0.05)
    return image * (light * (1 - sea) + sea * (1 + 0.03 * rough))[..., None]


def _mix(first: Colours, second: Colours, share: Plane) -> Colours:
    return first + (second - first) * np.clip(share, 0, 1)[..., None]


def _step(value: Plane, width: float) -> Plane:
    return np.asarray(np.clip(value / width + 0.5, 0, 1), np.float32)
