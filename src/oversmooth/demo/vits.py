"""Three ViTs of 0.6 million weights trained on Fashion-MNIST: unmodified, constrained to smooth, and to sharpen.

    oversmooth train --data fashion-mnist --recipe recipe.json [--variant smooth] -o DIRECTORY

made each file in fashion/, with the recipe there; 512 test images of the data set are beside them. Accuracy on all
10,000 test images with seed 0: 89.84% (plain), 88.96% (smoothing) and 90.54% (sharpening). There are no published
figures to compare with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from oversmooth.diagnosis.diagnose import OnProgress, diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import spread
from oversmooth.models import load
from oversmooth.safety import arguments
from oversmooth.steering import fold, steering_of

FOLDER = Path(__file__).parent / "fashion"
IMAGES = FOLDER / "images.npz"
# In this order smoothing is blue and sharpening orange on the page, as everywhere.
NAMES = {"smooth": "ViT⁺ (smoothing)", "sharpen": "ViT⁻ (sharpening)", "plain": "ViT (unmodified)"}
_INPUTS = 16


def file_of(variant: str) -> Path:
    return FOLDER / f"{variant}.safetensors"


def images() -> tuple[Tensor, Tensor]:
    """The test images that come with the package, grey, ``(512, 1, 28, 28)``, 0 to 255; and their labels."""
    with np.load(IMAGES, allow_pickle=False) as file:
        return torch.from_numpy(file["images"]).permute(0, 3, 1, 2), torch.from_numpy(file["labels"]).long()


def example(variant: str = "plain", count: int = _INPUTS) -> tuple[nn.Module, Tensor]:
    """One of the ViTs with folded weights, and preprocessed test images, ``(count, channels, height, width)``.

    Args:
        variant: "plain", "smooth" or "sharpen".
        count: images, spread evenly over the 512 of the package.
    """
    arguments.choice(variant, "variant", tuple(sorted(NAMES)))
    loaded = load(str(file_of(variant)))
    if steering_of(loaded.model) is not None:
        fold(loaded.model)  # the same outputs, faster
    pixels, _ = images()
    chosen = spread(len(pixels), arguments.whole(count, "count", least=1))
    assert loaded.preprocessing is not None
    mean, std = (torch.tensor(v)[:, None, None] for v in (loaded.preprocessing.mean, loaded.preprocessing.std))
    return loaded.model, (pixels[chosen].float() / 255 - mean) / std


def run(variant: str, seed: int = 0, progress: OnProgress | None = None) -> Diagnosis:
    """Diagnose one of the ViTs on 16 images."""
    loaded = load(str(file_of(variant)))
    inputs = loaded.inputs(IMAGES, count=_INPUTS)
    inputs.what = f"{inputs.count} test images of Fashion-MNIST"
    return diagnose(loaded.model, inputs, name=NAMES[variant], seed=seed, progress=progress)
