"""Which tokens are padding, by the names under which models take their masks, given by name or by position."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy.calls import DECODER_PADDING_SHOWN, PADDING_HIDDEN, PADDING_SHOWN
from oversmooth.observe.tokens import counted, may_see

_DECODER_PADDING_HIDDEN = "tgt_key_padding_mask"  # torch's decoder: True where a token is padding

MASKS = (PADDING_SHOWN, PADDING_HIDDEN)
"""Names of arguments that say what is padding."""


class Padding:
    """Finds the mask among the arguments of one module.

    Args:
        module: whose forward takes them.
        decodes: whether the tokens are those of a decoder: the mask of its encoder is not theirs.
    """

    def __init__(self, module: nn.Module, decodes: bool) -> None:
        names = positions(module)
        pairs = ((DECODER_PADDING_SHOWN, PADDING_SHOWN), (_DECODER_PADDING_HIDDEN, PADDING_HIDDEN))
        # Where a module takes the masks of both, each stack has its own.
        self.shown, self.hidden = (
            decoder if decodes and decoder in names else encoder for decoder, encoder in pairs
        )  # fmt: skip
        self.places = {name: names.index(name) for name in (self.shown, self.hidden) if name in names}

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
        """``(batch, n)``: not 0 for tokens that count; None where it is not said.

        Args:
            args: what the module is given by position.
            kwargs: what it is given by name.
        """
        shown = self._value(self.shown, args, kwargs)
        if isinstance(shown, Tensor) and shown.ndim == 2:
            return shown
        if isinstance(shown, Tensor) and shown.ndim == 4:
            return _counted(shown)
        hidden = self._value(self.hidden, args, kwargs)
        if isinstance(hidden, Tensor) and hidden.ndim == 2:
            return hidden == 0  # -inf where it is no boolean
        return None

    def _value(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        at = self.places.get(name, -1)
        return args[at] if 0 <= at < len(args) else None


def _counted(mask: Tensor) -> Tensor:
    """``(batch, n)``: the tokens that some query sees.

    Args:
        mask: ``(batch, heads or 1, n or 1, n)``: who may see whom, or what is added to the scores.
    """
    allowed = may_see(mask) if mask.is_floating_point() else mask != 0
    # Compiled code cannot ask whether a round changed anything; texts and their padding are settled in the first.
    return counted(allowed, rounds=2 if torch.compiler.is_compiling() else None)


def positions(module: nn.Module) -> list[str]:
    """The names of the arguments that a module takes, in their order."""
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def decodes(names: Sequence[str]) -> bool:
    """Whether blocks of these names are those of a decoder."""
    return bool(names) and all("decoder" in name for name in names)
