"""Spectra of H, layer by layer, from weights alone: of a live model or of a checkpoint that is read as it goes."""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from oversmooth._version import __version__
from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.diagnosis.finished import Finished
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.results.facts import ModelFacts, Number, plain
from oversmooth.results.notes import MOST_NAMES, Note
from oversmooth.results.parts import Eigenvalues, Layer, Spectrum
from oversmooth.safety.errors import about
from oversmooth.theory.bounds import head_verdicts
from oversmooth.theory.reasons import Reason
from oversmooth.theory.small_matrices import eigenvalues
from oversmooth.theory.weights import centre_features, fold_norm, smaller_product, stack_heads

Item = TypeVar("Item")
Result = TypeVar("Result")
_ZERO = 1e-6  # relative: the sign of a zero that centring or rank leaves is rounding
_DIGITS = 6  # enough for any plot, and half the size of the file
_POWERS = np.array([float(10**k) for k in range(23)])  # of ten: those that a float holds exactly
LARGE = 1024
"""Above this size a diagnosis leaves the joined spectrum out: LAPACK takes time with its cube, for one core alone."""


@dataclass(frozen=True)
class Heads:
    """The weights of a layer's heads, in float32 or better, and products of them that have the eigenvalues of H."""

    weights: tuple[Tensor, Tensor] | None
    """W_V ``(kv_heads, d, k)`` and W_O ``(kv_heads, group, k, d)``, of the query heads that share a value head; None:
    they are not kept.
    """
    products: dict[str, Tensor]
    """``(kv_heads, group, m, m)`` on the CPU, of each variant: W_V as it is, and with the norm before it folded in."""
    joint: dict[str, Tensor]
    """The same of the joined H, ``(m, m)``; empty where that is not wanted."""

    @classmethod
    def of(cls, layer: AttentionLayer, *, joined: bool = True) -> Heads:
        # torch has no eigenvalues in half precision; what is stored in it is exact in float32.
        W_V, W_O = (W.to(torch.promote_types(W.dtype, torch.float32)) for W in (layer.shared_W_V, layer.W_O))
        W_O = W_O.unflatten(0, (layer.kv_heads, -1))
        with about(layer.name):
            variants = _variants(W_V, layer)
            joint = variants, W_O.sum(1)
            if layer.layout.packing == "latent" and layer.latent_rank == joined_size(layer):
                E, down = layer.latent_parts
                output = torch.einsum("hkr,hkd->rd", E.to(W_O), joint[1])
                joint = _variants(down.to(W_V).mT[None] * layer.feed, layer), output[None]
            # The heads that share values are one product with them, which copies nothing.
            smaller = "vdm,vgme->vgde" if layer.width < layer.head_dim else "vdm,vgkd->vgkm"
            products = {name: torch.einsum(smaller, V, W_O).cpu() for name, V in variants.items()}
            return cls((W_V, W_O), products, _joint(*joint, layer) if joined else {})

    @cached_property
    def eigenvalues(self) -> dict[str, Tensor]:
        """``(kv_heads, group, m)``, of each variant."""
        return dict(zip(self.products, eigenvalues(torch.stack(list(self.products.values()))), strict=True))


def _variants(W_V: Tensor, layer: AttentionLayer) -> dict[str, Tensor]:
    """W_V ``(heads, d, k)`` as it is, and with the norm before the layer folded in."""
    if layer.norm is None or layer.norm_position != "pre":
        return {"raw": W_V}
    return {"raw": W_V, "folded": fold_norm(W_V, layer.norm.gamma.to(W_V), kind=layer.norm.kind)}


def layer_spectrum(
    layer: AttentionLayer, *, known: Heads | None = None, joined: bool = True, verdicts: bool = False
) -> Spectrum:
    """All spectra of one layer: joined, of all heads together; verdicts, what weights alone decide, per head.
    known: its heads, where they are read already, which say then what is joined.
    """
    heads, keep = known or Heads.of(layer, joined=joined), layer.keep
    together, decided = {name: Eigenvalues(None, None, None) for name in heads.products}, []
    with about(layer.name):
        by_head = {name: _listed(values.flatten(0, 1), keep) for name, values in heads.eigenvalues.items()}
        together |= {name: _listed(v[None], keep, layer.width)[0] for name, v in _all(heads.joint, layer).items()}
        if verdicts and heads.weights is not None and keep and not why_undecided(layer):
            # Per head zeros of H do not count, so only the ratio to what is kept matters; nothing kept is another rule.
            lam = heads.eigenvalues["raw"].to(heads.weights[0].device) / keep
            for V, O, of_group in zip(*heads.weights, lam, strict=True):  # noqa: E741
                decided += head_verdicts(V.expand(len(O), -1, -1), O / keep, bool(layer.causal), of_group)
    raw = together["raw"]
    spectrum = Spectrum(
        negative_share=raw.negative_share,
        mean_real=raw.mean_real,
        rho_smooth=raw.rho_smooth,
        joined=together,
        heads=by_head,
        verdicts=decided,
    )
    return without_radii(spectrum) if why_undecided(layer) else spectrum


def observed(spectrum: Spectrum, layer: AttentionLayer, inverse_sigma: float) -> Spectrum:
    """The same, with what the mean 1/σ of observed tokens makes of it where the norm stands before the layer."""
    joined, heads, keep = dict(spectrum.joined), dict(spectrum.heads), layer.keep
    if "folded" in joined:
        # A factor on W_V is a factor on every eigenvalue.
        zeros = joined_size(layer) < layer.width
        heads["observed"] = _scaled(heads["folded"], inverse_sigma, keep)
        (joined["observed"],) = _scaled([joined["folded"]], inverse_sigma, keep, abs(keep) if zeros else 0.0)
    found = replace(spectrum, joined=joined, heads=heads, inverse_sigma=plain(inverse_sigma))
    return without_radii(found) if why_undecided(layer) else found


def without_radii(spectrum: Spectrum) -> Spectrum:
    """The spectrum without radii, which have no meaning where more than one factor stands between H and the stream."""
    joined = {name: replace(entry, rho_smooth=None) for name, entry in spectrum.joined.items()}
    heads = {name: [replace(entry, rho_smooth=None) for entry in row] for name, row in spectrum.heads.items()}
    return replace(spectrum, rho_smooth=None, joined=joined, heads=heads)


def why_undecided(layer: AttentionLayer) -> Reason | None:
    """Why the theorem says nothing about this layer; None: it applies."""
    if layer.leak is not None:
        return Reason("rows_below_one", detail=layer.leak)
    if layer.values_normed:
        return Reason("values_normed")
    words = layer.mixing or layer.on_branch
    return Reason("other_mixing", detail=words) if words else None


def joined_size(layer: AttentionLayer) -> int:
    """How many eigenvalues of the joined H can differ from zero: as many as value heads have features, or the latent
    features that they are computed from; d at most.
    """
    latent = [layer.latent_rank] if layer.layout.packing == "latent" else []
    return min(layer.width, layer.kv_heads * layer.head_dim, *latent)


def _joint(variants: dict[str, Tensor], output: Tensor, layer: AttentionLayer) -> dict[str, Tensor]:
    """Products with the eigenvalues of the joined H, by its factors ``(heads, d, m)`` and ``(heads, m, d)``: value
    heads, or the latent features as one head where they are fewer.
    """
    # Query heads that share values were added up; taken one by one they would leave zeros whose sign is rounding.
    size, d = joined_size(layer), layer.width
    centred = d > 1 and layer.norm is not None and layer.norm.kind == "layer"
    products = {}
    for name, V in variants.items():
        # C M has M's eigenvalues on features of zero mean, and one zero, which only a product of d by d shows.
        at_rest = name == "folded" and centred and size == d
        V, O = stack_heads(*(centre_features(V, output) if at_rest else (V, output)))  # noqa: E741
        products[name] = smaller_product(V, O).cpu()
    return products


def _all(products: dict[str, Tensor], layer: AttentionLayer) -> dict[str, Tensor]:
    """The eigenvalues of the joined H that can differ from zero, by its products."""
    size, values = joined_size(layer), list(products.values())
    batches = [torch.stack(values)] if len({product.shape for product in values}) == 1 else values
    found = [row for batch in batches for row in eigenvalues(batch).reshape(-1, batch.shape[-1])]
    return {n: torch.cat([v, v.new_zeros(size - len(v))]) for n, v in zip(products, found, strict=True)}


def summarised(values: Tensor, keep: float, size: int = 0) -> Eigenvalues:
    """The summary of a spectrum ``(k,)``, without its eigenvalues. keep: what multiplies the stream; size: of H, where
    its other eigenvalues are zeros that count in ρ_smooth.
    """
    values = values.cpu()
    real = values.real.double()
    return Eigenvalues(
        negative_share=plain((real < -_ZERO * values.abs().max()).double().mean()),
        mean_real=plain(real.mean()),
        rho_smooth=plain((keep + values).abs().max().clamp(min=abs(keep) if len(values) < size else 0.0)),
    )


def _listed(values: Tensor, keep: float, size: int = 0) -> list[Eigenvalues]:
    """The summaries of spectra ``(b, k)``, with their eigenvalues by real part."""
    values = torch.stack([row[row.real.argsort()] for row in values.cpu()])
    rounded = zip(*_rounded(torch.stack([values.real, values.imag]).double()), strict=True)
    return [replace(summarised(row, keep, size), real=r, imag=i) for row, (r, i) in zip(values, rounded, strict=True)]


def _scaled(spectra: list[Eigenvalues], factor: float, keep: float, floor: float = 0.0) -> list[Eigenvalues]:
    real, imag = torch.tensor([[e.real for e in spectra], [e.imag for e in spectra]], dtype=torch.float64) * factor
    radii = torch.complex(keep + real, imag).abs()
    largest: list[Number] = [plain(row.max().clamp(min=floor)) if len(row) else None for row in radii]
    means = [None if e.mean_real is None else plain(e.mean_real * factor) for e in spectra]
    rest = zip(means, largest, *_rounded(torch.stack([real, imag])), strict=True)
    return [Eigenvalues(e.negative_share, *one) for e, one in zip(spectra, rest, strict=True)]


def _rounded(values: Tensor) -> list[Any]:
    """To six digits, as ``float(f"{value:.6g}")`` is, of float64 in any shape."""
    v = values.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        decimals = _DIGITS - 1 - np.floor(np.log10(np.abs(v)))
        power = _POWERS.take(np.where((decimals >= 0) & (decimals < len(_POWERS)), decimals, 0).astype(int))
        scaled = v * power
        whole = np.rint(scaled)
        size, to_tie = np.abs(scaled), np.abs(np.abs(scaled - whole) - 0.5)
    # A whole number over an exact power is rounded once, as text is. Near a tie the product's own rounding may decide.
    known = (size >= 10 ** (_DIGITS - 1)) & (size < 10**_DIGITS) & (to_tie > 1e-9)
    rounded = np.where(known, whole / power, v)
    for at in zip(*np.nonzero(~known & (v != 0)), strict=True):
        rounded[at] = float(f"{v[at]:.{_DIGITS}g}")
    return rounded.tolist()


def facts(name: str, anatomy: Anatomy, layers: int, shared: bool) -> ModelFacts:
    """What weights alone say of a model. layers: how many blocks run; shared: whether any of them are one."""
    first = anatomy.layers[0]
    return {
        "name": name,
        "layout": first.layout.name,
        "stack": anatomy.stack,
        "layers": layers,
        "shared": shared,
        "width": first.width,
        "heads": first.heads,
        "kv_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "causal": first.causal,
        "norm": first.norm_position,
        "norm_kind": first.norm.kind if first.norm is not None else None,
    }


def diagnose_weights(
    name: str,
    anatomy: Anatomy,
    *,
    joined: bool = True,
    memory: Finished[Spectrum] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Everything that weights alone decide. joined: also of all heads together. memory: where finished layers are kept,
    so that a stopped run resumes. progress: called after each layer with (layers done, layers in all).
    """
    started = time.perf_counter()
    done = memory.read() if memory is not None else {}

    def read(layer: AttentionLayer) -> Heads:
        heads = Heads.of(layer, joined=joined)
        with about(layer.name):
            _ = heads.eigenvalues  # found here, beside the joined ones of the layer before
        return heads

    heads = _one_ahead(read, {layer.name: layer for layer in anatomy if layer.name not in done}.values())
    blocks = []
    for index, layer in enumerate(anatomy):
        if layer.name not in done:
            done[layer.name] = layer_spectrum(layer, known=next(heads), joined=joined, verdicts=True)
            if memory is not None:
                memory.add(layer.name, done[layer.name])
        blocks.append(Layer(layer.block or layer.name, {}, spectrum=done[layer.name]))
        if progress is not None:
            progress(index + 1, len(anatomy))
    notes = [Note("anatomy", text=remark) for remark in anatomy.remarks]
    reasons = [(layer.name, why_undecided(layer)) for layer in anatomy]
    for why in dict.fromkeys(why for _, why in reasons if why is not None):
        names = [name for name, other in reasons if other == why]
        notes.append(Note("undecided_layers", len(names), len(anatomy), names=names[:MOST_NAMES], reason=why))
    diagnosis = Diagnosis(
        model=facts(name, anatomy, len(anatomy), anatomy.shared),
        provenance={
            "oversmooth": __version__,
            "torch": str(torch.__version__),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - started, 2),
            "data": "weights alone",
            "inputs": 0,
            "joined": joined,
        },
        layers=[Layer("embedding", {}), *blocks],
        remarks=list(map(str, notes)),
        notes=notes,
    )
    if memory is not None:
        memory.forget()
    return diagnosis


def _one_ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``work(item)`` of each, in order; the next one's is done in a thread meanwhile."""
    # A pool whose threads nobody waits for: an interruption need not wait for what is read over a network.
    with ThreadPool(1) as thread:
        ahead: deque[AsyncResult[Result]] = deque()
        for item in items:
            ahead.append(thread.apply_async(work, (item,)))
            if len(ahead) == 2:
                yield ahead.popleft().get()
        while ahead:
            yield ahead.popleft().get()
