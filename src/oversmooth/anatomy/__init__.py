"""Where values, outputs and norms live in someone else's model or checkpoint.

The only place that knows the layouts of Hugging Face, timm and torch. Nothing here imports them: a model is known by
the names and shapes of its weights, the same on disk as in memory.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from oversmooth.anatomy.checkpoint import Checkpoint
from oversmooth.anatomy.layer import Anatomy, AttentionLayer, Norm, NormPosition
from oversmooth.anatomy.layouts import LAYOUTS, Layout, register
from oversmooth.anatomy.live import LiveModel, check_is_module, unwrapped
from oversmooth.anatomy.locate import find
from oversmooth.anatomy.steered import steered_as

__all__ = ["LAYOUTS", "Anatomy", "AttentionLayer", "Layout", "Norm", "locate", "register"]


def locate(
    model: nn.Module | str | Path,
    *,
    stack: str | None = None,
    heads: int | None = None,
    norm: NormPosition | None = None,
) -> Anatomy:
    """The attention layers of a live module, or of a checkpoint's directory or file, in the order they run.

    stack: part of the name of the stack to look at, where a model has several; by default the deepest. heads, norm
    ("pre", "post", "none"): for weights that come without a configuration.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True)
    >>> found = locate(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    >>> len(found), found.layers[0].W_V.shape
    (3, torch.Size([2, 8, 4]))
    """
    if isinstance(model, (str, Path)):
        return find(Checkpoint(model), stack=stack, heads=heads, norm=norm)
    inside = unwrapped(check_is_module(model))
    if heads is None and (steering := steered_as(inside)) is not None:
        heads = steering.heads  # told when it was steered
    return find(LiveModel(inside), stack=stack, heads=heads, norm=norm)
