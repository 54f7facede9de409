"""The eigenarrays of one head, token vector by feature vector: what X tends to when the rough part wins (THEORY §3)."""

from __future__ import annotations

import torch
from torch import Tensor

from oversmooth.theory.operators import AttentionOperator, centred_matrix, reflector
from oversmooth.theory.radii import Update
from oversmooth.theory.small_matrices import divided, eigenvector
from oversmooth.theory.tokens import real_and_imaginary, token_mean
from oversmooth.theory.weights import smaller_product


def eigenarray(
    flat: AttentionOperator, W_V: Tensor, W_O: Tensor, update: Update, t: Tensor, lam: Tensor, mu: Tensor
) -> Tensor:
    """The eigenarray of each μ, ``(items, n, d)``; λ has the shape of the batch, t and μ ``(items,)``."""
    d, batch = W_V.shape[-2], lam.shape
    shift, constant = (x.expand(batch).reshape(-1) for x in (update.shift, update.constant))
    features = feature_vector(W_V, update.centred(W_O), lam).reshape(-1, 1, d)
    if update.constant_gain is None:
        array = token_vector(flat, t, shift + constant)[..., None] * features
    else:
        W = (W_V @ (W_O * update.constant_gain)).expand(*batch, d, d).reshape(-1, d, d)
        array = scaled_apart(flat, t, features, mu - update.base, W, constant)
    # Where frozen there are as many arrays as H has zeros, and none of them is the limit.
    return torch.where((lam.reshape(-1) == 0)[:, None, None], torch.nan, array)


def token_vector(flat: AttentionOperator, t: Tensor, one: Tensor) -> Tensor:
    """The eigenvector ``(items, n)`` of changed attention for each item's eigenvalue t ≠ 1 of A.

    one: ``(items,)``, the eigenvalue on constant arrays before shifting: 1, or less where J is subtracted from A.
    """
    if flat.causal:
        z = _causal_token_vector(flat, t)
        if bool((one == 1).all()):
            return z
        z = real_and_imaginary(flat.centre, z[..., None])[..., 0]
    else:
        y = eigenvector(centred_matrix(flat), t)
        v = reflector(flat)[..., 0].to(y.dtype)
        z = torch.nn.functional.pad(y, (1, 0))
        z = z - v * (v * z).sum(-1, keepdim=True)
    mean = token_mean(real_and_imaginary(lambda x: flat @ x, z[..., None]), flat.mask)[:, 0, 0]
    gap = t - one  # A' (z + c 1) = t z + (mean + c · one) 1, so c = mean / (t − one)
    constant = torch.where(gap.abs() > 0, mean / torch.where(gap == 0, 1.0, gap), 0.0)
    x = z + constant[:, None]
    return x if flat.mask is None else x * flat.mask


def scaled_apart(
    flat: AttentionOperator, t: Tensor, features: Tensor, theta: Tensor, W: Tensor, constant: Tensor
) -> Tensor:
    """The eigenarray ``z r + 1 w`` where constant arrays have weights W of their own.

    It is no product of a token and a feature vector: ``w (θ − c W) = mean(A z) r W``, θ = μ − base, c the eigenvalue of
    attention on constant arrays. W ``(items, d, d)``.
    """
    W = W.to(theta.dtype)
    z = real_and_imaginary(flat.centre, token_vector(flat, t, torch.ones_like(constant))[..., None])
    mean = token_mean(real_and_imaginary(lambda x: flat @ x, z), flat.mask)
    eye = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    matrix = theta[:, None, None] * eye - constant[:, None, None] * W
    w = divided(mean * (features @ W), matrix)
    array = z * features + w
    return array if flat.mask is None else array * flat.mask[..., None]


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
