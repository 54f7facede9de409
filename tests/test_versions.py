"""The ranges of pyproject.toml, the versions of constraints.txt, and what docs/security.md says of them."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    return {canonicalize_name(r.name): r.specifier for r in map(Requirement, wanted)}


def versions_run():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def test_the_tested_versions_are_within_the_ranges():
    versions = versions_run()
    outside = [name for name, wanted in ranges().items() if name in versions and versions[name] not in wanted]
    assert outside == []


@pytest.mark.parametrize("name", ["transformers", "pillow", "pyarrow", "jinja2", "torch"])
def test_lower_bounds_are_those_whose_reasons_are_written_down(name):
    row = re.search(rf"^\| {name} \| ([0-9.]+) \|", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    assert row is not None
    (least,) = [one.version for one in ranges()[name] if one.operator == ">="]
    assert Version(least) == Version(row[1])
