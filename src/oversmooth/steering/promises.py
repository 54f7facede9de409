"""Whether the promised spectrum holds: computed from the weights that the model uses, not assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering.methods.spectral import CONDITION_LIMIT
from oversmooth.steering.reparametrized import ReparametrizedLayer, bad_numbers
from oversmooth.steering.sites import Site
from oversmooth.theory.operators import DenseAttention, is_causal
from oversmooth.theory.small_matrices import finite
from oversmooth.theory.spectrum import flip_threshold
from oversmooth.theory.weights import fold_norm, head_spectrum, joined_spectrum

# Relative to the largest eigenvalue: rounding of weights in this precision moves eigenvalues by about this much.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
# Only the sign of a folded H is checked: what is nearer to the promise than this is rounding.
_SIGN = 1e-3


@dataclass
class LayerCheck:
    """One reparametrized layer."""

    index: int
    name: str
    promised: tuple[float, float]
    """Bounds of the eigenvalues of H: of a head, and summed over query heads that share a value head."""
    heads: list[tuple[float, float]]
    """The least and the greatest real part per head, as computed."""
    imaginary: float
    """The largest imaginary part: rounding, for a symmetric H."""
    joined: tuple[float, float]
    """The same of all heads together."""
    coupling: float
    """The largest entry of W_O W_V between different value heads: 0 where they decouple, as one V makes them."""
    condition: float
    """Of V: 1 where it is orthogonal."""
    folded: tuple[float, float] | None
    """Of all heads as the stream meets them: with the norm before and the layer scale after them, which can break the
    sign; None where there is neither.
    """
    flip: float | None = None
    """The sum over query heads that share a value head below which sharpening would turn into smoothing, for the
    attention that was seen, where there is least room; −1 is safe for any.
    """
    room: float | None = None
    """How far the least such sum lies above its flip, or above −1 where no attention was seen. None where that is
    unknown, as heads do not take slices of one V (wiring="code").
    """
    still: int = 0
    """Number of features whose sum is 0: they are neither smoothed nor sharpened."""
    problems: list[str] = field(default_factory=list)

    @property
    def outside_when_folded(self) -> bool:
        """Whether H as the stream meets it leaves the promised range."""
        (low, high), folded = self.promised, self.folded
        return folded is not None and (folded[0] < low - _SIGN or folded[1] > high + _SIGN)


@dataclass
class Verification:
    """The result of `verify`: true where every promise holds."""

    layers: list[LayerCheck]
    problems: list[str]
    """One sentence each; empty where every promise holds."""

    @property
    def doubts(self) -> list[str]:
        """Where H keeps its promise, but not as the stream meets it, or does nothing."""
        folded = [
            f"layer {c.index} ({c.name}): with its norm and layer scale H has eigenvalues from {c.folded[0]:.3g} to "
            f"{c.folded[1]:.3g}"
            for c in self.layers
            if c.folded and c.outside_when_folded
        ]
        return folded + [
            f"layer {c.index} ({c.name}): {c.still} eigenvalues are 0, which neither smooths nor sharpens"
            for c in self.layers
            if c.still
        ]

    @property
    def ok(self) -> bool:
        """Whether every promise holds."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = "every promise holds" if self.ok else "; ".join(self.problems)
        rows = [
            f"layer {c.index:>3}  λ in [{min(a for a, _ in c.heads):+.4f}, {max(b for _, b in c.heads):+.4f}]  "
            f"together [{c.joined[0]:+.4f}, {c.joined[1]:+.4f}]  coupling {c.coupling:.1e}  "
            f"room {'unknown' if c.room is None else f'{c.room:+.4f}'}"
            for c in self.layers
        ]
        return "\n".join([head, *rows])

    def summary(self) -> dict[str, Any]:
        """As JSON stores it: None for what is infinite or unknown."""
        layers = [
            {
                "layer": c.index,
                "promised": [_finite(end) for end in c.promised],
                "least": _finite(min(low for low, _ in c.heads)),
                "greatest": _finite(max(high for _, high in c.heads)),
                "joined": [_finite(end) for end in c.joined],
                "folded": None if c.folded is None else [_finite(end) for end in c.folded],
                "coupling": _finite(c.coupling),
                "condition": _finite(c.condition),
                "flip": _finite(c.flip),
                "room": _finite(c.room),
                "outside_when_folded": c.outside_when_folded,
                "zero_eigenvalues": c.still,
            }
            for c in self.layers
        ]
        return {"ok": self.ok, "problems": self.problems, "doubts": self.doubts, "layers": layers}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@torch.no_grad()
def kept(layers: Sequence[ReparametrizedLayer], sites: Sequence[Site], attention: dict[str, Tensor]) -> Verification:
    """Whether the weights in use have the spectra that these layers promise.

    Args:
        layers: those that are reparametrized.
        sites: where methods act, whose parameters must be finite.
        attention: ``(..., heads, n, n)`` by the name of the layer.

    Raises:
        InputError: attention is given for another layer, or has another shape.
    """
    problems = [problem for layer in layers for problem in layer.bad_numbers()]
    for site in sites:
        for part in site.parts.values():
            problems += bad_numbers(site.index, site.layer.name, dict(part.named_parameters()))
    names = [layer.shape.name for layer in layers]
    for name, A in attention.items():
        if name not in names:
            raise InputError(f"attention is given for {name}, which is not reparametrized; give {', '.join(names)}")
        heads = layers[names.index(name)].shape.heads
        if A.ndim < 3 or A.shape[-3] != heads:
            raise InputError(f"attention of {name} has shape {tuple(A.shape)}; give (..., {heads}, n, n)")
    checks = [] if problems else [_check(layer, attention.get(layer.shape.name)) for layer in layers]
    return Verification(checks, problems + [problem for check in checks for problem in check.problems])


def _check(layer: ReparametrizedLayer, attention: Tensor | None) -> LayerCheck:
    shape, method = layer.shape, layer.method
    rows, back = layer.rows()
    if not bool(rows.isfinite().all() and back.isfinite().all()):
        nan = float("nan")
        problem = f"layer {layer.index} ({shape.name}): the columns of V depend on each other; go back to a checkpoint"
        unknown = (nan, nan)
        return LayerCheck(
            layer.index, shape.name, method.ends, [unknown], nan, unknown, nan, torch.inf, None, problems=[problem]
        )
    dtype = layer.psi.dtype
    W_V, W_O = shape.W_V.double(), shape.raw_W_O.double()
    group = layer.group
    low, high = method.ends
    spectra = head_spectrum(W_V, W_O)
    joined = joined_spectrum(W_V, W_O)
    by_head = [(float(row.real.min()), float(row.real.max())) for row in spectra]
    singular = torch.linalg.svdvals(finite(rows.double().flatten(0, 1)))
    check = LayerCheck(
        index=layer.index,
        name=shape.name,
        promised=(low, high),
        heads=by_head,
        imaginary=float(spectra.imag.abs().max()),
        joined=(float(joined.real.min()), float(joined.real.max())),
        coupling=_coupling(W_V[::group], W_O, group) if method.wiring == "paper" else float("nan"),
        condition=float(singular.max() / singular.min()),
        folded=_folded(shape, W_V),
    )
    if method.wiring == "paper":
        values = (W_O @ W_V).diagonal(dim1=-2, dim2=-1).unflatten(0, (-1, group))
        check.flip, check.room = _room(values, attention)
        check.still = int((values.sum(1) == 0).sum())
    size = max(1.0, float(spectra.abs().max()))
    slack = _ROUNDING[dtype] * size
    where = f"layer {layer.index} ({shape.name})"
    least, greatest = min(a for a, _ in [*by_head, check.joined]), max(b for _, b in [*by_head, check.joined])
    if least < low - slack or greatest > high + slack:
        check.problems.append(
            f"{where}: eigenvalues from {least:.4g} to {greatest:.4g} were promised within [{low:g}, {high:g}]"
        )
    if check.coupling > slack * max(1.0, check.condition):
        check.problems.append(f"{where}: its heads overlap (W_O W_V is {check.coupling:.1e} between them)")
    if check.condition > CONDITION_LIMIT:
        check.problems.append(f"{where}: V is nearly singular (condition number {check.condition:.1e})")
    if method.ends[0] < 0 and method.signs == "one" and check.room is not None and check.room < -slack:
        flip = -1.0 if check.flip is None else check.flip
        bound = "−1, below which some attention makes it smooth" if check.flip is None else f"the flip at {flip:.4g}"
        what = "eigenvalue" if group == 1 else f"sum over {group} query heads that share a value head"
        check.problems.append(f"{where}: the least {what}, {flip + check.room:.4g}, lies below {bound}")
    return check


def _room(values: Tensor, attention: Tensor | None) -> tuple[float | None, float]:
    """The flip where there is least room, and the room.

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
    room = (sums - flips).flatten()
    least = int(room.argmin())
    return float(flips.flatten()[least]), float(room[least])


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
