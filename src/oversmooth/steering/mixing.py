"""Refuses methods inside attention where it does more to values than weigh them: norms, factors, mixtures of heads.

What anatomy knows is refused before anything is changed. The rest is checked in the first pass that is not compiled,
before attention runs: with values that are the same for every token, whatever attention's weights are, the output
projection must get these very values.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering import hiding

_ROOM = {torch.float64: 1e-3, torch.float32: 1e-3}
_ROOM_OF_HALF = 0.05
_SHARE = 0.25  # of the tokens that must get the values: padding may get nothing


class MixingCheck:
    """The check of one layer, made once.

    Args:
        index: of the layer in the stack.
        layer: its attention.
        methods: those that act there, in words.
    """

    def __init__(self, index: int, layer: AttentionLayer, methods: str) -> None:
        self.index, self.layer, self.methods = index, layer, methods
        self.done = False

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """A hook: attention is about to run."""
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or self.done or kwargs is None:
            return
        arrays = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if any(x.is_meta or isinstance(x, FakeTensor) for x in arrays):
            return
        if any(x.is_cuda for x in arrays) and torch.cuda.is_current_stream_capturing():  # no value can be read
            return
        self.done = True  # once, whatever comes of it
        distance = hiding.distance_from_equal_values
        if "torch._dynamo" in sys.modules:
            distance = torch.compiler.disable(distance)  # called from between two compiled graphs
        try:
            apart = distance(module, self.layer, args, kwargs)
        except Exception:  # it cannot be run once more by itself
            return
        nearest = float(apart.double().quantile(_SHARE)) if len(apart) else 0.0
        if nearest > _ROOM.get(apart.dtype, _ROOM_OF_HALF):
            self.done = False
            raise InputError(
                f"{self.methods} cannot act on layer {self.index} ({self.layer.name}): where all values are equal its "
                f"output projection gets others, {nearest:.2g} off, so it does more than weigh them; unsteer the model"
            )
