"""Frost made by rule: five textures with the colours, contrast and roughness of frosted panes seen small.

Their means and deviations per channel are those measured on the five photographs that the published script picks from
(at its fifth of their size), so that frost weighs on a picture as much as the official one does; the ice is made here.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws

_SIDE = 128

# Mean and deviation of red, green and blue, 0 to 255. The script's second and third photographs are alike.
_PANES = (
    ((77.5, 149.0, 165.7), (26.8, 16.4, 15.3)),
    ((200.8, 205.4, 214.5), (21.4, 22.1, 22.6)),
    ((200.8, 205.4, 214.5), (21.4, 22.1, 22.6)),
    ((138.0, 153.2, 165.6), (29.0, 29.0, 30.2)),
    ((112.3, 123.3, 134.7), (44.3, 43.2, 41.6)),
)


@lru_cache(maxsize=1)
def frost_textures() -> Tensor:
    """(5, 3, side, side), uint8, on the CPU; each continues at its other side."""
    ice = _ice(CorruptionDraws("frost textures", 0, len(_PANES), torch.device("cpu")))
    colours = torch.tensor(_PANES, dtype=torch.float64)[..., None, None]
    return (colours[:, 0] + colours[:, 1] * ice[:, None]).round_().clamp_(0, 255).to(torch.uint8)


def _ice(draw: CorruptionDraws) -> Tensor:
    """(n, side, side), mean 0 and deviation 1: needles in several directions, in patches, over soft clouds."""
    down, right = torch.fft.fftfreq(_SIDE, dtype=torch.float64)[:, None], torch.fft.rfftfreq(_SIDE, dtype=torch.float64)
    needles = []
    for turn in torch.arange(5, dtype=torch.float64) * torch.pi / 5 + 0.3:
        along, across = right * turn.cos() + down * turn.sin(), down * turn.cos() - right * turn.sin()
        field = _filtered(draw, torch.exp(-((along * 25) ** 2) - (across * 3.5) ** 2))
        needles.append(torch.exp(-4 * field.abs()))  # bright where the field changes sign: thin lines that branch
    lines = _standard(torch.stack(needles).amax(dim=0))
    radius = torch.hypot(down, right)
    patches, clouds = (_filtered(draw, torch.exp(-((radius * 60) ** 2))) for _ in range(2))
    fine = lines + 0.5 * _filtered(draw, 1 / (radius + 0.05))
    return _standard(_standard(fine * (1.5 + patches).clamp(0.4, 3)) + 0.5 * clouds)


def _filtered(draw: CorruptionDraws, gains: Tensor) -> Tensor:
    return _standard(torch.fft.irfft2(torch.fft.rfft2(draw.normal(_SIDE, _SIDE)) * gains, s=(_SIDE, _SIDE)))


def _standard(field: Tensor) -> Tensor:
    centred = field - field.mean(dim=(-2, -1), keepdim=True)
    return centred / centred.std(dim=(-2, -1), keepdim=True)
