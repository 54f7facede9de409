"""What every route to the two radii takes and returns: the update, the settings of the search, and the radii.

`dominance` chooses the route: `one_head` for a single head or each head alone, `several_heads` for all heads jointly.
Both take attention that falls apart in pieces, by `reducible`; `shared_weights` has the radii of one piece. `shifted`
follows each head along shifts of its attention. `errors` is their error model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from oversmooth.safety import arguments
from oversmooth.theory.spectrum import METHODS, Method, check_tolerance

TIE = {torch.float64: 1e-7, torch.float32: 1e-5}
"""Radii nearer than this, relative to the larger (or 1), are a tie: at equality the Jordan structure decides."""
_ONE, _ZERO = torch.ones(()), torch.zeros(())


@dataclass(frozen=True)
class AttentionChange:
    """A change of attention that is linear in A: ``A' = gain · A − shift · I − mean · J``, all entries of J 1/n.

    A' multiplies constant arrays by ``gain − shift − mean``; J vanishes on centred ones. So the theory of A holds for
    A', with other eigenvalues.
    """

    gain: Tensor = _ONE
    """``(heads,)`` or ``()``, the factor on A."""
    shift: Tensor = _ZERO
    """Likewise, the multiple of I that is subtracted."""
    mean: Tensor = _ZERO
    """Likewise, the multiple of J that is subtracted."""
    source: bool = False
    """Whether every layer adds something that differs between tokens, such as NeuTRENO's V⁰."""
    constant_gain: Tensor | None = None
    """``(d,)``, what multiplies the layer's output on constant arrays, as in FeatScale; None: nothing."""
    centred_gain: Tensor | None = None
    """``(d,)``, likewise on centred arrays."""

    @property
    def constant(self) -> Tensor:
        """The eigenvalue of A' on constant arrays."""
        return self.gain - self.shift - self.mean

    def __matmul__(self, other: AttentionChange) -> AttentionChange:
        """This change applied to values that are scaled by other's gain (`other` changes only values)."""
        gain, shift, mean = (x * other.gain for x in (self.gain, self.shift, self.mean))
        return replace(self, gain=gain, shift=shift, mean=mean, source=self.source or other.source)


@dataclass(frozen=True)
class Update:
    """The update ``X ↦ base · X + Σ_h (A_h − shift_h) X W_V^h W_O^h``, and what its two radii are at least."""

    base: float  # 1 with the residual connection, 0 without
    shift: Tensor  # (heads,), on centred arrays
    constant: Tensor  # (heads,), what A_h − shift_h is on constant arrays
    constant_gain: Tensor | None = None  # (d,), what multiplies the output on constant arrays; None: nothing
    centred_gain: Tensor | None = None  # (d,), likewise on centred arrays
    smooth_floor: float = 0.0  # what the smooth radius is raised to before the two are compared
    rough_floor: float = 0.0  # what the rough radius is raised to

    def centred(self, W_O: Tensor) -> Tensor:
        """The output weight that acts on centred arrays."""
        return W_O if self.centred_gain is None else W_O * self.centred_gain


@dataclass(frozen=True)
class Settings:
    """How to search for eigenvalues: the rare settings of `dominance`, which takes them as keywords."""

    method: Method
    tolerance: float
    steps: int | None  # products after which to stop, converged or not; None: as many as needed, up to a limit
    limit: bool | None  # whether to keep the eigenarray; None: where it is cheap
    tie: float  # relative margin below which two radii tie
    seed: int

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        *,
        method: Method = "auto",
        tolerance: float | None = None,
        steps: int | None = None,
        limit: bool | None = None,
        seed: int = 0,
    ) -> Settings:
        """The settings, checked, with the defaults of this precision."""
        arguments.choice(method, "method", METHODS)
        return cls(
            method=method,
            tolerance=check_tolerance(tolerance, dtype),
            steps=None if steps is None else arguments.whole(steps, "steps", least=1),
            limit=None if limit is None else arguments.flag(limit, "limit"),
            tie=TIE[dtype],
            seed=arguments.seed(seed),
        )


@dataclass(frozen=True, kw_only=True)
class Radii:
    """The two radii of every item of a batch, ``(items, ...)``, and how well they are known."""

    rho_smooth: Tensor
    """Radius on constant arrays, from the weights alone."""
    rho_rough: Tensor
    """Radius on centred arrays; 0 with a single token."""
    residual: Tensor
    """‖T_P Z − μ Z‖ of the unit Ritz pair behind rho_rough (one head: A's, times |λ|); 0 if computed directly."""
    mu: Tensor
    """The eigenvalue of modulus rho_rough, complex."""
    mixed: Tensor
    """Whether terms tie with it that differ in both token and feature vector: the limit then has rank two or more."""
    rank_known: Tensor
    """Whether `mixed`, or the array, tells the rank of the limit: not with several heads without the array, nor where
    other eigenvalues are seen to tie. Arnoldi does not see all; several heads are then assumed to have no ties.
    """
    weights_error: Tensor
    """How far rounding may move the eigenvalues of the weights: large where they are nearly defective."""
    error: Tensor
    """How far rho_rough may be off, estimated: its residual and the rounding of attention, times its condition; or how
    much larger it may be where the search stopped before all tokens of causal attention were refined or beaten.
    """
    certified: Tensor
    """Whether it is proven, rounding included, on which side of rho_smooth it lies."""
    doubted: Tensor
    """Whether rho_rough is not known well enough to decide."""
    frozen: Tensor
    """Whether features that no head writes to stay as they are while all others shrink: both radii are 1 (without X
    itself, 0), and input convergence is excluded all the same.
    """
    t: Tensor | None = None
    """One head: the eigenvalue of A behind the larger radius."""
    lam: Tensor | None = None
    """One head: the eigenvalue of H behind it."""
    eigenarray: Tensor | None = None
    """That of mu, ``(..., n, d)`` complex."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Radii:
        """The same with every tensor changed."""
        changed: dict[str, Any] = {name: None if v is None else change(v) for name, v in vars(self).items()}
        return Radii(**changed)

    def scaled(self, size: float) -> Radii:
        """The radii of weights whose product is `size` times larger."""
        lengths = ("rho_smooth", "rho_rough", "residual", "mu", "weights_error", "error", "lam")
        changed: dict[str, Any] = {name: x * size for name in lengths if (x := getattr(self, name)) is not None}
        return replace(self, **changed)

    @staticmethod
    def cat(parts: list[Radii]) -> Radii:
        """Several batches joined into one."""
        columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        known = {name: values for name, values in columns.items() if not any(v is None for v in values)}
        return Radii(**{name: torch.cat(values) for name, values in known.items()})
