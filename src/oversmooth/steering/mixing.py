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
from oversmooth.safety.untouched import in_eval_mode
from oversmooth.steering import hiding

_ROOM = 0.02  # for half precision, which models use inside where they give float32
_SHARE = 0.9  # of the tokens that get anything
_TRIES = 3


class MixingCheck:
    """The check of one layer, made once.

    Args:
        index: of the layer in the stack.
        layer: its attention.
        projections: the modules of its values and its output, by their names.
        methods: those that act there, in words.
    """

    def __init__(self, index: int, layer: AttentionLayer, projections: dict[str, nn.Module], methods: str) -> None:
        self.index, self.layer, self.projections, self.methods = index, layer, projections, methods
        self.done, self.tries = False, 0

    def replaced(self, attention: nn.Module) -> str | None:
        """Which of the projections is another module now, as adapters put one around it, in words; None: none is."""
        for name, module in self.projections.items():
            inner = name.removeprefix(self.layer.name).removeprefix(".")
            try:
                now = attention.get_submodule(inner)
            except AttributeError:
                continue  # what is compiled or wrapped has other names
            if now is not module:
                kind = f"{type(now).__module__}.{type(now).__name__}"
                return (
                    f"{name} was steered and is another module now ({kind}), which {self.methods} does not know of; "
                    "unsteer the model, add what is new and merge it, and steer after that"
                )
        return None

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """A hook: attention is about to run."""
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or kwargs is None:
            return
        if (why := self.replaced(module)) is not None:
            raise InputError(why)
        if self.done:
            return
        arrays = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if any(x.is_meta or isinstance(x, FakeTensor) for x in arrays):
            return
        if any(x.is_cuda for x in arrays) and torch.cuda.is_current_stream_capturing():  # no value can be read
            return
        self.tries += 1
        self.done = self.tries == _TRIES
        distance = hiding.distance_from_equal_values
        if "torch._dynamo" in sys.modules:
            distance = torch.compiler.disable(distance)  # called from between two compiled graphs
        try:
            apart = distance(module, self.layer, args, kwargs)
            furthest = float(apart.quantile(_SHARE)) if len(apart) else None
        except Exception:  # it cannot be run once more by itself
            return
        if furthest is not None and furthest > _ROOM:
            self.done, self.tries = False, 0
            raise InputError(
                f"{self.methods} cannot act on layer {self.index} ({self.layer.name}): where all values are equal its "
                f"output projection gets others, {furthest:.2g} off, so it does more than weigh them; unsteer the model"
            )
        self.done = self.done or furthest is not None


def applies_its_weight(module: nn.Module, weight: str, transposed: bool) -> bool:
    """Whether a projection gives what enters it times its weight, plus a bias; of modules that cannot tell, yes.

    Args:
        module: the projection.
        weight: the name of its weight.
        transposed: whether that is stored (in, out).
    """
    W = getattr(module, weight).detach()  # also where it is computed
    if type(module) is nn.Linear or isinstance(module, nn.MultiheadAttention) or W.is_meta:
        return True
    W = W if transposed else W.mT
    x = torch.linspace(-1, 1, 3 * len(W), dtype=W.dtype, device=W.device).sin().view(1, 3, -1)
    with torch.no_grad(), in_eval_mode(module), torch.random.fork_rng(devices=[W.device] if W.is_cuda else []):
        try:
            bias, given, wanted = (y.double() for y in (module.forward(0 * x), module.forward(x), x @ W))
            apart, size, rounded = (float(y.norm()) for y in (given - bias - wanted, wanted, bias))
        except Exception:  # it takes other arrays
            return True
    exact = W.dtype in (torch.float32, torch.float64)
    return not apart > (1e-3 if exact else 0.1) * size + 8 * torch.finfo(W.dtype).eps * rounded
