"""Numbers of our own, and the caller's left alone."""

import pytest
import torch

from oversmooth.safety.model_state import seeded


def test_the_seed_decides_as_torchs_own_and_the_caller_goes_on():
    torch.manual_seed(3)
    first, second = torch.rand(4), torch.rand(4)
    torch.manual_seed(7)
    own = torch.randn(4)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), first)
    with seeded(7):
        assert torch.equal(torch.randn(4), own)
    with pytest.raises(RuntimeError), seeded(7):
        torch.rand(9).view(2)  # drawn, and then refused
    assert torch.equal(torch.rand(4), second)
