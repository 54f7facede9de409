"""Work that is shared among cores, one for each piece."""

import pytest
import torch

from oversmooth.theory import small_matrices as small


@pytest.fixture
def three_threads():
    """For torch in this thread, and in those that begin; the pool begins anew."""
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    small._pool.cache_clear()
    yield
    torch.set_num_threads(usual)


@pytest.mark.usefixtures("three_threads")
def test_each_piece_has_one_core():
    def work(item):
        torch.ones(8).isfinite().all()  # a thread's first operation must not undo its setting
        return item, torch.get_num_threads()

    assert list(small.one_core_each(work, range(50))) == [(item, 1) for item in range(50)]
    assert torch.get_num_threads() == 3


def test_few_pieces_are_held_at_a_time():
    taken = []
    results = small.one_core_each(int, (taken.append(item) or item for item in range(1000)))
    assert next(results) == 0
    assert len(taken) == min(1000, small._cores())
    assert next(small.one_core_each(int, []), None) is None


def test_a_piece_that_fails_says_so():
    with pytest.raises(ZeroDivisionError):
        list(small.one_core_each(lambda item: 1 / item, [1, 0, 2]))
