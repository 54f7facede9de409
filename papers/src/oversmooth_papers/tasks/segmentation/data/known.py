"""The data sets known by name: their classes, and which bytes of their masks stand for which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oversmooth_papers.tasks.segmentation.settings import IGNORE


@dataclass(frozen=True)
class Known:
    """A published data set."""

    name: str
    folders: tuple[str, ...]
    """What the folder is called that it comes in."""
    classes: tuple[str, ...]
    first: int
    """The byte of the first class; those that stand for no class are ignored."""
    size: tuple[int, int] | None = None
    """Height and width to which images to train on are brought, where they have many."""

    @property
    def relabel(self) -> NDArray[np.uint8]:
        """``(256,)``: from bytes to labels."""
        table = np.full(256, IGNORE, np.uint8)
        table[self.first : self.first + len(self.classes)] = np.arange(len(self.classes))
        return table


_CAMVID = "Sky Building Pole Road Pavement Tree SignSymbol Fence Car Pedestrian Bicyclist"

KNOWN = {
    known.name: known
    for known in (
        Known("camvid", ("camvid", "CamVid"), tuple(_CAMVID.split()), first=0),
        Known(
            "ade20k",
            ("ade20k", "ADEChallengeData2016", "ade"),
            tuple(f"class {number}" for number in range(1, 151)),
            first=1,
            size=(512, 683),
        ),
    )
}
"""ADE20K's training images have their shorter side at 512 or near it and mostly 3 by 4 for sides: 512 × 683."""


def known(name: str) -> Known | None:
    """The set of this name or of a folder of this name, in large or small letters."""
    plain = name.lower()
    return next((k for k in KNOWN.values() if plain in (k.name, *(folder.lower() for folder in k.folders))), None)
