"""Encoded images with a class each, from folders or parquet files: never decoded at once, nor held in memory.

``load_splits("imagenet")``, ``load_splits(folder)``, or ``load_splits("painted")``, which are painted on the spot.
"""

from oversmooth_papers.tasks.imagenet.data.loading import load_splits
from oversmooth_papers.tasks.imagenet.data.pictures import Pictures, Splits

__all__ = ["Pictures", "Splits", "load_splits"]
