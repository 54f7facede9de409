"""Tests that share what they make run in one process: pytest-xdist has to be told, and would not complain."""

import pytest

NAME = "told by the end of its name"


@pytest.mark.xdist_group(NAME)
def test_groups_reach_the_scheduler(request):
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("the tests run in one process, or without --dist loadgroup")
    assert request.node.nodeid.endswith(f"@{NAME}")


@pytest.fixture(scope="module")
def shared():
    return []


@pytest.mark.usefixtures("shared")
def test_a_module_with_a_fixture_of_its_own_is_a_group(request):
    assert request.node.get_closest_marker("xdist_group").args == ("tests/test_groups.py",)
