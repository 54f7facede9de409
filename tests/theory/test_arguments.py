"""What is handed to the theory that is no attention, or no stack of it, is named."""

import pytest
import torch

from oversmooth import InputError
from oversmooth.theory import flip_threshold, is_row_stochastic, stack_dominance
from oversmooth.theory.operators import DenseAttention

A, W = torch.eye(3)[None], torch.eye(2)[None]


@pytest.mark.parametrize("call", [flip_threshold, is_row_stochastic, DenseAttention])
@pytest.mark.parametrize("thing", [None, "text", object(), {"a": 1}, torch.eye(3).to(torch.float8_e4m3fn)])
def test_things_that_are_no_attention(call, thing):
    with pytest.raises(InputError, match=r"attention (is|has dtype)"):
        call(thing)


@pytest.mark.parametrize(
    "given", [(None, [W], [W]), (A, [W], [W]), ([A], None, [W]), ([A], [W], "text"), (A.half(), [W], [W])]
)
def test_things_that_are_no_stack(given):
    with pytest.raises(InputError, match="give a list, an array for each layer"):
        stack_dominance(*given)


def test_one_matrix_has_no_number():
    with pytest.raises(InputError, match="attention row 0 sums to 3, not 1"):
        DenseAttention(torch.ones(3, 3))
    with pytest.raises(InputError, match=r"attention row 0 of matrix \(0,\) sums to 3"):
        DenseAttention(torch.ones(1, 3, 3))
    with pytest.raises(InputError, match="the mask hides every token; leave"):
        DenseAttention(torch.eye(3), mask=torch.zeros(3, dtype=torch.bool))
