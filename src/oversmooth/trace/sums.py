"""What an array of tokens is the sum of: ``target = keep · base + factor · branch``, with factors fitted to the arrays.

Models add entry by entry, so their rounding is relative to each entry. Everything is compared that way too: a token a
thousand times larger than the others hides nothing of theirs, in any precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy
import torch
from torch import Tensor

from oversmooth.theory.small_matrices import finite

# Roundings of an entry that a sum may be off by: of its terms, their products with factors, and itself. Of all entries
# it is off by 0.1 to 0.15 of them, root mean square; a gate of a small branch in bfloat16 makes it 0.5 or more.
_ROUNDINGS, _MEAN_ROUNDINGS = 8.0, 0.5
# How far from a plain value (1, or what the weights say) a fitted factor may be and still be it, in standard errors.
_ERRORS = 6.0
# How well the factors must be known, relative to the largest, to explain anything.
_KNOWN = 0.1
# What our own arithmetic, in float64, may be off by.
_OURS = 1e-13
_SINGULAR = 1e-12
_SAMPLE, _COMPARED = 16, 128
# Entries of a channel or a token that rule most sums out, and entries that are held against a sum at once.
_PROBED, _AT_ONCE = 48, 8192
_TINY = torch.finfo(torch.float64).tiny ** 0.5

Granularity = Literal["no", "by channel", "by token"]
CONSTANT: tuple[Granularity, ...] = ("no", "by channel")
Expected = Sequence[Tensor | None] | None
"""For each term the factor that weights suggest, used where it fits."""


@dataclass(frozen=True)
class Sum:
    """How the terms enter: factors that are constant or vary by channel are weights, those by token a gate."""

    factors: tuple[Tensor, ...]  # of each term, in float64: (), by channel (d,), or by token (b, n, 1)
    granularity: Granularity


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two arrays hold the same tokens, but for a cast to a coarser type."""
    if a is b or a.shape != b.shape:
        return a is b
    unit = 2 * max(_unit(a), _unit(b))

    def agree(a: Tensor, b: Tensor) -> bool:
        a, b = a.double(), b.to(a.device).double()
        return bool(((a - b).abs() <= unit * torch.maximum(a.abs(), b.abs())).all())

    return agree(a[:, :1], b[:, :1]) and agree(a, b)  # most arrays differ in their first token


def fit_sum(
    target: Tensor, terms: Sequence[Tensor], expected: Expected = None, granularity: Sequence[Granularity] = CONSTANT
) -> Sum | None:
    """The factors with which target ``(b, n, d)`` is the sum of the terms, or None.

    expected: those that weights suggest. granularity: how factors may vary, tried in turn.
    """
    if any(term.shape != target.shape for term in terms):
        return None
    arrays = [target, *terms]
    ruled_out = {by_token: _ruled_out(arrays, by_token) for by_token in {name == "by token" for name in granularity}}
    found = (_KINDS[name](arrays, expected) for name in granularity if not ruled_out[name == "by token"])
    return next((total for total in found if total is not None), None)


def is_plain_sum(target: Tensor, *terms: Tensor) -> bool:
    """Whether target is the sum of the terms as they are, which is seen much faster than with which factors it is."""
    alike = all(term.shape == target.shape for term in terms)
    return alike and _explained([target, *terms], [torch.ones(())] * len(terms))


def few_tokens(x: Tensor) -> Tensor:
    """A copy of some tokens of each input."""
    return x[:, _sample(x)[::4]]


def holds(target: Tensor, terms: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """Whether target is the sum of the terms with these factors: ``()``, on its device, which is not waited for."""
    fit = _LeastSquares([target, *terms])
    off = fit.off([to_match(f, fit.target) for f in factors])
    return (off <= _ROUNDINGS).all() & (off.square().mean() <= _MEAN_ROUNDINGS**2)


def to_match(factor: Tensor, x: Tensor) -> Tensor:
    """The factor on x's device and in its precision; the device is not waited for."""
    return factor.to(x.device, x.dtype, non_blocking=True)


def _sample(target: Tensor) -> Tensor:
    n, device = target.shape[1], target.device
    return torch.arange(n, device=device) if n <= _SAMPLE else torch.linspace(0, n - 1, _SAMPLE, device=device).long()


def _unit(x: Tensor) -> float:
    return max(torch.finfo(x.dtype).eps, _OURS)


def _ruled_out(arrays: list[Tensor], by_token: bool) -> bool:
    """Whether a few channels, or tokens, show already that the first array is no such sum of the others.

    Most sums that are tried do not hold, and a small least-squares fit shows that a hundred times faster than a whole
    one. No sum that holds is ruled out: whatever its factors, it leaves at most `_ROUNDINGS` of every entry.
    """
    n, d = arrays[0].shape[1:]
    step = max(1, ((n if by_token else d) - 1) // 2)
    probes = [x[0, ::step, :_PROBED].mT if by_token else x[..., ::step].flatten(0, 1)[:_PROBED] for x in arrays]
    values = torch.stack([p.double() for p in probes]).cpu().numpy()
    units = numpy.array([_unit(x) for x in arrays])[:, None]
    for values_of_one in numpy.moveaxis(values, -1, 0):
        sound = values_of_one[:, numpy.isfinite(values_of_one).all(0)]
        size = abs(sound).sum(1, keepdims=True)
        sound = sound * numpy.where(size > 0, size[0] / numpy.maximum(size, _TINY), 1.0)  # all as large as the target
        y, *terms = sound / numpy.maximum((units * abs(sound)).sum(0), _TINY)
        factors, _, _, singular = numpy.linalg.lstsq(numpy.transpose(terms), y, rcond=None)
        # Factors f that explain all entries leave at most `most · max(1, |f|)²`. At a distance δ of these they leave at
        # least `rest + least · δ²`, and max(1, |f|) is at most `largest + δ`: ruled out is what no δ makes possible.
        most, least = _ROUNDINGS**2 * len(y), singular.min(initial=math.inf) ** 2
        rest, largest = numpy.square(y - factors @ terms).sum(), max(1.0, abs(factors).max(initial=0.0))
        if rest * (1 - most / max(least, _TINY)) > most * largest**2:
            return True
    return False


class _LeastSquares:
    """Least squares in which every entry is weighted by its own rounding."""

    def __init__(self, arrays: Sequence[Tensor]) -> None:
        self.units = [_unit(x) for x in arrays]
        arrays = [x.to(arrays[0].device, torch.float64, copy=True) for x in arrays]
        # Padding may be NaN: such tokens are set to zero, which constrains nothing.
        sound = torch.stack([x.abs().amax(-1, keepdim=True) < math.inf for x in arrays]).all(0)
        self.target, *self.terms = (x.masked_fill_(~sound, 0.0) for x in arrays)

    def _rounding(self, parts: Sequence[Tensor]) -> Tensor:
        rounding = self.units[0] * self.target.abs()
        for unit, part in zip(self.units[1:], parts, strict=True):
            rounding = rounding + unit * part.abs()
        return rounding

    def solve(self, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """(factors, their standard errors), ``(terms, ...)``, with entries pooled along dims."""
        weight = 1 / self._rounding(self.terms).clamp(min=_TINY)
        X = torch.stack([term * weight for term in self.terms])
        y = self.target * weight
        gram = (X[:, None] * X[None]).sum([d + 2 for d in dims], keepdim=True)
        moment = (X * y).sum([d + 1 for d in dims], keepdim=True)
        gram, moment = gram.movedim((0, 1), (-2, -1)), moment.movedim(0, -1)
        scale = gram.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).rsqrt()
        gram = finite(gram * scale[..., :, None] * scale[..., None, :])
        inverse = torch.linalg.pinv(gram, rtol=_SINGULAR, hermitian=True)
        factors = (inverse @ (moment * scale)[..., None])[..., 0] * scale
        errors = inverse.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt() * scale
        # A term that is zero, or a multiple of another, leaves its factor open.
        known = torch.linalg.eigvalsh(gram)[..., :1] > _SINGULAR
        return factors.movedim(-1, 0), torch.where(known, errors, torch.inf).movedim(-1, 0)

    def different_tokens(self) -> int:
        """How many tokens of the target are not the same as another, of a sample; by a sample of their channels."""
        tokens = self.target[:, _sample(self.target), :: max(1, self.target.shape[-1] // _COMPARED)]
        tokens = tokens.flatten(0, 1)[: 2 * _SAMPLE]
        near = 100 * self.units[0] * torch.maximum(tokens[:, None].abs(), tokens[None].abs())
        alike = ((tokens[:, None] - tokens[None]).abs() <= near).all(-1)
        return int((~alike.tril(-1).any(-1)).sum())

    def off(self, factors: Sequence[Tensor]) -> Tensor:
        """By how many roundings every entry is off."""
        parts = [f * term for f, term in zip(factors, self.terms, strict=True)]
        return (self.target - sum(parts)).abs() / self._rounding(parts).clamp(min=_TINY)


def _explained(arrays: Sequence[Tensor], factors: Sequence[Tensor]) -> bool:
    """Whether every entry is explained up to rounding, and all together.

    A few tokens at a time: most factors that are tried fail for the first ones, and small arrays stay in the cache.
    """
    few, squares = max(1, _AT_ONCE // arrays[0][:, 0].numel()), 0.0
    for start in range(0, arrays[0].shape[1], few):
        here = slice(start, start + few)
        off = _LeastSquares([x[:, here] for x in arrays]).off([f[:, here] if f.ndim > 1 else f for f in factors])
        squares += float(off.square().sum())
        if not (off <= _ROUNDINGS).all() or squares > arrays[0].numel() * _MEAN_ROUNDINGS**2:
            return False
    return True


def _first_of(arrays: Sequence[Tensor], granularity: Granularity, *choices: Sequence[Tensor]) -> Sum | None:
    """The first factors that explain the target."""
    return next((Sum(tuple(f), granularity) for f in choices if _explained(arrays, f)), None)


def _constant(arrays: Sequence[Tensor], expected: Expected) -> Sum | None:
    one = torch.ones((), dtype=torch.float64, device=arrays[0].device)
    wanted = [None] * len(arrays[1:]) if expected is None else list(expected)
    usual = [one if e is None else e.to(one) for e in wanted]
    if all(f.ndim == 0 for f in usual) and (total := _first_of(arrays, "no", usual)):
        return total  # most sums have these factors, and need no fit
    fit = _LeastSquares(arrays)
    factors, errors = (x.flatten() for x in fit.solve((0, 1, 2)))
    chosen = [_plain(f, e, w) for f, e, w in zip(factors, errors, wanted, strict=True)]
    if fit.different_tokens() > 2:
        return _first_of(arrays, "no", chosen, list(factors))
    # For one or two tokens any gate or norm fits a constant factor: only plain factors are accepted.
    values = zip(chosen, wanted, strict=True)
    plain = all(float(f) in (0.0, 1.0) or (w is not None and bool((f == w).all())) for f, w in values)
    return _first_of(arrays, "no", chosen) if plain else None


def _by_channel(arrays: Sequence[Tensor], expected: Expected) -> Sum | None:
    """One factor per channel on the last term; the others have one number each, or one per channel too."""
    suggested = None if expected is None else expected[-1]
    if suggested is not None and suggested.ndim == 1:
        one = torch.ones((), dtype=torch.float64, device=arrays[0].device)
        if total := _first_of(arrays, "by channel", [*[one] * (len(arrays) - 2), suggested.to(one)]):
            return total
    fit = _LeastSquares(arrays)
    if fit.different_tokens() <= len(arrays):
        return None  # as many unknowns as entries explain anything
    factors, errors = (x.flatten(1) for x in fit.solve((0, 1)))
    # What the tokens leave open explains nothing.
    if not bool((errors <= _KNOWN * factors.abs().amax(-1, keepdim=True)).all()):
        return None
    return _first_of(arrays, "by channel", _few_numbers(factors, errors), list(factors))


def _by_token(arrays: Sequence[Tensor], expected: Expected) -> Sum | None:
    del expected
    if arrays[0].shape[-1] <= len(arrays):
        return None
    factors, errors = _LeastSquares(arrays).solve((2,))
    return _first_of(arrays, "by token", _few_numbers(factors, errors), list(factors))


_KINDS = {"no": _constant, "by channel": _by_channel, "by token": _by_token}


def _plain(factor: Tensor, error: Tensor, expected: Tensor | None) -> Tensor:
    """The expected number, or 1 or 0, where the fit cannot distinguish the factor from it."""
    known = [torch.ones_like(factor), torch.zeros_like(factor)]
    if expected is not None and expected.ndim == 0:
        known.insert(0, expected.to(factor))
    return next((value for value in known if (factor - value).abs() <= _ERRORS * error), factor)


def _few_numbers(factors: Tensor, errors: Tensor) -> list[Tensor]:
    """The factors of all terms but the last as one number each, where they agree within their errors."""
    found = list(factors)
    for place, (several, error) in enumerate(zip(factors[:-1], errors[:-1], strict=True)):
        weight = error.clamp(min=1e-300) ** -2
        mean = (several * weight).sum() / weight.sum()
        if bool(((several - mean).abs() <= _ERRORS * error).all()):
            found[place] = _plain(mean, weight.sum().rsqrt(), None)
    return found
