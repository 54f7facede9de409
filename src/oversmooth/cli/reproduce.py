"""`oversmooth reproduce`: tables and figures of the papers, for models the user names."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import app, err, out, progress_bar
from oversmooth.cli.diagnose import Batch, Count, Data, Device, Dtype, Length, Models, Seed, Variant, diagnose_all

if TYPE_CHECKING:
    from oversmooth.inputs import Inputs

reproduce = typer.Typer(help="Tables and figures of the papers, ours beside the published ones.", no_args_is_help=True)
app.add_typer(reproduce, name="reproduce")
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Figure to write: .png, .svg or .pdf.")]


class Rule(StrEnum):
    heads = "heads"
    joined = "joined"
    real = "real"


@reproduce.command()
def table1(
    models: Models,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    rule: Annotated[
        Rule,
        typer.Option(help="heads: one maximum per head; joined: all heads together; real: heads, real parts only."),
    ] = Rule.heads,
    variant: Annotated[Variant, typer.Option(help="How the norm enters H.")] = Variant.raw,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Table to write, .md.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = 0,
) -> None:
    """The first paper's table 1: in which share of cases the smoothing eigenvalue dominates."""
    from oversmooth import files
    from oversmooth.reproduce import table1 as recipe

    if output is not None:
        files.check_writable(output, (".md",))
    joined = rule is Rule.joined
    settings = dict(
        joined=sys.maxsize if joined else 0,
        ranks=0,
        depth=0,
        variant=variant.value,
        rule="real" if rule is Rule.real else "complex",
        seed=seed,
    )
    found = diagnose_all(models, data, inputs, length, batch, device=device, dtype=dtype, settings=settings)
    out.print(recipe.table(found, joined))
    for rule_said in recipe.rules(found, joined):
        out.print(f"A case: {rule_said}.", highlight=False, markup=False)
    if output is not None:
        with files.whole_file(output) as temporary:
            temporary.write_text(recipe.markdown(found, joined), encoding="utf-8")
        out.print(f"wrote {output}", highlight=False, markup=False)


@reproduce.command()
def fig2(
    models: Models,
    data: Data = None,
    inputs: Count = None,
    length: Length = None,
    batch: Batch = 16,
    output: Output = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = 0,
) -> None:
    """The first paper's figure 2: the three notions per layer."""
    from oversmooth import files
    from oversmooth.report import figures, terminal
    from oversmooth.reproduce import fig2 as recipe

    if output is not None:
        files.check_writable(output, figures.ENDINGS)
    settings = dict(spectra=False, seed=seed)
    found = diagnose_all(models, data, inputs, length, batch, device=device, dtype=dtype, settings=settings)
    out.print(terminal.overview(found))
    if output is not None:
        figures.save_one(found, recipe.FIGURE, output)
        out.print(f"wrote {output}", highlight=False, markup=False)


@reproduce.command()
def fig3(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="A trained model; without, a ViT-Ti.")] = None,
    data: Data = None,
    inputs: Count = None,
    batch: Batch = 16,
    output: Output = None,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """The first paper's figure 3: the three notions of a model forced to sharpen, forced to smooth and left alone."""
    from oversmooth import files
    from oversmooth.models import DATA_COUNT, DEFAULT_COUNT, Loaded
    from oversmooth.report import figures, terminal
    from oversmooth.reproduce import fig3 as recipe

    if output is not None:
        files.check_writable(output, figures.ENDINGS)
    count = inputs or (DEFAULT_COUNT if data is None else DATA_COUNT)

    def given(loaded: Loaded) -> Inputs:
        return loaded.inputs(data, count=count, batch=batch)

    found = []
    with progress_bar("cases") as bars:
        todo = recipe.cases(model, seed, device)
        task = bars.add_task("", total=len(todo))
        for case in todo:
            bars.update(task, description=case.name)
            found.append(recipe.run(case, given, seed))
            bars.advance(task)
    out.print(terminal.overview(found))
    for diagnosis in found:
        for sentence in diagnosis.verdict:
            if sentence.startswith("Steered"):
                out.print(f"{diagnosis.name}: {sentence}", highlight=False, markup=False)
    if output is not None:
        figures.save_one(found, recipe.FIGURE, output)
        out.print(f"wrote {output}", highlight=False, markup=False)


@reproduce.command()
def steering(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A trained model.")],
    data: Data = None,
    inputs: Count = None,
    batch: Batch = 16,
    spectra: Annotated[int, typer.Option(help="Inputs whose spectra are taken.", min=1)] = 16,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Table to write, .md.")] = None,
    device: Device = None,
) -> None:
    """What each method and strength does to a trained model without any training: curves, prediction, top-1."""
    from oversmooth import files
    from oversmooth.models import DATA_COUNT, DEFAULT_COUNT, load
    from oversmooth.reproduce import steering as recipe

    if output is not None:
        files.check_writable(output, (".md",))
    count = inputs or (DEFAULT_COUNT if data is None else DATA_COUNT)
    loaded = load(model, device=device)
    found = []
    with err.status("reading the inputs"):
        whole, few = (loaded.inputs(data, count=n, batch=batch).kept() for n in (count, min(spectra, count)))
    with progress_bar("inputs") as bars:
        for name, method, layers in recipe.METHODS:
            task = bars.add_task(name, total=count)

            def advance(done: int, total: int | None, what: str, task=task) -> None:  # type: ignore[no-untyped-def]
                bars.update(task, completed=done, total=total)

            found.append(recipe.sweep(loaded, whole, few, name, method, layers, advance))
    out.print(recipe.table(found))
    if output is not None:
        with files.whole_file(output) as temporary:
            temporary.write_text(recipe.markdown(found), encoding="utf-8")
        out.print(f"wrote {output}", highlight=False, markup=False)


@reproduce.command()
def fig5(models: Models, output: Output = None) -> None:
    """The first paper's figure 5: eigenvalues of H, from weights alone."""
    from oversmooth import files
    from oversmooth.cli.spectrum import spectra_of
    from oversmooth.report import figures, terminal
    from oversmooth.reproduce import fig5 as recipe

    if output is not None:
        files.check_writable(output, figures.ENDINGS)
    found = [spectra_of(name) for name in models]
    for diagnosis in found:
        out.print(
            f"{diagnosis.name}: {terminal.share(diagnosis.negative_share)} of Re λ below zero",
            highlight=False,
            markup=False,
        )
        out.print(terminal.histogram(diagnosis))
    out.print(recipe.PUBLISHED, style="dim")
    if output is not None:
        figures.save_one(found, recipe.FIGURE, output)
        out.print(f"wrote {output}", highlight=False, markup=False)
