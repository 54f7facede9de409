"""From encoded images and masks to bytes, in as many threads as there are cores."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import check_fits

Size = tuple[int, int]
"""Height and width."""
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
_AHEAD = 64  # pictures that are decoded before one is taken


def decoded(
    pairs: Sequence[tuple[str, Callable[[], bytes], Callable[[], bytes]]],
    relabel: NDArray[np.uint8],
    size: Size | None = None,
) -> tuple[Tensor | list[Tensor], Tensor | list[Tensor]]:
    """Images ``(3, h, w)`` and masks ``(h, w)``, stacked where all have one size.

    Args:
        pairs: where each stands, and what gives the bytes of its image and of its mask.
        relabel: ``(256,)``: the label that each byte of a mask stands for.
        size: to which all are resized, images bilinearly and masks to the nearest; None: as they are.
    """
    pil = import_library("PIL.Image", "decoding images")

    def one(pair: tuple[str, Callable[[], bytes], Callable[[], bytes]]) -> tuple[Tensor, Tensor]:
        where, image_bytes, mask_bytes = pair
        image = _opened(pil, image_bytes(), f"the image of {where}")
        mask = _opened(pil, mask_bytes(), f"the mask of {where}")
        if mask.mode not in ("L", "P"):
            raise InputError(f"the mask of {where} has pixels of kind {mask.mode}; give one byte each, as PNG has them")
        if image.size != mask.size:
            raise InputError(
                f"the image of {where} is {image.width} by {image.height} and its mask {mask.width} by {mask.height}; "
                "give masks of their images' size"
            )
        try:
            image = image.convert("RGB")
            if size is not None:
                image = image.resize(size[::-1], pil.Resampling.BILINEAR)
                mask = mask.resize(size[::-1], pil.Resampling.NEAREST)
            pixels, labels = np.array(image), relabel[np.array(mask)]
        except Exception as error:  # decoders raise whatever they like on broken files
            raise InputError(f"{where} does not decode ({reason(error)}); fetch it again") from error
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), torch.from_numpy(labels)

    images: list[Tensor] = []
    masks: list[Tensor] = []
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(pairs), _AHEAD):
            for image, mask in pool.map(one, pairs[first : first + _AHEAD]):
                if not images:  # twice: one by one, and stacked
                    needed = 2 * len(pairs) * 4 * mask.numel()
                    check_fits(needed, f"decoding {len(pairs):,} images such as {pairs[0][0]}", "give fewer of them")
                images.append(image)
                masks.append(mask)
    if len({mask.shape for mask in masks}) == 1:
        return torch.stack(images), torch.stack(masks)
    return images, masks


def _opened(pil: Any, data: bytes, what: str) -> Any:
    try:
        return pil.open(io.BytesIO(data), formats=_FORMATS)
    except Exception as error:
        raise InputError(f"{what} does not decode ({reason(error)}); fetch it again") from error
