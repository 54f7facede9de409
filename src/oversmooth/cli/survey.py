"""`oversmooth survey`: many checkpoints in one table, each a cell that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oversmooth.cli.app import app, err, option, out
from oversmooth.cli.diagnose import Device, diagnose_all
from oversmooth.cli.launcher import AtOnce, LaunchedBy, Launcher, SlurmOptions, job_settings
from oversmooth.cli.spectrum import spectra_of

if TYPE_CHECKING:
    from oversmooth.demo.survey import Checkpoint, SurveyFile
    from oversmooth.launching import Cell, JobSettings


_LIST = "The checkpoints, .toml: spectrum = [...], diagnose = [...]."
_OUTPUT = "Directory for cells, pages and the table."


@dataclass(frozen=True)
class Examine:
    """What is done with one checkpoint, here or in a job."""

    one: Checkpoint
    path: Path
    file: SurveyFile
    device: str | None

    def __call__(self) -> str:
        from oversmooth.report import page

        if self.one.on_inputs:
            data = None if self.file.data is None else Path(self.file.data)
            given = [self.one.source], data, self.file.inputs, self.file.length, None
            (diagnosis,) = diagnose_all(*given, device=self.device, settings=dict(seed=0))
        else:
            diagnosis = spectra_of(self.one.source)
        page.save([diagnosis], self.path.with_suffix(".html"), [("all models of the survey", "index.html")])
        diagnosis.save(self.path)  # last: it says that the cell is there
        return "finished"


@app.command()
def survey(
    file: Annotated[Path, typer.Argument(metavar="LIST", help=_LIST)],
    output: Annotated[Path, option("DIR", _OUTPUT, "--output", "-o")] = Path("survey"),
    at_once: AtOnce = None,
    launcher: LaunchedBy = None,
    slurm: SlurmOptions = None,
    device: Device = None,
) -> None:
    """Examine many checkpoints, and write one table of all and a page for each.

    Each checkpoint is a cell: the eigenvalues of its weights, or a diagnosis. The same command runs only what is
    missing or failed. Writes KEY.json and KEY.html per checkpoint, and the table as survey.json, survey.md,
    survey.parquet (with pyarrow) and index.html.
    """
    from oversmooth.demo import gallery_table
    from oversmooth.demo import survey as recipe
    from oversmooth.diagnosis.result import Diagnosis
    from oversmooth.launching import Cell
    from oversmooth.report import page
    from oversmooth.safety import files
    from oversmooth.safety.errors import InputError

    files.check_folder(output)
    page.check(output / "index.html")
    jobs = job_settings(launcher or (Launcher.local if at_once else None), slurm, at_once)
    wanted, cells = recipe.read_survey(file), {}
    for one in recipe.checkpoints(wanted):
        path = output.absolute() / f"{one.key}.json"
        cells[one] = Cell(one.title, path, Examine(one, path, wanted, device))
    failed = _run_all([*cells.values()], output / "jobs", jobs)
    there = [(one, cell.path) for one, cell in cells.items() if cell.path.is_file()]
    if there:
        table = [gallery_table.figures(one, Diagnosis.load(path)) for one, path in there]
        written = ", ".join(map(str, recipe.write(table, output)))
        out.print(f"{len(there)} of {len(cells)} checkpoints; wrote {written}", soft_wrap=True)
    if failed:
        name, why = next(iter(failed.items()))
        raise InputError(
            f"{len(failed)} of {len(cells)} checkpoints failed; the same command tries them again; {name}: {why}"
        )


def _run_all(cells: Sequence[Cell], folder: Path, jobs: JobSettings | None) -> dict[str, str]:
    """Run the cells that are missing; returns those that failed, each with its reason."""
    from oversmooth.launching import launch
    from oversmooth.safety.errors import InputError, reason

    def say(line: str) -> None:
        err.print(line, soft_wrap=True)

    if jobs is not None:
        return launch(cells, folder, jobs, say)
    failed = {}
    for cell in cells:
        if cell.path.is_file():
            continue
        try:
            cell.run()
            say(f"{cell.title}: finished")
        except Exception as error:  # whatever is wrong with one checkpoint, the others are examined
            failed[cell.title] = str(error) if isinstance(error, InputError) else reason(error)
            say(f"{cell.title}: {failed[cell.title]}")
    return failed
