"""One attention layer, put together from the names and shapes around it: heads, block, norm, scale, factors."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from oversmooth.anatomy import layouts
from oversmooth.anatomy.layer import GATE, SINKS, AttentionLayer, Norm, NormPosition, joined_name
from oversmooth.anatomy.layouts import Layout
from oversmooth.anatomy.live import Source, model_type, norm_form, upwards
from oversmooth.safety.errors import InputError


def layer_of(
    source: Source, prefix: str, layout: Layout, heads: int | None, norm: NormPosition | None
) -> AttentionLayer:
    """The attention module of this name, its weights laid out like this. heads and norm: where not said there."""
    value = source.shapes[joined_name(prefix, layout.value)]
    output = source.shapes[joined_name(prefix, layout.output)]
    rows, width = reversed(value) if layout.value_transposed else value
    inner, back = output if layout.output_transposed else reversed(output)
    heads = _heads(source, prefix, inner, layout.heads if heads is None else heads)
    head_dim = inner // heads
    if head_dim < 1 or head_dim * heads != inner:
        raise InputError(
            f"{prefix}: the output weight takes {inner} features, which {heads} heads cannot share evenly; "
            "give the right number of heads"
        )
    if layout.packing == "latent":
        kv_heads = heads
        explained = source.shapes[joined_name(prefix, layout.expand)][0] % heads == 0
    elif layout.packing == "separate":
        kv_heads = rows // head_dim
        explained = kv_heads * head_dim == rows
    else:
        kv_heads = (rows // head_dim - heads) // 2
        explained = (heads + 2 * kv_heads) * head_dim == rows
    if kv_heads < 1 or not explained or heads % kv_heads or back != width or width < 1:
        raise InputError(
            f"{prefix}: the value weight has shape {value} and the output weight {output}, which {heads} heads of "
            f"{head_dim} features do not explain; give heads=, or register the layout with other packing= or "
            "transposed="
        )
    place = _Place(source, prefix, width)
    position, before = place.registered_norm(layout, norm) if layout.norm and norm != "none" else place.norm(norm)
    return AttentionLayer(
        name=prefix,
        block=place.block,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=width,
        causal=place.causal(),
        norm_position=position,
        norm=before,
        layer_scale=place.named(layouts.LAYER_SCALE),
        layout=layout,
        weights=source,
        window=place.window(),
        factor=place.factor(),
        keep=place.number("keep"),
        feed=place.number("feed"),
        values_normed=layout.packing == "latent",
        modules_idle=source.config.get("model_type") in layouts.WEIGHTS_IN_A_FUNCTION,
        value_runs=layout.value.endswith(".weight") or isinstance(place.module, nn.MultiheadAttention | None),
        output_runs=layout.output.endswith(".weight"),
        mixing=place.mixing(),
        on_branch=place.on_branch(),
        leak=place.leak(heads, inner),
    )


class _Place:
    """An attention module, by its name in the source, and what stands around it, up to its block."""

    def __init__(self, source: Source, prefix: str, width: int) -> None:
        self.source, self.prefix, self.width = source, prefix, width
        self.block, self.model = block_of(source, prefix), model_type(source, prefix)
        self.module = source.modules.get(prefix)

    def setting(self, name: str) -> Any:
        return self.source.setting(self.prefix, name)

    def own(self, *names: str) -> bool:
        """Whether attention itself has a weight of one of these names."""
        return any(joined_name(self.prefix, name) in self.source.shapes for name in names)

    def named(self, names: tuple[str, ...], size: int | None = None) -> str | None:
        """The first vector with one of these names, relative to attention or a module between it and its block."""
        shape = (self.width if size is None else size,)
        full = (joined_name(module, name) for module in modules_around(self.prefix, self.block) for name in names)
        return next((name for name in full if self.source.shapes.get(name) == shape), None)

    def norm_named(self, names: tuple[str, ...]) -> str | None:
        weight = self.named(tuple(f"{name}.weight" for name in names))
        return None if weight is None else weight.removesuffix(".weight")

    def number(self, role: layouts.Role) -> float:
        """The product of the configuration's factors in this role."""
        values = [self.setting(key) for key, its_role in layouts.FACTORS.items() if its_role == role]
        return math.prod((value for value in values if _is_number(value)), start=1.0)

    def factor(self) -> float | Tensor | None:
        factor: float | Tensor = self.number("factor")
        depth = self.setting("num_hidden_layers")
        for value in map(self.setting, layouts.FACTORS_BY_DEPTH):
            if _is_number(value) and _is_number(depth):
                factor = factor * value / math.sqrt(depth)
        if (gate := self.named(layouts.TANH_GATE, 1)) is not None:
            factor = factor * self.source.read(gate).tanh().reshape(())
        return factor if isinstance(factor, Tensor) or factor != 1 else None

    def leak(self, heads: int, inner: int) -> str | None:
        if self.own(*layouts.SINKS):
            return SINKS
        shapes = self.source.shapes
        queries = shapes.get(joined_name(self.prefix, "q_proj.weight"), ())
        twice = len(queries) == 2 and queries[0] == 2 * inner  # Qwen3-Next: a gate beside q
        gates = [shapes.get(joined_name(self.prefix, f"{name}.weight"), ()) for name in layouts.OUTPUT_GATE]
        gated = any(gate[:1] in ((heads,), (inner,)) for gate in gates)  # per head or per feature; an MLP's is wider
        return GATE if twice or gated else None

    def mixing(self) -> str | None:
        if (words := layouts.OTHER_MIXING.get(self.model or "")) is not None:
            return words
        for names, words in layouts.MIXING_BY_NAME.items():
            if self.own(*names):
                return words
        settings = self.setting("attn_config")  # MPT's, where it is not on the module
        for name, words in layouts.MIXING_BY_SETTING.items():
            nested = settings.get(name) if isinstance(settings, dict) else getattr(settings, name, None)
            value = next((v for v in (self.setting(name), nested) if _is_number(v)), None)
            if value is not None and not (value == 1 and name == "attention_value_scale"):
                return words
        return None

    def on_branch(self) -> str | None:
        # Many call the norm before the MLP so; where that has a name of its own, or none, this one is attention's.
        own = self.norm_named(layouts.NORM_NEXT) and self.norm_named(layouts.NORM_OF_MLP)
        if own or self.norm_named(layouts.NORM_ON_BRANCH) or self.normed_after():
            return "a norm stands between attention and the stream"
        if self.own(*layouts.NORM_INSIDE):
            return "a norm stands inside attention, and only a run shows where"
        return "the stream is scaled channel by channel" if self.named(layouts.STREAM_SCALE) else None

    def normed_after(self) -> bool:
        """Whether what is called a norm before attention norms what attention gives."""
        return (
            any(self.setting(name) is True for name in layouts.NORMS_AFTER)
            or type(self.source.modules.get(self.block)).__name__ in layouts.BLOCKS_NORMED_AFTER
            or layouts.ARCHITECTURE_NORMED_AFTER in str(self.source.config.get("architecture"))
        )

    def norm(self, position: NormPosition | None) -> tuple[NormPosition, Norm | None]:
        before, after = self.norm_named(layouts.NORM_BEFORE), self.norm_named(layouts.NORM_AFTER)
        known = position is not None
        if position is None:
            position = "none" if self.normed_after() else self.position(before, after)
        name = before or after
        if position == "post" and self.model in layouts.POST_NORM_MODELS:
            name = after or self.norm_named(layouts.NORM_NEXT) or before
        elif position in ("none", "unknown"):
            name = None
        elif name is None:
            missing = not known and not self.source.modules and self.model not in layouts.FIRST_UNNORMED_MODELS
            position = "unknown" if missing else "none"
        elif position == "post":
            name = after or before
        return position, None if name is None else self.norm_of(name)

    def position(self, before: str | None, after: str | None) -> NormPosition:
        runs, model = bool(self.source.modules), self.model
        if model in layouts.POST_NORM_MODELS:
            return "post"
        if model in layouts.PRE_NORM_MODELS:
            return "pre"
        if model in layouts.NO_NORM_MODELS:
            return "none"
        first = self.source.attribute(self.prefix, layouts.NORM_FIRST)
        if isinstance(first, bool) and (runs or model is None or model in layouts.NORM_FIRST_MODELS):
            return "pre" if first else "post"
        if after is not None and (runs or after.endswith(layouts.NORM_AFTER_BY_NAME)):
            return "post"
        if not runs:
            return "unknown"
        return "none" if before is None else "pre"

    def registered_norm(self, layout: Layout, position: NormPosition | None) -> tuple[NormPosition, Norm]:
        """The module that a layout names as the norm before attention, whatever its weight is called there."""
        vectors = [
            name.rpartition(".")
            for name, shape in self.source.shapes.items()
            if shape == (self.width,) and not name.endswith("bias")
        ]
        for around in modules_around(self.prefix, self.block):
            module = joined_name(around, layout.norm)
            if own := [weight for owner, _, weight in vectors if owner == module]:
                return position or "pre", self.norm_of(module, "weight" if "weight" in own else own[0])
        inside = self.block + "." if self.block else ""
        others = [owner.removeprefix(inside) for owner, _, _ in vectors if owner and f"{owner}.".startswith(inside)]
        raise InputError(
            f"{self.prefix}: there is no norm {layout.norm!r} of {self.width} features around it; give register one of "
            f"{', '.join(dict.fromkeys(others)) or 'its modules'} as norm="
        )

    def norm_of(self, name: str, weight: str = "weight") -> Norm:
        module = self.source.modules.get(name)
        if module is not None and (seen := norm_form(module, weight)) is not None:
            return Norm(name, *seen, self.source, weight)
        layer = f"{name}.bias" in self.source.shapes or self.model in layouts.BIASLESS_LAYER_NORM_MODELS
        offset = float(self.model in layouts.OFFSET_NORM_MODELS)
        return Norm(name, "layer" if layer else "rms", offset, self.source, weight)

    def window(self) -> int | None:
        for name in layouts.WINDOW:
            size = getattr(self.module, name, None)
            size = size[0] if isinstance(size, tuple) and size else size  # to the left, and to the right
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                return size
        return None

    def causal(self) -> bool | None:
        is_causal = self.source.attribute(self.prefix, ("is_causal",))
        if isinstance(is_causal, bool):
            return is_causal
        if not self.source.config:
            return None
        if self.model in layouts.CAUSAL_MODELS or "decoder" in self.prefix:
            return True
        return False if self.model in layouts.BIDIRECTIONAL_MODELS else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _heads(source: Source, prefix: str, inner: int, heads: int | None) -> int:
    """The number of heads, as stated or as given."""
    names: tuple[str, ...] = layouts.HEADS
    if "encoder" in prefix or "decoder" in prefix:
        names = ((layouts.DECODER_HEADS if "decoder" in prefix else layouts.ENCODER_HEADS), *names)
    size, stated = source.attribute(prefix, layouts.HEAD_DIM), source.attribute(prefix, names)
    if isinstance(size, int) and size > 0 and inner % size == 0:
        stated = inner // size
    known = isinstance(stated, int) and stated > 0
    attention = prefix or "its attention"
    if heads is None and not known:
        raise InputError(
            f"{source.what} does not say how many heads {attention} has (no {', '.join(layouts.HEADS[:4])} or the "
            "like there or around it); give heads= (--heads)"
        )
    if heads is not None and known and stated != heads and inner % stated == 0:
        raise InputError(
            f"{source.what} says that {attention} has {stated} heads, not {heads}; leave heads= (--heads) out"
        )
    return int(stated) if heads is None else heads


def block_of(source: Source, prefix: str) -> str:
    """The innermost numbered module around it that also has an MLP; without any MLP the innermost numbered one."""
    numbered = [name for name in upwards(prefix) if name.rpartition(".")[2].isdigit()]
    inside = prefix + "."
    others = [name for name, shape in source.shapes.items() if len(shape) == 2 and not name.startswith(inside)]
    with_mlp = (block for block in numbered if any(name.startswith(f"{block}.") for name in others))
    return next(with_mlp, numbered[0] if numbered else prefix.rpartition(".")[0])  # the last: a single block


def modules_around(prefix: str, block: str) -> list[str]:
    """The names of the attention module and of the modules between it and its block, nearest first."""
    return [name for name in upwards(prefix) if name.startswith(block)]
