"""Forms on textured ground, painted on the spot and encoded as JPEG: for trials that need no files.

Every picture is fixed by its number. The class is the form; its colour only hints at it, for crops that show no more.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from oversmooth.safety.libraries import import_library
from oversmooth_papers.tasks.imagenet.data.pictures import InMemory, Pictures, Splits

NAME = "painted"
CLASSES = ("disc", "square", "triangle", "ring")
_COLOURS = ((200, 80, 60), (60, 150, 90), (80, 100, 200), (200, 180, 80))
_HINT = 45  # spread about a class's own colour, of 255


def painted(train: int = 800, test: int = 200, *, size: int = 48) -> Splits:
    """So many of each part, their shorter side at ``size`` pixels or a little above; no picture is in two parts."""
    parts = []
    for first, count in ((0, train), (train, test)):
        numbers = np.arange(first, first + count)
        images = [_picture(int(number), size) for number in numbers]
        parts.append(Pictures(InMemory(images), numbers % len(CLASSES), CLASSES, NAME))
    return Splits(*parts)


def _picture(number: int, size: int) -> bytes:
    pil, draw = (
        import_library(f"PIL.{module}", "painting images", "oversmooth[imagenet]") for module in ("Image", "ImageDraw")
    )
    random = np.random.default_rng([15, number])
    width, height = (int(length) for length in random.integers(size, size + size // 3 + 1, 2))
    ground = random.normal(random.uniform(60, 190, 3), 12, (height, width, 3))
    image = pil.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
    radius = random.uniform(0.25, 0.42) * min(width, height)
    x, y = (random.uniform(0.45 * length, 0.55 * length) for length in (width, height))
    colour = tuple(int(v) for v in random.normal(_COLOURS[number % len(CLASSES)], _HINT).clip(0, 255))
    _paint(draw.Draw(image), CLASSES[number % len(CLASSES)], x, y, radius, colour)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _paint(draw: Any, form: str, x: float, y: float, radius: float, colour: tuple[int, ...]) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    if form == "disc":
        draw.ellipse(box, fill=colour)
    elif form == "square":
        draw.rectangle(box, fill=colour)
    elif form == "triangle":
        draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=colour)
    else:
        draw.ellipse(box, outline=colour, width=max(2, int(radius / 3)))
