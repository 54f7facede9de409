"""What weights alone show of a model in training: spectra of H, and how it is steered."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oversmooth.diagnosis.weights import summarised, why_undecided
from oversmooth.metrics.moments import reducing
from oversmooth.monitor.model import MonitoredModel
from oversmooth.results.facts import plain
from oversmooth.steering import steering_of, verify
from oversmooth.theory.weights import head_spectrum, joined_asymmetry


@reducing
def spectra(model: MonitoredModel) -> dict[str, list[float | None]]:
    """Per block, over the eigenvalues of every head's H: the share with negative real part and the largest |keep + λ|;
    and how far the H of all heads jointly is from symmetric. Layers whose H does not act on the residual stream alone
    have no radius.
    """
    found: dict[str, list[float | None]] = {"negative_share": [], "rho_smooth": [], "asymmetry": []}
    for layer in model.require_anatomy("spectra"):
        W_V, W_O = (W.to(torch.promote_types(W.dtype, torch.float32)) for W in (layer.W_V, layer.W_O))
        heads = summarised(head_spectrum(W_V, W_O).flatten(), layer.keep)
        found["negative_share"].append(heads.negative_share)
        found["rho_smooth"].append(None if why_undecided(layer) else heads.rho_smooth)
        found["asymmetry"].append(plain(joined_asymmetry(W_V, W_O)))
    return found


@reducing
def steering(model: MonitoredModel, *, constraints: bool) -> dict[str, list[float | None] | float]:
    """Of a steered model: the strength in every block. constraints: whether to compute the distance to the flip, and
    whether every constraint holds, which takes eigenvalues.
    """
    record = steering_of(model.module)
    assert record is not None
    found: dict[str, list[float | None] | float] = {}
    layers = list(record.anatomy)
    steered = [record.steered_layer(layer.name) for layer in layers]
    strengths = [None if one is None else _strength(one.parts.values()) for one in steered]
    if any(value is not None for value in strengths):
        found["strength"] = strengths
    if constraints and record.reparametrized:
        checked = verify(model.module)
        margins = {check.index: plain(check.margin) for check in checked.layers if check.margin is not None}
        found |= {"room": [margins.get(index) for index in range(len(layers))], "verified": float(checked.ok)}
    return found


def _strength(parts: object) -> float | None:
    """The mean of those that what is put on a layer has."""
    held = [getattr(part, "strength", None) for part in parts]  # type: ignore[attr-defined]
    known = [float(s.detach().float().mean()) if isinstance(s, Tensor) else float(s) for s in held if s is not None]
    return plain(math.fsum(known) / len(known)) if known else None
