"""The energies whose gradient flow attention follows (THEORY §6, Nguyen et al.), for a given kernel.

With ``k`` symmetric, one Euler step of the flow of J from ``u = V`` with step ``1 / Σ_j (k_ij + k_ji)`` is softmax
attention, and one of E with ``λ_i = λ̃ / step_i`` and ``f = V⁰`` is NeuTRENO: ``A V + λ̃ (V⁰ − V)``.
"""

import torch
from torch import Tensor

from oversmooth.metrics._tokens import as_tokens, prepare
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


def nonlocal_energy(u: Tensor, kernel: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The non-local energy ``J(u) = ½ Σ_ij ‖u_i − u_j‖² k_ij``.

    Args:
        u: ``(..., n, d)``, tokens by features.
        kernel: ``(..., n, n)``, the weight of each pair of tokens.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, 0 when all tokens are equal.

    >>> nonlocal_energy(torch.tensor([[0.0], [2.0]]), torch.ones(2, 2))
    tensor(4.)
    """
    u, mask = prepare(u, mask)
    kernel, own_type = _prepare_kernel(u, kernel, mask), u.dtype
    if u.device.type != "mps":  # two sums are taken from each other, of squares
        u, kernel = u.double(), kernel.double()
    # J does not see a common shift of the tokens: removing it first keeps digits when they are nearly equal.
    u = u - u.mean(-2, keepdim=True)
    own = (u.square().sum(-1) * (kernel.sum(-1) + kernel.sum(-2))).sum(-1)
    return (own / 2 - (u * (kernel @ u)).sum((-2, -1))).to(own_type)


def fidelity_energy(
    u: Tensor, f: Tensor, kernel: Tensor, strength: Tensor | float, *, mask: Tensor | None = None
) -> Tensor:
    """The energy with a fidelity term, ``E(u, f) = J(u) + ½ Σ_i λ_i ‖u_i − f_i‖²``.

    Args:
        u: ``(..., n, d)``, tokens by features.
        f: ``(..., n, d)``, the tokens that u is held to.
        kernel: ``(..., n, n)``, the weight of each pair of tokens.
        strength: ``()`` or ``(..., n)``, λ, one number or one per token.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, one energy per array.
    """
    u, f = as_tokens(u), arguments.tensor(f, "f", "(..., n, d), tokens by features")
    if f.shape[-2:] != u.shape[-2:]:
        raise InputError(f"f has shape {tuple(f.shape)} but u has {tuple(u.shape)}; both are tokens by features")
    arguments.check_broadcast(u=u.shape[:-2], f=f.shape[:-2])
    distance = (prepare(u, mask)[0] - prepare(f, mask)[0]).square().sum(-1)
    remedy = f"give one number, or one per token, (..., {u.shape[-2]})"
    strength = arguments.numbers(strength, "λ", remedy, dtype=distance.dtype, device=distance.device)
    if strength.ndim and strength.shape[-1] not in (1, u.shape[-2]):
        raise InputError(f"λ has shape {tuple(strength.shape)}; {remedy}")
    arguments.check_broadcast(tokens=distance.shape, λ=strength.shape)
    weighted = strength * distance
    return nonlocal_energy(u, kernel, mask=mask) + weighted.sum(-1) / 2


def _prepare_kernel(u: Tensor, kernel: Tensor, mask: Tensor | None) -> Tensor:
    n, kernel = u.shape[-2], arguments.tensor(kernel, "kernel", "(..., n, n)", floating=False)
    if kernel.shape[-2:] != (n, n):
        raise InputError(f"kernel has shape {tuple(kernel.shape)}; {n} tokens need (..., {n}, {n})")
    arguments.check_broadcast(u=u.shape[:-2], kernel=kernel.shape[:-2])
    kernel = kernel.to(u.dtype)
    return kernel if mask is None else torch.where(mask[..., None] & mask[..., None, :], kernel, 0.0)
