"""Photographs that other libraries bring along, as data to be asked for by name: ``sample:skimage``.

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
    package: str
    folder: str
    photographs: tuple[str, ...]


_OF_SKIMAGE = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png", "gravel.png",
    "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "rocket.jpg",
)  # fmt: skip
_LIBRARIES = {
    "skimage": _Library("scikit-image", "data", _OF_SKIMAGE),
    "sklearn": _Library("scikit-learn", "datasets/images", ("china.jpg", "flower.jpg")),
}
"""By the name they are imported under; of scikit-image the photographs in its wheel, but for near repetitions."""
NAMES = tuple(PREFIX + name for name in _LIBRARIES)


def is_sample(path: Path) -> bool:
    """Whether it names samples; a file or folder of that name comes first."""
    return str(path).startswith(PREFIX) and not path.exists()


def find(path: Path) -> tuple[str, tuple[Path, ...]]:
    """The library with its version, and the photographs of it that are there."""
    module = str(path).removeprefix(PREFIX)
    library = _LIBRARIES.get(module)
    if library is None:
        raise InputError(f"there are no samples named {path}; choose {' or '.join(NAMES)}")
    package = library.package
    spec = find_spec(module)
    if spec is None:
        raise InputError(f"{path} is photographs that come with {package}, which is not installed; install {package}")
    try:
        title = f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        title = package
    places = [Path(folder) / library.folder for folder in spec.submodule_search_locations or ()]
    files = tuple(file for folder in places for photo in library.photographs if (file := folder / photo).is_file())
    if not files:
        raise InputError(f"the {title} that is installed came without its photographs; reinstall {package}")
    return title, files
