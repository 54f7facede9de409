"""Rank collapse: how near tokens are to a rank-one array (THEORY §2, notion 3).

All four metrics come from the singular values, taken from the smaller of the two Gram matrices in float64: in
float32 a Gram matrix cannot see σ₂/σ₁ below 7e-4, and in float64 none below 1e-7. Near rank one the others are
therefore taken from what is left without the first pair of singular vectors, which resolves them to 1e-16 of σ₁.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor

from oversmooth.metrics._tokens import as_tokens, largest, prepare, safe_sqrt
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

RESOLUTION = 1e-7
"""Singular values below this share of the largest, or of the second near rank one, cannot be distinguished from zero
through a float64 Gram matrix, and count as zero."""
# σ₂/σ₁ below which the first pair is taken out first. Here a Gram matrix still knows σ₂ to 1e-9 of itself.
_NEAR_RANK_ONE = 1e-3
# What float64 cannot hold beside σ₁.
_ROUNDING = 1e-16
_AT_ONCE = 4  # threads that wait for a GPU


def singular_values(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The singular values of X, in descending order.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(..., min(n, d))`` in float64, NaN for an array with NaN or infinity.

    >>> singular_values(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
    tensor([4., 3.], dtype=torch.float64)
    """
    x, mask = prepare(x, mask)
    if 0 in x.shape[-2:]:  # empty: counts as an array of zeros
        return torch.zeros(*x.shape[:-2], 1, dtype=torch.float64, device=x.device)
    x = x.double()
    finite = x.isfinite().all(-1).all(-1)
    x = torch.where(finite[..., None, None], x, 0.0)
    # A power of two, so that dividing by it rounds nothing away.
    scale = torch.exp2(torch.log2(largest(x, (-2, -1))).floor())
    x = x / scale
    squares = _squares(x)
    if squares.shape[-1] > 1:
        near = squares[..., 1] < _NEAR_RANK_ONE**2 * squares[..., 0]
        if bool(near.any()):
            first = squares[near][..., :1]
            # What is left has one dimension less, and with it one value that is zero.
            others = _squares(_without_first_pair(x[near]))[..., :-1]
            others = torch.where(others > _ROUNDING**2 * first, others, 0.0)
            squares = squares.clone()
            squares[near] = torch.cat([first, others], dim=-1)
    return torch.where(finite[..., None], safe_sqrt(squares) * scale[..., 0], torch.nan)


def _squares(x: Tensor) -> Tensor:
    """Squares of the singular values through the smaller Gram matrix, descending."""
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    squares = _eigenvalues(gram).flip(-1)
    return torch.where(squares > RESOLUTION**2 * squares[..., :1], squares, 0.0)


def _eigenvalues(gram: Tensor) -> Tensor:
    """Of symmetric matrices, ascending.

    On a GPU torch takes matrices of this size one by one and waits for each: several threads, each with a stream of its
    own, wait at the same time.
    """
    streams = _streams(gram.device) if gram.device.type == "cuda" else []
    flat = gram.reshape(-1, *gram.shape[-2:])
    if len(flat) < 2 * len(streams) or not streams or (torch.is_grad_enabled() and gram.requires_grad):
        return torch.linalg.eigvalsh(gram)
    here = torch.cuda.current_stream(gram.device)

    def some(stream: torch.cuda.Stream, part: Tensor) -> Tensor:
        with torch.no_grad(), torch.cuda.stream(stream):
            stream.wait_stream(here)
            found = torch.linalg.eigvalsh(part)
            stream.synchronize()
        found.record_stream(here)
        return found

    with ThreadPoolExecutor(len(streams)) as pool:
        parts = list(pool.map(some, streams, flat.tensor_split(len(streams))))
    return torch.cat(parts).reshape(gram.shape[:-1])


@lru_cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    # torch loads its CUDA linear algebra at the first call, which several threads must not make at once.
    torch.linalg.eigvalsh(torch.eye(2, dtype=torch.float64, device=device))
    return [torch.cuda.Stream(device) for _ in range(_AT_ONCE)]


def _without_first_pair(x: Tensor) -> Tensor:
    """``(I − u uᵀ) X (I − v vᵀ)``, u and v the first singular vectors, of arrays near rank one.

    An error δu of u and δv of v leaves σ₁ δu δv behind, the square of rounding; from one side alone it would be
    σ₁ δu. No gradient runs through the vectors: those of the other singular values are orthogonal to them.
    """
    with torch.no_grad():
        # Power steps from the longest token: each brings u nearer by (σ₂/σ₁)², 1e-6 at most.
        token = torch.linalg.vector_norm(x, dim=-1).argmax(-1)
        v = x.gather(-2, token[..., None, None].expand(*token.shape, 1, x.shape[-1])).mT
        for _ in range(3):
            u = _unit(x @ v)
            v = _unit(x.mT @ u)
        # Of a product of two float32 numbers float64 loses no digit: so X, less this, is exact, and as small as 1e-7.
        a, b = u.float().double(), (x.mT @ u).float().double()

    def project(x: Tensor, w: Tensor) -> Tensor:
        return x - w @ (w.mT @ x)

    rest = project(project(x - a @ b.mT, u).mT, v).mT
    return rest + project(a, u) @ project(b, v).mT


def _unit(v: Tensor) -> Tensor:
    return v / torch.linalg.vector_norm(v, dim=-2, keepdim=True)


def sigma_ratio(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The ratio ``σ₂/σ₁`` of the two largest singular values.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, 0 for rank one (a single token included), 1 at most; NaN for an array of zeros.

    >>> sigma_ratio(torch.diag(torch.tensor([4.0, 3.0, 1.0])))
    tensor(0.7500)
    """
    return _rank("sigma_ratio", x, mask)


def rank_one_distance(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The relative distance ``‖X − X₁‖_F / ‖X‖_F`` to the nearest array of rank one, X₁.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, 0 for rank one; NaN for an array of zeros.

    >>> rank_one_distance(torch.diag(torch.tensor([4.0, 3.0])))
    tensor(0.6000)
    """
    return _rank("rank_one_distance", x, mask)


def stable_rank(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The stable rank ``‖X‖_F² / ‖X‖₂²``.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, between 1 and the rank; NaN for an array of zeros.

    >>> stable_rank(torch.diag(torch.tensor([4.0, 3.0])))
    tensor(1.5625)
    """
    return _rank("stable_rank", x, mask)


def effective_rank(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The effective rank of Roy and Vetterli: the exponential of the entropy of ``σ/Σσ``.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.

    Returns:
        ``(...)``, between 1 and the rank; NaN for an array of zeros.

    >>> effective_rank(torch.eye(4)), effective_rank(torch.ones(4, 4))
    (tensor(4.), tensor(1.))
    """
    return _rank("effective_rank", x, mask)


def ranks_of(s: Tensor) -> dict[str, Tensor]:
    """All four metrics of rank from known singular values.

    Args:
        s: ``(..., m)``, singular values in descending order.

    Returns:
        ``(...)`` each, by the names of their functions.
    """
    s = arguments.tensor(s, "s", "singular values, (..., m)", least=1, floating=False)
    if not s.shape[-1]:
        raise InputError(f"s has shape {tuple(s.shape)}; give at least one singular value, (..., m)")
    largest, share = s[..., :1], s / s.sum(-1, keepdim=True)
    squares = (s / largest).square()
    log_share = torch.log(torch.where(share == 0, 1.0, share))
    second = s[..., 1] if s.shape[-1] > 1 else torch.zeros_like(s[..., 0])
    return {
        "effective_rank": torch.exp(-(share * log_share).sum(-1)),
        "stable_rank": squares.sum(-1),
        "sigma_ratio": second / s[..., 0],
        "rank_one_distance": safe_sqrt(squares[..., 1:].sum(-1) / squares.sum(-1)),
    }


def _rank(name: str, x: Tensor, mask: Tensor | None) -> Tensor:
    """One of the metrics of `ranks_of`, in the precision of the tokens."""
    x = as_tokens(x)
    return ranks_of(singular_values(x, mask=mask))[name].to(torch.promote_types(x.dtype, torch.float32))
