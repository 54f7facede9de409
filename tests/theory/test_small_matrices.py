"""Work that is shared among cores, one for each piece."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from oversmooth.theory import small_matrices as small


@pytest.fixture
def three_threads():
    """For torch in this thread, and in those that begin; the pool begins anew."""
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    small._started_pool.cache_clear()
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


@pytest.mark.parametrize(("count", "size"), [(1, 300), (3, 260), (5, 40), (1, 7)])
def test_eigenvalues_are_those_of_numpy_wherever_they_are_computed(count, size):
    M = torch.randn(count, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    for ours, one in zip(small.eigenvalues(M).numpy(), M.numpy(), strict=True):
        theirs = np.linalg.eigvals(one)
        assert np.abs(ours[:, None] - theirs).min(1).max() < 1e-9 * size
        assert np.abs(theirs[:, None] - ours).min(1).max() < 1e-9 * size


def test_work_in_the_pool_may_ask_for_eigenvalues():
    """Every thread of the pool asks at the same time, and none waits for another."""
    M = torch.randn(4, 150, 150, generator=torch.Generator().manual_seed(0))
    expected = small.eigenvalues(M).abs().amax(-1)
    found = list(small.one_core_each(lambda _: small.eigenvalues(M).abs().amax(-1), range(2 * small._cores() + 1)))
    for one in found:
        torch.testing.assert_close(one, expected)
    inside = small.one_core_each(lambda _: list(small.one_core_each(int, [1, 2])), range(2 * small._cores()))
    assert list(inside) == [[1, 2]] * 2 * small._cores()


@pytest.mark.parametrize(("count", "size"), [(2, 6), (1, 200), (3, 150)])
def test_gradients_are_as_the_caller_has_them(count, size):
    """Of the sum of squares of the eigenvalues, tr M², it is 2 Mᵀ; by torch.func too, which tracks in one thread."""
    M = torch.randn(count, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def traces(M):
        return small.eigenvalues(M).square().real.sum()

    torch.testing.assert_close(torch.func.grad(traces)(M), 2 * M.mT, rtol=1e-6, atol=1e-6)
    M.requires_grad_()
    traces(M).backward()
    torch.testing.assert_close(M.grad, 2 * M.detach().mT, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        assert not small.eigenvalues(M).requires_grad


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("count", "size", "threads"), [(1, 200, 1), (3, 300, 1), (1, 1030, 3), (2, 8, 3)])
def test_matrices_have_one_core_each_unless_one_is_worth_all(count, size, threads):
    seen = small._shared(lambda _: torch.get_num_threads(), torch.zeros(count, size, size))
    assert set(seen) == {threads}


@pytest.mark.usefixtures("three_threads")
def test_callers_that_begin_at_once_share_one_pool():
    begin = threading.Barrier(4)

    def first(_):
        begin.wait()
        return small._pool(), torch.get_num_threads()

    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(first, range(4)))
    assert len({id(pool) for pool, _ in found}) == 1
    assert {threads for _, threads in found} == {3}


def test_where_no_thread_may_begin_the_caller_computes(monkeypatch):
    def refused(*_):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(small._pool(), "map", refused)
    assert small.eigenvalues(torch.eye(200)[None]).shape == (1, 200)


@pytest.mark.usefixtures("three_threads")
def test_where_the_system_gives_fewer_threads_than_cores_none_is_left_waiting(monkeypatch):
    start, begun = threading.Thread.start, []

    def one_alone(thread):
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(small, "_cores", lambda: 3)
    monkeypatch.setattr(threading.Thread, "start", one_alone)
    M = torch.randn(64, 16, 16, generator=torch.Generator().manual_seed(0))
    values = small.eigenvalues(M)
    assert not begun[0].is_alive()
    assert torch.get_num_threads() == 3
    expected = np.sort(np.abs(np.linalg.eigvals(M.double().numpy())))
    np.testing.assert_allclose(np.sort(values.abs().numpy()), expected, rtol=1e-3)
