"""Runs a model on inputs and reduces tokens and attention to numbers on the way; no n by n array outlives its layer.

`study` sends one input through, to learn where the residual stream passes and to check anatomy against what happens;
`Observer` then watches every batch. The model's outputs are what they would be without it, bit for bit.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.anatomy.steered import steered_as
from oversmooth.safety.errors import InputError
from oversmooth.trace.collect import Collect, Look
from oversmooth.trace.observations import Observations, Settings
from oversmooth.trace.stages import SeenBlock
from oversmooth.trace.study import Study
from oversmooth.trace.watch import Watch

ONE_AT_A_TIME = threading.RLock()
# A model that is watched has other forward functions, and torch other settings, which all threads share: threads that
# observe take turns.


def study(
    model: nn.Module, anatomy: Anatomy, run: Any, mask: Tensor | None = None, *, attention: bool = True
) -> list[SeenBlock]:
    """What one call of the model shows about each block.

    Args:
        model: what ``run`` calls.
        anatomy: its attention layers.
        run: calls the model on one input.
        mask: ``(batch, n)``: tokens that are not padding.
        attention: False where only tokens matter; attention is then neither caught nor checked.

    Returns:
        One entry per call of a block, in the order in which they ran.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    return Study.of(modules, list(anatomy), run, mask, attention=attention)


class Observer:
    """Context manager around calls of the model; `observations` has the numbers afterwards.

    Args:
        model: the model that is called inside.
        blocks: what `study` gave for it.
        settings: what to compute.
        look: called with every layer's attention in place of the comparison of eigenvalues.

    >>> import torch
    >>> from oversmooth.anatomy import locate
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    >>> x = torch.randn(3, 5, 8)
    >>> with torch.no_grad():
    ...     blocks = study(model, locate(model), lambda: model(x[:1]))
    ...     with Observer(model, blocks) as observer:
    ...         observer.begin()
    ...         y = model(x)
    >>> observer.observations.rho_rough[1].shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: list[SeenBlock],
        settings: Settings | None = None,
        look: Look | None = None,
    ) -> None:
        settings = settings or Settings()
        self._collect = Collect(blocks, settings, steered_as(model), look)
        layers: list[AttentionLayer] = list({block.layer.block: block.layer for block in blocks}.values())
        modules = dict(model.named_modules(remove_duplicate=False))
        layouts = dict(blocks[0].layouts)
        self._watch = Watch(
            modules, layers, self._collect, self._collect.parts, attention=settings.spectra, layouts=layouts
        )
        self._begun = False
        self._collect.watch_factors = not model.training
        self.observations: Observations = self._collect.observations

    def __enter__(self) -> Observer:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)
        if error[0] is None:
            self._check_way()
            self._collect.finish()

    def _check_way(self) -> None:
        """Raise where blocks ran another number of times: a shared block would be taken for another depth."""
        calls, blocks = self._watch.calls, self._collect.blocks
        shared = len({block.layer.block for block in blocks}) < len(blocks)
        if calls % len(blocks) or (shared and self._begun and calls != len(blocks)):
            raise InputError(
                f"{calls} blocks ran where {len(blocks)} did for the first input; give inputs that take one way"
            )
        self._watch.calls = 0

    def begin(self, *, mask: Tensor | None = None, special: Tensor | None = None) -> None:
        """Announce the next call of the model.

        The mask that attention uses decides which tokens count; the one given here decides what that leaves open.

        Args:
            mask: ``(batch, n)``: tokens that are not padding.
            special: ``(batch, n)``: special tokens, which are not counted.
        """
        if self._begun:
            self._check_way()
        self._begun = True
        self._watch.mask = mask
        self._collect.begin(mask, special)
