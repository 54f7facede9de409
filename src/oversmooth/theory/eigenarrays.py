"""The eigenarrays of one head, token vector by feature vector: what X tends to when the rough part wins (THEORY §3)."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator, centred_matrix, reflector
from oversmooth.theory.small_matrices import eigenvector
from oversmooth.theory.tokens import real_and_imaginary, token_mean
from oversmooth.theory.weights import smaller_product


def eigenarray(flat: AttentionOperator, W_V: Tensor, W_O: Tensor, t: Tensor, lam: Tensor) -> Tensor:
    """The eigenarray of each pair of eigenvalues, ``(items, n, d)``; λ has the shape of the batch, t ``(items,)``."""
    features = feature_vector(W_V, W_O, lam).reshape(-1, 1, W_V.shape[-2])
    array = token_vector(flat, t)[..., None] * features
    # Where frozen there are as many arrays as H has zeros, and none of them is the limit.
    return torch.where((lam.reshape(-1) == 0)[:, None, None], torch.nan, array)


def token_vector(flat: AttentionOperator, t: Tensor) -> Tensor:
    """The eigenvector ``(items, n)`` of attention for each item's eigenvalue t ≠ 1."""
    if flat.causal:
        return _causal_token_vector(flat, t)
    y = eigenvector(centred_matrix(flat), t)
    v = reflector(flat)[..., 0].to(y.dtype)
    z = torch.nn.functional.pad(y, (1, 0))
    z = z - v * (v * z).sum(-1, keepdim=True)
    mean = token_mean(real_and_imaginary(lambda x: flat @ x, z[..., None]), flat.mask)[:, 0, 0]
    gap = t - 1  # A (z + c 1) = t z + (mean + c) 1, so c = mean / (t − 1)
    constant = torch.where(gap.abs() > 0, mean / torch.where(gap == 0, 1.0, gap), 0.0)
    x = z + constant[:, None]
    return x if flat.mask is None else x * flat.mask


def _causal_token_vector(flat: AttentionOperator, t: Tensor) -> Tensor:
    """`token_vector` for lower triangular A by forward substitution: 0 before the last token with diagonal entry t.

    Inverse iteration fails here from some 60 tokens on: A is too far from normal.
    """
    A, n = flat.dense().A, flat.tokens
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    counted = flat.keep
    is_first = counted & (counted.cumsum(-1) == 1)
    distance = torch.where(counted & ~is_first, (diagonal - t.real[:, None]).abs(), torch.inf)
    nearest = distance.amin(-1, keepdim=True)
    start = n - 1 - (distance <= nearest).flip(-1).int().argmax(-1)
    x = torch.zeros_like(diagonal)
    for i in range(n):
        later = torch.where(counted[:, i], (A[:, i, :i] * x[:, :i]).sum(-1) / (t.real - diagonal[:, i]), 0.0)
        x[:, i] = torch.where(start < i, later, (start == i).to(x.dtype))
        x = x / x.abs().amax(-1, keepdim=True).clamp(min=1)  # entries can grow geometrically
    return x.to(t.dtype)


def feature_vector(W_V: Tensor, W_O: Tensor, lam: Tensor) -> Tensor:
    """A row r with ``r W_V W_O = λ r``, ``(..., d)`` complex; λ ``(...)`` over batch and heads."""
    d, k = W_V.shape[-2:]
    small = smaller_product(W_V, W_O)
    small = small.expand(*lam.shape, *small.shape[-2:]).reshape(-1, *small.shape[-2:])
    y = eigenvector(small.mT, lam.reshape(-1)).reshape(*lam.shape, -1)
    return y if d < k else (y[..., None, :] @ W_O.to(y.dtype))[..., 0, :]
