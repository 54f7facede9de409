"""A run that a job makes, slow enough to be interrupted."""

import time
from dataclasses import dataclass
from pathlib import Path

from support.runs import QUIET
from support.train_example import RECIPE, splits, train

from oversmooth_papers.engine.stopping import was_warned


@dataclass(frozen=True)
class SlowRun:
    """Trains in a folder; its model is the cell."""

    folder: Path
    seconds: float = 0.0  # of a step, about

    def __call__(self) -> str:
        def wait(_progress):
            time.sleep(self.seconds)

        why = train(RECIPE, splits(), folder=self.folder, resume=True, watch=QUIET, on_progress=wait).why
        return "out of time" if why == "preempted" and was_warned() else why
