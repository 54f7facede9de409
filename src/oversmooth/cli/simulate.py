"""`oversmooth simulate`: prediction and measurement on random tokens."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from oversmooth.cli.app import app, option, options_in, out, progress_bar
from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    from oversmooth.theory.toy import ToyModel


NormChoice = StrEnum("NormChoice", ["none", "pre", "post"])
_layer, _variant = options_in("Layers and tokens"), options_in("Variants")
_PRESET = (
    "smoothing, sharpening, flip or no-residual; cases for all four; post-ln+, post-ln-, pre-ln+ or pre-ln-; figure4 "
    "for those four (Dovonon et al.). Other options override its settings. Blocks with norms, an MLP and attention "
    "recomputed: power-law, geometric, rotation or sink; blocks for all four."
)
_OUTPUT = "Chart to write: .png, .svg, .pdf, .html (interactive) or .json (numbers)."
_MOST_REPEATS = 100_000
_NORM = "LayerNorm before the layer (pre), after it (post), or none."


@app.command()
def simulate(
    preset: Annotated[str | None, option("NAME", _PRESET, show_default="cases")] = None,
    seed: Annotated[int | None, option("N", "Seed of the random tokens and weights.")] = None,
    output: Annotated[Path | None, option("FILE", _OUTPUT, "--output", "-o")] = None,
    tokens: Annotated[int | None, _layer("N", "Number of tokens, n.")] = None,
    width: Annotated[int | None, _layer("N", "Features per token, d.")] = None,
    heads: Annotated[int | None, _layer("N", "Attention heads, which share the width.")] = None,
    layers: Annotated[int | None, _layer("N", "How often the layer is applied.")] = None,
    draws: Annotated[int | None, _layer("N", "Random draws; curves show their mean.")] = None,
    eigenvalues: Annotated[tuple[float, float] | None, _variant("LOW HIGH", "Range of H's eigenvalues.")] = None,
    residual: Annotated[bool | None, _variant(None, "Add the layer's output to X. Without: replace X.")] = None,
    norm: Annotated[NormChoice | None, _variant("NAME", _NORM)] = None,
    gamma: Annotated[float | None, _variant("X", "Gamma of the norm, such as 1 or -1.")] = None,
    neutreno: Annotated[float | None, _variant("X", "Strength of NeuTRENO's term, such as 0.6.")] = None,
    causal: Annotated[
        bool | None, _variant(None, "Whether later tokens are masked.", "--causal/--bidirectional")
    ] = None,
) -> None:
    """Predict from spectra what depth does to random tokens, apply the layers, and compare."""
    from oversmooth.demo import blocks
    from oversmooth.report import simulation
    from oversmooth.theory import toy as cases

    own = dict(eigenvalues=eigenvalues, residual=residual, norm=norm and norm.value, gamma=gamma, neutreno=neutreno)
    sizes = dict(tokens=tokens, width=width, heads=heads, layers=layers, causal=causal, draws=draws, seed=seed)
    if preset in blocks.PRESETS:
        others = {**own, **sizes, "layers": None, "seed": None}
        _repeat(preset, seed, layers, output, any(value is not None for value in others.values()))
        return
    if output is not None:
        simulation.check(output)
    if preset is not None and preset not in cases.PRESETS:
        raise InputError(f"unknown preset {preset!r}; choose one of {', '.join([*cases.PRESETS, *blocks.PRESETS])}")
    if preset is None and any(value is not None for value in own.values()):
        preset, start = cases.OWN, [cases.ToyModel(cases.OWN)]
    else:
        preset = preset or "cases"
        start = cases.PRESETS[preset]
    settings = cases.with_options(start, **sizes, **own)

    outcomes = []
    with progress_bar("layers") as bars:
        for case in settings:
            task = bars.add_task(case.name, total=case.layers)
            outcomes.append(case.run(lambda done, task=task: bars.update(task, completed=done)))  # type: ignore[misc]
    title = f"{preset}: {_in_words(settings[0])}"
    out.print(title, style="bold")
    out.print("pred.: by the spectra · obs.: by applying the layers · agree: on input convergence")
    headings = ("", "Predicted by definition", f"After {settings[0].layers} layers")
    for heading, table in zip(headings, simulation.tables(outcomes), strict=True):
        if heading:
            out.print(heading, style="bold")
        out.print(table)
    for remark in simulation.remarks(outcomes):
        out.print(remark)
    if output is not None:
        simulation.save(outcomes, output, title)
        out.print(f"wrote {output}")


def _repeat(preset: str, seed: int | None, layers: int | None, output: Path | None, others: bool) -> None:
    """Blocks with norms, repeated."""
    from oversmooth.demo import blocks
    from oversmooth.safety.files import check_writable

    if others:
        raise InputError(f"the preset {preset!r} takes --seed, --layers and --output alone; leave the others out")
    if layers is not None and not 16 <= layers <= _MOST_REPEATS:
        raise InputError(f"layers is {layers:,}; a block is repeated 16 to {_MOST_REPEATS:,} times")
    if output is not None:
        check_writable(output, blocks.ENDINGS)
    title = f"{preset}: {'blocks' if preset == 'blocks' else 'a block'} repeated {(repeats := layers or 1000):,} times"
    found = blocks.PRESETS[preset] if seed is None else [replace(one, seed=seed) for one in blocks.PRESETS[preset]]
    entries = [block.run(repeats) for block in found]
    out.print(title, style="bold")
    out.print(blocks.table(entries))
    out.print("growth: of token norms, a repeat · predicted: from the first 32 repeats (geometric: 16)")
    for remark in blocks.remarks(entries):
        out.print(remark)
    if output is not None:
        blocks.save(entries, output, title)
        out.print(f"wrote {output}")


def _in_words(case: ToyModel) -> str:
    heads, causal = f"{case.heads} head{'s' if case.heads > 1 else ''}", "causal, " if case.causal else ""
    draws = f"mean of {case.draws} draws from seed {case.seed}" if case.draws > 1 else f"seed {case.seed}"
    return f"{case.tokens} tokens, width {case.width}, {heads}, {causal}{case.layers} layers, {draws}"
