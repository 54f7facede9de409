"""Spectral (Dovonon et al., 2024): H reparametrized so that its eigenvalues have a chosen sign or interval (THEORY §5).

With W_V = V and W_O = Λ V⁻¹ every head's H has the eigenvalues in its slice of Λ. All heads take slices of one V: so
they decouple, and what holds for one head holds for all together. The free parameters are Θ, of which V is made, and ψ,
of which Λ is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.steering.methods import orthogonal
from oversmooth.steering.methods.base import Method, register

Mode = Literal["sharpen", "smooth"]
# V of the general form is refused from this condition number on: float32 weights have lost half their digits there. Its
# 1-norm, which is cheap, may exceed it by the number of features.
CONDITION_LIMIT = 1e4
_CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("sharpen", "smooth"),
    "form": ("symmetric", "general"),
    "signs": ("one", "fixed", "free"),
    "orthogonal": orthogonal.MAPS,
    "wiring": ("paper", "code"),
    "start": ("warm", "cold"),
}
# Bounded eigenvalues come near their bound and never reach it; a warm start stops at this share of it.
_NEAR_ONE = 1 - 1e-3
# Of the largest eigenvalue: a warm start leaves none smaller.
_LEAST = 1e-3


@register
@dataclass(frozen=True)
class Spectral(Method):
    """``H = V Λ V⁻¹`` with Λ of one sign: negative to sharpen, positive to smooth.

    Args:
        mode: "sharpen" or "smooth".
        form: "symmetric" has V orthogonal and Λ = ∓ψ²; "general" has any invertible V and ψ clipped to `interval`.
        bounded: symmetric: ``ψ²/(1 + Σψ²/bound)``, the sum over query heads that share a value head. |λ| stays below
            `bound`; below 1, sharpening cannot flip back to smoothing.
        bound: of |λ|, where `bounded`.
        signs: symmetric: "one" as mode says; "fixed" has λ = sψ², each sign s as it began (random when cold, the
            weights' own when warm) and mode without effect; "free" has λ = ψ, begun as "fixed" is. Controls: the form
            without the constraint.
        interval: general: the ends of the clipping; by default [−1, 0] to sharpen, [0, 1] to smooth; in place of mode.
        orthogonal: how V is made of Θ: "qr" (the paper's), "cayley" or "exp".
        wiring: "paper" is ``x V`` then ``(·) Λ Vᵀ``; "code", the authors' early code, ``x Vᵀ`` then ``(·) V Λ``: all
            heads together have H = Λ, with the same signs, but the heads do not decouple.
        start: "warm" from the model's weights, as near as the form allows; "cold" as the paper initialises.
        seed: of a cold start.
        check_passes: check for NaN, and for V about to become singular, in every forward pass, and stop there.
    """

    mode: Mode = "sharpen"
    form: Literal["symmetric", "general"] = "symmetric"
    bounded: bool = False
    bound: float = 1.0
    signs: Literal["one", "fixed", "free"] = "one"
    interval: tuple[float, float] | None = None
    orthogonal: orthogonal.Map = "qr"
    wiring: Literal["paper", "code"] = "paper"
    start: Literal["warm", "cold"] = "warm"
    seed: int = 0
    check_passes: bool = False

    place = "weights"
    renamed: ClassVar[dict[str, str]] = {"range": "interval", "verify": "check_passes"}
    why_no_fold = ""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            arguments.choice(getattr(self, name), name, choices)
        arguments.whole(self.seed, "seed", most=2**63 - 1)
        arguments.flag(self.bounded, "bounded")
        arguments.number(self.bound, "bound", "give a positive number", least=sys.float_info.min)
        if self.bound != 1 and not self.bounded:
            raise InputError(f"bound is {self.bound:g} but the form has none; give bounded=True as well")
        arguments.flag(self.check_passes, "check_passes")
        if self.interval is not None:
            if self.form != "general":
                interval = self.interval or "empty"
                raise InputError(f"interval is {interval} but form is {self.form!r}; an interval needs form='general'")
            remedy = "give its two ends, the lower first, such as (-1, 0), or form='symmetric' for one sign"
            ends = arguments.several(self.interval, "interval", remedy)
            if len(ends) != 2 or not ends[0] < ends[1]:
                raise InputError(f"interval is {self.interval!r}; {remedy}")
            object.__setattr__(self, "interval", ends)
        if self.signs != "one" and (self.bounded or self.form == "general"):
            raise InputError(f"signs is {self.signs!r}, which constrains no sign; leave bounded and form as they are")
        if self.form == "general" and (self.bounded or self.wiring == "code" or self.orthogonal != "qr"):
            raise InputError("form='general' has no orthogonal V; leave bounded, orthogonal and wiring as they are")

    @property
    def ends(self) -> tuple[float, float]:
        """Bounds of the eigenvalues, summed over query heads that share a value head."""
        if self.interval is not None:
            return self.interval
        if self.signs != "one":
            return (-torch.inf, torch.inf)
        top = self.bound if self.bounded else 1.0 if self.form == "general" else torch.inf
        return (-top, 0.0) if self.mode == "sharpen" else (0.0, top)

    def always_shown(self) -> tuple[str, ...]:
        return () if self.interval is not None or self.signs != "one" else ("mode",)  # these stand in place of it

    def refusal(self, layer: AttentionLayer, anatomy: Anatomy) -> str | None:
        if (why := super().refusal(layer, anatomy)) is not None:
            return why
        inner = layer.kv_heads * layer.head_dim
        if inner > layer.width:
            return (
                f"its {layer.kv_heads} value heads of {layer.head_dim} features exceed the {layer.width} of a token: "
                "no V has that many independent columns"
            )
        if self.wiring == "code" and (inner != layer.width or layer.kv_heads != layer.heads):
            return "wiring='code' needs as many value features as a token has, and no shared value heads"
        return None

    def V(self, free: Tensor, base: Tensor | None) -> Tensor:
        """V ``(layers, d, m)`` from Θ ``(layers, d, m)``, or from the ``d(d−1)/2`` entries of a skew-symmetric matrix,
        which rotates base ``(layers, d, d)``.
        """
        if self.form == "general":
            return free
        if self.orthogonal == "qr":
            return orthogonal.orthonormal(free)
        assert base is not None
        turn = orthogonal.cayley if self.orthogonal == "cayley" else orthogonal.exponential
        return (base.double() @ turn(orthogonal.skew(free, base.shape[-1]))).to(free.dtype)

    def eigenvalues(self, psi: Tensor, group: int, signs: Tensor | None = None) -> Tensor:
        """Λ from ψ, ``(layers, heads, k)`` each. group: query heads per value head; signs: where they are fixed."""
        if self.signs == "free":
            return psi
        if self.form == "general":
            low, high = self.ends
            return psi.clamp(low / group, high / group)  # a group's sum then lies between the ends
        square = psi.square()
        if self.bounded:
            square = square / (1 + _group_sum(square, group) / self.bound)
        if self.signs == "fixed":
            assert signs is not None, "they are kept beside ψ"
            return signs * square
        return -square if self.mode == "sharpen" else square

    def psi(self, eigenvalues: Tensor, group: int) -> Tensor:
        """The inverse of `eigenvalues`, for Λ that it can give."""
        if self.form == "general" or self.signs == "free":
            return eigenvalues
        square = eigenvalues.abs()
        if self.bounded:
            square = square / (1 - _group_sum(square, group) / self.bound)
        return square.sqrt()

    def nearest(self, eigenvalues: Tensor, group: int) -> Tensor:
        """The nearest Λ ``(heads, k)`` that this form has."""
        low, high = self.ends
        if self.form == "general":
            return eigenvalues.clamp(low / group, high / group)
        return self._within_bounds(eigenvalues.clamp(min=low, max=high), group)

    def _within_bounds(self, clipped: Tensor, group: int) -> Tensor:
        if self.bounded:
            nearest = _NEAR_ONE * self.bound
            clipped = clipped * (nearest / _group_sum(clipped.abs(), group).clamp(min=nearest))
        return clipped

    def with_gradient(self, eigenvalues: Tensor, group: int) -> Tensor:
        """Eigenvalues that clipping left at zero, moved slightly away: ψ² has no gradient at ψ = 0."""
        if self.form == "general" or self.signs == "free":
            return eigenvalues
        size = eigenvalues.abs()
        least = _LEAST * size.max().clamp(min=_LEAST)
        size = torch.where(size < _LEAST * least, least, size)
        if self.signs == "fixed":
            return torch.where(eigenvalues < 0, -size, size)
        return self._within_bounds(-size if self.mode == "sharpen" else size, group)

    def weights(self, V: Tensor, eigenvalues: Tensor, kv_heads: int) -> tuple[Tensor, Tensor]:
        """Rows of the value and of the output weight: ``(layers, kv_heads, k, d)`` and ``(layers, heads, k, d)``."""
        heads, k = eigenvalues.shape[-2:]
        if self.wiring == "code":
            rows = V.unflatten(-2, (heads, k))
            return rows, rows * eigenvalues.flatten(-2)[..., None, None, :]
        back = orthogonal.left_inverse(V, CONDITION_LIMIT * V.shape[-2]).to(V.dtype) if self.form == "general" else V.mT
        back = back.unflatten(-2, (kv_heads, k)).repeat_interleave(heads // kv_heads, dim=-3)
        return V.mT.unflatten(-2, (kv_heads, k)), eigenvalues[..., None] * back


def _group_sum(x: Tensor, group: int) -> Tensor:
    """``(..., heads, k)``: the sum over query heads that share a value head, at each of them."""
    if group == 1:
        return x
    return x.unflatten(-2, (-1, group)).sum(-2).repeat_interleave(group, dim=-2)
