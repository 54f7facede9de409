"""From bytes to a training batch, on the device: crop, flip, RandAugment, Mixup or CutMix, normalisation, targets.

The order is that of the recipe (timm's transforms, with torchvision's padded crop first). The random numbers of a step
are drawn up front; the rest is a pure function of them, fit for torch.compile and CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images import mixing, randaugment
from oversmooth_papers.tasks.images.settings import CIFAR100_MEAN, CIFAR100_STD, RandAugment

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

    ``size`` is the side of the square crop out of the image with ``padding`` black pixels about it. ``mixup`` and
    ``cutmix`` are their α, 0 for none. All settings off leave ``normalise`` and one-hot targets. The generator must be
    on the images' device; its state is all that is needed to resume.

    >>> augment = Augment(classes=100)
    >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    >>> x, targets = augment(images, torch.tensor([7, 1, 1, 3]), torch.Generator().manual_seed(0))
    >>> x.shape, targets.shape
    (torch.Size([4, 3, 32, 32]), torch.Size([4, 100]))
    """

    scale: Tensor
    shift: Tensor
    fill: Tensor
    tables: Tensor

    def __init__(
        self,
        *,
        classes: int,
        size: int = 32,
        padding: int = 4,
        flip: float = 0.5,
        rand_augment: RandAugment | None = RandAugment(),  # noqa: B008 (frozen: one for all is safe)
        mixup: float = 1.0,
        cutmix: float = 0.8,
        smoothing: float = 0.1,
        mean: Sequence[float] = CIFAR100_MEAN,
        std: Sequence[float] = CIFAR100_STD,
    ) -> None:
        super().__init__()
        _check(classes, size, padding, flip, mixup, cutmix, smoothing, mean, std)
        self.classes, self.size, self.padding, self.flip = classes, size, padding, flip
        self.rand_augment, self.alphas, self.smoothing = rand_augment, (mixup, cutmix), smoothing
        centre, spread = torch.tensor(mean), torch.tensor(std)
        self._keep("scale", 1 / (255 * spread)[:, None, None])
        self._keep("shift", -(centre / spread)[:, None, None])
        self._keep("fill", torch.tensor([min(255, round(255 * value)) for value in mean], dtype=torch.int32))
        self._keep("tables", torch.stack([mixing.beta_table(mixup), mixing.beta_table(cutmix)]))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)  # settings, not state: nothing for a checkpoint

    def forward(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.transform(images, labels, self.draw(len(images), generator))

    def draw(self, batch: int, generator: torch.Generator) -> AugmentDraws:
        """The random numbers of one batch, from this generator and on its device."""
        operations = self.rand_augment.operations if self.rand_augment else 0
        numbers = batch * (_CROP_AND_FLIP + operations * randaugment.UNIFORMS) + mixing.UNIFORMS
        device = generator.device
        draws = AugmentDraws(torch.empty(numbers, device=device), torch.empty(batch, operations, device=device))
        draws.refill(generator)
        return draws

    @torch.no_grad()
    def transform(self, images: Tensor, labels: Tensor, draws: AugmentDraws) -> tuple[Tensor, Tensor]:
        """``(b, c, h, w) uint8, (b,) int64 -> (b, c, size, size), (b, classes)`` float32; a pure function."""
        self._check_images(images)
        batch = len(images)
        own = draws.uniform[: -mixing.UNIFORMS].view(batch, -1)
        images = self._crop_and_flip(images, own[:, :_CROP_AND_FLIP])
        if self.rand_augment:
            uniform = own[:, _CROP_AND_FLIP:].unflatten(1, (-1, randaugment.UNIFORMS))
            plan = randaugment.plan_from(self.rand_augment, uniform, draws.normal)
            images = randaugment.apply(self.rand_augment, images, plan, self.fill)
        mix = mixing.draw_mix(draws.uniform[-mixing.UNIFORMS :], self.tables, self.alphas, self.size, self.size)
        # Mixing before or after normalisation is the same: both are affine, and the shares sum to one.
        return self.normalise(mix.images(images.float())), mix.targets(labels, self.classes, self.smoothing)

    def normalise(self, images: Tensor) -> Tensor:
        """``(b, c, h, w)`` in 0..255, less the mean, over the spread: all that is done to test images."""
        return images * self.scale + self.shift

    def _crop_and_flip(self, images: Tensor, uniform: Tensor) -> Tensor:
        """``(b, c, h, w) uint8, (b, 3) -> (b, c, size, size) uint8``: one gather; what was padded is 0."""
        count, channels, height, width = images.shape
        down, across, side = uniform.unbind(1)
        pixel = torch.arange(self.size, device=images.device)
        rows = self._offset(down, height)[:, None] + pixel
        columns = torch.where((side < self.flip)[:, None], self.size - 1 - pixel, pixel)
        columns = self._offset(across, width)[:, None] + columns
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
        index = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
        index = index.view(count, 1, -1).expand(-1, channels, -1)
        taken = images.flatten(2).gather(2, index).view(count, channels, self.size, self.size)
        return torch.where(inside[:, None], taken, 0).to(torch.uint8)

    def _offset(self, uniform: Tensor, side: int) -> Tensor:
        places = side + 2 * self.padding - self.size + 1
        return (uniform * places).long().clamp(max=places - 1) - self.padding

    def _check_images(self, images: Tensor) -> None:
        channels = len(self.fill)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != channels or not len(images):
            raise InputError(
                f"images are {tuple(images.shape)} of {images.dtype}; they must be (b, {channels}, h, w) of uint8, "
                f"as many channels as mean and std have"
            )
        if min(images.shape[2:]) + 2 * self.padding < self.size:
            raise InputError(
                f"images of {images.shape[2]} by {images.shape[3]} with padding {self.padding} are smaller than the "
                f"crop of {self.size}; give a smaller size or more padding"
            )


def _check(
    classes: int,
    size: int,
    padding: int,
    flip: float,
    mixup: float,
    cutmix: float,
    smoothing: float,
    mean: Sequence[float],
    std: Sequence[float],
) -> None:
    if classes < 2:
        raise InputError(f"classes is {classes}; give at least 2")
    if size < 1 or padding < 0:
        raise InputError(f"size is {size} and padding {padding}; give a size of at least 1 and padding of at least 0")
    for name, value in (("flip", flip), ("smoothing", smoothing)):
        if not 0 <= value <= 1:
            raise InputError(f"{name} is {value}; it goes from 0 to 1")
    for name, value in (("mixup", mixup), ("cutmix", cutmix)):
        if not 0 <= value < float("inf"):
            raise InputError(f"{name} is {value}; it is the α of a Beta distribution, above 0, or 0 for none")
    if len(mean) not in (1, 3) or len(mean) != len(std):
        raise InputError(f"mean has {len(mean)} and std {len(std)} entries; give one per channel, 1 or 3 each")
    if not all(value > 0 for value in std):
        raise InputError(f"std is {tuple(std)}; every entry must be above 0")
