"""Table 1's reading by real parts alone."""

import torch

from oversmooth.theory.operators import as_operator
from oversmooth.trace.reducers.heads import real_rule


def test_radii_that_rounding_alone_tells_apart_are_a_tie():
    """Two groups of tokens that hardly look at each other: A has a second eigenvalue of 1, but for 2e-7."""
    leak = 1e-7
    half = torch.full((8, 8), (1 - leak) / 8)
    other = torch.full((8, 8), leak / 8)
    A = torch.cat([torch.cat([half, other], 1), torch.cat([other, half], 1)])[None, None]
    W = torch.eye(4)[None]
    for H, wanted in ((0.5 * W, "tie"), (-0.5 * W, "rough")):
        _, _, words = real_rule(as_operator(A), W, H, 1.0)
        assert words == [[wanted]]
    apart = torch.softmax(2 * torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)), -1)
    assert real_rule(as_operator(apart), W, 0.5 * W, 1.0)[2] == [["smooth"]]
