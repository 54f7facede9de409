"""A diagnosis of tokens alone, for models whose attention nobody knows: what blocks get and give, and no spectra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.inputs.batches import Batch
from oversmooth.observe.axes import axes_checked
from oversmooth.observe.blocks import named_blocks
from oversmooth.observe.depths import Depths, every_depth
from oversmooth.observe.feed import Given
from oversmooth.observe.padding import HeardPadding, mask_of
from oversmooth.results.facts import Numbers, plain
from oversmooth.results.parts import Layer
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason


def layers_of_blocks(
    model: nn.Module, inputs: Given | Iterable[Given], pattern: str, ranks: int
) -> tuple[list[Layer], list[int], int]:
    """Metrics of tokens at every depth.

    Args:
        model: run as it is.
        inputs: a tensor, a dict of the model's arguments, or an iterable of either.
        pattern: the names of its blocks, such as "layers.*".
        ranks: inputs whose ranks are computed, the first ones.

    Returns:
        What enters the first block, then one entry per run of a block; tokens of each input; features of a token.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    blocks = [(name, modules[name]) for name in named_blocks(model, pattern)]
    depths, width, way = Depths(ranks=ranks), 0, None
    for batch in _batches(inputs):
        heard, mask = HeardPadding(model, [name for name, _ in blocks]), None

        def seen(depth: int, x: Tensor, heard: HeardPadding = heard) -> None:
            nonlocal width, mask
            width = x.shape[-1]
            mask = heard.of(x) if depth == 0 else mask
            depths.add(depth, x, mask_of(x, mask))

        with torch.no_grad(), heard, axes_checked(model, blocks), every_depth(blocks, seen) as ran:
            _run(model, batch)
        if not ran:
            raise InputError(f"the model ran without running {blocks[0][0]}; give inputs that pass through its blocks")
        if way is not None and ran != way:
            raise InputError(f"{len(ran)} blocks ran where {len(way)} did for the first input; give inputs of one way")
        way = list(ran)
    if way is None:
        raise InputError("there are no inputs; give at least one")
    if max(depths.tokens) < 2:
        raise InputError("no input has two tokens that count; give longer ones")
    layers = [Layer(name, *_numbers(depths.by_input(depth))) for depth, name in enumerate(["embedding", *way])]
    return layers, depths.tokens, width


def _numbers(columns: dict[str, Tensor]) -> tuple[Numbers, Numbers]:
    columns = {**columns, "hfc_lfc": columns["log_hfc_lfc"].exp()}
    means = {name: plain(values.mean()) for name, values in sorted(columns.items())}
    return means, {name: plain(v.std()) if len(v) > 1 else None for name, v in sorted(columns.items())}


def _batches(inputs: Any) -> Iterable[Any]:
    given = [inputs] if isinstance(inputs, (Tensor, Mapping, Batch)) else inputs
    try:
        items = iter(given)
    except TypeError:
        kind = arguments.kind(inputs)
        raise InputError(f"inputs are {kind}; give a tensor, a dict, or an iterable of them") from None
    for item in items:
        yield item.inputs if isinstance(item, Batch) else item[0] if isinstance(item, (list, tuple)) else item


def _run(model: nn.Module, batch: Any) -> None:
    parameter = next(model.parameters(), None)

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or parameter is None:
            return value
        return value.to(parameter.device, parameter.dtype if value.is_floating_point() else value.dtype)

    if not isinstance(batch, (Tensor, Mapping)):
        raise InputError(f"an input is {arguments.kind(batch)}; give a tensor, or a dict of the model's arguments")
    try:
        if isinstance(batch, Mapping):
            model(**{str(name): moved(value) for name, value in batch.items()})
        else:
            model(moved(batch))
    except InputError:
        raise
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"the model does not run on this input ({reason(error)}); give inputs it takes") from error
