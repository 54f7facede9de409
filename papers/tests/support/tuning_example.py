"""A small classifier and labelled images for the tests of tuning."""

import numpy as np
import torch
from support.pictures import encoded
from support.train_example import blobs, plain

from oversmooth_papers.tasks.images.build import augment_of, model_of
from oversmooth_papers.tuning import Labelled


def classifier(seed=0, noise=0.15):
    """A ViT of two layers whose answers depend on its inputs."""
    torch.manual_seed(seed)
    recipe = plain(seed=seed)
    model = model_of(recipe)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return model, recipe


def labelled(count=24, seed=0):
    images = blobs(count, seed)
    pixels = augment_of(plain()).normalise(images.images.float())
    return Labelled(pixels, images.labels, f"{count} blobs", "images")


def write_parquet(path, count=12, size=16, label="label", classes=2, column="image"):
    """Noisy pictures whose class is their brightness; label: the column's name, None for no labels."""
    import pyarrow
    import pyarrow.parquet

    draw = np.random.default_rng(0)
    labels = [i % classes for i in range(count)]
    pictures = [draw.integers(0, 100, (size, size, 3), dtype=np.uint8) + 100 * (i % 2) for i in labels]
    columns = {column: [{"bytes": encoded(picture.astype(np.uint8)), "path": None} for picture in pictures]}
    if label is not None:
        columns[label] = labels
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path
