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
