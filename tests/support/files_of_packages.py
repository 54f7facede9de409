"""Models that come as packages."""

from importlib.util import find_spec
from pathlib import Path


def installed(package: str, inside: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed; make setup does"
    assert spec.submodule_search_locations, package
    found = sorted(Path(spec.submodule_search_locations[0]).rglob(inside))
    assert found, f"{package} has no {inside}"
    return found[0]
