import pytest
from support import conformance
from support.conformance_methods import make

from oversmooth.steering import steering_of


@pytest.fixture
def untouched():
    """A model that must not change; looked at when the test ends."""
    model = make("BERT")
    before = conformance.snapshot(model)
    yield model
    conformance.same_snapshot(conformance.snapshot(model), before)
    assert steering_of(model) is None
