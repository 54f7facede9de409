"""From bytes to a training batch, on the device: crop, flip, RandAugment, Mixup or CutMix, normalisation, targets.

The order is that of the recipe (timm's transforms, with torchvision's padded crop first). The random numbers of a step
are drawn up front; the rest is a pure function of them, fit for torch.compile and CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oversmooth_papers.tasks.images import mixing, randaugment
from oversmooth_papers.tasks.images.recipe import Recipe

_CROP_AND_FLIP = 3  # uniform numbers per image


@dataclass(frozen=True)
class AugmentDraws:
    """All the random numbers of one batch, in two tensors."""

    uniform: Tensor  # (b * per image + per batch,)
    normal: Tensor  # (b, operations)

    def refill(self, generator: torch.Generator) -> None:
        """Draw again in place: for a captured CUDA graph that reads these very tensors."""
        self.uniform.uniform_(generator=generator)
        self.normal.normal_(generator=generator)


class Augment(nn.Module):
    """``augment(images, labels, generator)``: uint8 ``(b, c, h, w)`` and int64 ``(b,)`` to floats and soft targets.

    The crop has the side of the recipe's shape, out of the image with ``padding`` black pixels about it. The generator
    must be on the images' device; its state is all that is needed to resume.

    >>> augment = Augment(Recipe())
    >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> x, targets = augment(images, torch.tensor([7, 1, 1, 3]), torch.Generator().manual_seed(0))
    >>> x.shape, targets.shape
    (torch.Size([4, 3, 32, 32]), torch.Size([4, 100]))
    """

    scale: Tensor
    shift: Tensor
    fill: Tensor
    tables: Tensor

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe, self.size = recipe, recipe.shape.image
        centre, spread = torch.tensor(recipe.mean), torch.tensor(recipe.std)
        for name, value in {
            "scale": 1 / (255 * spread)[:, None, None],
            "shift": -(centre / spread)[:, None, None],
            "fill": torch.tensor([min(255, round(255 * level)) for level in recipe.mean], dtype=torch.int32),
            "tables": torch.stack([mixing.beta_table(recipe.mixup), mixing.beta_table(recipe.cutmix)]),
        }.items():
            self.register_buffer(name, value, persistent=False)  # settings, not state: nothing for a checkpoint

    def forward(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.transform(images, labels, self.draw(len(images), generator))

    def draw(self, batch: int, generator: torch.Generator) -> AugmentDraws:
        """The random numbers of one batch, from this generator and on its device."""
        operations = self.recipe.rand_augment.operations if self.recipe.rand_augment else 0
        numbers = batch * (_CROP_AND_FLIP + operations * randaugment.UNIFORMS) + mixing.UNIFORMS
        device = generator.device
        draws = AugmentDraws(torch.empty(numbers, device=device), torch.empty(batch, operations, device=device))
        draws.refill(generator)
        return draws

    @torch.no_grad()
    def transform(self, images: Tensor, labels: Tensor, draws: AugmentDraws) -> tuple[Tensor, Tensor]:
        """``(b, c, h, w) uint8, (b,) int64 -> (b, c, size, size), (b, classes)`` float32; a pure function."""
        recipe, size = self.recipe, self.size
        own = draws.uniform[: -mixing.UNIFORMS].view(len(images), -1)
        images = self._crop_and_flip(images, own[:, :_CROP_AND_FLIP])
        if recipe.rand_augment:
            uniform = own[:, _CROP_AND_FLIP:].unflatten(1, (-1, randaugment.UNIFORMS))
            plan = randaugment.plan_from(recipe.rand_augment, uniform, draws.normal)
            images = randaugment.apply(recipe.rand_augment, images, plan, self.fill)
        alphas = (recipe.mixup, recipe.cutmix)
        mix = mixing.draw_mix(draws.uniform[-mixing.UNIFORMS :], self.tables, alphas, size, size)
        # Mixing before or after normalisation is the same: both are affine, and the shares sum to one.
        x = self.normalise(mix.images(images.float()))
        return x, mix.targets(labels, recipe.shape.classes, recipe.smoothing)

    def normalise(self, images: Tensor) -> Tensor:
        """``(b, c, h, w)`` in 0..255, less the mean, over the spread: all that is done to test images."""
        return images * self.scale + self.shift

    def _crop_and_flip(self, images: Tensor, uniform: Tensor) -> Tensor:
        """``(b, c, h, w) uint8, (b, 3) -> (b, c, size, size) uint8``: one gather; what was padded is 0."""
        count, channels, height, width = images.shape
        down, across, side = uniform.unbind(1)
        pixel = torch.arange(self.size, device=images.device)
        rows = self._offset(down, height)[:, None] + pixel
        columns = torch.where((side < self.recipe.flip)[:, None], self.size - 1 - pixel, pixel)
        columns = self._offset(across, width)[:, None] + columns
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
        index = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
        index = index.view(count, 1, -1).expand(-1, channels, -1)
        taken = images.flatten(2).gather(2, index).view(count, channels, self.size, self.size)
        return torch.where(inside[:, None], taken, 0).to(torch.uint8)

    def _offset(self, uniform: Tensor, side: int) -> Tensor:
        padding = self.recipe.padding
        places = side + 2 * padding - self.size + 1
        return (uniform * places).long().clamp(max=places - 1) - padding
