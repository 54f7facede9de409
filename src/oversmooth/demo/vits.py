"""Three ViTs of 0.6 million weights trained on Fashion-MNIST: unmodified, constrained to smooth, and to sharpen.

    oversmooth train --data fashion-mnist --recipe recipe.json [--variant smooth] -o DIRECTORY

made each file in fashion/, with the recipe there; 512 test images of the data set are beside them. Accuracy on all
10,000 test images with seed 0: 89.84% (plain), 88.96% (smoothing) and 90.54% (sharpening). There are no published
figures to compare with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from oversmooth.diagnosis.diagnose import OnProgress, diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import spread
from oversmooth.models import Loaded, load
from oversmooth.models.trained_file import read_metadata
from oversmooth.results import verdict
from oversmooth.results.parts import Accuracy
from oversmooth.safety import arguments
from oversmooth.steering import fold, steering_of

FOLDER = Path(__file__).parent / "fashion"
IMAGES = FOLDER / "images.npz"
# In this order smoothing is blue and sharpening orange on the page, as everywhere.
NAMES = {"smooth": "ViT⁺ (smoothing)", "sharpen": "ViT⁻ (sharpening)", "plain": "ViT (unmodified)"}
_INPUTS, _BATCH = 16, 256


def file_of(variant: str) -> Path:
    return FOLDER / f"{variant}.safetensors"


@dataclass(frozen=True)
class TestImages:
    """Test images of Fashion-MNIST: grey, ``(n, 1, 28, 28)``, 0 to 255."""

    images: Tensor
    labels: Tensor
    corrupted: Tensor
    """``(5, m, 1, 28, 28)``: the first m, at severities 1 to 5, each in one of the 15 standard ways, in turn."""


def images() -> TestImages:
    """The test images that come with the package."""
    with np.load(IMAGES, allow_pickle=False) as file:
        pixels, labels, corrupted = (torch.from_numpy(file[name]) for name in ("images", "labels", "corrupted"))
    return TestImages(pixels.permute(0, 3, 1, 2).contiguous(), labels.long(), corrupted.unsqueeze(2))


def example(variant: str = "plain", count: int = _INPUTS) -> tuple[nn.Module, Tensor]:
    """One of the ViTs with folded weights, and preprocessed test images, ``(count, channels, height, width)``.

    Args:
        variant: "plain", "smooth" or "sharpen".
        count: images, spread evenly over the 512 of the package.
    """
    arguments.choice(variant, "variant", tuple(sorted(NAMES)))
    loaded = _folded(variant)
    pixels = images().images
    chosen = spread(len(pixels), arguments.whole(count, "count", least=1))
    return loaded.model, _ready(loaded, pixels[chosen])


def run(variant: str, test: TestImages, seed: int = 0, progress: OnProgress | None = None) -> Diagnosis:
    """Diagnose one of the ViTs on 16 images, and test it on all."""
    loaded = load(str(file_of(variant)))
    inputs = loaded.inputs(IMAGES, count=_INPUTS)
    inputs.what = f"{inputs.count} test images of Fashion-MNIST"
    diagnosis = diagnose(loaded.model, inputs, name=NAMES[variant], seed=seed, progress=progress)
    diagnosis.accuracy = accuracy(variant, test)
    diagnosis.verdict = verdict.sentences(diagnosis)
    return diagnosis


@torch.no_grad()
def accuracy(variant: str, test: TestImages) -> Accuracy:
    """Accuracy on the test images, and on the corrupted ones at each severity."""
    loaded = _folded(variant)

    def right(pixels: Tensor) -> float:
        found = [loaded.model(_ready(loaded, part)).argmax(1) for part in pixels.split(_BATCH)]
        return float((torch.cat(found) == test.labels[: len(pixels)]).sum()) / len(pixels)

    few = test.corrupted.shape[1]
    return Accuracy(
        images=len(test.images),
        clean=right(test.images),
        corrupted=[right(severity) for severity in test.corrupted],
        corrupted_images=few,
        how=f"{few} of them corrupted, each in one of the 15 standard ways, in turn",
        trained=json.loads(read_metadata(file_of(variant)).get("notes", "{}")).get("accuracy"),
    )


def _folded(variant: str) -> Loaded:
    """With folded weights: the same outputs, faster."""
    loaded = load(str(file_of(variant)))
    if steering_of(loaded.model) is not None:
        fold(loaded.model)
    return loaded


def _ready(loaded: Loaded, pixels: Tensor) -> Tensor:
    assert loaded.preprocessing is not None
    mean, std = (torch.tensor(v)[:, None, None] for v in (loaded.preprocessing.mean, loaded.preprocessing.std))
    return (pixels.float() / 255 - mean) / std
