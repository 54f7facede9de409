"""Where things lie, seen from the tests."""

import os
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DATA = Path(os.environ.get("OVERSMOOTH_DATA") or ROOT.parent / "shared")
"""Data sets and weights, for tests marked realdata."""
TEST_FOLDERS = [str(TESTS), str(ROOT / "papers" / "tests")]
"""What processes that import `support` need on their path."""


def shared(*parts: str) -> Path:
    """A data set or weights, too large to come with the tests; where there are none the test is skipped."""
    folder = DATA.joinpath(*parts)
    if not folder.is_dir():
        import pytest

        pytest.skip(f"OVERSMOOTH_DATA does not name a folder with {'/'.join(parts)}")
    return folder


def installed(package: str, inside: str) -> Path:
    """A file of a package that is not imported: some models come as packages."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed; make setup does"
    assert spec.submodule_search_locations, package
    found = sorted(Path(spec.submodule_search_locations[0]).rglob(inside))
    assert found, f"{package} has no {inside}"
    return found[0]
