"""The commands `train`, `reproduce` and `tune`; importing this adds them to `oversmooth`."""

from oversmooth_papers.cli import train  # isort: skip
from oversmooth.cli.examples import EXAMPLES
from oversmooth_papers.cli import neutreno, reproduce, tables, tune
from oversmooth_papers.cli.examples import EXAMPLES as OWN_EXAMPLES

EXAMPLES |= OWN_EXAMPLES

__all__ = ["neutreno", "reproduce", "tables", "train", "tune"]
