"""Whether spectral constraints hold: computed from the weights that the model uses, not assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering.layer_hooks import LayerHooks
from oversmooth.steering.methods.spectral import CONDITION_LIMIT
from oversmooth.steering.reparametrized import ReparametrizedLayer, bad_numbers
from oversmooth.theory.operators import DenseAttention, is_causal
from oversmooth.theory.small_matrices import finite
from oversmooth.theory.spectrum import flip_threshold
from oversmooth.theory.weights import fold_norm, head_spectrum, joined_spectrum

# Relative to the largest eigenvalue: rounding of weights in this precision moves eigenvalues by about this much.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
# Only the sign of a folded H is checked: a violation smaller than this is rounding.
_SIGN = 1e-3


@dataclass
class LayerCheck:
    """One reparametrized layer."""

    index: int
    name: str
    bounds: tuple[float, float]
    """The constraint on eigenvalues of H: of a head, and summed over query heads that share a value head."""
    heads: list[tuple[float, float]]
    """The least and the greatest real part per head, as computed."""
    joined: tuple[float, float]
    """The same of all heads jointly."""
    coupling: float | None
    """The largest entry of W_O W_V between different value heads: 0 where they decouple, as one V makes them. None
    where heads do not take slices of one V (wiring="code").
    """
    condition: float
    """Of V: 1 where it is orthogonal."""
    folded: tuple[float, float] | None
    """Of all heads jointly, with the norm before and the layer scale after them folded in, which can break the sign;
    None where there is neither.
    """
    flip: float | None = None
    """The sum over query heads that share a value head below which sharpening would turn into smoothing, for the
    attention passed, where the margin is smallest; −1 is safe for any.
    """
    margin: float | None = None
    """How far the least such sum lies above its flip, or above −1 without attention. None as `coupling`."""
    zero_eigenvalues: int = 0
    """Number of features whose sum is 0: they are neither smoothed nor sharpened."""
    problems: list[str] = field(default_factory=list)

    @property
    def outside_when_folded(self) -> bool:
        """Whether H with its norm and layer scale folded in leaves its bounds."""
        (low, high), folded = self.bounds, self.folded
        return folded is not None and (folded[0] < low - _SIGN or folded[1] > high + _SIGN)


@dataclass
class Verification:
    """The result of `verify`: true where every constraint holds."""

    layers: list[LayerCheck]
    problems: list[str]
    """One sentence each; empty where every constraint holds."""

    @property
    def warnings(self) -> list[str]:
        """Where H satisfies its constraint, but not with the norm and layer scale folded in, or does nothing."""
        folded = [
            f"layer {c.index} ({c.name}): with its norm and layer scale H has eigenvalues from {c.folded[0]:.3g} to "
            f"{c.folded[1]:.3g}"
            for c in self.layers
            if c.folded and c.outside_when_folded
        ]
        return folded + [
            f"layer {c.index} ({c.name}): {c.zero_eigenvalues} eigenvalues are 0, which neither smooths nor sharpens"
            for c in self.layers
            if c.zero_eigenvalues
        ]

    @property
    def ok(self) -> bool:
        """Whether every constraint holds."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = "every constraint holds" if self.ok else "; ".join(self.problems)
        rows = [
            f"layer {c.index:>3}  λ in [{min(a for a, _ in c.heads):+.4f}, {max(b for _, b in c.heads):+.4f}]  "
            f"together [{c.joined[0]:+.4f}, {c.joined[1]:+.4f}]  coupling {_shown(c.coupling, '.1e')}  "
            f"margin {_shown(c.margin, '+.4f')}"
            for c in self.layers
        ]
        return "\n".join([head, *rows])

    def summary(self) -> dict[str, Any]:
        """As JSON stores it: None for what is infinite or unknown."""
        layers = [
            {
                "layer": c.index,
                "promised": [_finite(end) for end in c.bounds],
                "least": min(low for low, _ in c.heads),
                "greatest": max(high for _, high in c.heads),
                "joined": list(c.joined),
                "folded": None if c.folded is None else list(c.folded),
                "coupling": c.coupling,
                "condition": _finite(c.condition),
                "flip": _finite(c.flip),
                "room": _finite(c.margin),
                "outside_when_folded": c.outside_when_folded,
                "zero_eigenvalues": c.zero_eigenvalues,
            }
            for c in self.layers
        ]
        return {"ok": self.ok, "problems": self.problems, "doubts": self.warnings, "layers": layers}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _shown(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


@torch.no_grad()
def check_spectra(
    layers: Sequence[ReparametrizedLayer], hooks: Sequence[LayerHooks], attention: dict[str, Tensor]
) -> Verification:
    """Whether the weights in use have the spectra that their constraints demand, as `verify` has it, and what the parts
    in these hooks learn is finite.
    """
    problems = [problem for layer in layers for problem in layer.problems(*layer.rows())]
    for one in hooks:
        for part in one.parts.values():
            problems += bad_numbers(one.index, one.layer.name, dict(part.named_parameters()))
    names = [layer.attention.name for layer in layers]
    for name, A in attention.items():
        if name not in names:
            raise InputError(f"attention names {name}, which is not reparametrized; give {', '.join(names)}")
        heads = layers[names.index(name)].attention.heads
        if A.ndim < 3 or A.shape[-3] != heads:
            raise InputError(f"attention of {name} has shape {tuple(A.shape)}; give (..., {heads}, n, n)")
    checks = [] if problems else [_check(layer, attention.get(layer.attention.name)) for layer in layers]
    return Verification(checks, problems + [problem for check in checks for problem in check.problems])


def _check(layer: ReparametrizedLayer, attention: Tensor | None) -> LayerCheck:
    sizes, method = layer.attention, layer.method
    W_V, W_O = sizes.W_V.double(), sizes.raw_W_O.double()
    spectra, joined = head_spectrum(W_V, W_O), joined_spectrum(W_V, W_O)
    singular = torch.linalg.svdvals(finite(layer.rows()[0].double().flatten(0, 1)))
    one_basis = method.wiring == "paper"
    check = LayerCheck(
        index=layer.index,
        name=sizes.name,
        bounds=method.ends,
        heads=[(float(row.real.min()), float(row.real.max())) for row in spectra],
        joined=(float(joined.real.min()), float(joined.real.max())),
        coupling=_coupling(W_V[:: layer.group], W_O, layer.group) if one_basis else None,
        condition=float(singular.max() / singular.min()),
        folded=_folded(sizes, W_V),
    )
    if one_basis:
        values = (W_O @ W_V).diagonal(dim1=-2, dim2=-1).unflatten(0, (-1, layer.group))
        check.flip, check.margin = _flip_margin(values, attention)
        check.zero_eigenvalues = int((values.sum(1) == 0).sum())
    slack = _ROUNDING[layer.psi.dtype] * max(1.0, float(spectra.abs().max()))
    where = f"layer {layer.index} ({sizes.name})"
    check.problems = [f"{where}: {problem}" for problem in _problems(check, layer, slack)]
    return check


def _problems(check: LayerCheck, layer: ReparametrizedLayer, slack: float) -> list[str]:
    """What is violated by more than the rounding of weights."""
    (low, high), problems = check.bounds, []
    ends = [*check.heads, check.joined]
    least, greatest = min(a for a, _ in ends), max(b for _, b in ends)
    if least < low - slack or greatest > high + slack:
        problems.append(f"eigenvalues from {least:.4g} to {greatest:.4g} violate the constraint [{low:g}, {high:g}]")
    if check.coupling is not None and check.coupling > slack * max(1.0, check.condition):
        problems.append(f"its heads overlap (W_O W_V is {check.coupling:.1e} between them)")
    if check.condition > CONDITION_LIMIT:
        problems.append(f"V is nearly singular (condition number {check.condition:.1e})")
    if low < 0 and layer.method.signs == "one" and check.margin is not None and check.margin < -slack:
        flip = -1.0 if check.flip is None else check.flip
        bound = "−1, below which some attention makes it smooth" if check.flip is None else f"the flip at {flip:.4g}"
        what = "eigenvalue" if layer.group == 1 else f"sum over {layer.group} query heads that share a value head"
        problems.append(f"the least {what}, {flip + check.margin:.4g}, lies below {bound}")
    return problems


def _flip_margin(values: Tensor, attention: Tensor | None) -> tuple[float | None, float]:
    """The flip where the margin is smallest, and the margin.

    The query heads of a group act together on each feature j: as their sum ℓ_j beside the mixture
    ``Σ_q (ℓ_qj/ℓ_j) A_q``, whose flip those of the heads do not bound (THEORY §5).

    Args:
        values: ``(kv_heads, group, k)``: eigenvalues.
        attention: ``(..., heads, n, n)``; None: any.
    """
    sums = values.sum(1)
    if attention is None:
        return None, float(sums.min()) + 1.0
    A = attention.to(values).unflatten(-3, (values.shape[0], values.shape[1]))
    share = values / torch.where(sums == 0, 1.0, sums)[:, None]
    if values.shape[1] == 1:
        flips = flip_threshold(A[..., 0, :, :])[..., None].expand(*A.shape[:-4], *sums.shape)
    else:
        # Feature by feature: all mixtures at once would be as many times larger than attention as a head has features.
        # Sums of 0, and shares of both signs, give no attention; the flip of their spectrum is defined all the same.
        mixtures = (torch.einsum("gq,...gqij->...gij", share[..., j], A) for j in range(sums.shape[-1]))
        flips = torch.stack([flip_threshold(DenseAttention.trusted(B, None, is_causal(B))) for B in mixtures], dim=-1)
        flips = torch.where(sums == 0, -torch.inf, flips)
    margins = (sums - flips).flatten()
    least = int(margins.argmin())
    return float(flips.flatten()[least]), float(margins[least])


def _coupling(W_V: Tensor, W_O: Tensor, group: int) -> float:
    """The largest entry of W_O W_V between different value heads; W_V ``(kv_heads, d, k)``, W_O ``(heads, k, d)``."""
    products = torch.einsum("hkd,gdl->hgkl", W_O, W_V)
    own = torch.arange(len(W_O), device=W_O.device) // group
    products[torch.arange(len(W_O), device=W_O.device), own] = 0.0
    return float(products.abs().max())


def _folded(layer: AttentionLayer, W_V: Tensor) -> tuple[float, float] | None:
    before = layer.norm if layer.norm_position == "pre" else None
    if before is None and layer.scale is None:
        return None
    if before is not None:
        W_V = fold_norm(W_V, before.gamma.to(W_V), kind=before.kind)
    values = joined_spectrum(W_V, layer.W_O.double()).real
    return float(values.min()), float(values.max())
