"""Find attention by the names and shapes of weights, the same way in a live module and in a checkpoint.

A source gives names, shapes and what it knows about heads; nothing here depends on classes or on where weights live.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from oversmooth.anatomy import layouts
from oversmooth.anatomy.layer import GATE, SINKS, Anatomy, AttentionLayer, Norm, NormPosition, Weights
from oversmooth.anatomy.layouts import LAYOUTS, Layout
from oversmooth.anatomy.live import NormForm
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

MOST_LAYERS = 4096
"""Several times the depth of the deepest transformer ever trained."""


class Source(Weights, Protocol):
    """Where the weights live, and what is known besides them."""

    what: str
    """Its name in messages."""
    config: dict[str, Any]
    """As in config.json; empty where there is none."""
    runs: bool
    """Whether it is a live module: where its norms stand is observed when it runs, and a first guess will do."""

    def attribute(self, module: str, names: tuple[str, ...]) -> Any:
        """The first of these attributes that the module or a module near it has, or None."""
        ...

    def setting(self, module: str, name: str) -> Any:
        """A setting of the module's configuration, or of its tower's; None where there is none."""
        ...

    def norm_form(self, module: str) -> NormForm | None:
        """What a norm does, as observed; None where only its weights are known."""
        ...

    def window(self, module: str) -> int | None:
        """The size of attention's sliding window; None where there is none, or it is not known."""
        ...


@dataclass(frozen=True)
class _Match:
    """An attention module, by its name, and the layout of its weights."""

    prefix: str
    layout: Layout


def find(
    source: Source,
    *,
    stack: str | None = None,
    heads: int | None = None,
    norm: NormPosition | None = None,
) -> Anatomy:
    """The attention layers of one stack.

    Args:
        source: a live module or a checkpoint.
        stack: part of the stack's name, where there are several; by default the deepest.
        heads: the number of heads, where the source does not say.
        norm: where the norm stands, where the source does not say.
    """
    heads = None if heads is None else arguments.whole(heads, "heads", least=1)
    if stack is not None and not isinstance(stack, str):
        raise InputError(f"stack is {arguments.shown(stack)}; give part of a stack's name")
    norm = norm_position(norm)
    matches = _matches(source)
    remarks = _partial(source, matches)
    cross = [m for m in matches if _is_cross(m.prefix)]
    own = [m for m in matches if not _is_cross(m.prefix)]
    if cross:
        remarks.append(
            f"{len(cross)} cross-attention layers ({_key(cross[0].prefix)}) read another sequence and are left out"
        )
    stacks: dict[str, list[_Match]] = defaultdict(list)
    for match in own:
        stacks[_key(match.prefix)].append(match)
    if not stacks:
        _check_supported(source, [""])
        raise InputError(_nothing_found(source, remarks))
    chosen = _choose(stacks, stack)
    others = [f"{key} ({len(members)})" for key, members in stacks.items() if key != chosen]
    if others:
        remarks.append(f"looked at {chosen}; other stacks, to be chosen with stack=: {', '.join(others)}")
    _check_depth(source, len(stacks[chosen]))
    in_order = sorted(stacks[chosen], key=lambda m: [int(i) for i in re.findall(r"\d+", m.prefix)])
    _check_supported(source, [m.prefix for m in in_order])
    remarks += _gaps(chosen, in_order)
    layers = [_layer(source, m, heads, norm) for m in in_order]
    if any(layer.norm_position == "unknown" for layer in layers):
        remarks.append(_norm_unknown(source, in_order[0].prefix))
    return Anatomy(tuple(_as_run(source, layers)), chosen, tuple(remarks), alone=not others)


def norm_position(on_message: str | None) -> NormPosition | None:
    """The position of the norm that a user gave, checked."""
    if on_message is None:
        return None
    positions: dict[str, NormPosition] = {"pre": "pre", "post": "post", "none": "none"}
    return positions[arguments.choice(on_message, "norm", tuple(positions))]


def _matches(source: Source) -> list[_Match]:
    matches: dict[str, _Match] = {}
    for layout in LAYOUTS:
        for name, shape in source.shapes.items():
            prefix = _prefix(name, layout.value)
            if prefix is None or prefix in matches or len(shape) != 2 or not _applies(source, prefix, layout):
                continue
            output = source.shapes.get(_join(prefix, layout.output))
            if output is not None and len(output) == 2:
                matches[prefix] = _Match(prefix, layout)
    return list(matches.values())


def _applies(source: Source, prefix: str, layout: Layout) -> bool:
    """Whether the layout's other weights are there too, and the model is one that packs its weights that way."""
    more = [part for part in (layout.latent_norm, layout.expand) if part]
    if any(_join(prefix, part) not in source.shapes for part in more):
        return False
    return not layout.models or _model_type(source, prefix) in layout.models


def _check_supported(source: Source, prefixes: list[str]) -> None:
    for case in layouts.REFUSED:
        marked = any(
            case.weight and name.startswith(prefix) and case.weight in name
            for prefix in {_stack_root(p) for p in prefixes}
            for name in source.shapes
        )
        if marked or _model_type(source, prefixes[0]) in case.models:
            raise InputError(f"{source.what}: {case.why}")


def _model_type(source: Source, prefix: str) -> str | None:
    model_type = source.setting(prefix, "model_type")
    return model_type if isinstance(model_type, str) else None


def _stack_root(prefix: str) -> str:
    """What comes before the first number."""
    return re.split(r"(?<![^.])\d+(?![^.])", prefix)[0]


def _norm_unknown(source: Source, prefix: str) -> str:
    model = _model_type(source, prefix)
    known = f"model_type {model}" if model else "no model_type"
    return (
        f"the position of the norm is not known from these files ({known}), and it is not folded; give norm= (--norm)"
    )


def _prefix(name: str, suffix: str) -> str | None:
    if name == suffix:
        return ""
    return name[: -len(suffix) - 1] if name.endswith("." + suffix) else None


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _partial(source: Source, matches: list[_Match]) -> list[str]:
    """Value weights whose output weight is not where any layout has it."""
    taken = {_join(m.prefix, m.layout.value) for m in matches}
    # One layout's name for values may be another's for queries, so nothing inside a match is reported again.
    inside = tuple(m.prefix + "." for m in matches if m.prefix)
    missing: dict[str, tuple[str, set[str], int]] = {}
    for layout in LAYOUTS:
        for name, shape in source.shapes.items():
            prefix = _prefix(name, layout.value)
            if prefix is None or len(shape) != 2 or name in taken or name.startswith(inside):
                continue
            if not _applies(source, prefix, layout):
                continue
            key = _key(name)
            first, wanted, count = missing.get(key, (name, set(), 0))
            missing[key] = (first, wanted | {layout.output}, count + 1)
    return [
        f"{first} looks like attention's values, but no output weight stands beside it "
        f"(such as {', '.join(sorted(wanted)[:3])}); it is left out"
        for first, wanted, _ in missing.values()
    ]


def _is_cross(prefix: str) -> bool:
    return any(part in prefix.lower() for part in layouts.CROSS_ATTENTION)


def _key(prefix: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", prefix)


def _choose(stacks: dict[str, list[_Match]], wanted: str | None) -> str:
    if wanted is not None:
        fitting = [key for key in stacks if wanted in key]
        if not fitting:
            raise InputError(f"there is no stack {wanted!r}; choose one of {', '.join(stacks)}")
        return max(fitting, key=lambda key: len(stacks[key]))
    # The deepest; of equals an encoder, whose input is what a user has at hand.
    return max(stacks, key=lambda key: (len(stacks[key]), "encoder" in key))


def _gaps(key: str, matches: list[_Match]) -> list[str]:
    indices = [int(numbers[-1]) if (numbers := re.findall(r"\d+", m.prefix)) else 0 for m in matches]
    if key.count("*") != 1:
        return []
    present = set(indices)
    count = max(indices) + 1 - len(present)  # a name may hold any number, so nothing of that length is built
    if not count:
        return []
    missing = itertools.islice((index for index in itertools.count() if index not in present), min(count, 8))
    return [f"{key}: no attention of a known layout in {count:,} places ({', '.join(map(str, missing))})"]


def _nothing_found(source: Source, remarks: list[str]) -> str:
    known = {layout.value for layout in LAYOUTS}
    matrices = [name for name, shape in source.shapes.items() if len(shape) == 2]
    have = f"its weights are called {matrices[0]} and so on" if matrices else "it has no weight matrices"
    if remarks:
        remark = remarks[0].removesuffix("; it is left out")
        return f"no attention found in {source.what}: {remark}; teach its layout with oversmooth.anatomy.register"
    return (
        f"no attention found in {source.what}: none of the {len(known)} names of value weights that are known; {have}; "
        "teach a layout with oversmooth.anatomy.register(name, value='….weight', output='….weight')"
    )


def _layer(source: Source, match: _Match, heads: int | None, norm: NormPosition | None) -> AttentionLayer:
    layout, prefix = match.layout, match.prefix
    value = source.shapes[_join(prefix, layout.value)]
    output = source.shapes[_join(prefix, layout.output)]
    rows, width = reversed(value) if layout.transposed else value
    inner, back = output if layout.transposed else reversed(output)
    head_dim = 0
    if heads is None:
        heads, head_dim = _heads(source, prefix, inner)
    head_dim = head_dim or inner // heads
    if heads < 1 or head_dim < 1 or head_dim * heads != inner:
        raise InputError(
            f"{prefix}: the output weight takes {inner} features, which {heads} heads cannot share evenly; "
            "give the right number of heads"
        )
    if layout.packing == "latent":
        kv_heads = heads
        explained = source.shapes[_join(prefix, layout.expand)][0] % heads == 0
    elif layout.packing == "separate":
        kv_heads = rows // head_dim
        explained = kv_heads * head_dim == rows
    else:
        kv_heads = (rows // head_dim - heads) // 2
        explained = (heads + 2 * kv_heads) * head_dim == rows
    if kv_heads < 1 or not explained or heads % kv_heads or back != width or width < 1:
        raise InputError(
            f"{prefix}: the value weight has shape {value} and the output weight {output}, which {heads} heads of "
            f"{head_dim} features do not explain; give heads=, or register the layout"
        )
    block = _block(source, prefix)
    position, norm_name = _norm(source, prefix, block, width, norm)
    return AttentionLayer(
        name=prefix,
        block=block,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=width,
        causal=_causal(source, prefix),
        norm_position=position,
        norm=None if norm_name is None else _norm_of(source, prefix, norm_name),
        layer_scale=_named(source, prefix, block, layouts.LAYER_SCALE, (width,)),
        layout=layout,
        weights=source,
        window=source.window(prefix),
        factor=_factor(source, prefix, block),
        keep=_number(source, prefix, "keep"),
        feed=_number(source, prefix, "feed"),
        values_normed=layout.packing == "latent",
        modules_idle=source.config.get("model_type") in layouts.WEIGHTS_IN_A_FUNCTION,
        leak=_leak(source, prefix, heads, inner),
    )


def _number(source: Source, prefix: str, role: layouts.Role) -> float:
    """The product of the configuration's factors in this role."""
    product = 1.0
    for key, its_role in layouts.FACTORS.items():
        value = source.setting(prefix, key)
        if its_role == role and _is_number(value):
            product *= value
    return product


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _factor(source: Source, prefix: str, block: str) -> float | Tensor | None:
    factor: float | Tensor = _number(source, prefix, "factor")
    depth = source.setting(prefix, "num_hidden_layers")
    for key in layouts.FACTORS_BY_DEPTH:
        value = source.setting(prefix, key)
        if _is_number(value) and _is_number(depth):
            factor = factor * value / math.sqrt(depth)
    gate = _named(source, prefix, block, layouts.TANH_GATE, (1,))
    if gate is not None:
        factor = factor * source.read(gate).tanh().reshape(())
    return factor if isinstance(factor, Tensor) or factor != 1 else None


def _leak(source: Source, prefix: str, heads: int, inner: int) -> str | None:
    if any(_join(prefix, name) in source.shapes for name in layouts.SINKS):
        return SINKS
    queries = source.shapes.get(_join(prefix, "q_proj.weight"))
    twice = queries is not None and len(queries) == 2 and queries[0] == 2 * inner  # Qwen3-Next: a gate beside q
    gates = [source.shapes.get(_join(prefix, f"{name}.weight"), ()) for name in layouts.OUTPUT_GATE]
    gated = any(gate[:1] in ((heads,), (inner,)) for gate in gates)  # per head or per feature; an MLP's is wider
    return GATE if twice or gated else None


def _heads(source: Source, prefix: str, inner: int) -> tuple[int, int]:
    """The number of heads and the size of each; the size is 0 where it follows from the number."""
    wanted: tuple[str, ...] = layouts.HEADS
    if "encoder" in prefix or "decoder" in prefix:
        wanted = ((layouts.DECODER_HEADS if "decoder" in prefix else layouts.ENCODER_HEADS), *wanted)
    size = source.attribute(prefix, layouts.HEAD_DIM)
    if isinstance(size, int) and size > 0 and inner % size == 0:
        return inner // size, size
    heads = source.attribute(prefix, wanted)
    if isinstance(heads, int) and heads > 0:
        return heads, 0
    raise InputError(
        f"{source.what} does not say how many heads {prefix or 'its attention'} has; give heads= (--heads)"
    )


def _block(source: Source, prefix: str) -> str:
    """The innermost numbered module around it that also has an MLP; without any MLP the innermost numbered one."""
    parts = prefix.split(".")
    numbered = [".".join(parts[: i + 1]) for i in range(len(parts) - 1, -1, -1) if parts[i].isdigit()]
    inside = prefix + "."
    for candidate in numbered:
        if any(
            len(shape) == 2 and name.startswith(candidate + ".") and not name.startswith(inside)
            for name, shape in source.shapes.items()
        ):
            return candidate
    if numbered:
        return numbered[0]
    return ".".join(parts[:-1])  # a single block


def _around(prefix: str, block: str) -> list[str]:
    """The names of the attention module and of the modules between it and its block, nearest first."""
    out, here = [prefix], prefix
    while here != block and here:
        here = here.rpartition(".")[0]
        out.append(here)
    return out


def _named(source: Source, prefix: str, block: str, names: tuple[str, ...], shape: tuple[int, ...]) -> str | None:
    for module_name in _around(prefix, block):
        for name in names:
            full = _join(module_name, name)
            if source.shapes.get(full) == shape:
                return full
    return None


def _norm(
    source: Source, prefix: str, block: str, width: int, on_message: NormPosition | None
) -> tuple[NormPosition, str | None]:
    def named(names: tuple[str, ...]) -> str | None:
        weight = _named(source, prefix, block, tuple(f"{name}.weight" for name in names), (width,))
        return None if weight is None else weight.removesuffix(".weight")

    before, after = named(layouts.NORM_BEFORE), named(layouts.NORM_AFTER)
    model = _model_type(source, prefix)
    position = on_message or _position(source, prefix, before, after)
    if position == "post" and model in layouts.POST_NORM_MODELS:
        return position, after or named(layouts.NORM_NEXT) or before
    if position in ("none", "unknown"):
        return position, None
    name = before or after
    if name is None:
        missing = on_message is None and not source.runs and model not in layouts.FIRST_UNNORMED_MODELS
        return ("unknown" if missing else "none"), None
    return position, (after or before) if position == "post" else name


def _position(source: Source, prefix: str, before: str | None, after: str | None) -> NormPosition:
    model = _model_type(source, prefix)
    if model in layouts.POST_NORM_MODELS:
        return "post"
    if model in layouts.PRE_NORM_MODELS:
        return "pre"
    if model in layouts.NO_NORM_MODELS:
        return "none"
    first = source.attribute(prefix, layouts.NORM_FIRST)
    if isinstance(first, bool) and (source.runs or model is None or model in layouts.NORM_FIRST_MODELS):
        return "pre" if first else "post"
    if after is not None and (source.runs or after.endswith(layouts.NORM_AFTER_BY_NAME)):
        return "post"
    if not source.runs:
        return "unknown"
    return "none" if before is None else "pre"


def _norm_of(source: Source, prefix: str, name: str) -> Norm:
    seen = source.norm_form(name)
    if seen is not None:
        return Norm(name, *seen, source)
    model = _model_type(source, prefix)
    layer = f"{name}.bias" in source.shapes or model in layouts.BIASLESS_LAYER_NORM_MODELS
    return Norm(name, "layer" if layer else "rms", float(model in layouts.OFFSET_NORM_MODELS), source)


def _causal(source: Source, prefix: str) -> bool | None:
    is_causal = source.attribute(prefix, ("is_causal",))
    if isinstance(is_causal, bool):
        return is_causal
    if not source.config:
        return None
    model = _model_type(source, prefix)
    if model in layouts.CAUSAL_MODELS or "decoder" in prefix:
        return True
    return False if model in layouts.BIDIRECTIONAL_MODELS else None


def _check_depth(source: Source, depth: int) -> None:
    if depth > MOST_LAYERS:
        raise InputError(f"{source.what} has {depth:,} layers; models of {MOST_LAYERS:,} at most are looked at")


def _as_run(source: Source, layers: list[AttentionLayer]) -> list[AttentionLayer]:
    """Shared layers as often as they run (in ALBERT groups of layers, each repeated over its share of the depth)."""
    depth, groups = source.config.get("num_hidden_layers"), source.config.get("num_hidden_groups")
    if not isinstance(depth, int) or not isinstance(groups, int) or min(depth, groups) < 1 or len(layers) % groups:
        return layers
    _check_depth(source, depth)
    inner = len(layers) // groups
    order = [int(i / (depth / groups)) for i in range(depth)]
    return [layer for group in order for layer in layers[group * inner : (group + 1) * inner]]
