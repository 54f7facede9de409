"""HFC, LFC, cosines and massive tokens of an array, in a few reads of it and without waiting for its device.

The one kernel behind `summary`, the trace and the monitor. The functions of `frequency` and `angle` say the same of
one metric each, and differentiate; here nothing does, and no operation depends on a number that only the device knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from oversmooth.metrics._tokens import checked
from oversmooth.metrics.angle import over_pairs, sums_over_tokens
from oversmooth.safety import arguments

P = ParamSpec("P")
T = TypeVar("T")

EXACT_TOKENS = 4096
"""Tokens up to which every pair of them is in the mean absolute cosine; with more, its negative part is sampled."""
SAMPLED = 1024
"""Tokens that all others are compared with in such a sample."""
MASSIVE_RATIO = 5.0
"""A token is massive where its norm exceeds the median norm of its array's tokens by this factor."""
MASSIVE_LISTED = 16
"""Massive tokens that are listed by position, per array; all are counted."""


def reducing(function: Callable[P, T]) -> Callable[P, T]:
    """A function that reduces arrays: without gradients, and not in the precision of somebody's autocast."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return inside


@cache
def _multiplies_bfloat16(device: torch.device) -> bool:
    """Whether it is one of NVIDIA's with units for it, which is what `product` was tried on."""
    on_cuda = device.type == "cuda" and torch.version.cuda is not None
    return on_cuda and torch.cuda.get_device_capability(device)[0] >= 8


@dataclass(frozen=True)
class Scaled:
    """Tokens, each divided by a power of two near its largest entry: no square overflows, underflows or is rounded."""

    x: Tensor
    """``(..., n, d)`` in float32 or better, entries below 2 (8 at the end of the range); zero at masked tokens."""
    unit: Tensor
    """``(..., n)``: what each was divided by."""
    valid: Tensor
    """``(..., n)``: the valid tokens."""
    dtype: torch.dtype
    """Of the tokens as they came."""

    @property
    def share(self) -> Tensor:
        """``(..., n)``: the units relative to the largest of the array."""
        return self.unit / self.unit.amax(-1, keepdim=True)

    @cached_property
    def quick(self) -> Tensor:
        """Tokens that came in 16 bits as bfloat16, where a GPU multiplies these many times faster; else as they are.

        bfloat16 has float32's range. Its own tokens lose no digit; those of float16 lose three bits.
        """
        short = self.dtype in (torch.float16, torch.bfloat16) and _multiplies_bfloat16(self.x.device)
        return self.x.to(torch.bfloat16) if short else self.x

    def part(self, some: slice) -> Scaled:
        """Those of some arrays of a batch."""
        return Scaled(self.x[some], self.unit[some], self.valid[some], self.dtype)


def product(x: Tensor, v: Tensor) -> Tensor:
    """``x v`` in float32, ``(b, n, d), (b, d, c) -> (b, n, c)``.

    Where x is in bfloat16, v is taken as the sum of two bfloat16 arrays: the error is below 2⁻¹⁶ of ``|x| |v|``, at the
    speed of 16-bit products.
    """
    if x.dtype != torch.bfloat16:
        return x @ v
    high = v.to(x.dtype)
    both = torch.bmm(x, torch.cat([high, (v - high).to(x.dtype)], -1), torch.float32)
    return both[..., : v.shape[-1]] + both[..., v.shape[-1] :]


@reducing
def scaled(x: Tensor, mask: Tensor | None = None) -> Scaled:
    """Tokens at unit size, as the other functions take them.

    Args:
        x: ``(..., n, d)``, tokens by features, of any floating type.
        mask: ``(..., n)``, true for the valid tokens; None: all of them. The others may hold NaN.
    """
    x, mask = checked(x, mask)
    if 0 in x.shape[-2:]:  # no token, or none with a direction: one that does not count
        x, mask = x.new_zeros(*x.shape[:-2], 1, 1), None if x.shape[-2] else x.new_zeros(*x.shape[:-2], 1).bool()
    valid = x.new_ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask
    x = x if mask is None else torch.where(mask[..., None], x, 0.0)
    dtype = torch.promote_types(x.dtype, torch.float32)
    limits = torch.finfo(dtype)
    # One read instead of two, which on a CPU takes ten times as long.
    largest = torch.linalg.vector_norm(x, math.inf, -1) if x.is_cuda else torch.maximum(x.amax(-1), x.amin(-1).neg())
    size = largest.to(dtype).clamp(limits.tiny, limits.max / 4)
    unit = size.log2().floor().exp2()
    return Scaled(x / unit[..., None], unit, valid, x.dtype)


@dataclass(frozen=True)
class Moments:
    """What `moments` takes. An axis of two has first all valid tokens, then those that are not massive."""

    count: Tensor
    """``(..., 2)``: how many they are."""
    log_hfc: Tensor
    """``(..., 2)``: ``log ‖HFC‖_F``."""
    log_lfc: Tensor
    """``(..., 2)``: ``log ‖LFC‖_F``."""
    cos: Tensor
    """``(..., 2)``: mean cosine."""
    norms: Tensor
    """``(..., n)``: the length of each token; zero where hidden."""
    ratios: Tensor
    """``(..., n)``: lengths over their median; massive above the ratio that was given."""
    weights: Tensor
    """``(..., 2, n)``: one over the length of each scaled token, zero for those that are left out."""

    @property
    def massive(self) -> Tensor:
        """``(...)``: how many tokens are massive."""
        return self.count[..., 0] - self.count[..., 1]

    def longest(self) -> tuple[Tensor, Tensor]:
        """Ratios and positions of the longest tokens, ``(..., 16)`` or fewer each, in descending order."""
        found = self.ratios.topk(min(MASSIVE_LISTED, self.ratios.shape[-1]))
        return found.values, found.indices


@reducing
def moments(tokens: Scaled, massive: float = math.inf) -> Moments:
    """HFC, LFC and mean cosine of tokens, with and without massive ones.

    Args:
        tokens: ``(..., n, d)``.
        massive: tokens longer than this many times the median are massive.
    """
    x, unit, valid = tokens.x, tokens.unit, tokens.valid
    length, share = torch.linalg.vector_norm(x, dim=-1), tokens.share
    directed, relative = length > 0, length * share
    ordered = torch.where(directed, relative, torch.inf).sort(-1).values
    ratios = relative / ordered.gather(-1, ((directed.sum(-1, keepdim=True) - 1) // 2).clamp(min=0))
    among = torch.stack([valid, valid & ~(ratios > massive)], -2)
    count = among.sum(-1)
    weights = torch.where(among & directed[..., None, :], 1 / length[..., None, :], 0.0)
    rest = torch.where(among[..., 1:, :], share[..., None, :], 0.0) / count[..., 1:, None]
    centre, *of_directions = (torch.cat([rest, weights], -2) @ x).split(1, -2)
    # Everything is centred on the mean of the rest, where one massive token would leave few digits of the others. What
    # that mean is off by its own rounding, and the mean of all by the massive ones, is taken off after a second read:
    # at most half of the sum of squares, as at most half of the tokens are massive.
    spread = torch.addcmul(centre.neg(), x, share[..., None])
    off = among.to(x.dtype) @ spread / count[..., None]
    squares = torch.where(among, torch.linalg.vector_norm(spread, dim=-1).square()[..., None, :], 0.0).sum(-1)
    low = count * (centre + off).square().sum(-1)
    high = squares - count * off.square().sum(-1)
    # Nothing of the squares is left but rounding: the tokens are equal.
    high = torch.where(high <= 8 * torch.finfo(x.dtype).eps * squares, 0.0, high)
    with_direction = (weights > 0).sum(-1)
    total = torch.cat(of_directions, -2).square().sum(-1)
    return Moments(
        count,
        high.log() / 2 + unit.amax(-1, keepdim=True).log(),
        low.log() / 2 + unit.amax(-1, keepdim=True).log(),
        over_pairs(total - with_direction, with_direction, -1.0),
        torch.where(valid, length * unit, 0.0),
        ratios,
        weights,
    )


@reducing
def abs_cosine(tokens: Scaled, found: Moments, *, exact: bool = False) -> tuple[Tensor, Tensor]:
    """Mean absolute cosine, with and without massive tokens, and its standard error.

    Exact with up to `EXACT_TOKENS` tokens, but for products of bfloat16 or float16 on a GPU, whose rounding moves the
    mean by less than 1e-3. Above, the mean cosine and twice the mean negative part, of all tokens by a sample.

    Args:
        tokens: ``(..., n, d)``.
        found: their moments.
        exact: True for all pairs, however many there are.

    Returns:
        ``(..., 2)`` each; the error is zero where all pairs are in the mean.
    """
    x, weights, n = tokens.quick, found.weights, tokens.x.shape[-2]
    with_direction = (weights > 0).sum(-1)
    if exact or n <= EXACT_TOKENS:
        total = (sums_over_tokens(x, x, weights, Tensor.abs_) * weights).sum(-1)
        mean = over_pairs(total - with_direction, with_direction, 0.0)
        return mean, torch.zeros_like(mean)
    directed = weights[..., 0, :] > 0
    # Multiples of the golden ratio, in whole numbers: evenly spread, in no step that tokens may repeat in.
    spread = torch.arange(SAMPLED, device=x.device) * 2654435769 % 2**32
    picked = (spread * with_direction[..., :1]) >> 32
    picked = (~directed).byte().argsort(dim=-1, stable=True).gather(-1, picked)
    columns = x.gather(-2, picked[..., None].expand(*picked.shape, x.shape[-1]))
    own = weights.gather(-1, picked[..., None, :].expand(*weights.shape[:-1], SAMPLED))
    others = (with_direction[..., None] - 1).clamp(min=1)
    negative = -2 * sums_over_tokens(x, columns, weights, lambda c: c.clamp_(max=0.0)) * own / others
    size = (own > 0).sum(-1).clamp(min=1)
    mean = negative.sum(-1) / size
    squares = torch.where(own > 0, (negative - mean[..., None]).square(), 0.0).sum(-1)
    return (found.cos + mean).clamp(0.0, 1.0), squares.sqrt() / size


@dataclass(frozen=True)
class Summary:
    """The metrics that `summary` takes, ``(...)`` each."""

    log_hfc: Tensor
    """``log ‖HFC‖_F``."""
    log_lfc: Tensor
    """``log ‖LFC‖_F``."""
    cos: Tensor
    """Mean cosine."""
    abs_cos: Tensor
    """Mean absolute cosine."""
    token_norms: Tensor
    """``(..., n)``, the length of each token; zero where hidden."""

    @property
    def log_hfc_lfc(self) -> Tensor:
        """``log(‖HFC‖_F / ‖LFC‖_F)``."""
        return self.log_hfc - self.log_lfc


def summary(x: Tensor, *, mask: Tensor | None = None, cosines: bool = True) -> Summary:
    """HFC, LFC, both cosines and the token norms of x, in one sweep.

    Args:
        x: ``(..., n, d)``, tokens by features.
        mask: ``(..., n)``, true for the valid tokens; None: all of them.
        cosines: False leaves them NaN, and saves most of the time.
    """
    tokens = scaled(x, mask)
    found = moments(tokens)
    nothing = torch.full_like(found.cos, torch.nan)
    cos, abs_cos = nothing, nothing
    if arguments.flag(cosines, "cosines"):
        cos, abs_cos = found.cos, abs_cosine(tokens, found, exact=True)[0]
    return Summary(found.log_hfc[..., 0], found.log_lfc[..., 0], cos[..., 0], abs_cos[..., 0], found.norms)
