"""`oversmooth sweep`: methods × strengths × seeds of one recipe, from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import app
from oversmooth.cli.launcher import AtOnce, LaunchedBy, SlurmOptions, job_settings
from oversmooth.safety.errors import InputError
from oversmooth_papers.cli.reproduce import Results
from oversmooth_papers.cli.tables import Output, RetryOnNan, fill_table, show_table
from oversmooth_papers.cli.train import TASKS, Device, Force, OnNan


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep, .toml: task, methods, strengths, seeds.")],
    results: Results = Path("results"),
    at_once: AtOnce = None,
    launcher: LaunchedBy = None,
    slurm: SlurmOptions = None,
    output: Output = None,
    device: Device = None,
    on_nan: RetryOnNan = OnNan.retry,
    force: Force = False,
) -> None:
    """Train each method with each strength and seed on one recipe, and show the table.

    Each cell is saved in RESULTS/sweep, named by its recipe. The same command runs only the cells that are missing, and
    resumes interrupted ones.
    """
    from oversmooth.report import figures
    from oversmooth.safety import files
    from oversmooth_papers.tables.cells import read_cells
    from oversmooth_papers.tables.sweep import Sweep, read_sweep, variants

    files.check_apart(output or [], (file,))
    for path in output or []:
        figures.check(path, also=(".md",))
    jobs, wanted = job_settings(launcher, slurm, at_once), read_sweep(file)
    if wanted.task not in TASKS:
        raise InputError(f"{file}: task is {wanted.task!r}; choose {' or '.join(TASKS)}")
    try:
        begun = TASKS[wanted.task][wanted.quick].changed(wanted.recipe)
    except TypeError as error:
        raise InputError(f"{file}: [recipe] has a setting that {wanted.task} does not have ({error})") from error
    table = Sweep(
        begun=begun,
        variant_by_title=variants(wanted.methods, wanted.strengths),
        seeds=wanted.seeds,
        quick=wanted.quick,
    )
    how = dict(at_once=at_once or 1, device=device, on_nan=on_nan.value, force=force)
    how |= dict(data=wanted.data or begun.data, command=f"oversmooth sweep {file.name}")
    recipes, why = fill_table(table, table.recipes(), [], results, how, jobs)
    show_table(table, read_cells(recipes, results, table.folder), output or [], why)
