"""What the two ways of computing radii, `one_head` and `several_heads`, take and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from oversmooth.theory.spectrum import Method


@dataclass(frozen=True)
class AttentionChange:
    """What is done to attention: ``A' = gain · A − shift · I − mean · J``, J all 1/n; one number a head, ``(heads,)``.

    Constant arrays stay constant under A', times ``gain − shift − mean``; on centred ones J is nothing. So the theory
    of A holds for A', with other eigenvalues.
    """

    gain: Tensor
    shift: Tensor
    mean: Tensor
    source: bool = False
    """Whether something is added at every layer that differs between tokens, such as NeuTRENO's V⁰."""
    constant_gain: Tensor | None = None
    centred_gain: Tensor | None = None
    """What the layer's output is multiplied by, ``(d,)`` each, on constant and on centred arrays, as FeatScale does;
    None for nothing.
    """

    @classmethod
    def none(cls, heads: int) -> AttentionChange:
        return cls(torch.ones(heads), torch.zeros(heads), torch.zeros(heads))

    @property
    def constant(self) -> Tensor:
        """The eigenvalue of A' on constant arrays."""
        return self.gain - self.shift - self.mean

    def __matmul__(self, other: AttentionChange) -> AttentionChange:
        """This change of attention that gets values scaled by other's gain (`other` changes values alone)."""
        scale = other.gain
        return AttentionChange(
            self.gain * scale,
            self.shift * scale,
            self.mean * scale,
            self.source or other.source,
            self.constant_gain,
            self.centred_gain,
        )


@dataclass(frozen=True)
class Update:
    """``X ↦ base · X + Σ_h (A_h − shift_h) X W_V^h W_O^h`` on centred arrays, base 1 with residual connection; on
    constant ones ``constant_h`` stands for A_h − shift_h.
    """

    base: float
    shift: Tensor
    constant: Tensor
    constant_gain: Tensor | None = None
    centred_gain: Tensor | None = None
    """What the output is multiplied by, ``(d,)`` each, on constant and on centred arrays; None for nothing."""

    def centred(self, W_O: Tensor) -> Tensor:
        """The output weight as centred arrays meet it."""
        return W_O if self.centred_gain is None else W_O * self.centred_gain


@dataclass(frozen=True)
class Search:
    """How to look for eigenvalues."""

    method: Method
    tolerance: float
    steps: int | None
    """Arnoldi steps at most, and take what they give; None: as many as it takes, within reason."""
    limit: bool | None
    """Whether to keep the eigenarray; None: where it is cheap."""
    seed: int
    smooth_floor: float = 0.0
    rough_floor: float = 0.0
    """What the radii are raised to before they are compared."""


@dataclass(frozen=True)
class Radii:
    """The two radii of every item of a batch, ``(items, ...)``, and what stands behind the rough one."""

    rho_smooth: Tensor
    rho_rough: Tensor
    residual: Tensor
    mu: Tensor
    """The eigenvalue of modulus rho_rough, complex."""
    mixed: Tensor
    """Whether terms tie with it that differ in token and in feature vector: the limit then has rank two or more."""
    rank_known: Tensor
    """Whether `mixed`, or the array, tells the rank of the limit."""
    weights_error: Tensor
    """How far rounding may move the eigenvalues of the weights: large where they are nearly defective."""
    error: Tensor
    """How far rho_rough may be off, by what is estimated of rounding in A and of the search."""
    certified: Tensor
    """Whether it is proven on which side of rho_smooth it lies."""
    doubted: Tensor
    """Whether that was to be proven, and was not."""
    frozen: Tensor
    """Whether both radii are `base` for features that no head writes to, and all others shrink."""
    t: Tensor | None = None
    """One head: the eigenvalue of A behind the larger radius, and"""
    lam: Tensor | None = None
    """that of H."""
    array: Tensor | None = None
    """The eigenarray of mu, ``(..., n, d)`` complex."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Radii:
        """The same with every tensor changed."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {name: None if v is None else change(v) for name, v in values.items()}
        return Radii(**changed)

    def scaled(self, size: float) -> Radii:
        """Of weights whose product is so many times larger."""
        if size == 1:
            return self
        lengths = ("rho_smooth", "rho_rough", "residual", "mu", "weights_error", "error")
        changed: dict[str, Any] = {name: getattr(self, name) * size for name in lengths}
        return replace(self, lam=None if self.lam is None else self.lam * size, **changed)

    @staticmethod
    def cat(parts: list[Radii]) -> Radii:
        """Several batches in a row."""
        columns = {f.name: [getattr(p, f.name) for p in parts] for f in fields(Radii)}
        joined: dict[str, Any] = {
            name: None if any(v is None for v in values) else torch.cat(values) for name, values in columns.items()
        }
        return Radii(**joined)


def real_and_imaginary(linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A real linear map applied to a complex array."""
    return torch.complex(linear(x.real), linear(x.imag))
