"""Images with a class for every pixel: read from the layouts they are published in, checked, and held as bytes.

``load_splits("camvid")``, ``load_splits(folder)``, or ``load_splits("shapes")``, which are painted on the spot.
"""

from oversmooth_papers.tasks.segmentation.data.labelled import Labelled, Splits
from oversmooth_papers.tasks.segmentation.data.loading import load_splits

__all__ = ["Labelled", "Splits", "load_splits"]
