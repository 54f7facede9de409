"""A made-up diagnosis with plausible numbers everywhere, for tests of what is drawn from one."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from typing import Any

import numpy

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.results.facts import Numbers, plain
from oversmooth.results.parts import (
    Change,
    Course,
    Eigenvalues,
    Extrapolation,
    Layer,
    LayerDominance,
    OneInput,
    Picture,
    Spectrum,
)
from oversmooth.results.spans import Span, Spans

MASSIVE = {"input_share": 0.75, "tokens": 9, "positions": {"0": 6, "57": 3}, "largest_ratio": 41.3}
VARIANTS = {"raw": 1.0, "folded": 1.25, "observed": 1.9}


def example(
    name: str = "tiny vit",
    layers: int = 12,
    heads: int = 3,
    head_dim: int = 64,
    inputs: int = 8,
    seed: int = 0,
    post_norm: bool = False,
) -> Diagnosis:
    """`layers` blocks after the embedding; massive tokens from the middle on."""
    draw = numpy.random.default_rng(seed)
    depth = numpy.arange(layers + 1) / max(layers, 1)
    wobble = numpy.cumsum(draw.normal(0, 0.06, layers + 1))
    log_ratio = 1.3 - (1.6 + 0.4 * seed % 1.1) * depth**0.8 + 0.5 * depth**6 + wobble
    found = [Layer("embedding", _tokens(log_ratio[0], draw), _spread(draw))]
    for i in range(1, layers + 1):
        massive = i > layers / 2
        spectrum, rho_heads = _spectrum(draw, heads, head_dim, depth[i])
        found.append(
            Layer(
                name=f"encoder.layer.{i - 1}",
                tokens=_tokens(log_ratio[i] + 0.7 * massive, draw),
                spread=_spread(draw),
                attention_out=_tokens(log_ratio[i] - 0.1, draw),
                attention_out_spread=_spread(draw),
                without_massive=_tokens(log_ratio[i], draw) if massive else None,
                massive=dict(MASSIVE) if massive else None,
                changes=_changes(log_ratio[i] - log_ratio[i - 1], draw, post_norm),
                spectrum=spectrum,
                dominance=_dominance(draw, inputs, rho_heads, spectrum.rho_smooth or 1.0, depth[i]),
            )
        )
    model = {
        "name": name, "class": "VisionTransformer", "layers": layers, "heads": heads, "width": heads * head_dim,
        "norm": "post" if post_norm else "pre", "dtype": "float32",
    }  # fmt: skip
    provenance = {
        "oversmooth": "0.1.0", "torch": "2.11.0", "created": "2025-01-31T12:00:00+00:00", "seed": seed,
        "data": "made-up images", "inputs": inputs, "tokens": [197, 197], "variant": "raw", "seconds": 1.5,
        "counting_rule": "one maximum over all pairs", "massive_rule": "norm over 10 times the median", "top1": None,
    }  # fmt: skip
    return Diagnosis(
        model=model,
        provenance=provenance,
        layers=found,
        extrapolation=[_extrapolation(what, float(log_ratio[-1]), draw) for what in ("last block", "stack")],
        verdict=[
            f"Measured: HFC/LFC goes from {math.exp(log_ratio[0]):.2f} to {math.exp(log_ratio[-1]):.2f} over "
            f"{layers} blocks; attention lowers it in most of them and the MLP raises it again.",
            "Predicted: in the spectra of A and H the smoothing eigenvalue dominates in the later blocks only.",
            "The two part in blocks where the MLP outweighs attention.",
        ],
        remarks=[
            "Massive-activation tokens were found from the middle on; every curve is given with and without them.",
            "ρ rough was taken over a sample of 2 inputs.",
        ],
        one_input=one_input(draw, layers, heads),
    )


def spans(layers: int) -> Spans:
    """Spans of up to two blocks, with an effect below 0 among them."""
    places = [(first, first + more) for more in (0, 1) for first in range(1, layers + 1 - more)]
    found = [
        Span(i, j, 0.1 * i, 0.2 / j, [], drop=i - 1.1 * j, drop_error=0.1, repeat=j / i, repeat_error=None)
        for i, j in places
    ]
    return Spans("KL", None, "first token", 8, found)


def held(text: str, part: str) -> Any:
    """What a page holds: its "diagnoses", or what is "drawn"."""
    (found,) = re.findall(rf'<script type="text/plain" id="{part}">(.*?)</script>', text, re.DOTALL)
    return json.loads(zlib.decompress(base64.b64decode(found), -zlib.MAX_WBITS))


def rows_of(spec: Any) -> list[dict[str, Any]]:
    """All rows of data in a chart's description."""
    if isinstance(spec, list):
        return [row for part in spec for row in rows_of(part)]
    if not isinstance(spec, dict):
        return []
    if "values" in spec and "mark" not in spec:
        return [row for row in spec["values"] if isinstance(row, dict)]
    return [row for part in spec.values() for row in rows_of(part)]


def one_input(draw: numpy.random.Generator, layers: int, heads: int, grid: tuple[int, int] | None = (3, 4)) -> OneInput:
    """A class token and a few patches that grow alike; words where there is no grid."""
    groups = 13 if grid else 9

    def coded(values: numpy.ndarray) -> str:
        return base64.b64encode(values.round().clip(0, 255).astype("uint8").tobytes()).decode()

    pairs = groups * (groups - 1) // 2
    cosines = [draw.uniform(-0.2, 0.4, pairs) + 0.5 * depth / max(layers, 1) for depth in range(layers + 1)]
    return OneInput(
        what="image 3",
        kind="image" if grid else "text",
        tokens=groups,
        groups=groups,
        grid=list(grid) if grid else None,
        leading=1 if grid else 0,
        labels=[] if grid else [f"word{i}" for i in range(groups)],
        picture=Picture(8, 6, coded(draw.uniform(0, 255, 3 * 48))) if grid else None,
        similarity=[coded(127 * (1 + values)) for values in cosines],
        received=[coded(draw.uniform(0, 255, heads * groups)) for _ in range(layers)],
        received_most=[0.25] * layers,
    )


def _tokens(log_ratio: float, draw: numpy.random.Generator) -> Numbers:
    cosine = 1 / (1 + math.exp(2 * log_ratio)) + draw.normal(0, 0.01)
    return {
        "hfc_lfc": plain(math.exp(log_ratio)),
        "log_hfc_lfc": plain(log_ratio - 0.02),
        "log_hfc": plain(4 + log_ratio),
        "log_lfc": plain(4.0),
        "cos": plain(cosine),
        "abs_cos": plain(cosine + 0.05),
        "effective_rank": plain(30 + 60 / (1 + math.exp(-log_ratio))),
        "stable_rank": plain(1 + 3 / (1 + math.exp(-log_ratio))),
        "sigma_ratio": plain(0.7 / (1 + math.exp(-log_ratio))),
        "rank_one_distance": plain(0.9 / (1 + math.exp(-log_ratio))),
        "hfc_lfc_spectral": plain(0.6 * math.exp(log_ratio)),
    }


def _spread(draw: numpy.random.Generator) -> Numbers:
    sizes = {"log_hfc_lfc": 0.12, "hfc_lfc": 0.2, "cos": 0.03, "abs_cos": 0.03, "effective_rank": 4.0}
    sizes |= {"stable_rank": 0.2, "sigma_ratio": 0.04}
    return {k: plain(v * draw.uniform(0.6, 1.4)) for k, v in sizes.items()}


def _changes(total: float, draw: numpy.random.Generator, post_norm: bool) -> list[Change]:
    attention = -0.25 + draw.normal(0, 0.08)
    parts = {"attention": attention, "mlp": total - attention}
    if post_norm:
        parts["norm"] = draw.normal(0, 0.03)
    return [
        Change(part, plain(value), plain(abs(draw.normal(0, 0.04))), plain(value / 2), plain(-value / 2))
        for part, value in parts.items()
    ]


def _eigenvalues(values: numpy.ndarray) -> Eigenvalues:
    return Eigenvalues(
        negative_share=plain((values.real < 0).mean()),
        mean_real=plain(values.real.mean()),
        rho_smooth=plain(abs(1 + values).max()),
        real=[plain(x) or 0.0 for x in values.real],
        imag=[plain(x) or 0.0 for x in values.imag],
    )


def _spectrum(
    draw: numpy.random.Generator, heads: int, head_dim: int, depth: float
) -> tuple[Spectrum, list[float | None]]:
    width = heads * head_dim

    def pairs(count: int, scale: float) -> numpy.ndarray:
        half = scale * numpy.sqrt(draw.uniform(0, 1, count // 2)) * numpy.exp(1j * draw.uniform(0, math.pi, count // 2))
        real = scale * draw.uniform(-1, 1, count % 2)
        return numpy.concatenate([half, half.conj(), real]) + 0.15 * scale * (2 * depth - 1)

    joined = {k: _eigenvalues(pairs(width, v * (0.4 + 0.6 * depth))) for k, v in VARIANTS.items()}
    single = {
        k: [_eigenvalues(pairs(head_dim, v * draw.uniform(0.2, 0.8))) for _ in range(heads)]
        for k, v in VARIANTS.items()
    }
    raw = joined["raw"]
    spectrum = Spectrum(raw.negative_share, raw.mean_real, raw.rho_smooth, joined, single, inverse_sigma=0.74)
    return spectrum, [e.rho_smooth for e in single["raw"]]


def _verdict(smooth: float, rough: float) -> str:
    return "tie" if abs(smooth - rough) < 2e-3 else "smooth" if smooth > rough else "rough"


def _dominance(
    draw: numpy.random.Generator, inputs: int, rho_heads: list[float | None], rho_smooth: float, depth: float
) -> LayerDominance:
    rough = [[(r or 1.0) + draw.normal(0.03 - 0.08 * depth, 0.05) for r in rho_heads] for _ in range(inputs)]
    verdicts = [[_verdict(s or 1.0, r) for s, r in zip(rho_heads, row, strict=True)] for row in rough]
    sample = [rho_smooth + draw.normal(0.1 - 0.25 * depth, 0.02) for _ in range(min(2, inputs))]
    flat = [v for row in verdicts for v in row]
    return LayerDominance(
        smoothing_share=plain(flat.count("smooth") / max(len(flat), 1)),
        rho_rough=plain(sum(sample) / max(len(sample), 1)),
        rho_smooth_heads=rho_heads,
        rho_rough_heads=[[plain(x) for x in row] for row in rough],
        verdict_heads=verdicts,
        joined_inputs=list(range(len(sample))),
        joined_rho_smooth=[rho_smooth for _ in sample],
        joined_rho_rough=[plain(x) for x in sample],
        joined_verdict=[_verdict(rho_smooth, x) for x in sample],
        joined_residual=[1e-6 for _ in sample],
    )


def _extrapolation(what: str, start: float, draw: numpy.random.Generator) -> Extrapolation:
    smooth = what == "last block"
    real = [start - 0.4 * math.log1p(x) / 3 + draw.normal(0, 0.03) for x in range(17)]
    beyond = [real[-1] - 0.1 * math.log(x / 16) for x in (16, 32, 48)]
    return Extrapolation(
        what=what,
        input=0,
        rho_smooth=1.61 if smooth else None,
        rho_rough=1.497 if smooth else None,
        verdict="smooth" if smooth else "",
        residual=3e-7 if smooth else None,
        variant="observed" if smooth else "",
        real=Course([float(x) for x in range(17)], [plain(x) for x in real]),
        predicted=Course([16.0, 32.0, 48.0], [plain(x) for x in beyond]) if smooth else None,
        way="log time" if smooth else "",
        error=0.02 if smooth else None,
        checked=0.01 if smooth else None,
        growth=1.9 if smooth else None,
        conclusive=smooth,
    )
