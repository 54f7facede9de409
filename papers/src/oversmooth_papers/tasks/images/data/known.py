"""The data sets known by name: how their images look, where they are published, and how they are normalised."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oversmooth.safety.errors import InputError
from oversmooth_papers.tasks.images.data.images import Images


@dataclass(frozen=True)
class Known:
    """A published data set."""

    name: str
    hub: str
    folders: tuple[str, ...]  # what the folder is called that it comes in
    shape: tuple[int, int, int]  # (c, h, w)
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labels: tuple[str, ...] = ()  # names for layouts that have none

    def check(self, images: Images, where: str, *, coarse: bool = False) -> None:
        """Refuse data that is not this set, whatever its folder is called."""
        shape = tuple(images.images.shape[1:])
        classes = 20 if coarse else self.classes
        if shape != self.shape or len(images.classes) != classes:
            raise InputError(
                f"{where} has images {shape} in {len(images.classes)} classes; {self.name} has {self.shape} in "
                f"{classes}: name the folder that holds it"
            )


_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_FASHION = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"

KNOWN = {
    known.name: known
    for known in (
        Known(
            name="cifar100",
            hub="uoft-cs/cifar100",
            folders=("cifar-100", "cifar100", "cifar-100-python", "cifar-100-binary"),
            shape=(3, 32, 32),
            classes=100,
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
        ),
        Known(
            name="cifar10",
            hub="uoft-cs/cifar10",
            folders=("cifar-10", "cifar10", "cifar-10-batches-py", "cifar-10-batches-bin"),
            shape=(3, 32, 32),
            classes=10,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            labels=tuple(_CIFAR10.split()),
        ),
        Known(
            name="fashion-mnist",
            hub="zalando-datasets/fashion_mnist",
            folders=("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
            shape=(1, 28, 28),
            classes=10,
            mean=(0.2860,),
            std=(0.3530,),
            labels=tuple(_FASHION.split(", ")),
        ),
        Known(
            name="mnist",
            hub="ylecun/mnist",
            folders=("mnist", "MNIST", "MNIST/raw"),
            shape=(1, 28, 28),
            classes=10,
            mean=(0.1307,),
            std=(0.3081,),
            labels=tuple("0123456789"),
        ),
    )
}
"""The sets that ``load`` takes by name. Means and spreads are the customary ones, of the training pixels over 255."""


def known(name: str) -> Known | None:
    """The set of this name, however its words are joined: cifar100, CIFAR-100 and cifar_100 are one."""
    plain = _plain(name)
    return next((known for known in KNOWN.values() if _plain(known.name) == plain), None)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def normalisation(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels from 0 to 1: the customary ones, or measured on these images."""
    if images.name in KNOWN:
        return KNOWN[images.name].mean, KNOWN[images.name].std
    levels = torch.arange(256, dtype=torch.float64, device=images.images.device) / 255
    means, stds = [], []
    for channel in images.images.unbind(1):
        counts = torch.bincount(channel.flatten(), minlength=256) / channel.numel()
        mean = (counts * levels).sum()
        means.append(mean.item())
        stds.append((counts * (levels - mean).square()).sum().sqrt().item())
    if not all(stds):
        raise InputError(
            f"{images.name} has a channel of one level alone, which cannot be normalised; give real images"
        )
    return tuple(means), tuple(stds)
