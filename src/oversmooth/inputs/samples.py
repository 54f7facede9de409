"""Photographs that come with other libraries, as data by name: ``sample:skimage``.

They are read as files of the installed library, which is neither imported nor copied; nothing is downloaded. They are
never a default, because inputs must not depend on what is installed.
"""

from __future__ import annotations

import importlib.metadata
from importlib.util import find_spec
from pathlib import Path

from oversmooth.safety.errors import InputError

PREFIX = "sample:"


_OF_SKIMAGE = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png", "gravel.png",
    "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "rocket.jpg",
)  # fmt: skip
_LIBRARIES = {
    "skimage": ("scikit-image", "data", _OF_SKIMAGE),
    "sklearn": ("scikit-learn", "datasets/images", ("china.jpg", "flower.jpg")),
}  # by module name, the package, the folder and its photographs; of scikit-image those in its wheel, no near duplicates
NAMES = tuple(PREFIX + name for name in _LIBRARIES)


def is_sample(path: Path) -> bool:
    """Whether it names samples; a file or folder of that name takes precedence."""
    return str(path).startswith(PREFIX) and not path.exists()


def find(path: Path) -> tuple[str, tuple[Path, ...]]:
    """The library with its version, and its photographs."""
    module = str(path).removeprefix(PREFIX)
    if module not in _LIBRARIES:
        raise InputError(f"unknown samples {path}; choose {' or '.join(NAMES)}")
    package, inside, photographs = _LIBRARIES[module]
    spec = find_spec(module)
    if spec is None:
        raise InputError(f"{path} needs {package}, which is not installed; install {package}")
    title = f"{package} {importlib.metadata.version(package)}"
    places = [Path(folder) / inside for folder in spec.submodule_search_locations or ()]
    files = tuple(file for folder in places for photo in photographs if (file := folder / photo).is_file())
    if not files:
        raise InputError(f"the installed {title} has no photographs; reinstall {package}")
    return title, files
