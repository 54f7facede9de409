"""Slow, independent ways to the same numbers, and the random things they are compared on."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def attention(
    *shape: int, causal: bool = False, sharpness: float = 2.0, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Random attention (..., n, n) with a complex spectrum."""
    scores = sharpness * normal(*shape, seed=seed)
    if causal:
        scores = scores.masked_fill(torch.ones(shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1).to(dtype)


def weights(heads: int, d: int, k: int, scale: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    return scale * normal(heads, d, k, seed=1000 + seed), scale * normal(heads, k, d, seed=2000 + seed)


def layer_matrix(A: Tensor, W_V: Tensor, W_O: Tensor, base: float = 1.0, shift: float = 0.0) -> Tensor:
    """The whole n·d by n·d matrix of the update on arrays laid out row by row, by Kronecker products."""
    n, d = A.shape[-1], W_V.shape[-2]
    eye = torch.eye(n, dtype=A.dtype)
    out = base * torch.eye(n * d, dtype=A.dtype)
    for a, v, o in zip(A, W_V, W_O, strict=True):
        out = out + torch.kron((a - shift * eye).contiguous(), (v @ o).T.contiguous())
    return out


def centred_basis(n: int) -> Tensor:
    """An orthonormal basis of the vectors that sum to zero, (n, n − 1), not made by a reflection."""
    constant = torch.ones(n, 1, dtype=torch.float64)
    return torch.linalg.svd(constant).U[:, 1:].clone(memory_format=torch.contiguous_format)


def dense_radii(A: Tensor, W_V: Tensor, W_O: Tensor, base: float = 1.0, shift: float = 0.0) -> tuple[float, float]:
    """(ρ_smooth, ρ_rough) from the full matrix, on constant arrays and on centred ones."""
    n, d = A.shape[-1], W_V.shape[-2]
    T = layer_matrix(A, W_V, W_O, base, shift)
    eye = torch.eye(d, dtype=A.dtype)
    constant = torch.kron(torch.full((n, 1), n**-0.5, dtype=A.dtype), eye)
    centred = torch.kron(centred_basis(n), eye)
    return radius(constant.T @ T @ constant), radius(centred.T @ T @ centred)


def radius(M: Tensor) -> float:
    return torch.linalg.eigvals(M).abs().max().item()


def apply_layer(X: Tensor, A: Tensor, W_V: Tensor, W_O: Tensor, base: float = 1.0) -> Tensor:
    """One layer, written as a loop over heads."""
    return base * X + sum(a @ X @ v @ o for a, v, o in zip(A, W_V, W_O, strict=True))


def with_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """A real symmetric matrix with these eigenvalues."""
    V = torch.linalg.qr(normal(len(values), len(values), seed=seed)).Q
    return V @ torch.diag(values.double()) @ V.T


def same_spectrum(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> bool:
    """Whether two sets of eigenvalues match one to one."""
    a, b = a.to(torch.complex128), b.to(torch.complex128)
    if len(a) != len(b):
        return False
    free = list(range(len(b)))
    for value in a:
        distance, place = min(((value - b[i]).abs().item(), i) for i in free)
        if distance > tolerance:
            return False
        free.remove(place)
    return True


def token_metrics(X: Tensor) -> dict[str, float]:
    """Of one array (n, d): the mean over tokens is the low frequency, the rest the high one."""
    X = X.double()
    low = X.mean(0).expand_as(X)
    high = X - low
    unit = X / X.norm(dim=-1, keepdim=True)
    cos = (unit @ unit.T)[~torch.eye(len(X), dtype=torch.bool)]
    s = torch.linalg.svdvals(X)
    p = s[s > 0] / s.sum()
    return {
        "log_hfc": math.log(high.norm()),
        "log_lfc": math.log(low.norm()),
        "log_hfc_lfc": math.log(high.norm() / low.norm()),
        "hfc_lfc": float(high.norm() / low.norm()),
        "cos": float(cos.mean()),
        "abs_cos": float(cos.abs().mean()),
        "effective_rank": math.exp(-float((p * p.log()).sum())),
        "stable_rank": float(s.square().sum() / s[0] ** 2),
        "sigma_ratio": float(s[1] / s[0]),
        "rank_one_distance": float((s[1:].square().sum() / s.square().sum()).sqrt()),
    }


def mean_metric(name: str, inputs: Iterable[Tensor], counted: Iterable[Tensor] | None = None) -> float:
    """Over inputs (n, d), of the tokens that count in each."""
    kept = inputs if counted is None else [x[keep.bool()] for x, keep in zip(inputs, counted, strict=True)]
    values = [token_metrics(x)[name] for x in kept]
    return sum(values) / len(values)


@torch.no_grad()
def streams(blocks: Iterable[nn.Module], call: Callable[[], object]) -> list[Tensor]:
    """What enters the first of these blocks and what leaves each, while a model is called."""
    arrays: list[Tensor] = []
    first, *_ = blocks = list(blocks)
    handles = [first.register_forward_pre_hook(lambda _, args: arrays.append(args[0].clone()))]
    for block in blocks:
        leave = lambda _m, _a, out: arrays.append((out[0] if isinstance(out, tuple) else out).clone())  # noqa: E731
        handles.append(block.register_forward_hook(leave))
    call()
    for handle in handles:
        handle.remove()
    return arrays


def is_orthonormal(V: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Whether the columns of V ``(..., d, m)`` are orthonormal."""
    V = V.double()
    eye = torch.eye(V.shape[-1], dtype=V.dtype, device=V.device)
    return bool(((V.mT @ V - eye).abs() <= tolerance).all())
