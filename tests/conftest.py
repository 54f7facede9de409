"""Settings for all tests: one thread a process, and the same examples every time."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests of one family run in one process, where what they share is made once."""
    shared = ("test_families.py", "test_models_table.py")
    for item in items:
        if item.path.name in shared and "name" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.callspec.params["name"]))
