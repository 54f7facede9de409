"""A diagnosis of tokens alone: what enters the first block and what each block returns, whatever is inside."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from oversmooth.diagnosis.layers import means, spreads
from oversmooth.results.parts import Layer
from oversmooth.trace import DepthMetrics, Plan, run
from oversmooth.trace.blocks import named_blocks
from oversmooth.trace.feed import ModelInput
from oversmooth.trace.valid import LeftOut


def layers_of_blocks(
    model: nn.Module,
    inputs: ModelInput | Iterable[ModelInput],
    pattern: str,
    ranks: int,
    left_out: LeftOut | None = None,
) -> tuple[list[Layer], list[int], int]:
    """What enters the first block, then one entry per run of a block; the tokens of each input; features of a token.

    pattern: the names of its blocks, such as "layers.*". ranks: inputs whose ranks are computed, the first ones.
    left_out: tokens that are measured nowhere.
    """
    plan = Plan.of_names(dict.fromkeys(named_blocks(model, pattern)))
    facts = run(model, inputs, plan, [depths := DepthMetrics(ranks=ranks)], left_out=left_out).facts
    layers = []
    for depth, name in enumerate(["embedding", *(block.block for block in plan.blocks)]):
        columns = depths.by_input(depth)
        columns["hfc_lfc"] = columns["log_hfc_lfc"].exp()
        layers.append(Layer(name, means(columns), spreads(columns)))
    return layers, facts.lengths.tolist(), facts.width
