"""Three ViTs of 0.6 million weights, trained alike on Fashion-MNIST: plain, forced to smooth, and forced to sharpen.

    oversmooth train --data fashion-mnist --recipe recipe.json [--variant smooth] -o DIRECTORY

made each of the files in fashion/, with the recipe that lies there; 512 test images of the data set are beside them.
Of all 10,000 test images they find 89.84 % (plain), 88.96 % (smoothing) and 90.54 % (sharpening), with seed 0; training
took 132, 131 and 25 s by the files' own notes, which do not say on what. Nothing was published that these compare with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from oversmooth.diagnosis import verdict
from oversmooth.diagnosis.diagnose import OnProgress, diagnose
from oversmooth.diagnosis.parts import Accuracy
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import spread
from oversmooth.models import load
from oversmooth.safety import arguments
from oversmooth.steering import fold, steering_of
from oversmooth.train.engine.saved_model import notes_of
from oversmooth.train.tasks.images.build import load_vit
from oversmooth.train.tasks.images.corruptions import KINDS, SEVERITIES
from oversmooth.train.tasks.images.data import Images
from oversmooth.train.tasks.images.evaluate import Corruptions, Evaluator

FOLDER = Path(__file__).parent / "fashion"
IMAGES = FOLDER / "images.npz"
# In this order the page has smoothing blue and sharpening orange, as everywhere.
NAMES = {"smooth": "ViT⁺ (smoothing)", "sharpen": "ViT⁻ (sharpening)", "plain": "ViT (left alone)"}
_INPUTS, _CORRUPTED = 16, 300
_CPU = torch.device("cpu")


def file_of(variant: str) -> Path:
    return FOLDER / f"{variant}.safetensors"


def images() -> Images:
    """The test images that come with the package."""
    with np.load(IMAGES, allow_pickle=False) as file:
        pixels, labels = file["images"], file["labels"]
    return Images(
        torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(),
        torch.from_numpy(labels.astype(np.int64)),
        [str(digit) for digit in range(10)],
        "fashion-mnist",
    )


def example(variant: str = "plain", count: int = _INPUTS) -> tuple[nn.Module, Tensor]:
    """One of them with plain weights, and test images ready for it, ``(count, channels, height, width)``.

    Args:
        variant: "plain", "smooth" or "sharpen".
        count: of the 512 images that come with the package, evenly spread.
    """
    arguments.choice(variant, "variant", tuple(sorted(NAMES)))
    loaded = load(str(file_of(variant)))
    if steering_of(loaded.model) is not None:
        fold(loaded.model)
    pixels = images().images
    chosen = spread(len(pixels), arguments.whole(count, "count", least=1))
    mean, std = (torch.tensor(values)[:, None, None] for values in (loaded.recipe.mean, loaded.recipe.std))
    return loaded.model, (pixels[chosen].float() / 255 - mean) / std


def run(variant: str, test: Images, seed: int = 0, progress: OnProgress | None = None) -> Diagnosis:
    """One of them, diagnosed on a few images and tested on all of them."""
    loaded = load(str(file_of(variant)))
    inputs = loaded.inputs(IMAGES, count=_INPUTS)
    inputs.what = f"{inputs.count} test images of Fashion-MNIST"
    diagnosis = diagnose(loaded.model, inputs, name=NAMES[variant], seed=seed, progress=progress)
    diagnosis.accuracy = accuracy(file_of(variant), test)
    diagnosis.verdict = verdict.sentences(diagnosis)
    return diagnosis


def accuracy(path: Path, test: Images) -> Accuracy:
    model, recipe = load_vit(path)
    if steering_of(model) is not None:
        fold(model)  # the same function, and faster
    evaluator = Evaluator(recipe, model, _CPU)
    few = replace(test, images=test.images[:_CORRUPTED], labels=test.labels[:_CORRUPTED])
    return Accuracy(
        images=len(test),
        clean=evaluator.accuracy(test.images, test.labels),
        corrupted=[evaluator.accuracy(corrupted(few, severity), few.labels) for severity in SEVERITIES],
        corrupted_images=len(few),
        how=f"{len(few)} of them corrupted, each in one of the {len(KINDS)} standard ways, in turn",
        trained=notes_of(path).get("accuracy"),
    )


def corrupted(test: Images, severity: int) -> Tensor:
    """Every image under one kind, in turn: all kinds in the time of one."""
    out = test.images.clone()
    for index, kind in enumerate(KINDS):
        turn = slice(index, None, len(KINDS))
        part = replace(test, images=test.images[turn], labels=test.labels[turn])
        out[turn] = Corruptions(part, _CPU)(kind, severity)[0]
    return out
