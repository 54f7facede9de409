"""Labelled images to train on: read from the layouts they are published in, checked, and held as bytes.

``load("cifar100", "train")`` or ``load(folder, "test")``; ``share`` takes a part of them, ``load_splits`` both splits.
"""

from oversmooth_papers.tasks.images.data.images import KNOWN, Images, Known, Splits, first_of_test, normalisation, share
from oversmooth_papers.tasks.images.data.loading import load, load_splits

__all__ = ["KNOWN", "Images", "Known", "Splits", "first_of_test", "load", "load_splits", "normalisation", "share"]
