"""Which tokens are padding, by the names under which models take their masks, given by name or by position."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy.calls import DECODER_PADDING_SHOWN, PADDING_HIDDEN, PADDING_SHOWN
from oversmooth.safety.errors import InputError
from oversmooth.trace.axes import around
from oversmooth.trace.tokens import counted, may_see

_DECODER_PADDING_HIDDEN = "tgt_key_padding_mask"  # torch's decoder: True where a token is padding

MASKS = (PADDING_SHOWN, PADDING_HIDDEN)
"""Names of arguments that say what is padding."""


class UnknownPaddingError(InputError):
    """What is said of padding is said of other tokens."""


class Padding:
    """Finds the mask among the arguments of one module.

    Args:
        module: whose forward takes them.
        decodes: whether the tokens are those of a decoder: the mask of its encoder is not theirs.
    """

    def __init__(self, module: nn.Module, decodes: bool) -> None:
        self.names = names = positions(module)
        """Of all that the module takes, in order."""
        pairs = ((DECODER_PADDING_SHOWN, PADDING_SHOWN), (_DECODER_PADDING_HIDDEN, PADDING_HIDDEN))
        # Where a module takes the masks of both, each stack has its own. Wrappers take whatever comes.
        both = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False)) and _takes_anything(module)
        self.shown, self.hidden = (
            decoder if decodes and (decoder in names or both) else encoder for decoder, encoder in pairs
        )  # fmt: skip

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All that the module is given, by name."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
        """``(batch, n)``: the valid tokens; None where no mask says.

        Args:
            args: what the module is given by position.
            kwargs: what it is given by name.
        """
        given = self.named(args, kwargs)
        return valid_tokens(given.get(self.shown), given.get(self.hidden), given.get("attn_mask"))


def valid_tokens(shown: Any = None, hidden: Any = None, pairs: Any = None) -> Tensor | None:
    """``(batch, n)``: the tokens that the first mask with an answer shows; None where none has one.

    Nothing here waits for the device, so compiled code and CUDA graphs can run it.

    Args:
        shown: ``(batch, n)``: not 0 where a token is valid, or what is added to its scores; or as ``pairs``.
        hidden: ``(batch, n)`` or ``(n,)``: True, or −inf, where a token is padding.
        pairs: ``(batch, heads or 1, queries or 1, n)``: who may see whom, or what is added to scores.
    """
    if isinstance(shown, Tensor) and shown.ndim == 2:
        if not shown.is_floating_point():
            return shown != 0
        # 1 for valid tokens and 0 for others, or added to scores: 0 for valid tokens and negative for others.
        added = (shown < 0).any() | (shown == 0).all()
        return torch.where(added, shown >= 0, shown != 0)
    if isinstance(hidden, Tensor) and hidden.ndim in (1, 2):
        return (hidden[None] if hidden.ndim == 1 else hidden) == 0
    for mask in (shown, pairs):
        if isinstance(mask, Tensor) and mask.ndim == 4:
            allowed = may_see(mask, alone=True) if mask.is_floating_point() else mask != 0
            if mask.shape[-2] not in (1, mask.shape[-1]):  # queries that follow on a cache
                return allowed.any((1, 2))
            return counted(allowed, rounds=2)  # texts and their padding are settled in the first
    return None


class HeardPadding:
    """Context manager around passes of a model: what the modules that hold its blocks are told of padding.

    Args:
        model: the model.
        names: of its blocks.
        strict: whether what is told of other tokens is refused even where it cannot reach the blocks by a known name.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], *, strict: bool = False) -> None:
        self.strict = strict
        self._listeners = [(module, Padding(module, decodes(names))) for module in around(model, names)]
        self._heard: list[tuple[Padding, Any, Any]] = []
        self._handles: list[Any] = []

    def __enter__(self) -> HeardPadding:
        def hear(padding: Padding) -> Any:
            # A default: a pass of another thread may call it before torch knows that it takes keywords as well.
            return lambda _module, args, kwargs=None: self._heard.append((padding, args, kwargs or {}))

        for module, padding in self._listeners:
            self._handles.append(module.register_forward_pre_hook(hear(padding), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._heard.clear()

    def of(self, x: Tensor) -> Tensor | None:
        """``(batch, n)``: which tokens of the pass that runs count; None: all.

        Args:
            x: ``(batch, n, d)``: what enters the first block.

        Raises:
            UnknownPaddingError: what was told is of other tokens.
        """
        heard, self._heard = self._heard, []
        innermost = told = None
        reaches = self.strict
        for padding, args, kwargs in heard:
            innermost = padding.of(args, kwargs)
            if innermost is not None and innermost.shape == x.shape[:2]:
                return innermost.to(x.device)
            told = told if innermost is None else innermost
            reaches = self.strict or innermost is not None or x.shape[1] in sizes_of_masks(args, kwargs)
        # A mask of another shape that does not reach the innermost is of other tokens: a text's, beside pictures.
        return mask_of(x, told) if reaches else None


def mask_of(x: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask of an array ``(batch, n, d)``, on its device; None where it hides nothing and is of another shape.

    Args:
        x: tokens, or their gradients.
        mask: ``(batch, n)`` of the model's inputs, which the model may cut, join or add to.

    Raises:
        UnknownPaddingError: it is of another shape, and hides something.
    """
    if mask is None or mask.shape == x.shape[:2]:
        return None if mask is None else mask.to(x.device)
    if bool((mask != 0).all()):
        return None
    raise UnknownPaddingError(
        f"the mask of padding is of {tuple(mask.shape)} tokens and blocks get {tuple(x.shape[:2])}, so that it is not "
        "known which of them are padding; give inputs of one length, or the mask to the module that runs the blocks"
    )


def sizes_of_masks(args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """The last sizes of arguments that may be masks, whatever they are called: arrays of no floating numbers."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim]
    return {value.shape[-1] for value in given if not value.is_floating_point()}


def _takes_anything(module: nn.Module) -> bool:
    try:
        kinds = [one.kind for one in inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        return False
    return inspect.Parameter.VAR_KEYWORD in kinds


def positions(module: nn.Module) -> list[str]:
    """The names of the arguments that a module takes, in their order."""
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def decodes(names: Sequence[str]) -> bool:
    """Whether blocks of these names are those of a decoder."""
    return bool(names) and all("decoder" in name for name in names)
