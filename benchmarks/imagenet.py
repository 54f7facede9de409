"""How fast DeiT-tiny trains on JPEGs: ours beside a plain timm loop with the same workers, in one run.

python benchmarks/imagenet.py [--json FILE] [--quick] [--workers N] [--images N]

JPEGs of ImageNet's usual size, 500 × 375, are written to a temporary folder and read from there, from the disk's cache
after the first time. End to end: from file to update. Step: the same batch again and again. Loader: batches that nobody
trains on, as fast as the workers make them; where it is the slowest of the three, cores decide and not the GPU.

Plain: timm.create_model("deit_tiny_patch16_224") with drop path 0.1, eager, bf16 autocast, torch.optim.AdamW as it
comes, ModelEmaV3, and our batches.
Without a GPU: a small ViT on small images in float32, to see that it runs; its ratios say little.
"""

from __future__ import annotations

import io
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measuring import DEVICE, HARDWARE, ON_GPU, arguments, save, seconds
from PIL import Image

from oversmooth_papers.engine.loop import float32_products
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.imagenet.data import Splits, load_splits, worker_count
from oversmooth_papers.tasks.imagenet.recipe import PAPER, Recipe
from oversmooth_papers.tasks.imagenet.task import ImagenetTask, model_of

CLASSES = 10


def settings(device: torch.device) -> Recipe:
    if device.type == "cuda":
        return PAPER
    return replace(PAPER, batch=16, shape=replace(PAPER.shape, image=64, width=48, depth=3, heads=3))


def write(home: Path, count: int, size: tuple[int, int]) -> None:
    """Smooth noise with grain, which takes as long to decode as a photograph of its size."""

    def one(number: int) -> None:
        random = np.random.default_rng(number)
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
        pixels = np.asarray(coarse, np.float32) + random.normal(0, 8, (size[1], size[0], 3))
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        folder = home / ("val" if number < 2 * CLASSES else "train") / f"n{number % CLASSES:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06d}.JPEG").write_bytes(buffer.getvalue())

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, range(count + 2 * CLASSES)))


class Ours:
    """The engine's step, with a feed that begins a new epoch when one is over."""

    def __init__(self, recipe: Recipe, splits: Splits, device: torch.device, workers: int) -> None:
        self.one = Step(ImagenetTask(recipe, splits, workers), model_of(recipe).to(device), device)
        self.fetched = 0

    def _next_epoch(self) -> None:
        if self.fetched % self.one.steps == 0:
            self.one.done = 0  # a CPU's learning rates would run out
            self.one.begin_epoch()
        self.fetched += 1

    def end_to_end(self) -> None:
        self._next_epoch()
        self.one.run()

    def loader(self) -> None:
        self._next_epoch()
        self.one.feed.draw(self.one.draws.augment)

    def step(self) -> None:
        self.one.done = 0
        body = self.one._replay or self.one.body
        body()

    def close(self) -> None:
        feed: Any = self.one.feed
        feed.seek(0)


class Plain:
    """A loop as timm's users write it."""

    def __init__(self, recipe: Recipe, splits: Splits, device: torch.device, workers: int) -> None:
        import timm
        from timm.utils import ModelEmaV3

        shape = recipe.shape
        sizes: dict[str, Any] = dict(img_size=shape.image, embed_dim=shape.width, depth=shape.depth)
        self.model = timm.create_model(
            "deit_tiny_patch16_224", num_classes=CLASSES, drop_path_rate=recipe.drop_path, **sizes
        ).to(device)
        self.average = ModelEmaV3(self.model, decay=recipe.ema)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=recipe.weight_decay)
        self.device, self.on_gpu = device, device.type == "cuda"
        task = ImagenetTask(recipe, splits, workers)
        self.feed = task.feed(device, Ranks(), compiled=False)
        self.generator = torch.Generator().manual_seed(0)
        self.steps, self.fetched = task.examples // recipe.batch, 0
        self._fetch()

    def _fetch(self) -> None:
        if self.fetched % self.steps == 0:
            self.feed.reorder(self.generator)
        self.fetched += 1
        self.feed.draw(self.generator)

    def end_to_end(self) -> None:
        self._fetch()
        self.step()

    def step(self) -> None:
        images, targets = self.feed.images, self.feed.targets
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            loss = F.cross_entropy(self.model(images), targets)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.average.update(self.model)

    def close(self) -> None:
        self.feed.seek(0)


def main() -> None:
    parser = arguments(__doc__, quick="fewer repeats")
    parser.add_argument("--workers", type=int, default=worker_count())
    parser.add_argument("--images", type=int, help="JPEGs that are written; 8,192 on a GPU")
    options = parser.parse_args()
    recipe = settings(DEVICE)
    repeats = (4 if options.quick else 10) if ON_GPU else 2
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, float32_products(DEVICE):
        home = Path(folder) / "noise"
        write(home, options.images or (8192 if ON_GPU else 64), (500, 375) if ON_GPU else (100, 75))
        splits = load_splits(home)
        recipe = recipe.fitted(splits)
        for name, kind in (("ours", Ours), ("plain", Plain)):
            loop: Any = kind(recipe, splits, DEVICE, options.workers)
            for what in ("end_to_end", "loader", "step"):
                if hasattr(loop, what):
                    took = seconds(getattr(loop, what), repeats=repeats, warm_up=3)
                    rates[f"{name} {what}"] = recipe.batch / took
                    print(f"{name} {what:10} {rates[f'{name} {what}']:10,.1f} images/s", flush=True)
            loop.close()  # a step and its graph hold each other: its workers would stay beside the next loop's
            del loop
    ratios = {what: rates[f"ours {what}"] / rates[f"plain {what}"] for what in ("end_to_end", "step")}
    for what, ratio in ratios.items():
        print(f"{what}: ours is {ratio:.2f} times as fast as plain, with {options.workers} workers")
    facts = {"hardware": HARDWARE, "torch": torch.__version__, "workers": options.workers}
    save(options.json, {**facts, "images_per_s": rates, "ratios": ratios})


if __name__ == "__main__":
    main()
