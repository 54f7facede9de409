"""A diagnosis of tokens alone: what enters the first block and what each block returns, whatever is inside."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from oversmooth.diagnosis.layers import means, spreads
from oversmooth.results.parts import Layer
from oversmooth.safety.errors import InputError
from oversmooth.trace import DepthMetrics, Plan, Reducer, Site, Trace
from oversmooth.trace.blocks import named_blocks
from oversmooth.trace.feed import ModelInput, batches_for
from oversmooth.trace.tracing import caller


class _Width(Reducer):
    """The number of features of a token."""

    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        del site, mask
        self.result = x.shape[-1]


def layers_of_blocks(
    model: nn.Module, inputs: ModelInput | Iterable[ModelInput], pattern: str, ranks: int
) -> tuple[list[Layer], list[int], int]:
    """What enters the first block, then one entry per run of a block; the tokens of each input; features of a token.

    pattern: the names of its blocks, such as "layers.*". ranks: inputs whose ranks are computed, the first ones.
    """
    plan = Plan.of_names(dict.fromkeys(named_blocks(model, pattern)))
    depths, width = DepthMetrics(ranks=ranks), _Width()
    batches = batches_for(model, inputs)
    first = next(batches, None)
    if first is None:
        raise InputError("there are no inputs; give at least one")
    with torch.no_grad(), Trace(model, plan, [depths, width], replay=False) as trace:
        for _ in trace.over(caller(model, plan), itertools.chain([first], batches), inputs):
            pass
    layers = []
    for depth, name in enumerate(["embedding", *(block.block for block in plan.blocks)]):
        columns = depths.by_input(depth)
        columns["hfc_lfc"] = columns["log_hfc_lfc"].exp()
        layers.append(Layer(name, means(columns), spreads(columns)))
    return layers, trace.facts.lengths.tolist(), width.result
