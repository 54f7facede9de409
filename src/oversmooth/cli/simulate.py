"""`oversmooth simulate`: prediction and measurement on random tokens."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import app, out, progress_bar
from oversmooth.safety.errors import InputError


class NormChoice(StrEnum):
    none = "none"
    pre = "pre"
    post = "post"


_of_layers = partial(typer.Option, rich_help_panel="Layers and tokens")
_of_norm = partial(typer.Option, rich_help_panel="Variants")


@app.command()
def simulate(
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="smoothing, sharpening, flip or no-residual; cases for all four; post-ln+, post-ln-, pre-ln+ or "
            "pre-ln-; figure4 for those four (Dovonon et al.). Other options override its settings.",
            show_default="cases",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the random tokens and weights.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Chart to write: .png, .svg, .pdf, .html (interactive) or .json (numbers).",
        ),
    ] = None,
    tokens: Annotated[int | None, _of_layers(metavar="N", help="Number of tokens, n.")] = None,
    width: Annotated[int | None, _of_layers(metavar="N", help="Features per token, d.")] = None,
    heads: Annotated[int | None, _of_layers(metavar="N", help="Attention heads, which share the width.")] = None,
    layers: Annotated[int | None, _of_layers(metavar="N", help="How often the layer is applied.")] = None,
    draws: Annotated[int | None, _of_layers(metavar="N", help="Random draws; curves show their mean.")] = None,
    eigenvalues: Annotated[
        tuple[float, float] | None, _of_norm(metavar="LOW HIGH", help="Range of H's eigenvalues.")
    ] = None,
    residual: Annotated[
        bool | None, _of_norm("--residual/--no-residual", help="Add the layer's output to X. Without: replace X.")
    ] = None,
    norm: Annotated[
        NormChoice | None, _of_norm(metavar="NAME", help="LayerNorm before the layer (pre), after it (post), or none.")
    ] = None,
    gamma: Annotated[float | None, _of_norm(metavar="X", help="Gamma of the norm, such as 1 or -1.")] = None,
    neutreno: Annotated[float | None, _of_norm(metavar="X", help="Strength of NeuTRENO's term, such as 0.6.")] = None,
    causal: Annotated[
        bool | None, _of_norm("--causal/--bidirectional", help="Whether later tokens are masked.")
    ] = None,
) -> None:
    """Predict from spectra what depth does to random tokens, apply the layers, and compare."""
    from oversmooth.report import simulation
    from oversmooth.theory import toy as cases

    chosen = dict(
        tokens=tokens,
        width=width,
        heads=heads,
        layers=layers,
        eigenvalues=eigenvalues,
        residual=residual,
        norm=None if norm is None else norm.value,
        gamma=gamma,
        neutreno=neutreno,
        causal=causal,
        draws=draws,
        seed=seed,
    )
    if output is not None:
        simulation.check(output)
    if preset is None:
        shapes_the_case = any(
            chosen[name] is not None for name in ("eigenvalues", "residual", "norm", "gamma", "neutreno")
        )
        preset, start = (
            (cases.OWN, [cases.ToyModel(cases.OWN)]) if shapes_the_case else ("cases", cases.PRESETS["cases"])
        )
    elif preset in cases.PRESETS:
        start = cases.PRESETS[preset]
    else:
        raise InputError(f"unknown preset {preset!r}; choose one of {', '.join(cases.PRESETS)}")
    settings = cases.with_options(start, **chosen)

    outcomes = []
    with progress_bar("layers") as bars:
        for case in settings:
            task = bars.add_task(case.name, total=case.layers)
            outcomes.append(case.run(lambda done, task=task: bars.update(task, completed=done)))  # type: ignore[misc]
    case = settings[0]
    title = (
        f"{preset}: {case.tokens} tokens, width {case.width}, {case.heads} head{'s' if case.heads > 1 else ''}, "
        f"{'causal, ' if case.causal else ''}{case.layers} layers, "
        + (f"mean of {case.draws} draws from seed {case.seed}" if case.draws > 1 else f"seed {case.seed}")
    )
    out.print(title, style="bold")
    out.print("pred.: by the spectra · obs.: by applying the layers · agree: on input convergence")
    course, answers, end = simulation.tables(outcomes)
    out.print(course)
    out.print("Predicted by definition", style="bold")
    out.print(answers)
    out.print(f"After {case.layers} layers", style="bold")
    out.print(end)
    for remark in simulation.remarks(outcomes):
        out.print(remark)
    if output is not None:
        simulation.save(outcomes, output, title)
        out.print(f"wrote {output}")
