"""A diagnosis of tokens alone, for models whose attention nobody knows: what blocks get and give, and no spectra."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from oversmooth.diagnosis.layers import means, spreads
from oversmooth.results.parts import Layer
from oversmooth.safety.errors import InputError
from oversmooth.trace.blocks import named_blocks
from oversmooth.trace.depths import Depths, every_depth
from oversmooth.trace.feed import Given, batches_for, called
from oversmooth.trace.layout import axes_checked
from oversmooth.trace.valid import HeardPadding, LeftOut, mask_of


def layers_of_blocks(
    model: nn.Module, inputs: Given | Iterable[Given], pattern: str, ranks: int, left_out: LeftOut | None = None
) -> tuple[list[Layer], list[int], int]:
    """What enters the first block, then one entry per run of a block; the tokens of each input; features of a token.

    pattern: the names of its blocks, such as "layers.*". ranks: inputs whose ranks are computed, the first ones.
    left_out: tokens that are measured nowhere.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    blocks = [(name, modules[name]) for name in named_blocks(model, pattern)]
    depths, width, way = Depths(ranks=ranks), 0, None
    for batch in batches_for(model, inputs):
        heard, mask = HeardPadding(model, [name for name, _ in blocks]), None

        def seen(depth: int, x: Tensor, heard: HeardPadding = heard) -> None:
            nonlocal width, mask
            width = x.shape[-1]
            mask = heard.of(x) if depth == 0 else mask
            valid = mask_of(x, mask)
            if left_out is not None:
                counted = ~left_out.mask(x)
                valid = counted if valid is None else counted & (valid != 0)
            depths.add(depth, x, valid)

        with torch.no_grad(), heard, axes_checked(model, blocks), every_depth(blocks, seen) as ran:
            called(model, batch, {})
        if not ran:
            raise InputError(f"the model ran without running {blocks[0][0]}; give inputs that pass through its blocks")
        if way is not None and ran != way:
            raise InputError(f"{len(ran)} blocks ran where {len(way)} did for the first input; give inputs of one way")
        way = list(ran)
    if way is None:
        raise InputError("there are no inputs; give at least one")
    if max(depths.tokens) < 2:
        raise InputError("every input has fewer than two valid tokens; give longer ones")
    layers = []
    for depth, name in enumerate(["embedding", *way]):
        columns = depths.by_input(depth)
        columns["hfc_lfc"] = columns["log_hfc_lfc"].exp()
        layers.append(Layer(name, means(columns), spreads(columns)))
    return layers, depths.tokens, width
