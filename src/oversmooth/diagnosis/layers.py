"""What was observed, as the layers of a diagnosis: means and spreads over inputs, changes, spectra, dominance."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from oversmooth.diagnosis.facts import Numbers, plain
from oversmooth.diagnosis.parts import Change, Layer, LayerDominance, Spectrum, share_of_smoothing
from oversmooth.diagnosis.weights import layer_spectrum, without_radii
from oversmooth.observe import Found, SeenBlock


def layers_observed(blocks: list[SeenBlock], found: Found) -> list[Layer]:
    entering = found.tokens[(0, -1)]
    layers = [
        Layer(
            "embedding",
            _means(entering),
            _spreads(entering),
            without_massive=_without(found, (0, -1)),
            massive=_massive(found, (0, -1)),
        )
    ]
    spectra: dict[tuple[object, ...], Spectrum] = {}
    for call, block in enumerate(blocks):
        end, middle = (call, len(block.stages) - 1), block.attention_stage
        tokens, attention_out = found.tokens[end], None if middle is None else found.tokens[(call, middle)]
        sigma = found.inverse_sigma.get(call)
        inverse = float(sigma.mean()) if sigma is not None and block.norm_agrees else None
        factor = block.layer.factor
        shown = tuple(factor.flatten().tolist()) if isinstance(factor, Tensor) else factor
        key = (block.layer.name, block.layer.keep, block.undecided, shown)
        if key not in spectra or inverse is not None:
            seen = block.norm_position if block.norm_agrees else "none"
            spectrum = layer_spectrum(dataclasses.replace(block.layer, norm_position=seen), inverse_sigma=inverse)
            spectra = {key: without_radii(spectrum) if block.undecided else spectrum}
        layers.append(
            Layer(
                name=block.layer.block,
                tokens=_means(tokens),
                spread=_spreads(tokens),
                attention_out=None if attention_out is None else _means(attention_out),
                attention_out_spread=None if attention_out is None else _spreads(attention_out),
                without_massive=_without(found, end),
                massive=_massive(found, end),
                changes=_changes(blocks, found, call),
                spectrum=spectra[key],
                dominance=_dominance(found, call),
            )
        )
    return layers


def _changes(blocks: list[SeenBlock], found: Found, call: int) -> list[Change]:
    entry = (call, -1)
    if entry not in found.tokens:
        entry = (call - 1, len(blocks[call - 1].stages) - 1)
    before, out = found.tokens[entry], []
    for place, stage in enumerate(blocks[call].stages):
        after = found.tokens[(call, place)]
        change = after["log_hfc_lfc"] - before["log_hfc_lfc"]
        out.append(
            Change(
                part=stage.part,
                log_hfc_lfc=plain(change.mean()),
                spread=_spread(change),
                log_hfc=plain((after["log_hfc"] - before["log_hfc"]).mean()),
                log_lfc=plain((after["log_lfc"] - before["log_lfc"]).mean()),
            )
        )
        before = after
    return out


def _dominance(found: Found, call: int) -> LayerDominance | None:
    if call not in found.rho_rough:
        return None
    verdicts = found.verdict[call]
    cases = [v for row in verdicts for v in row]
    rows = found.joined.get(call, [])
    return LayerDominance(
        smoothing_share=None if (share := share_of_smoothing(cases)) is None else plain(share),
        rho_rough=plain(sum(row[2] for row in rows) / len(rows)) if rows else None,
        rho_smooth_heads=[plain(v) for v in found.rho_smooth[call].mean(0).tolist()],
        rho_rough_heads=[[plain(v, 6) for v in row] for row in found.rho_rough[call].tolist()],
        verdict_heads=verdicts,
        joined_inputs=[row[0] for row in rows],
        joined_rho_smooth=[plain(row[1]) for row in rows],
        joined_rho_rough=[plain(row[2]) for row in rows],
        joined_verdict=[row[3] for row in rows],
        joined_residual=[plain(row[4]) for row in rows],
        undecided_share=plain(sum(v == "undecided" for v in cases) / len(cases)) if call in found.certified else None,
        certified_share=plain(sum(found.certified[call]) / len(cases)) if call in found.certified else None,
        undecided_because=found.undecided_because.get(call, []),
    )


def _means(columns: dict[str, Tensor]) -> Numbers:
    return {name: plain(values.mean()) for name, values in sorted(columns.items())}


def _spreads(columns: dict[str, Tensor]) -> Numbers:
    return {name: _spread(values) for name, values in sorted(columns.items())}


def _spread(values: Tensor) -> float | None:
    return plain(values.std()) if len(values) > 1 else None


def _without(found: Found, site: tuple[int, int]) -> Numbers | None:
    return _means(found.without_massive[site]) if site in found.massive else None


def _massive(found: Found, site: tuple[int, int]) -> dict[str, Any] | None:
    tokens = found.massive.get(site)
    if not tokens:
        return None
    positions: dict[int, int] = {}
    for _, position, _ in tokens:
        positions[position] = positions.get(position, 0) + 1
    often = sorted(positions, key=lambda p: (-positions[p], p))[:5]
    return {
        "input_share": plain(len({i for i, _, _ in tokens}) / found.inputs),
        "tokens": len(tokens),
        "positions": {str(p): positions[p] for p in often},
        "largest_ratio": plain(max(ratio for _, _, ratio in tokens)),
    }
