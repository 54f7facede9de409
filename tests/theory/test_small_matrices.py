"""Work that is shared among cores, one for each piece."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.interpreters import python

from oversmooth.theory import small_matrices as small


@pytest.fixture
def three_threads():
    """For torch in this thread, and in those that begin; the pool begins anew."""
    torch.set_num_threads(3)
    small._started_pool.cache_clear()


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
    (seen,) = small._shared(lambda _: (torch.tensor([torch.get_num_threads()]),), torch.zeros(count, size, size))
    assert set(seen.tolist()) == {threads}


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


@pytest.mark.usefixtures("three_threads")
def test_work_beside_has_threads_of_its_own_and_what_waits_at_the_end_never_begins(monkeypatch):
    monkeypatch.setattr(small, "_cores", lambda: 4)
    begun, go_on, M = threading.Barrier(3), threading.Event(), torch.eye(200).expand(8, -1, -1)

    def work():
        begun.wait()
        go_on.wait(20)
        return torch.get_num_threads(), threading.current_thread()

    with small.background_pool() as pool:
        work_of_five = [pool.submit(work) for _ in range(5)]
        begun.wait()  # both threads are taken
        assert small.eigenvalues(M).shape == (8, 200)
        assert torch.get_num_threads() == 3
    assert not go_on.is_set()
    go_on.set()
    for one in work_of_five[:2]:
        threads, thread = one.result()
        assert threads == 1
        thread.join(20)
        assert not thread.is_alive()
    assert [one.cancelled() for one in work_of_five] == [False, False, True, True, True]


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


_FACTORISATIONS = """
import numpy as np
import torch
from oversmooth.theory import small_matrices as small

torch.set_num_threads(2)
small._pool()
generator = np.random.default_rng(0)
for in_pool in (small._in_pool, lambda work, items: map(work, items)):  # in threads, and where none may begin
    small._in_pool = in_pool
    for dtype in (np.float64, np.complex128):
        M = generator.normal(size=(4, 192, 192)).astype(dtype)
        M = M if dtype == np.float64 else M + 1j * generator.normal(size=M.shape)
        X = generator.normal(size=(4, 3, 192)).astype(dtype)
        values = np.linalg.eigvals(M)[:, 0]
        inverses = small.inverse(torch.from_numpy(M)).numpy()
        assert np.allclose(inverses, np.stack([np.linalg.inv(one) for one in M]), atol=1e-8)
        quotients = small.divided(torch.from_numpy(X), torch.from_numpy(M)).numpy()
        assert np.allclose(quotients @ M, X, atol=1e-8)
        vectors, _ = small.eigenvectors(torch.from_numpy(M), torch.from_numpy(values))
        products = np.einsum("bij,bj->bi", M, vectors.numpy())
        assert np.allclose(products, values[:, None] * vectors.numpy(), atol=1e-8)
    M = torch.from_numpy(generator.normal(size=(4, 192, 192)))
    traces = lambda M: small.eigenvalues(M).square().real.sum()  # tr M²
    assert torch.allclose(torch.func.grad(traces)(M), 2 * M.mT)
    M.requires_grad_()
    traces(M).backward()
    assert torch.allclose(M.grad, 2 * M.detach().mT)
print("as numpy has them")
"""


def test_batches_are_factorised_right_after_threads_were_set():
    """MKL under torch hangs then, or gives wrong numbers; in a process of its own, which may be ended."""
    done = python("-c", _FACTORISATIONS, OMP_WAIT_POLICY="passive")  # threads that wait leave the core to other tests
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as numpy has them\n"  # where MKL finds itself at fault, it says so here


@pytest.mark.parametrize("size", [5, 200])
def test_quotients_have_gradients_and_one_batch_may_be_for_all(size):
    generator = torch.Generator().manual_seed(0)
    M = torch.randn(4, size, size, generator=generator, dtype=torch.float64) + 3 * size * torch.eye(size)
    X = torch.randn(4, 3, size, generator=generator, dtype=torch.float64)
    ones = np.broadcast_to(np.linalg.solve(M.numpy(), np.ones((4, size, 1)))[:, None, :, 0], X.shape)
    # Of the sum of X M⁻¹, by X: every row of it is (M⁻¹ 1)ᵀ. M alone is not tracked.
    assert torch.func.grad(lambda X: small.divided(X, M).sum())(X).numpy() == pytest.approx(ones)
    X.requires_grad_()
    small.divided(X, M).sum().backward()
    assert X.grad.numpy() == pytest.approx(ones)
    first = X.detach()[:1]
    assert torch.equal(small.divided(first, M), small.divided(first.expand(4, -1, -1).clone(), M))
    with pytest.raises(RuntimeError, match="expanded size"):
        small.divided(X.detach()[:3], M)


def test_matrices_without_rows_and_of_zeros():
    vector, condition = small.eigenvectors(torch.zeros(1, 3, 3), torch.zeros(1, dtype=torch.complex64))
    assert vector.abs().square().sum() == pytest.approx(1)
    assert condition.isfinite()
    assert small.inverse(torch.zeros(3, 0, 0)).shape == (3, 0, 0)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("count", "size"), [(0, 4), (1, 4), (3, 4), (40, 16)])
def test_few_and_small_matrices_are_factorised_too(count, size):
    generator = torch.Generator().manual_seed(0)
    M = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    X = torch.randn(count, 2, size, generator=generator, dtype=torch.float64)
    assert small.inverse(M).numpy() == pytest.approx(np.linalg.inv(M.numpy()), abs=1e-9)
    assert (small.divided(X, M) @ M).numpy() == pytest.approx(X.numpy(), abs=1e-9)
    assert small.inverse(M[:, None]).shape == (count, 1, size, size)
    singular = torch.zeros(2, 4, 4)
    assert not small.inverse(singular).isfinite().any()
