"""`oversmooth simulate`: prediction beside outcome on random tokens."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import app, out, progress_bar
from oversmooth.safety.errors import InputError


class NormChoice(StrEnum):
    none = "none"
    pre = "pre"
    post = "post"


@app.command()
def simulate(
    preset: Annotated[
        str | None,
        typer.Option(
            help="cases (the default: the four below together), smoothing, sharpening, flip, no-residual; figure4 (of "
            "Dovonon et al., four together), post-ln+, post-ln-, pre-ln+, pre-ln-. Other options change it."
        ),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="The number of tokens, n.")] = None,
    width: Annotated[int | None, typer.Option(help="The number of features of a token, d.")] = None,
    heads: Annotated[int | None, typer.Option(help="The number of attention heads, which share the width.")] = None,
    layers: Annotated[int | None, typer.Option(help="How often the layer is applied.")] = None,
    eigenvalues: Annotated[
        tuple[float, float] | None, typer.Option(metavar="LOW HIGH", help="The range of H's eigenvalues.")
    ] = None,
    residual: Annotated[
        bool | None, typer.Option("--residual/--no-residual", help="Add the layer to X, or replace X.")
    ] = None,
    norm: Annotated[
        NormChoice | None, typer.Option(help="Where LayerNorm stands: before the layer, after it, or nowhere.")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="The gamma of the norm, such as 1 or -1.")] = None,
    neutreno: Annotated[float | None, typer.Option(help="The strength of NeuTRENO's term, such as 0.6.")] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--bidirectional", help="Hide later tokens, or show all.")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="The number of random draws. Curves are their mean.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the draws.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The chart to write: .png, .svg, .pdf, .html (interactive), or .json (numbers)."
        ),
    ] = None,
) -> None:
    """Predict from spectra what depth does to random tokens, apply the layers, and show both side by side."""
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
        raise InputError(f"there is no preset {preset!r}; choose one of {', '.join(cases.PRESETS)}")
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
