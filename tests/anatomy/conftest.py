"""What tests register is forgotten after each."""

import pytest

from oversmooth.anatomy.layouts import LAYOUTS


@pytest.fixture(autouse=True)
def _as_they_come():
    known = list(LAYOUTS)
    yield
    LAYOUTS[:] = known
