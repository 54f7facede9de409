"""Which axis of a block's array is the batch: what modules say of themselves, and what the shapes of a pass show.

torch's own attention takes (n, batch, d) unless ``batch_first`` says otherwise, and a block around it may transpose for
it: then the block's axes are not those of its attention.
"""

from __future__ import annotations

import torch
from torch import nn

from oversmooth.safety.errors import InputError


def own_word(block: nn.Module) -> bool | None:
    """Whether a block takes (batch, n, d), and not (n, batch, d), where it says so itself; None where it does not.

    Args:
        block: whose attribute is read; torch's own layers hand theirs to their attention.
    """
    own = block.self_attn if isinstance(block, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)) else block
    return bool(own.batch_first) if hasattr(own, "batch_first") else None


def attention_batch_first(attention: nn.Module, block: nn.Module) -> bool:
    """Whether attention takes (batch, n, d): as it says itself, or else as its block does, or else yes."""
    own = getattr(attention, "batch_first", None)
    return own_word(block) is not False if own is None else bool(own)


def telling(block: nn.Module) -> list[nn.Module]:
    """The modules inside a block that say how their arrays lie; none where the block speaks for itself.

    Args:
        block: whose modules are looked through.
    """
    if own_word(block) is not None:
        return []
    return [module for module in block.modules() if hasattr(module, "batch_first")]


def says_batch_first(block: nn.Module) -> bool | None:
    """Whether a block takes (batch, n, d), and not (n, batch, d); None where only a module inside it says the latter,
    which the block may transpose for.

    Args:
        block: whose attribute is read, or those of its modules.
    """
    own = own_word(block)
    return own if own is not None else True if all(module.batch_first for module in telling(block)) else None


def seen_batch_first(name: str, block: torch.Size, inner: torch.Size | None, says: bool) -> bool:
    """The same from shapes: a module inside got the block's own axes, or those transposed.

    Args:
        name: of the block, for the error.
        block: the shape of what it got.
        inner: of what the module inside got; None: it did not run.
        says: whether the module inside takes (batch, n, d).

    Raises:
        InputError: both axes are of one length, and the module inside takes (n, batch, d).
    """
    if inner is None or inner[:2] not in (block[:2], block[:2][::-1]):
        return True
    if block[0] == block[1]:
        if says:  # as nearly all blocks are
            return True
        raise InputError(
            f"{name} gets an array of shape {tuple(block)}, and its first axis may be the batch or the tokens; give "
            "another number of inputs, or say it: block.batch_first = True"
        )
    return says if inner[:2] == block[:2] else not says
