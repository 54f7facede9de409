"""Eigenvalues of many small matrices: LAPACK on every core, whatever device they are on.

LAPACK takes one matrix at a time, and torch on a GPU does no better. The matrices are small, so they go to the CPU
and are shared among threads: torch releases the interpreter while LAPACK works.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from threading import Barrier, BrokenBarrierError, Lock, local
from typing import TypeVar

import torch
from torch import Tensor

from oversmooth.safety.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
# Rows of matrices that each thread has at least.
_WORTH_SHARING = 128
# Above this size a single matrix is worth all cores; below it LAPACK's own threads are no help, and while another
# process works they wait for each other, many times as long as the work takes.
_LARGE = 1024
_here = local()
_starting = Lock()


def _pool() -> ThreadPoolExecutor:
    with _starting:  # two that begin at once would take each other's setting of threads for the usual one
        return _started_pool()


@cache
def _started_pool() -> ThreadPoolExecutor:
    return _threads(_cores())


def _threads(count: int) -> ThreadPoolExecutor:
    # One core per thread: LAPACK's own threads would only get in each other's way. The setting is local to each thread,
    # but later threads start with it, so it is restored once all of them are up. A thread takes the usual one over when
    # torch is first asked in it: before it is set, or the first operation would undo it.
    usual = torch.get_num_threads()
    together = Barrier(count + 1)

    def start() -> None:
        _here.in_pool = True
        torch.get_num_threads()
        torch.set_num_threads(1)
        with suppress(BrokenBarrierError):
            together.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="oversmooth-eig", initializer=start)
    try:
        for _ in range(count):
            pool.submit(int)
        together.wait()
    except (RuntimeError, KeyboardInterrupt):  # no more threads: those that began must not wait for the others
        together.abort()
        pool.shutdown(wait=True)
        raise
    finally:
        torch.set_num_threads(usual)
    return pool


def _begin_anew() -> None:
    """A forked child inherits the pool but none of its threads: let it start its own."""
    global _starting
    _starting = Lock()
    _here.in_pool = False
    _started_pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def eigenvalues(M: Tensor) -> Tensor:
    """All eigenvalues of each matrix, on M's device, ``(..., m, m) -> (..., m)`` complex, in no order."""
    if M.numel() == 0:
        return M.new_zeros(M.shape[:-1]).to(complex_of(M.dtype))
    (values,) = _shared(_eigvals, _flat(M).cpu())
    return values.reshape(M.shape[:-1]).to(M.device)


def finite(M: Tensor) -> Tensor:
    """M, checked: LAPACK must not be given infinite entries, on which MKL ends the process.

    Finite weights may have a product that is not.
    """
    if not M.is_meta and not bool(M.isfinite().all()):
        raise InputError("a product of weights is infinite or NaN; scale the weights down, or look for one that is off")
    return M


@cache
def _may_hang() -> bool:
    """Whether torch's LAPACK is NVIDIA's for ARM, as in wheels for CUDA on aarch64.

    On some matrices near to rank one its QR iteration does not end, nor fail, while it meets denormal numbers.
    """
    return "nvpl" in torch.__config__.show().lower()


@contextmanager
def lapack() -> Iterator[None]:
    """Around eigenvalues by LAPACK, in the thread that computes them: denormal numbers count as 0 where they must."""
    if not _may_hang():
        yield
        return
    before = float(torch.tensor(1e-310, dtype=torch.float64) * 1.0) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@lapack()
def _eigvals(M: Tensor) -> tuple[Tensor]:
    """LAPACK's eigenvalues; where it fails to converge, those of a matrix that differs by less than rounding.

    MKL fails on some matrices of equal entries.
    """
    finite(M)
    try:
        return (torch.linalg.eigvals(M),)
    except RuntimeError:
        if len(M) > 1:
            return (torch.cat([_eigvals(one)[0] for one in M.split(1)]),)
    generator = torch.Generator().manual_seed(0)
    size = torch.linalg.matrix_norm(M, keepdim=True) * torch.finfo(M.dtype).eps / M.shape[-1]
    for times in (1.0, 16.0, 256.0):
        moved = M + times * size * torch.randn(M.shape, generator=generator, dtype=M.dtype)
        try:
            return (torch.linalg.eigvals(moved),)
        except RuntimeError:
            continue
    return (torch.full(M.shape[:-1], torch.nan, dtype=complex_of(M.dtype)),)


@lapack()
def _eig(M: Tensor) -> tuple[Tensor, Tensor]:
    """LAPACK's eigenvalues and eigenvectors, with the same care; vectors are NaN where it does not converge."""
    finite(M)
    try:
        return torch.linalg.eig(M)
    except RuntimeError:
        (values,) = _eigvals(M)
        return values, torch.full(M.shape, torch.nan, dtype=values.dtype)


def eigenpairs(M: Tensor) -> tuple[Tensor, Tensor]:
    """All eigenvalues and unit right eigenvectors (columns) of each matrix, on M's device."""
    values, vectors = _shared(_eig, _flat(M).cpu())
    return values.reshape(M.shape[:-1]).to(M.device), vectors.reshape(M.shape).to(M.device)


def _shared(work: Callable[..., tuple[Tensor, ...]], M: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """``work(M, *others)`` of matrices ``(b, m, m)`` and arrays that go with them, in threads with one core each.

    Nowhere is a batch handed over while torch has several threads: torch shares the batch's LU, which gradients of
    eigenvalues need too, among threads in which MKL wants to start more, once `torch.set_num_threads` has been called,
    as for our pool: it hangs, or its numbers are wrong (https://github.com/pytorch/pytorch/issues/141358).
    """
    if M.device.type != "cpu" or (len(M) == 1 and M.shape[-1] > _LARGE):
        return work(M, *others)

    def some(part: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if torch.get_num_threads() == 1 and not M.requires_grad:
            return work(*part)
        return _joined(work(*one) for one in zip(*(x.split(1) for x in part), strict=True))

    batches = (M, *(x.expand(len(M), *x.shape[1:]) for x in others))
    # A thread needs enough rows, or the hand-over costs more than it saves; torch.func tracks in this thread alone.
    pieces = min(len(M), 4 * min(_cores(), len(M) * M.shape[-1] // _WORTH_SHARING))
    if not pieces or M.requires_grad or any(torch._C._functorch.is_functorch_wrapped_tensor(one) for one in batches):
        return some(batches)
    return _joined(_in_pool(some, list(zip(*(x.tensor_split(pieces) for x in batches), strict=True))))


def _joined(parts: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _flat(M: Tensor) -> Tensor:
    """``(..., m, m) -> (b, m, m)``."""
    return M.reshape(math.prod(M.shape[:-2]), *M.shape[-2:])


def one_core_each(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``work(item)`` of each item, in their order: several at a time, each on one core.

    LAPACK's own threads meet after every few columns of a matrix. Where another process wants a core, each meeting
    lasts until the last of them gets one: many times as long as the work. Items are taken as many at a time as there
    are cores, so that few of them and of their results are held.
    """
    items = iter(items)
    while some := list(islice(items, _cores())):
        yield from _in_pool(work, some)


def _in_pool(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterable[Result]:
    if getattr(_here, "in_pool", False):  # the pool must not wait for itself
        return map(work, items)
    with_gradients = torch.is_grad_enabled()

    def alone(item: Item) -> Result:
        with torch.set_grad_enabled(with_gradients):  # each thread has a setting of its own
            return work(item)

    try:
        return _pool().map(alone, items)
    except RuntimeError:  # no thread may begin: the interpreter ends, or the system gives none
        return map(work, items)


@contextmanager
def background_pool() -> Iterator[ThreadPoolExecutor | None]:
    """Threads on half of the cores, one each: what the block itself asks for does not queue behind their work. What has
    not begun at its end never does. None: the system gives no threads.
    """
    pool: ThreadPoolExecutor | None = None
    with suppress(RuntimeError), _starting:
        pool = _threads(max(1, _cores() // 2))
    try:
        yield pool
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def inverse(M: Tensor) -> Tensor:
    """The inverse of each matrix ``(..., m, m)``; not finite where there is none."""
    return _shared(lambda one: (torch.linalg.inv_ex(one).inverse,), _flat(M))[0].reshape(M.shape)


def divided(X: Tensor, M: Tensor) -> Tensor:
    """``X M⁻¹`` of arrays ``(b, n, m)`` and matrices ``(b, m, m)``; not finite where M is singular."""
    return _shared(lambda one, x: (torch.linalg.solve_ex(one, x, left=False).result,), M, X)[0]


def eigenvector(M: Tensor, value: Tensor) -> Tensor:
    """A unit eigenvector ``(b, m)`` of each matrix ``(b, m, m)`` for a known eigenvalue ``(b,)``, by inverse iteration:
    one factorisation instead of all eigenvectors, batched on any device. NaN where the iteration breaks down.
    """
    return _iterated(*_factored(M, value), value.dtype)


def eigenvectors(M: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The result of `eigenvector`, and the eigenvalue's condition number ``1/|yᴴx|``, y the unit left eigenvector.

    A change of M by ε moves a simple eigenvalue by its condition number times ε, to first order.
    """
    factors, pivots = _factored(M, value)
    right = _iterated(factors, pivots, value.dtype)
    left = _iterated(factors, pivots, value.dtype, adjoint=True, times=2)
    cosine = (left.conj() * right).sum(-1).abs()
    return right, 1 / cosine.nan_to_num(nan=0.0).clamp(min=torch.finfo(cosine.dtype).tiny)


def _factored(M: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    m = M.shape[-1]
    M = M.to(value.dtype)
    scale = torch.linalg.matrix_norm(M)
    scale = torch.where(scale == 0, 1.0, scale)
    # Off the eigenvalue by a few units in the last place, and off the real axis: near enough to converge in one step,
    # and not exactly singular.
    shift = value + (4 + 2j) * torch.finfo(M.real.dtype).eps * scale
    shifted = M - shift[:, None, None] * torch.eye(m, dtype=M.dtype, device=M.device)
    factors, pivots, _ = _shared(torch.linalg.lu_factor_ex, shifted)
    return factors, pivots


def _iterated(factors: Tensor, pivots: Tensor, dtype: torch.dtype, *, adjoint: bool = False, times: int = 3) -> Tensor:
    generator = torch.Generator(device=factors.device).manual_seed(0)
    y = torch.randn(*factors.shape[:-1], 1, dtype=dtype, device=factors.device, generator=generator)
    for _ in range(times):
        y = torch.linalg.lu_solve(factors, pivots, y, adjoint=adjoint)
        y = y / torch.linalg.vector_norm(y, dim=1, keepdim=True)
    return y[..., 0]


def eigenvalues_and_conditions(M: Tensor) -> tuple[Tensor, Tensor]:
    """All eigenvalues of each matrix, and their condition numbers, ``(..., m)``; not finite where these are not known.

    They are the lengths of the rows of V⁻¹, V the unit eigenvectors.
    """
    values, vectors = eigenpairs(M)
    return values, torch.linalg.vector_norm(inverse(vectors), dim=-1)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype of the same precision."""
    return torch.complex128 if dtype == torch.float64 else torch.complex64
