"""The brushes that pictures.py paints its scenes with: coordinates, chance, colours, clouds, blur and balls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Plane = NDArray[np.floating[Any]]  # (h, w)
Colours = NDArray[np.floating[Any]]  # (h, w, 3), or (3,) for one colour; 0 to 1


class Canvas:
    """Coordinates, chance, and the few brushes all scenes use. x and y go from 0 to 1 over the picture."""

    def __init__(self, height: int, width: int, random: np.random.Generator, hue: float) -> None:
        self.shape = height, width
        self.random = random
        self._hue = hue
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        self.x: Plane = (x + 0.5) / width
        self.y: Plane = (y + 0.5) / height

    def number(self, low: float, high: float) -> float:
        return float(self.random.uniform(low, high))

    def colour(self, hue: float | None = None, saturation: float = 0.5, value: float = 0.7) -> Colours:
        """A colour by hue (0 to 1: red, yellow, green, cyan, blue, magenta, red).

        Without a hue, the next of a series that never comes close to itself: chance would often repeat one.
        """
        if hue is None:
            hue = self._hue = (self._hue + 0.618) % 1
        ramp = np.abs((hue * 6 + np.array([0, 4, 2])) % 6 - 3) - 1
        return (value * (1 - saturation + saturation * np.clip(ramp, 0, 1))).astype(np.float32)

    def noise(
        self, first: float = 2, octaves: int = 7, fall: float = 1.0, stretch: float = 1.0, rows: int | None = None
    ) -> Plane:
        """Clouds of mean 0 and deviation 1: smooth grids, each twice as fine and 2^-fall as strong as the last."""
        shape = rows or self.shape[0], self.shape[1]
        total = np.zeros(shape, np.float32)
        for octave in range(octaves):
            cells = first * 2.0**octave
            down, across = max(round(cells * stretch), 1) + 2, max(round(cells), 1) + 2
            # Drawn whatever the size, so that the same scene comes out at every size.
            grid = torch.from_numpy(self.random.standard_normal((1, 1, down, across)).astype(np.float32))
            fine = torch.nn.functional.interpolate(grid, shape, mode="bicubic", align_corners=True)
            total += fine[0, 0].numpy() * 2.0 ** (-fall * octave)
        return np.asarray((total - total.mean()) / (total.std() + 1e-6), np.float32)

    def blur(self, image: Colours, radius: float) -> Colours:
        """Blurred by a share of the picture, cheaply: averaged down and brought up again smoothly."""
        height, width = self.shape
        down = max(round(height * radius), 1)
        planes = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]
        small = torch.nn.functional.interpolate(planes, (max(height // down, 4), max(width // down, 4)), mode="area")
        large = torch.nn.functional.interpolate(small, self.shape, mode="bicubic", align_corners=False)
        return large[0].numpy().transpose(1, 2, 0).astype(np.float32)

    def ball(
        self, image: Colours, x: float, y: float, radius: float, colour: Colours, light: tuple[float, float, float]
    ) -> None:
        """A shaded ball with a highlight, painted over what is there; (x, y) and radius as shares of the height."""
        across = self.shape[1] / self.shape[0]
        u, v = (self.x * across - x) / radius, (self.y - y) / radius
        inside = u**2 + v**2 < 1
        u, v = u[inside], v[inside]
        w = np.sqrt(1 - u**2 - v**2)
        facing = np.clip(u * light[0] + v * light[1] + w * light[2], 0, 1)
        gloss = np.clip(2 * facing * w - light[2], 0, 1) ** 40
        rim = 0.12 * (1 - w) ** 2
        image[inside] = colour * (0.18 + 0.85 * facing + rim)[:, None] + 0.5 * gloss[:, None]


def mix(first: Colours, second: Colours, share: Plane) -> Colours:
    return first + (second - first) * np.clip(share, 0, 1)[..., None]


def step(value: Plane, width: float) -> Plane:
    return np.asarray(np.clip(value / width + 0.5, 0, 1), np.float32)
