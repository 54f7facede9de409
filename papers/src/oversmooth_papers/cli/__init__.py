"""The commands `train`, `reproduce`, `sweep` and `tune`; importing this adds them to `oversmooth`."""

from oversmooth_papers.cli import train  # isort: skip
from oversmooth.cli.examples import EXAMPLES
from oversmooth_papers.cli import neutreno, reproduce, sweep, tables, tune
from oversmooth_papers.cli.examples import EXAMPLES as OWN_EXAMPLES

EXAMPLES |= OWN_EXAMPLES

__all__ = ["neutreno", "reproduce", "sweep", "tables", "train", "tune"]
