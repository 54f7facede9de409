"""Spectra of H, layer by layer, from weights alone: of a live model or of a checkpoint that is read as it goes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.diagnosis import Eigenvalues, Number, Spectrum, plain
from oversmooth.theory.weights import fold_norm, head_spectrum, joined_spectrum

_DIGITS = 6  # enough for any plot, and half the size of the file


def layer_spectrum(
    layer: AttentionLayer, *, inverse_sigma: float | None = None, joined: bool = True, heads: bool = True
) -> Spectrum:
    """All spectra of one layer. inverse_sigma: the mean 1/σ of observed tokens, where the norm stands before it."""
    W_V, W_O = layer.W_V, layer.W_O
    # Half precision has no eigenvalues; what is stored in it is exact in float32.
    W_V, W_O = (W.to(torch.promote_types(W.dtype, torch.float32)) for W in (W_V, W_O))
    variants = {"raw": W_V}
    if layer.norm is not None and layer.norm_position == "pre":
        variants["folded"] = fold_norm(W_V, layer.norm.gamma.to(W_V), kind=layer.norm.kind)
    by_head = {name: [_eigenvalues(row) for row in head_spectrum(V, W_O)] if heads else [] for name, V in variants.items()}
    together = {name: _eigenvalues(_all(V, W_O)) if joined else _nothing() for name, V in variants.items()}
    if inverse_sigma is not None and "folded" in variants:
        # A factor on W_V is a factor on every eigenvalue.
        by_head["observed"] = [_scaled(e, inverse_sigma) for e in by_head["folded"]]
        together["observed"] = _scaled(together["folded"], inverse_sigma)
    raw = together["raw"]
    return Spectrum(
        negative_share=raw.negative_share,
        mean_real=raw.mean_real,
        rho_smooth=raw.rho_smooth,
        joined=together,
        heads=by_head,
        inverse_sigma=None if inverse_sigma is None else plain(inverse_sigma),
    )


def spectra(anatomy: Anatomy, *, joined: bool = True) -> Iterator[tuple[AttentionLayer, Spectrum]]:
    """Layer after layer; a shared layer's spectrum is computed once."""
    known: dict[str, Spectrum] = {}
    for layer in anatomy:
        if layer.name not in known:
            known = {layer.name: layer_spectrum(layer, joined=joined)}
        yield layer, known[layer.name]


def _all(W_V: Tensor, W_O: Tensor) -> Tensor:
    values = joined_spectrum(W_V, W_O)
    d = W_V.shape[-2]
    # Heads that do not span all features leave zeros, which are eigenvalues of the joined H like any other.
    return torch.cat([values, values.new_zeros(d - len(values))]) if len(values) < d else values


def _eigenvalues(values: Tensor) -> Eigenvalues:
    values = values.cpu()
    order = values.real.argsort()
    values = values[order]
    real, imag = values.real.double(), values.imag.double()
    return Eigenvalues(
        negative_share=plain((real < 0).double().mean()),
        mean_real=plain(real.mean()),
        rho_smooth=plain((1 + values).abs().max()),
        real=[_rounded(v) for v in real.tolist()],
        imag=[_rounded(v) for v in imag.tolist()],
    )


def _scaled(spectrum: Eigenvalues, factor: float) -> Eigenvalues:
    real, imag = (torch.tensor(part, dtype=torch.float64) * factor for part in (spectrum.real, spectrum.imag))
    largest: Number = plain(torch.complex(1 + real, imag).abs().max()) if len(real) else None
    mean = None if spectrum.mean_real is None else plain(spectrum.mean_real * factor)
    return Eigenvalues(
        spectrum.negative_share, mean, largest, [_rounded(v) for v in real.tolist()], [_rounded(v) for v in imag.tolist()]
    )


def _nothing() -> Eigenvalues:
    return Eigenvalues(None, None, None)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
