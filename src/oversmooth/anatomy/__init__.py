"""Where values, outputs and norms live in someone else's model or checkpoint.

The only package that knows the layouts of Hugging Face, timm and torch. Nothing here imports them: a model is
recognised by the names and shapes of its weights, the same on disk as in memory.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from oversmooth.anatomy.layer import Anatomy, AttentionLayer, NormPosition
from oversmooth.anatomy.layouts import register
from oversmooth.anatomy.live import LiveModel, check_is_module, unwrapped
from oversmooth.anatomy.locate import find
from oversmooth.anatomy.steered import steered_as

__all__ = ["Anatomy", "AttentionLayer", "locate", "register"]


def locate(
    model: nn.Module | str | Path,
    *,
    stack: str | None = None,
    heads: int | None = None,
    norm: NormPosition | None = None,
) -> Anatomy:
    """The attention layers of a live module or of a checkpoint, in the order they run.

    Args:
        model: a module, or the path of a checkpoint's directory or file.
        stack: part of the name of the stack, where a model has several; by default the deepest.
        heads: the number of heads, for weights without a configuration.
        norm: where the norm stands ("pre", "post" or "none"), for weights without a configuration.

    Raises:
        InputError: no attention of a known layout, weights that cannot be read, or a family that the theory does not
            describe.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True)
    >>> anatomy = locate(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    >>> len(anatomy), anatomy.layers[0].W_V.shape
    (3, torch.Size([2, 8, 4]))
    """
    if isinstance(model, (str, Path)):
        from oversmooth.anatomy.gguf_file import weights_of

        return find(weights_of(model), stack=stack, heads=heads, norm=norm)
    inside = unwrapped(check_is_module(model))
    if heads is None and (steering := steered_as(inside)) is not None:
        heads = steering.heads
    return find(LiveModel(inside), stack=stack, heads=heads, norm=norm)
