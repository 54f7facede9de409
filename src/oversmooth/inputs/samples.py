"""Photographs that other libraries bring along, as data to be asked for by name: ``sample:scikit-image``.

They are found as files of the library that is installed: nothing of it is imported or copied, and nothing fetched. Only
by name, never by themselves: what a model is run on must not depend on what happens to be installed.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from oversmooth.safety.errors import InputError

PREFIX = "sample:"


@dataclass(frozen=True)
class _Library:
    module: str
    folder: str
    photographs: tuple[str, ...]


_LIBRARIES = {
    "scikit-image": _Library(
        "skimage",
        "data",
        (
            "astronaut.png",
            "brick.png",
            "camera.png",
            "chelsea.png",
            "coffee.png",
            "coins.png",
            "grass.png",
            "gravel.png",
            "hubble_deep_field.jpg",
            "moon.png",
            "motorcycle_left.png",
            "rocket.jpg",
        ),
    ),
    "scikit-learn": _Library("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
}
"""Of scikit-image what is a photograph, lies in its wheel, and is not nearly another one of these."""
NAMES = tuple(PREFIX + name for name in _LIBRARIES)


def is_sample(path: Path) -> bool:
    """Whether it names samples; a file or folder of that name comes first."""
    return str(path).startswith(PREFIX) and not path.exists()


def find(path: Path) -> tuple[str, tuple[Path, ...]]:
    """The library with its version, and the photographs of it that are there."""
    name = str(path).removeprefix(PREFIX)
    library = _LIBRARIES.get(name)
    if library is None:
        raise InputError(f"there are no samples named {path}; choose {' or '.join(NAMES)}")
    spec = find_spec(library.module)
    if spec is None:
        raise InputError(f"{path} is photographs that come with {name}, which is not installed; install {name}")
    try:
        title = f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        title = name
    places = [Path(place) / library.folder for place in spec.submodule_search_locations or ()]
    files = tuple(file for place in places for photo in library.photographs if (file := place / photo).is_file())
    if not files:
        raise InputError(f"the {title} that is installed came without its photographs; reinstall {name}")
    return title, files
