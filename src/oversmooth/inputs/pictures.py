"""Pictures made by rule, for vision models when no data is given.

A varied set with what matters in photographs' statistics: strong low frequencies and a 1/f fall, edges by occlusion,
shading, texture in perspective, depth of field. Each is fixed by its index and seed, and is the same scene at every
size. Not photographs, and no class of any data set: accuracies mean nothing on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from oversmooth.inputs.canvas import Canvas, Colours, mix, step
from oversmooth.inputs.processor_files import sides
from oversmooth.safety import arguments

_FINER = 2  # rendered at this many times the size and averaged, so that edges are not jagged


def picture(index: int, size: int | tuple[int, int] = 224, *, seed: int = 0) -> NDArray[np.uint8]:
    """Picture number ``index`` of the endless set of this seed: (h, w, 3), 0 to 255.

    >>> picture(3, (32, 48)).shape
    (32, 48, 3)
    """
    height, width = sides(size, "size")
    index, seed = arguments.whole(index, "index"), arguments.whole(seed, "seed")
    random = np.random.default_rng([seed, index])
    canvas = Canvas(height * _FINER, width * _FINER, random, hue=0.21 * index)
    scene = _SCENES[index % len(_SCENES)](canvas)
    grain = 0.012 * random.standard_normal((height, width, 1))
    smooth = scene.reshape(height, _FINER, width, _FINER, 3).mean(axis=(1, 3)) + grain
    return np.rint(np.clip(smooth, 0, 1) * 255).astype(np.uint8)


def _sky(c: Canvas, hue: float, horizon: float) -> Colours:
    high, low = c.colour(hue, 0.6, c.number(0.45, 0.8)), c.colour(hue + c.number(0.4, 0.5), 0.22, 0.97)
    sky = mix(np.broadcast_to(high, (*c.shape, 3)), low, (c.y / horizon) ** 1.5)
    clouds = step(c.noise(1.6, 8, 1.0, 2.5) - 0.3, 1.8)
    sky = mix(sky, np.array([0.97, 0.96, 0.95], np.float32) - 0.25 * clouds[..., None] * (1 - low), clouds * 0.85)
    sun = np.exp(-(((c.x - c.number(0.1, 0.9)) ** 2 + (c.y - horizon * c.number(0.3, 0.9)) ** 2) * 18))
    return sky + 0.35 * sun[..., None] * np.array([1, 0.85, 0.6], np.float32)


def _hills(c: Canvas) -> Colours:
    horizon = c.number(0.4, 0.6)
    image = _sky(c, c.number(0.54, 0.62), horizon)
    haze, hue = image[int(c.shape[0] * horizon)].mean(axis=0), c.number(0.18, 0.36)
    ranges = 5
    for depth in range(ranges):
        near = (depth + 1) / ranges
        ridge = c.noise(1.5 + near, 7, 1.1, rows=1)[0]
        edge = horizon + 0.09 * depth + ridge * 0.035 * (0.6 + near) - 0.04
        land = c.colour(hue + 0.04 * depth, 0.55, 0.25 + 0.2 * c.number(0, 1))
        texture = 1 + 0.28 * near * c.noise(4 + 8 * near, 7, 0.6, 2.0)
        slope = 1 + 0.15 * np.gradient(ridge) * c.shape[1] / 40
        ground = haze + (land * (texture * slope[None])[..., None] - haze) * near**0.7
        image = mix(image, ground, step(c.y - edge[None], 0.004))
    return image


def _balls(c: Canvas) -> Colours:
    horizon, across = c.number(0.3, 0.45), c.shape[1] / c.shape[0]
    wall = c.colour(None, 0.3, 0.75) * (1.05 - 0.5 * np.hypot(c.x - 0.3, c.y))[..., None]
    wall = wall * (1 + 0.03 * c.noise(8, 6, 0.5))[..., None]
    depth = 1 / np.clip(c.y - horizon, 0.004, None)
    u, v = (c.x - 0.5) * across * depth * 2.2, depth * 1.1
    turn = c.number(0.3, 1.2)
    tiles = np.sin(u * math.cos(turn) + v * math.sin(turn)) * np.sin(v * math.cos(turn) - u * math.sin(turn))
    tiles = np.clip(tiles * 12 / (1 + depth * 0.12), -1, 1) * np.exp(-depth * 0.02)
    floor = mix(
        c.colour(None, 0.35, 0.85) * np.ones((*c.shape, 1), np.float32), c.colour(None, 0.5, 0.3), tiles / 2 + 0.5
    )
    floor = floor * (1 + 0.06 * c.noise(6, 7, 0.6))[..., None]
    image = mix(wall, floor, step(c.y - horizon, 0.004))
    light = (-0.5, -0.62, 0.6)
    for near in sorted(c.random.uniform(0.12, 1, int(c.number(3, 7))).tolist()):
        radius, x = 0.05 + 0.14 * near, c.number(0.05, 0.95) * across
        foot = horizon + 0.06 + 0.42 * near
        shadow = np.exp(
            -((((c.x * across - x - radius * 0.6) / (1.25 * radius)) ** 2 + ((c.y - foot) / (0.38 * radius)) ** 2) ** 2)
        )
        image = image * (1 - 0.7 * shadow)[..., None]
        c.ball(image, x, foot - radius * 0.9, radius, c.colour(None, c.number(0.35, 0.85), c.number(0.6, 1)), light)
    return image


def _leaves(c: Canvas) -> Colours:
    """Shapes of all sizes falling over each other: the model of occlusion whose spectrum falls as pictures' do."""
    image = np.broadcast_to(c.colour(None, 0.4, 0.3), (*c.shape, 3)).copy()
    across, hue = c.shape[1] / c.shape[0], c.number(0, 1)
    texture, fine = c.noise(4, 7, 0.8), c.noise(12, 6, 0.4)
    for radius in (np.geomspace(0.3, 0.025, 150) * c.random.uniform(0.8, 1.2, 150)).tolist():
        x, y, turn, thin = c.number(0, across), c.number(0, 1), c.number(0, np.pi), c.number(0.35, 0.9)
        colour = c.colour(hue + c.random.normal(0, 0.11), c.number(0.25, 0.8), c.number(0.25, 0.95))
        grain, tilt = c.number(0.02, 0.16), c.number(-0.5, 0.5)
        reach = 1.25 * radius
        rows = slice(*(np.clip((y - reach, y + reach), 0, 1) * c.shape[0]).astype(int))
        columns = slice(*(np.clip((x - reach, x + reach), 0, across) * c.shape[0]).astype(int))
        part = image[rows, columns]
        dx, dy = c.x[rows, columns] * across - x, c.y[rows, columns] - y
        u, v = (
            (dx * math.cos(turn) + dy * math.sin(turn)) / radius,
            (dy * math.cos(turn) - dx * math.sin(turn)) / radius,
        )
        distance = np.sqrt(u**2 + (v / thin) ** 2)
        below = np.sqrt((u - 0.1) ** 2 + ((v - 0.1) / thin) ** 2)
        part *= (1 - 0.5 * step(1.12 - below, 0.3))[..., None]
        vein = 0.12 * np.exp(-((v * 22) ** 2)) + 0.05 * np.cos(9 * (u - np.abs(v))) ** 8
        shade = 0.95 + tilt * v + 0.25 * u + vein + grain * (texture + fine)[rows, columns]
        part[:] = mix(part, colour * shade[..., None], step(1 - distance, 0.03))
    return image


def _sea(c: Canvas) -> Colours:
    horizon = c.number(0.35, 0.55)
    image = _sky(c, c.number(0.5, 0.68), horizon)
    below = np.clip(c.y - horizon, 0.002, None)
    depth = 0.12 / below
    swell = c.noise(2, 5, 1.0) * 2
    waves = sum(
        np.sin(depth * 26 * k + (c.x - 0.5) * depth * c.number(-22, 22) + swell * c.number(0.5, 1.5)) / k
        for k in (1, 1.7, 3.1, 5.3)
    )
    waves = waves * np.clip(below * 7, 0.1, 1) + 0.35 * c.noise(14, 5, 0.5, 3.0) * np.clip(below * 4, 0.1, 1)
    mirrored = c.blur(image, 0.03)[np.clip((2 * horizon - c.y[:, 0]) * c.shape[0], 0, c.shape[0] - 1).astype(int)]
    deep = c.colour(c.number(0.46, 0.58), 0.65, 0.38)
    water = mix(mirrored, deep, 0.35 + 1.3 * below + 0.16 * waves) + 0.25 * np.clip(waves - 1.5, 0, 1)[..., None]
    return mix(image, water, step(c.y - horizon, 0.004))


def _cloth(c: Canvas) -> Colours:
    folds = c.noise(1.6, 4, 1.4)
    down, right = np.gradient(folds)
    slope, turn = right * 0.8 + down * 0.6, c.number(0, np.pi)
    u = c.x * math.cos(turn) + c.y * math.sin(turn) + 0.05 * folds
    v = c.y * math.cos(turn) - c.x * math.sin(turn) + 0.05 * np.roll(folds, 7, axis=0)
    count = c.number(5, 11)
    warp = step(np.sin(2 * np.pi * count * u), 0.3) * c.number(0.5, 1) + 0.4 * step(
        np.sin(6 * np.pi * count * u + 1) - 0.8, 0.2
    )
    weft = step(np.sin(2 * np.pi * count * v), 0.3) * c.number(0, 1) + 0.4 * step(
        np.sin(6 * np.pi * count * v + 2) - 0.8, 0.2
    )
    cloth = mix(np.broadcast_to(c.colour(None, 0.6, 0.8), (*c.shape, 3)), c.colour(None, 0.6, 0.35), 0.6 * warp)
    cloth = mix(cloth, c.colour(None, 0.3, 0.95), 0.55 * weft)
    thread = 1 + 0.06 * np.sin(2 * np.pi * 120 * u) * np.sin(2 * np.pi * 120 * v)
    light = 0.85 - 0.25 * np.clip(slope / slope.std(), -2, 2.2)
    return cloth * (light * thread)[..., None]


def _bloom(c: Canvas) -> Colours:
    """A flower in focus before lights and leaves that are not."""
    across, hue = c.shape[1] / c.shape[0], c.number(0.2, 0.4)
    image = np.ones((*c.shape, 3), np.float32) * c.colour(hue, 0.5, 0.3) * (1 + 0.35 * c.noise(2, 4))[..., None]
    for _ in range(26):
        x, y, radius = c.number(0, 1), c.number(0, 1), c.number(0.03, 0.13)
        disc = step(radius - np.hypot((c.x - x) * across, c.y - y), 0.02)
        image = mix(image, c.colour(hue + c.random.normal(0, 0.12), 0.4, c.number(0.4, 1)), disc * c.number(0.15, 0.6))
    image = c.blur(image, 0.012)
    x, y, size, petals = c.number(0.35, 0.65) * across, c.number(0.35, 0.6), c.number(0.24, 0.36), int(c.number(5, 14))
    stem = 0.018 - np.abs(c.x * across - x - 0.12 * (c.y - y) ** 2 * np.sign(x - 0.5 * across))
    image = mix(
        image, c.colour(0.29, 0.7, 0.4) * (0.7 + 18 * np.clip(stem, 0, 1))[..., None], step(stem, 0.004) * (c.y > y)
    )
    angle, reach = np.arctan2(c.y - y, c.x * across - x), np.hypot(c.x * across - x, c.y - y) / size
    colour, inner, turn, texture = (
        c.colour(c.number(0.65, 1.15), 0.65, 0.95),
        c.colour(None, 0.5, 0.8),
        c.number(0, 6),
        c.noise(10, 6, 0.5),
    )
    for layer in (1.0, 0.72):
        wave = np.cos((angle + turn + layer * 2) * petals / 2)
        edge = layer * (0.55 + 0.45 * np.abs(wave) ** 0.6)
        streak = 0.06 * np.cos(angle * petals * 6) * reach
        shade = 0.62 + 0.4 * np.abs(wave) - 0.25 * (reach / layer - 0.5) + streak + 0.05 * texture
        image = image * (1 - 0.35 * step(edge * 1.08 - reach, 0.12))[..., None]
        image = mix(
            image, mix(inner * np.ones_like(image), colour, 1.6 * reach) * shade[..., None], step(edge - reach, 0.02)
        )
    heart = step(0.26 - reach, 0.03)
    dots = 0.75 + 0.2 * np.sin(c.x * 260 * across) * np.sin(c.y * 260) - 0.6 * reach
    return mix(image, c.colour(c.number(0.08, 0.16), 0.85, 1.0) * (dots + 0.25)[..., None], heart)


def _street(c: Canvas) -> Colours:
    """Houses with lit and dark windows, one row before the other."""
    horizon = 0.9
    image = _sky(c, c.number(0.52, 0.95), horizon)
    haze, plaster = image.mean(axis=(0, 1)), 1 + 0.05 * c.noise(20, 4, 0.4)
    for row in range(3):
        left = -c.number(0, 0.1)
        while left < 1:
            wide, top = c.number(0.1, 0.24) * (0.7 + 0.35 * row), c.number(0.12, 0.5) + 0.14 * row
            front = c.colour(c.number(0, 0.18), c.number(0.1, 0.45), c.number(0.3, 0.85))
            storeys, columns = int(c.number(5, 11)), int(c.number(3, 6))
            lit = c.random.uniform(0, 1, (storeys, columns)).astype(np.float32)
            corner = c.number(0.6, 0.85)
            # Only the columns of the picture that the house can touch.
            part = np.s_[:, int(max(left - 0.01, 0) * c.shape[1]) : int((left + wide + 0.01) * c.shape[1]) + 1]
            u, v = (c.x[part] - left) / wide, (c.y[part] - top) / (horizon + 0.05 - top)
            pane = step(0.28 - np.abs(u * columns % 1 - 0.5), 0.05) * step(0.3 - np.abs(v * storeys % 1 - 0.5), 0.05)
            storey, window = np.clip(v * storeys, 0, storeys - 1), np.clip(u * columns, 0, columns - 1)
            light = (lit[storey.astype(int), window.astype(int)] - 0.6) * 4
            glass = mix(np.broadcast_to(c.colour(0.58, 0.4, 0.25), (*u.shape, 3)), c.colour(0.12, 0.45, 1.0), light)
            shade = (1.05 - 0.3 * v) * (1 - 0.4 * (u > corner))
            wall = mix(front * plaster[part][..., None], glass, pane) * shade[..., None]
            wall = haze + (wall - haze) * (0.45 + 0.27 * row)
            inside = step(0.5 - np.abs(u - 0.5), 0.02) * step(c.y[part] - top, 0.004)
            image[part] = mix(image[part], wall, inside)
            left += wide * c.number(0.85, 1.3)
    road = c.colour(0.6, 0.08, 0.32) * (1 + 0.12 * c.noise(20, 5, 0.4, 0.3))[..., None]
    return mix(image, road, step(c.y - horizon, 0.004))


def _land(c: Canvas) -> Colours:
    """Coast and mountains from above, lit from one side."""
    height = c.noise(1.8, 8, 1.05)
    down, right = np.gradient(height)
    light = np.clip(1 + (right + down) * -c.shape[0] / 60, 0.35, 1.7)
    stops: list[Colours] = [
        c.colour(0.6, 0.75, 0.35),
        c.colour(0.52, 0.6, 0.62),
        c.colour(0.13, 0.3, 0.85),
        c.colour(c.number(0.2, 0.33), 0.5, 0.5),
    ]
    stops += [c.colour(0.09, 0.4, 0.5), np.full(3, 0.97, np.float32)]
    image: Colours = np.ones((*c.shape, 3), np.float32) * stops[0]
    for level, colour, width in zip((-0.8, -0.3, -0.15, 0.6, 1.3), stops[1:], (0.8, 0.05, 0.3, 0.7, 0.4), strict=True):
        image = mix(image, colour, step(height - level + 0.06 * c.noise(20, 4, 0.4), width))
    sea = step(-0.32 - height, 0.05)
    return image * (light * (1 - sea) + sea * (1 + 0.03 * c.noise(24, 4, 0.3)))[..., None]


_SCENES: tuple[Callable[[Canvas], Colours], ...] = (_hills, _balls, _leaves, _sea, _cloth, _bloom, _street, _land)
