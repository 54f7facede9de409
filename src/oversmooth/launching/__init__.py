"""Runs cells as jobs through submitit: processes on this machine, or SLURM."""

from oversmooth.launching.jobs import Cell, JobSettings, launch
from oversmooth.launching.queue import queued

__all__ = ["Cell", "JobSettings", "launch", "queued"]
