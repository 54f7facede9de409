"""Slow, independent ways to the same numbers, and the random things they are compared on."""

import torch
from torch import Tensor


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
