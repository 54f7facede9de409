"""What was observed, as the layers of a diagnosis: means and spreads over inputs, changes, spectra, dominance."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.diagnosis import weights
from oversmooth.diagnosis.weights import Heads, layer_spectrum, observed, without_radii
from oversmooth.metrics.moments import MASSIVE_RATIO
from oversmooth.results.facts import Numbers, plain
from oversmooth.results.parts import Change, Layer, LayerDominance, MassiveOrigin, Spectrum, share_of_smoothing
from oversmooth.safety.processes import are_joined
from oversmooth.theory.small_matrices import background_pool, one_core_each
from oversmooth.trace import DepthMetrics, Plan, run
from oversmooth.trace.blocks import named_blocks
from oversmooth.trace.feed import ModelInput
from oversmooth.trace.reducers.heads import HeadNumbers
from oversmooth.trace.reducers.sinks import SinkNumbers
from oversmooth.trace.reducers.tokens import SiteKey, TokenNumbers
from oversmooth.trace.valid import LeftOut

Ahead = dict[Any, Future[Spectrum]]  # of weights, by what they depend on


def layers_observed(
    plan: Plan,
    tokens: TokenNumbers,
    heads: HeadNumbers | None,
    sinks: SinkNumbers,
    inputs: int,
    ahead: Ahead,
    *,
    exact: bool,
) -> list[Layer]:
    """What enters the first block, then one entry per block that ran.

    heads: None leaves out spectra, of weights too. inputs: how many there were. ahead: of `spectra_ahead`, or empty.
    exact: whether joined spectra of any size are computed.
    """
    layers = [_layer("embedding", tokens, sinks, (0, -1), inputs)]
    spectra: list[Spectrum | None] = [None] * len(plan.blocks)
    spectra = spectra if heads is None else _spectra(plan, heads, ahead, exact)
    for call, block in enumerate(plan.blocks):
        middle = block.attention_stage
        attention_out = None if middle is None else tokens.at[(call, middle)]
        more: dict[str, Any] = dict(changes=changes(plan, tokens, call), spectrum=spectra[call])
        more["dominance"] = None if heads is None else _dominance(heads, call)
        if attention_out is not None:
            more |= dict(attention_out=means(attention_out), attention_out_spread=spreads(attention_out))
        layers.append(_layer(block.block, tokens, sinks, (call, len(block.stages) - 1), inputs, **more))
    return layers


def massive_origin(plan: Plan, sinks: SinkNumbers) -> MassiveOrigin | None:
    """The first site where at least half as many inputs have a massive token as anywhere."""
    shares = {key: float((one["ratio"] > MASSIVE_RATIO).double().mean()) for key, one in sinks.longest.items()}
    if not (most := max(shares.values(), default=0.0)):
        return None
    keys = list(shares)
    index = next(i for i, key in enumerate(keys) if shares[key] >= most / 2)
    (call, stage), found = keys[index], sinks.longest[keys[index]]
    there = found["ratio"] > MASSIVE_RATIO
    held: Counter[int] = Counter()
    for channel, share in zip(*(found[name][there].flatten().tolist() for name in ("channels", "shares")), strict=True):
        held[int(channel)] += share / int(there.sum())
    channels = held.most_common(found["channels"].shape[1])
    return MassiveOrigin(
        depth=call + (stage >= 0),
        part="enter" if stage < 0 else plan.blocks[call].stages[stage].part,
        position=Counter(found["position"][there].long().tolist()).most_common(1)[0][0],
        before=plain(sinks.longest[keys[index - 1]]["ratio"].mean(), 4) if index else None,
        after=plain(found["ratio"].mean(), 4),
        input_share=plain(shares[keys[index]], 4),
        channels=[channel for channel, _ in channels],
        channel_share=plain(sum(share for _, share in channels), 4),
    )


@contextmanager
def spectra_ahead(plan: Plan, device: torch.device) -> Iterator[Ahead]:
    """Begin the spectra of weights on cores that the block leaves idle.

    Weights are read here, before it: while the model runs they may be moved or computed. What waits is their products.
    """
    ahead: Ahead = {}
    with background_pool() as pool:
        if pool is not None:
            for key, layer in _different(plan)[1].items():
                with torch.autocast(device.type, enabled=False):
                    known = Heads.of(layer, joined=weights.joined_size(layer) <= weights.LARGE)
                ahead[key] = pool.submit(layer_spectrum, layer, known=dataclasses.replace(known, weights=None))
        yield ahead


def _different(plan: Plan) -> tuple[list[Any], dict[tuple[object, ...], AttentionLayer]]:
    """What the spectrum of weights depends on, by call of a block; and by that the layers, their norms as observed."""
    keys, layers = list[Any](), {}
    for block in plan.blocks:
        if block.layer is None:
            keys.append(None)
            continue
        seen, factor = block.norm_position if block.norm_agrees else "none", block.layer.factor
        shown = tuple(factor.flatten().tolist()) if isinstance(factor, Tensor) else factor
        keys.append((block.layer.name, block.layer.keep, seen, shown))
        layers[keys[-1]] = dataclasses.replace(block.layer, norm_position=seen)
    return keys, layers


def _spectra(plan: Plan, heads: HeadNumbers, ahead: Ahead, exact: bool) -> list[Spectrum | None]:
    """Of H, by call of a block: layers side by side."""
    keys, layers = _different(plan)

    def spectrum(layer: AttentionLayer) -> Spectrum:
        return layer_spectrum(layer, joined=exact or weights.joined_size(layer) <= weights.LARGE)

    # Sharded weights are gathered by all processes, in one order.
    each = [] if ahead else (map if are_joined() else one_core_each)(spectrum, layers.values())
    found = {key: one.result() for key, one in ahead.items()} or dict(zip(layers, each, strict=True))
    spectra = [None if key is None else found[key] for key in keys]
    for call, (block, one) in enumerate(zip(plan.blocks, spectra, strict=True)):
        sigma = heads.inverse_sigma.get(call)
        if one is not None and sigma is not None and block.norm_agrees:
            spectra[call] = one = observed(one, layers[keys[call]], float(sigma.mean()))
        if one is not None and block.why_undecided:
            spectra[call] = without_radii(one)
    return spectra


def layers_of_blocks(
    model: nn.Module, inputs: ModelInput | Iterable[ModelInput], pattern: str, ranks: int, left_out: LeftOut | None
) -> tuple[list[Layer], list[int], int]:
    """Of a model whose attention is unknown: what enters the first block, then one entry per run of a block; the tokens
    of each input; features of a token.

    pattern: the names of its blocks, such as "layers.*". ranks: inputs whose ranks are computed, the first ones.
    left_out: tokens that are measured nowhere.
    """
    plan = Plan.of_names(dict.fromkeys(named_blocks(model, pattern)))
    facts = run(model, inputs, plan, [depths := DepthMetrics(ranks=ranks, exact=True)], left_out=left_out).facts
    layers = []
    for depth, name in enumerate(["embedding", *(block.block for block in plan.blocks)]):
        columns = depths.by_input(depth)
        columns["hfc_lfc"] = columns["log_hfc_lfc"].exp()
        layers.append(Layer(name, means(columns), spreads(columns)))
    return layers, facts.lengths.tolist(), facts.width


def _layer(name: str, found: TokenNumbers, sinks: SinkNumbers, key: SiteKey, inputs: int, **more: Any) -> Layer:
    here = found.at[key]
    without = means(found.without_massive[key]) if key in found.massive else None
    more["roles"] = {role: means(columns) for role, columns in sinks.roles.get(key, {}).items()}
    return Layer(
        name, means(here), spreads(here), without_massive=without, massive=_massive(found, key, inputs), **more
    )


def changes(plan: Plan, tokens: TokenNumbers, call: int) -> list[Change]:
    """What each part of a block did; call: how many blocks ran before it."""
    entry = (call, -1)
    if entry not in tokens.at:
        entry = (call - 1, len(plan.blocks[call - 1].stages) - 1)
    before, out = tokens.at[entry], []
    for index, stage in enumerate(plan.blocks[call].stages):
        after = tokens.at[(call, index)]
        change, hfc, lfc = (after[name] - before[name] for name in ("log_hfc_lfc", "log_hfc", "log_lfc"))
        out.append(Change(stage.part, plain(change.mean()), _spread(change), plain(hfc.mean()), plain(lfc.mean())))
        before = after
    return out


def _dominance(heads: HeadNumbers, call: int) -> LayerDominance | None:
    if call not in heads.rho_rough:
        return None
    verdicts = heads.verdict[call]
    cases = [v for row in verdicts for v in row]
    rows, certified = heads.joined.get(call, []), heads.certified.get(call)
    reasons = heads.undecided_because.get(call, [])
    return LayerDominance(
        smoothing_share=None if (share := share_of_smoothing(cases)) is None else plain(share),
        rho_rough=plain(sum(row[2] for row in rows) / len(rows)) if rows else None,
        rho_smooth_heads=[plain(v) for v in heads.rho_smooth[call].mean(0).tolist()],
        rho_rough_heads=[[plain(v, 6) for v in row] for row in heads.rho_rough[call].tolist()],
        verdict_heads=verdicts,
        joined_inputs=[row[0] for row in rows],
        joined_rho_smooth=[plain(row[1]) for row in rows],
        joined_rho_rough=[plain(row[2]) for row in rows],
        joined_verdict=[row[3] for row in rows],
        joined_residual=[plain(row[4], 3) for row in rows],
        undecided_share=None if certified is None else plain(sum(v == "undecided" for v in cases) / len(cases)),
        certified_share=None if certified is None else plain(sum(certified) / len(cases)),
        undecided_because=list(map(str, reasons)),
        undecided_reasons=reasons,
    )


def means(columns: dict[str, Tensor]) -> Numbers:
    """By metric, of ``(inputs,)`` numbers each."""
    return {name: plain(values.mean()) for name, values in sorted(columns.items())}


def spreads(columns: dict[str, Tensor]) -> Numbers:
    """Standard deviations over inputs; None for a single one."""
    return {name: _spread(values) for name, values in sorted(columns.items())}


def _spread(values: Tensor) -> float | None:
    return plain(values.std()) if len(values) > 1 else None


def _massive(found: TokenNumbers, key: SiteKey, inputs: int) -> dict[str, Any] | None:
    tokens = found.massive.get(key)
    if not tokens:
        return None
    positions = Counter(position for _, position, _ in tokens)
    often = sorted(positions, key=lambda p: (-positions[p], p))[:5]
    return {
        "input_share": plain(len({i for i, _, _ in tokens}) / inputs),
        "tokens": found.massive_count[key],
        "positions": {str(p): positions[p] for p in often},
        "largest_ratio": plain(max(ratio for _, _, ratio in tokens)),
    }
