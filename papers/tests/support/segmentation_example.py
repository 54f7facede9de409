"""Small shapes and a small Segmenter for the tests of segmentation: what a thread trains in a second."""

from support.runs import train_task

from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.segmentation.data import shapes
from oversmooth_papers.tasks.segmentation.recipe import Recipe
from oversmooth_papers.tasks.segmentation.task import SegmentationTask

SHAPE = Shape(image=16, patch=4, classes=5, width=16, depth=3, heads=2)
RECIPE = Recipe(
    data="shapes",
    encoder="",
    variant="neutreno:strength=0.6",
    shape=SHAPE,
    crop=16,
    stride=8,
    shorter=0,
    epochs=3,
    lr=0.05,
    batch=4,
    test_scales=(0.75, 1.5),
)


def splits(count: int = 16):
    return shapes(count, 4, 6, size=20)


def train(recipe, data, **settings):
    return train_task(SegmentationTask(recipe, data), **settings)


def step_of(recipe, model, data, device, ranks=None):
    return Step(SegmentationTask(recipe, data), model, device, ranks)
