"""The earlier name of `oversmooth.report.training`."""

from oversmooth.report.training import Run as Run, figures as figures, save as save  # noqa: I001
