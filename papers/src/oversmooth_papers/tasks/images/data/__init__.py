"""Labelled images to train on: read from the layouts they are published in, checked, and held as bytes.

``load("cifar100", "train")`` or ``load(folder, "test")``; ``share`` takes a part of them.
"""

from oversmooth_papers.tasks.images.data.images import Images, share
from oversmooth_papers.tasks.images.data.known import KNOWN, Known, normalisation
from oversmooth_papers.tasks.images.data.loading import load

__all__ = ["KNOWN", "Images", "Known", "load", "normalisation", "share"]
