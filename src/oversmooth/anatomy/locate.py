"""Find attention by the names and shapes of weights, the same way in a live module and in a checkpoint.

A source gives names, shapes and what it knows about heads; nothing here depends on classes or on where weights live.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import cast

from torch import nn

from oversmooth.anatomy import layouts
from oversmooth.anatomy.assemble import layer_of
from oversmooth.anatomy.layer import Anatomy, AttentionLayer, NormPosition, joined_name
from oversmooth.anatomy.layouts import LAYOUTS, Layout
from oversmooth.anatomy.live import Source, model_type
from oversmooth.anatomy.not_found import nothing_found
from oversmooth.anatomy.quantised import check_format
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

MOST_LAYERS = 4096
"""Several times the depth of the deepest transformer ever trained."""


def find(
    source: Source,
    *,
    stack: str | None = None,
    heads: int | None = None,
    norm: NormPosition | None = None,
) -> Anatomy:
    """The attention layers of one stack of a live module or a checkpoint; arguments are those of `anatomy.locate`."""
    heads = None if heads is None else arguments.whole(heads, "heads", least=1)
    if stack is not None and not isinstance(stack, str):
        raise InputError(f"stack is {arguments.shown(stack)}; give part of a stack's name")
    norm = norm_position(norm)
    check_format(source.what, source.config, source.shapes)
    matches = _matches(source)
    remarks = _partial(source, matches)
    cross = [name for name in matches if any(part in name.lower() for part in layouts.CROSS_ATTENTION)]
    if cross:
        remarks.append(f"{len(cross)} cross-attention layers ({_key(cross[0])}) read another sequence and are left out")
    stacks: dict[str, list[str]] = defaultdict(list)
    for name in matches:
        if name not in cross:
            stacks[_key(name)].append(name)
    if not stacks:
        _check_supported(source, [""])
        raise InputError(nothing_found(source, remarks))
    chosen = _choose(stacks, stack)
    others = [f"{key} ({len(members)})" for key, members in stacks.items() if key != chosen]
    if others:
        remarks.append(f"looked at {chosen}; other stacks, to be chosen with stack=: {', '.join(others)}")
    _check_depth(source, len(stacks[chosen]))
    in_order = sorted(stacks[chosen], key=_numbers)
    _check_supported(source, in_order)
    layers = [layer_of(source, name, matches[name], heads, norm) for name in in_order]
    if two := next((pair for pair in itertools.pairwise(layers) if pair[0].block == pair[1].block), None):
        raise InputError(
            f"{source.what}: {two[0].block} holds two attention layers ({two[0]} and {two[1]}), and one per block is "
            "followed; measure tokens alone by diagnose(model, x, blocks='layers.*', spectra=False)"
        )
    if any(layer.norm_position == "unknown" for layer in layers):
        model = model_type(source, in_order[0])
        known = f"model_type {model}" if model else "no model_type"
        remarks.append(
            f"the position of the norm is not known from these files ({known}), and it is not folded; "
            "give norm= (--norm)"
        )
    in_turn = tuple(_as_run(source, layers))
    if without := _without_attention(source, in_turn):
        where = f"{len(without)} of {len(in_turn) + len(without)} blocks (first: {without[0]})"
        remarks.append(f"no attention of a known layout in {where}, of which tokens alone are measured")
    else:
        remarks += _gaps(chosen, in_order)
    return Anatomy(in_turn, chosen, tuple(remarks), not others, without)


def norm_position(norm: str | None) -> NormPosition | None:
    """A position of the norm, checked."""
    return None if norm is None else cast(NormPosition, arguments.choice(norm, "norm", ("pre", "post", "none")))


def _value_weights(source: Source) -> Iterator[tuple[str, str, Layout]]:
    """Weights that may be attention's values: the name, that of the module around it, and the layout."""
    for layout in LAYOUTS:
        parts = [part for part in (layout.latent_norm, layout.expand) if part]
        for name, shape in source.shapes.items():
            if len(shape) != 2 or not f".{name}".endswith(f".{layout.value}"):
                continue
            prefix = name.removesuffix(layout.value).removesuffix(".")
            if any(joined_name(prefix, part) in source.shapes for part in layouts.LINEAR_ATTENTION):
                continue
            packed_so = not layout.models or model_type(source, prefix) in layout.models
            if packed_so and all(joined_name(prefix, part) in source.shapes for part in parts):
                yield name, prefix, layout


def _matches(source: Source) -> dict[str, Layout]:
    """The names of attention modules, and the layouts of their weights."""
    matches: dict[str, Layout] = {}
    for _, prefix, layout in _value_weights(source):
        if len(source.shapes.get(joined_name(prefix, layout.output), ())) == 2:
            matches.setdefault(prefix, layout)
    return matches


def _check_supported(source: Source, prefixes: list[str]) -> None:
    inside = tuple({_key(prefix).partition("*")[0] for prefix in prefixes})
    for weight, (models, why) in layouts.UNSUPPORTED.items():
        marked = any(name.startswith(inside) and weight in name for name in source.shapes)
        if marked or model_type(source, prefixes[0]) in models:
            raise InputError(f"{source.what}: {why}")


def _partial(source: Source, matches: dict[str, Layout]) -> list[str]:
    """Value weights whose output weight is not where any layout has it."""
    taken = {joined_name(name, layout.value) for name, layout in matches.items()}
    # One layout's name for values may be another's for queries, so nothing inside a match is reported again.
    inside = tuple(f"{name}." for name in matches if name)
    missing: dict[str, tuple[str, set[str]]] = {}
    for name, _, layout in _value_weights(source):
        if name not in taken and not name.startswith(inside):
            missing.setdefault(_key(name), (name, set()))[1].add(layout.output)
    return [
        f"{first} looks like attention's values, but no output weight stands beside it "
        f"(such as {', '.join(sorted(outputs)[:3])}); it is left out"
        for first, outputs in missing.values()
    ]


def _key(prefix: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", prefix)


def _numbers(prefix: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", prefix)]


def _choose(stacks: dict[str, list[str]], stack: str | None) -> str:
    if stack is not None:
        fitting = [key for key in stacks if stack in key]
        if not fitting:
            raise InputError(f"there is no stack {stack!r}; choose one of {', '.join(stacks)}")
        return max(fitting, key=lambda key: len(stacks[key]))
    # The deepest; of equals an encoder, whose input is what a user has at hand.
    return max(stacks, key=lambda key: (len(stacks[key]), "encoder" in key))


def _gaps(key: str, prefixes: list[str]) -> list[str]:
    if key.count("*") != 1:
        return []
    present = {_numbers(prefix)[-1] for prefix in prefixes}
    count = max(present) + 1 - len(present)  # a name may hold any number, so nothing of that length is built
    if not count:
        return []
    missing = itertools.islice((index for index in itertools.count() if index not in present), min(count, 8))
    return [f"{key}: no attention of a known layout in {count:,} places ({', '.join(map(str, missing))})"]


def _check_depth(source: Source, depth: int) -> None:
    if depth > MOST_LAYERS:
        raise InputError(f"{source.what} has {depth:,} layers; the limit is {MOST_LAYERS:,}; check its configuration")


def _without_attention(source: Source, layers: tuple[AttentionLayer, ...]) -> tuple[str, ...]:
    """The other blocks in the one list of blocks of a live model: those of hybrids that mix tokens in another way.

    Of a model by transformers alone: a list of one's own may hold anything beside its blocks.
    """
    lists = {layer.block.rpartition(".")[0] for layer in layers}
    around = source.modules.get(lists.pop()) if len(lists) == 1 else None
    if not isinstance(around, nn.ModuleList) or not source.config.get("model_type"):
        return ()
    known = {id(source.modules[layer.block]) for layer in layers}
    found = ((f"{layers[0].block.rpartition('.')[0]}.{index}", block) for index, block in enumerate(around))
    return tuple(n for n, b in found if id(b) not in known and any(p.ndim > 1 for p in b.parameters()))


def _as_run(source: Source, layers: list[AttentionLayer]) -> list[AttentionLayer]:
    """Shared layers as often as they run, each by its first name (in ALBERT groups of layers, each repeated over its
    share of the depth).
    """
    firsts: dict[str, AttentionLayer] = {}
    names = {id(module): name for name, module in reversed([*source.modules.items()])}
    blocks = [names.get(id(source.modules.get(layer.block)), layer.block) for layer in layers]
    layers = [firsts.setdefault(block, layer) for block, layer in zip(blocks, layers, strict=True)]
    depth, groups = source.config.get("num_hidden_layers"), source.config.get("num_hidden_groups")
    if not isinstance(depth, int) or not isinstance(groups, int) or min(depth, groups) < 1 or len(layers) % groups:
        return layers
    _check_depth(source, depth)
    inner = len(layers) // groups
    order = [int(i / (depth / groups)) for i in range(depth)]
    return [layer for group in order for layer in layers[group * inner : (group + 1) * inner]]
