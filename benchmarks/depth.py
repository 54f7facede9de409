"""What predicts the effect of repeating a block: each rule against the block itself, repeated 48 times in float64.

    python benchmarks/depth.py [--models minilm,vit-plain] [--inputs 16] [--json FILE]
    python benchmarks/depth.py --chart FILE.svg | --equal | --bounds

Models are those of `oversmooth gallery` that are installed, and files of `oversmooth train` by their path; of each the
first, middle and last block and the one between the last two. An error is of log(HFC/LFC). Frozen spectra are those of
the last block on one input at a time, as a diagnosis has them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from oversmooth import anatomy, diagnose
from oversmooth.demo.gallery import entries
from oversmooth.models import load
from oversmooth.theory import constant_state
from oversmooth.theory.depth import growth_bounds, log_time, mixing_norm, mlp_lipschitz

DEPTHS = (4, 16, 48)
EQUAL = -28.0
"""Log(HFC/LFC) below which tokens are equal within rounding in float64, and nothing is compared."""
DRAWN = {
    "vit-smooth": ("ViT that smooths (pre-norm)", 1000),
    "deit-tiny": ("DeiT-Tiny (pre-norm)", 1000),
    "minilm": ("MiniLM-L6 (post-norm)", 64),
}
"""Models of the chart, and how often their last block is repeated."""
CACHES = ("past_key_values", "past_key_value")


def log_ratio(x: Tensor, mask: Tensor | None) -> Tensor:
    """log(HFC/LFC), written down once more."""
    weight = torch.ones(x.shape[:2], dtype=x.dtype) if mask is None else mask.to(x.dtype)
    mean = (x * weight[..., None]).sum(1, keepdim=True) / weight.sum(1)[:, None, None]
    high = ((x - mean).square().sum(-1) * weight).sum(1)
    return (high / (mean[:, 0].square().sum(-1) * weight.sum(1))).log() / 2


def blocks(model: nn.Module, inputs: dict[str, Tensor]) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
    """Four blocks in order: name, the block as a function of its tokens, and what it returned for these inputs."""
    names = list(dict.fromkeys(layer.block for layer in anatomy.locate(model).layers))
    last = len(names) - 1
    modules, calls = dict(model.named_modules()), {}
    hooks = [
        modules[name].register_forward_pre_hook(
            lambda _module, args, kwargs, name=name: calls.update({name: (args, kwargs)}), with_kwargs=True
        )
        for name in dict.fromkeys(names[place] for place in (0, last // 2, 3 * last // 4, last))
    ]
    model(**inputs)
    for hook in hooks:
        hook.remove()
    for name, (args, kwargs) in calls.items():
        kwargs = {key: None if key in CACHES else value for key, value in kwargs.items()}
        if "use_cache" in kwargs:
            kwargs["use_cache"] = False

        def block(x: Tensor, name: str = name, args: Any = args, kwargs: Any = kwargs) -> Tensor:
            result = modules[name](x, *args[1:], **kwargs) if args else modules[name](**{**kwargs, "hidden_states": x})
            return result[0] if isinstance(result, tuple) else result

        yield name, block, block(args[0] if args else kwargs["hidden_states"])


def predictions(
    block: Callable[[Tensor], Tensor], x: Tensor, real: Tensor, mask: Tensor | None, to: int
) -> dict[str, Tensor]:
    """log(HFC/LFC) after ``to`` repeats by each rule; real: ``(depths, inputs)``, of which each uses what it says."""
    slope = (real[4] - real[2]) / math.log(2)
    found = {
        "unchanged": real[0],
        "geometric, from 4 blocks": real[4] + (real[4] - real[3]) * (to - 4),
        "linear in log depth, from 4 blocks": real[4] + slope * math.log(max(to, 4) / 4),
    }
    for begin in (8, 16):
        if begin < to:
            steps = log_time(block, x, to, begin=begin, mask=mask)
            name = f"log time from {begin}"
            found[name] = steps.log_hfc_lfc[-1]
            found[f"{name}, if conclusive"] = steps.log_hfc_lfc[-1].where(steps.conclusive, torch.nan)
            found[f"{name}: its own estimate"] = real[to] + steps.error
    return found


def frozen(loaded: Any, inputs: dict[str, Tensor]) -> Tensor:
    """log(ρ_rough/ρ_smooth) of the last block, per input; NaN where there are none."""
    found = []
    for place in range(len(next(iter(inputs.values())))):
        one = {name: value[place : place + 1] for name, value in inputs.items()}
        entry = diagnose(loaded.model, one, ranks=0, joined=0, depth=1).extrapolation[0]
        known = entry.rho_rough and entry.rho_smooth
        found.append(math.log(entry.rho_rough / entry.rho_smooth) if known else math.nan)
    return torch.tensor(found, dtype=torch.float64)


def prepared(key: str, count: int) -> tuple[Any, dict[str, Tensor], Tensor | None]:
    """A model in its own precision, inputs, and which of their tokens are valid."""
    if key in entries():
        loaded, inputs = entries()[key].make()
    else:
        loaded = load(key)
        inputs = loaded.inputs(count=count)
    given = {}
    for name in next(iter(inputs)).inputs:
        parts = [batch.inputs[name] for batch in inputs]
        longest = max(part.shape[1] for part in parts)
        padded = (functional.pad(part, (0, longest - part.shape[1])) if part.ndim == 2 else part for part in parts)
        given[name] = torch.cat(list(padded))[:count]
    return loaded, given, given["attention_mask"].bool() if "attention_mask" in given else None


def in_float64(loaded: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs; the model too."""
    loaded.model.eval().double()
    return {name: value.double() if value.is_floating_point() else value for name, value in given.items()}


def measured(key: str, count: int) -> list[dict[str, Any]]:
    """One row per block, input, depth and rule."""
    loaded, given, mask = prepared(key, count)
    spectra = frozen(loaded, given)
    model, given, rows = loaded.model, in_float64(loaded, given), []
    last = anatomy.locate(model).layers[-1]
    with torch.no_grad():
        for name, block, x in blocks(model, given):
            real, y = [log_ratio(x, mask)], x
            for _ in range(max(DEPTHS)):
                y = block(y)
                real.append(log_ratio(y, mask))
            truth = torch.stack(real)
            for depth in DEPTHS:
                found = predictions(block, x, truth, mask, depth)
                if name == last.block:
                    found["frozen spectra, last block"] = truth[0] + depth * spectra
                for rule, value in found.items():
                    for place, wrong in enumerate((value - truth[depth]).abs().tolist()):
                        if truth[depth, place] < EQUAL or math.isnan(wrong):
                            continue
                        rows.append(
                            dict(
                                model=key,
                                norm=last.norm_position,
                                block=name,
                                depth=depth,
                                rule=rule,
                                input=place,
                                error=round(wrong, 4),
                                change=round(float(truth[depth, place] - truth[0, place]), 4),
                            )
                        )
    return rows


def course(key: str, label: str, deep: int) -> list[dict[str, Any]]:
    """Rows of the chart: the last block on one input, what is predicted from 16 repeats, the rate of nearly equal
    tokens over the last third of log depth, and frozen spectra.
    """
    loaded, given, mask = prepared(key, 1)
    rate = float(frozen(loaded, given)[0])
    with torch.no_grad():
        *_, (_, block, x) = blocks(loaded.model, in_float64(loaded, given))
        found = log_time(block, x, deep, begin=16, mask=mask)
        rate_when_equal = constant_state(block, found.tokens, found.way, mask=mask).rate
        rows, start = [], float(found.log_hfc_lfc[0])
        for depth in range(deep + 1):
            if depth < 16 or depth % 2 ** (depth.bit_length() - 4) == 0 or depth == deep:
                value = float(log_ratio(x, mask))
                rows.append(dict(model=label, kind="the block itself", depth=depth, value=value))
                rows.append(dict(model=label, kind="frozen spectra", depth=depth, value=start + rate * depth))
            x = block(x)
        end = value
        for depth in (deep ** (share / 30) for share in range(20, 31)):
            further = math.log(depth / deep) if found.way == "log time" else depth - deep
            rows.append(dict(model=label, kind=EQUAL_TOKENS, depth=depth, value=end + rate_when_equal * further))
        for depth, value in zip(found.depth.tolist(), found.log_hfc_lfc[:, 0].tolist(), strict=True):
            if depth > 16:
                rows.append(dict(model=label, kind="predicted", depth=depth, value=value))
    return rows


def equal(key: str) -> Iterator[list[str]]:
    """Rows for blocks whose tokens become nearly equal: the rate by the derivative, and as seen over the last doubling
    of 1,000 repeats, behind a norm on the stream over the last eight of as many as float64 resolves.
    """
    loaded, given, mask = prepared(key, 1)
    if any(layer.causal for layer in anatomy.locate(loaded.model).layers):
        return
    with torch.no_grad():
        for name, block, x in blocks(loaded.model, in_float64(loaded, given)):
            found, logs = log_time(block, x, 48, mask=mask), []
            grows = found.way == "log time"
            while len(logs) <= (1000 if grows else 64) and (not logs or logs[-1] > EQUAL):
                logs.append(float(log_ratio(x, mask)))
                x = block(x)
            if logs[-1] < -2:
                begin = (len(logs) - 1) // 2 if grows else len(logs) - 9
                passed = math.log((len(logs) - 1) / begin) if grows else 8
                state = constant_state(block, found.tokens, found.way, mask=mask)
                rate = "undecided" if state.why else f"{state.rate:.2f}"
                yield [key, name, found.way, f"{logs[-1]:.1f}", rate, f"{(logs[-1] - logs[begin]) / passed:.2f}"]


def bounds(key: str) -> list[str]:
    """A row for a pre-norm model: what `growth_bounds` allows D to change by, over all blocks, and what it does.

    Blocks have two norms, two or three linear maps beside attention, GELU or, gated, SiLU.
    """
    loaded, given, _ = prepared(key, 1)
    model, found = loaded.model, anatomy.locate(loaded.model)
    given, sizes, seen = in_float64(loaded, given), {}, []
    parts = []
    for layer in found.layers:
        block = model.get_submodule(layer.block)
        norms = [module for module in block.modules() if "norm" in type(module).__name__.lower()]
        attention = set(model.get_submodule(layer.name).modules())
        linear = [m.weight.mT for m in block.modules() if isinstance(m, nn.Linear) and m not in attention]
        if layer.norm_position != "pre" or len(norms) != 2 or len(linear) not in (2, 3):
            return []
        parts.append((layer, norms, linear))
        for norm in norms:
            norm.register_forward_pre_hook(
                lambda module, args, kind=layer.norm.kind: sizes.update({module: least_sigma(module, args[0], kind)})
            )
        block.register_forward_pre_hook(lambda _module, args: seen.append(farthest(args[0])))
        block.register_forward_hook(lambda _module, _args, out: seen.append(farthest(out)))
    with torch.no_grad():
        model(**given)
        rows = []
        for layer, norms, (*first, W_out) in parts:
            gains = [float(norm.weight.abs().max() / sizes[norm]) for norm in norms]
            gate, W_in = first if len(first) == 2 else (None, first[0])
            ball = float(norms[1].weight.abs().max()) * len(norms[1].weight) ** 0.5
            lipschitz = mlp_lipschitz(W_in, W_out, "gelu" if gate is None else "silu", gate, ball)
            rows.append([float(mixing_norm(layer.W_V, layer.W_O)), lipschitz, *gains])
    table = torch.tensor(rows, dtype=torch.float64).T
    limits, changed = growth_bounds(*table), math.log(seen[-1] / seen[0])
    moved = torch.stack([table[0] * table[2], table[1] * table[3]])
    least = "none" if limits.log_lower[-1].isinf() else f"{float(limits.log_lower[-1]):.1f}"
    shown = (f"{float(row.min()):.2g} to {float(row.max()):.2g}" for row in moved)
    return [key, *shown, least, f"{changed:+.2f}", f"{float(limits.log_upper[-1]):.0f}"]


def least_sigma(norm: nn.Module, x: Tensor, kind: str) -> float:
    x = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    eps = getattr(norm, "eps", None) or getattr(norm, "variance_epsilon", 0.0)
    return float((x.square().mean(-1) + eps).sqrt().min())


def farthest(x: Any) -> float:
    x = x if isinstance(x, Tensor) else x[0]
    return float(torch.cdist(x[0], x[0]).max())


EQUAL_TOKENS = "rate of nearly equal tokens"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel per model."""
    import vl_convert

    x = dict(
        field="depth",
        type="quantitative",
        title="repeats of the last block",
        axis=dict(values=[0, 1, 3, 10, 30, 100, 300, 1000], grid=False),
    )
    y = dict(field="value", type="quantitative", title="log HFC/LFC", axis=dict(gridOpacity=0.4))
    colour = dict(
        field="kind",
        type="nominal",
        title=None,
        legend=dict(orient="bottom"),
        scale=dict(
            domain=["the block itself", "predicted", EQUAL_TOKENS, "frozen spectra"],
            range=["#222", "#c4511d", "#1f77b4", "#7f8fa6"],
        ),
    )
    panels = []
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        least = min(row["value"] for row in own if row["kind"] in ("the block itself", "predicted"))
        most = max(row["value"] for row in own if row["kind"] in ("the block itself", "predicted"))
        air = 0.15 * (most - least)
        deep = max(row["depth"] for row in own)
        along = {**x, "scale": dict(type="symlog", constant=1, domain=[0, deep])}
        scaled = {**y, "scale": dict(domain=[least - air, most + air], nice=False)}
        layers = [
            dict(mark=dict(type="line", clip=True, **look), transform=[dict(filter=f"datum.kind == '{kind}'")])
            for kind, look in (
                ("the block itself", {}),
                ("frozen spectra", dict(strokeDash=[2, 4])),
                (EQUAL_TOKENS, dict(strokeDash=[7, 4], strokeWidth=3)),
            )
        ]
        layers.append(
            dict(mark=dict(type="point", filled=True, size=60), transform=[dict(filter="datum.kind == 'predicted'")])
        )
        panels.append(
            dict(
                title=name,
                width=260,
                height=200,
                data=dict(values=own),
                encoding=dict(x=along, y=scaled, color=colour),
                layer=layers,
            )
        )
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "hconcat": panels,
        "background": "white",
        "config": dict(font="sans-serif", view=dict(stroke=None)),
    }
    data = vl_convert.vegalite_to_png(spec, scale=2) if path.suffix == ".png" else vl_convert.vegalite_to_svg(spec)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def interval(values: list[float]) -> str:
    """Mean and 95 % t interval over models."""
    from scipy import stats

    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.2f} ({max(0.0, mean - half):.2f} to {mean + half:.2f})"


def show(rows: list[dict[str, Any]]) -> None:
    """Pre-norm and post-norm apart: per rule and depth the mean over models of their mean error; then each model."""
    console = Console(width=200)
    for norm in dict.fromkeys(row["norm"] for row in rows):
        own = [row for row in rows if row["norm"] == norm and not math.isnan(row["error"])]
        models = list(dict.fromkeys(row["model"] for row in own))
        rules = list(dict.fromkeys(row["rule"] for row in own if row["depth"] == max(DEPTHS)))
        errors, deepest = defaultdict(list), max(DEPTHS)
        for row in own:
            errors[row["rule"], row["depth"], row["model"]].append(row["error"])
        summary = Table(
            f"{norm}-norm: rule", *(f"{depth} repeats" for depth in DEPTHS), *(f"{m}, {deepest}" for m in models)
        )
        for rule in rules:
            means = [[statistics.mean(errors[rule, d, m]) for m in models if errors[rule, d, m]] for d in DEPTHS]
            each = (errors[rule, deepest, m] for m in models)
            shown = (f"{statistics.mean(c):.2f} (most {max(c):.2f}; {len(c)})" if c else "–" for c in each)
            summary.add_row(rule, *(interval(mean) if mean else "–" for mean in means), *shown)
        console.print(summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(key for key, entry in entries().items() if not entry.missing()))
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path, help="only draw")
    parser.add_argument("--equal", action="store_true", help="only the rates of nearly equal tokens")
    parser.add_argument("--bounds", action="store_true", help="only what the theorem allows")
    given = parser.parse_args()
    if given.bounds:
        shown = Table("model", "w q₁", "L q₂", "log D at least", "log D", "at most")
        for key in given.models.split(","):
            if row := bounds(key):
                shown.add_row(*row)
        Console(width=120).print(shown)
        return
    if given.equal:
        shown = Table("model", "block", "way", "log HFC/LFC", "rate by the derivative", "seen")
        for key in given.models.split(","):
            for row in equal(key):
                shown.add_row(*row)
        Console(width=120).print(shown)
        return
    if given.chart:
        draw([row for key, (label, deep) in DRAWN.items() for row in course(key, label, deep)], given.chart)
        return
    rows = [row for key in given.models.split(",") for row in measured(key, given.inputs)]
    show(rows)
    if given.json:
        given.json.write_text(json.dumps(rows, separators=(",", ":")), encoding="utf-8")


if __name__ == "__main__":
    main()
