"""The options of commands whose cells can be jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from oversmooth.cli.app import options_in
from oversmooth.safety.errors import InputError

if TYPE_CHECKING:
    from oversmooth.launching import JobSettings

_jobs = options_in("Jobs")
Launcher = StrEnum("Launcher", ["local", "slurm"])
_LAUNCHER = "Run each cell as a job of its own: local for this machine, slurm for SLURM."
_SLURM = "An option of sbatch: partition=gpu, gpus-per-node=1, time=60 (minutes, the default); may be repeated."
_AT_ONCE = dict(min=1, max=10_000, show_default="1; with SLURM as many as it lets run")
LaunchedBy = Annotated[Launcher | None, _jobs("NAME", _LAUNCHER, "--launcher")]
SlurmOptions = Annotated[list[str] | None, _jobs("NAME=VALUE", _SLURM, "--slurm")]
AtOnce = Annotated[int | None, _jobs("N", "Number of runs at once, each in its own process.", **_AT_ONCE)]


def job_settings(launcher: Launcher | None, slurm: list[str] | None, at_once: int | None) -> JobSettings | None:
    """Of the options; None where cells run in this process."""
    from oversmooth.launching import JobSettings

    if slurm and launcher is not Launcher.slurm:
        raise InputError(f"--slurm {slurm[0]} is given without --launcher slurm; add it, or leave --slurm out")
    if launcher is None:
        return None
    pairs = [word.partition("=") for word in slurm or []]
    options = {name.lstrip("-"): value for name, _, value in pairs}
    return JobSettings("slurm" if launcher is Launcher.slurm else "local", at_once, options)
