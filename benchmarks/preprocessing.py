"""What cutting does to an image classifier's accuracy: squeezed to its size, or the middle of a larger picture.

    python benchmarks/preprocessing.py MODEL IMAGES.parquet [--images 1000]

MODEL is a directory of transformers; IMAGES has `image` (bytes) and `label`. docs/neutreno.md quotes it for DeiT-Tiny.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable

import numpy
import pyarrow.parquet
import torch
from PIL import Image
from transformers import AutoModelForImageClassification

SIZE, SHORTER, BATCH = 224, 256, 20
MEAN, STD = (torch.tensor(x)[:, None, None] for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def squeezed(picture: Image.Image) -> Image.Image:
    """All of it, whatever its shape: what the checkpoint's own preprocessor says."""
    return picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def middle(picture: Image.Image) -> Image.Image:
    """A square from the middle, as ImageNet models are usually tested."""
    scale = SHORTER / min(picture.size)
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BICUBIC)
    left, top = (picture.width - SIZE) // 2, (picture.height - SIZE) // 2
    return picture.crop((left, top, left + SIZE, top + SIZE))


def numbers(picture: Image.Image) -> torch.Tensor:
    return (torch.from_numpy(numpy.array(picture)).permute(2, 0, 1) / 255 - MEAN) / STD


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=1000)
    options = parser.parse_args()
    rows = pyarrow.parquet.read_table(options.data).slice(0, options.images).to_pylist()
    model = AutoModelForImageClassification.from_pretrained(options.model).eval()
    ways: tuple[Callable[[Image.Image], Image.Image], ...] = (squeezed, middle)
    right = dict.fromkeys(ways, 0)
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        pictures = [Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB") for row in part]
        labels = torch.tensor([row["label"] for row in part])
        for way in ways:
            answers = model(torch.stack([numbers(way(picture)) for picture in pictures])).logits.argmax(-1)
            right[way] += int((answers == labels).sum())
    for way, count in right.items():
        print(f"{way.__name__}: {count} of {len(rows)} right, {100 * count / len(rows):.1f} %")


if __name__ == "__main__":
    main()
