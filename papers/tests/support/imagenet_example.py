"""A few small JPEGs in ImageNet's layouts and a small recipe for them: what a thread trains in a second."""

from pathlib import Path

import numpy as np
from PIL import Image
from support import timm_models
from support.pictures import encoded
from support.runs import train_task

from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.imagenet.data import load_splits
from oversmooth_papers.tasks.imagenet.recipe import Recipe
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.images.recipe import Shape

CLASSES = ("n01", "n02", "n03")
SHAPE = Shape(image=16, patch=4, classes=3, width=16, depth=3, heads=2, qkv_bias=True)
RECIPE = Recipe(
    data="pictures", shape=SHAPE, variant="neutreno:strength=0.6", epochs=3, warmup=1, lr=0.1, batch=8, ema=0.9
)
"""24 images, 3 steps an epoch."""


def jpeg(number: int, mode: str = "RGB") -> bytes:
    """Noise about a colour, of some size."""
    random = np.random.default_rng(number)
    height, width = random.integers(20, 40, 2)
    pixels = random.normal(random.uniform(50, 200, 3), 30, (height, width, 3)).clip(0, 255).astype(np.uint8)
    return encoded(Image.fromarray(pixels).convert(mode), "JPEG")


def rows(part: str, each: int) -> list[tuple[int, int]]:
    """Number and class of every image of a part."""
    first = {"train": 0, "val": 1000}[part]
    return [(first + 100 * label + number, label) for label in range(len(CLASSES)) for number in range(each)]


def write_folders(home: Path, train: int = 8, val: int = 4) -> Path:
    """``train/n01/*.JPEG`` and so on, one of them in grey and one in CMYK, as some of ImageNet's are."""
    for part, each in (("train", train), ("val", val)):
        for number, label in rows(part, each):
            folder = home / part / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{CLASSES[label]}_{number:05d}.JPEG").write_bytes(jpeg(number, modes(number)))
    return home


def modes(number: int) -> str:
    return {1: "L", 101: "CMYK"}.get(number, "RGB")


def write_parquet(home: Path, train: int = 8, val: int = 4) -> Path:
    """The same images as the hub has them, those to train on in two files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (home / "data").mkdir(parents=True)
    for part, name, each in (("train", "train", train), ("val", "validation", val)):
        every = rows(part, each)
        cut = len(every) // 2 if part == "train" else len(every)
        for number, some in enumerate(filter(None, (every[:cut], every[cut:]))):
            images = [{"bytes": jpeg(n, modes(n)), "path": f"{n}.JPEG"} for n, _ in some]
            table = pa.table({"image": images, "label": [label for _, label in some]})
            pq.write_table(table, home / "data" / f"{name}-{number:05d}-of-00002.parquet", row_group_size=5)
    return home


def splits(home: Path):
    timm_models.timm()
    return load_splits(home)


def train(recipe, data, workers=0, **settings):
    return train_task(ImagenetTask(recipe, data, workers), **settings)


def step_of(recipe, model, data, device, ranks=None, workers=0):
    return Step(ImagenetTask(recipe, data, workers), model, device, ranks)
