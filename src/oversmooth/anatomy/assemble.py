"""One attention layer, put together from the names and shapes around it: heads, block, norm, scale, factors."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from oversmooth.anatomy import layouts
from oversmooth.anatomy.layer import GATE, SINKS, AttentionLayer, Norm, NormPosition, joined_name
from oversmooth.anatomy.layouts import Layout
from oversmooth.anatomy.live import Source, model_type
from oversmooth.safety.errors import InputError


def layer_of(
    source: Source, prefix: str, layout: Layout, heads: int | None, norm: NormPosition | None
) -> AttentionLayer:
    """The attention module of this name, its weights laid out like this.

    Args:
        source: where it lives.
        prefix: its name.
        layout: of its weights.
        heads: how many, where the source does not say.
        norm: where its norm stands; None: as the source says.
    """
    value = source.shapes[joined_name(prefix, layout.value)]
    output = source.shapes[joined_name(prefix, layout.output)]
    rows, width = reversed(value) if layout.value_transposed else value
    inner, back = output if layout.output_transposed else reversed(output)
    heads, head_dim = _heads(source, prefix, inner, layout.heads if heads is None else heads)
    head_dim = head_dim or inner // heads
    if heads < 1 or head_dim < 1 or head_dim * heads != inner:
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
    block = block_of(source, prefix)
    if layout.norm and norm != "none":
        position: NormPosition = norm or "pre"
        before: Norm | None = _norm_of(source, prefix, *_registered_norm(source, prefix, block, width, layout.norm))
    else:
        position, norm_name = _norm(source, prefix, block, width, norm)
        before = None if norm_name is None else _norm_of(source, prefix, norm_name)
    return AttentionLayer(
        name=prefix,
        block=block,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=width,
        causal=_causal(source, prefix),
        norm_position=position,
        norm=before,
        layer_scale=_named(source, prefix, block, layouts.LAYER_SCALE, (width,)),
        layout=layout,
        weights=source,
        window=source.window(prefix),
        factor=_factor(source, prefix, block),
        keep=_number(source, prefix, "keep"),
        feed=_number(source, prefix, "feed"),
        values_normed=layout.packing == "latent",
        modules_idle=source.config.get("model_type") in layouts.WEIGHTS_IN_A_FUNCTION,
        value_runs=layout.value.endswith(".weight") or source.is_torch_attention(prefix),
        output_runs=layout.output.endswith(".weight"),
        mixing=_mixing(source, prefix),
        on_branch=_on_branch(source, prefix, block, width),
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
    if any(joined_name(prefix, name) in source.shapes for name in layouts.SINKS):
        return SINKS
    queries = source.shapes.get(joined_name(prefix, "q_proj.weight"))
    twice = queries is not None and len(queries) == 2 and queries[0] == 2 * inner  # Qwen3-Next: a gate beside q
    gates = [source.shapes.get(joined_name(prefix, f"{name}.weight"), ()) for name in layouts.OUTPUT_GATE]
    gated = any(gate[:1] in ((heads,), (inner,)) for gate in gates)  # per head or per feature; an MLP's is wider
    return GATE if twice or gated else None


def _mixing(source: Source, prefix: str) -> str | None:
    if (words := layouts.OTHER_MIXING.get(model_type(source, prefix) or "")) is not None:
        return words
    for names, words in layouts.MIXING_BY_NAME.items():
        if any(joined_name(prefix, name) in source.shapes for name in names):
            return words
    settings = source.setting(prefix, "attn_config")  # MPT's, where it is not on the module
    for name, words in layouts.MIXING_BY_SETTING.items():
        nested = settings.get(name) if isinstance(settings, dict) else getattr(settings, name, None)
        value = next((v for v in (source.setting(prefix, name), nested) if _is_number(v)), None)
        if value is not None and not (value == 1 and name in layouts.FACTORS_OF_VALUES):
            return words
    return None


def _on_branch(source: Source, prefix: str, block: str, width: int) -> str | None:
    def there(name: str) -> bool:
        return _named(source, prefix, block, (name,), (width,)) is not None

    # Many call the norm before the MLP so; where that has a name of its own, or none, this one is attention's.
    own = there("post_attention_layernorm.weight") and any(there(f"{n}.weight") for n in layouts.NORM_OF_MLP)
    named = any(there(f"{name}.weight") for name in layouts.NORM_ON_BRANCH)
    if own or named or _normed_after(source, prefix, block):
        return "a norm stands between attention and the stream"
    if any(joined_name(prefix, name) in source.shapes for name in layouts.NORM_INSIDE):
        return "a norm stands inside attention, and only a run shows where"
    return "the stream is scaled channel by channel" if any(map(there, layouts.STREAM_SCALE)) else None


def _normed_after(source: Source, prefix: str, block: str) -> bool:
    """Whether what is called a norm before attention norms what attention gives."""
    return (
        any(source.setting(prefix, name) is True for name in layouts.NORMS_AFTER)
        or source.kind(block) in layouts.BLOCKS_NORMED_AFTER
        or layouts.ARCHITECTURE_NORMED_AFTER in str(source.config.get("architecture"))
    )


def _heads(source: Source, prefix: str, inner: int, heads: int | None) -> tuple[int, int]:
    """The number of heads and the size of each; the size is 0 where it follows from the number."""
    stated, size = stated_heads(source, prefix, inner)
    attention = prefix or "its attention"
    if heads is None:
        if stated is None:
            raise InputError(
                f"{source.what} does not say how many heads {attention} has (no {', '.join(layouts.HEADS[:4])} or the "
                "like there or around it); give heads= (--heads)"
            )
        return stated, size
    if stated is not None and stated != heads and inner % stated == 0:
        raise InputError(
            f"{source.what} says that {attention} has {stated} heads, not {heads}; leave heads= (--heads) out"
        )
    return heads, 0


def stated_heads(source: Source, prefix: str, inner: int) -> tuple[int | None, int]:
    names: tuple[str, ...] = layouts.HEADS
    if "encoder" in prefix or "decoder" in prefix:
        names = ((layouts.DECODER_HEADS if "decoder" in prefix else layouts.ENCODER_HEADS), *names)
    size = source.attribute(prefix, layouts.HEAD_DIM)
    if isinstance(size, int) and size > 0 and inner % size == 0:
        return inner // size, size
    heads = source.attribute(prefix, names)
    return (heads if isinstance(heads, int) and heads > 0 else None), 0


def block_of(source: Source, prefix: str) -> str:
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


def modules_around(prefix: str, block: str) -> list[str]:
    """The names of the attention module and of the modules between it and its block, nearest first."""
    out, here = [prefix], prefix
    while here != block and here:
        here = here.rpartition(".")[0]
        out.append(here)
    return out


def _named(source: Source, prefix: str, block: str, names: tuple[str, ...], shape: tuple[int, ...]) -> str | None:
    for module_name in modules_around(prefix, block):
        for name in names:
            full = joined_name(module_name, name)
            if source.shapes.get(full) == shape:
                return full
    return None


def _norm(
    source: Source, prefix: str, block: str, width: int, position: NormPosition | None
) -> tuple[NormPosition, str | None]:
    def named(names: tuple[str, ...]) -> str | None:
        weight = _named(source, prefix, block, tuple(f"{name}.weight" for name in names), (width,))
        return None if weight is None else weight.removesuffix(".weight")

    before, after = named(layouts.NORM_BEFORE), named(layouts.NORM_AFTER)
    model = model_type(source, prefix)
    known = position is not None
    if position is None:
        position = "none" if _normed_after(source, prefix, block) else _position(source, prefix, before, after)
    if position == "post" and model in layouts.POST_NORM_MODELS:
        return position, after or named(layouts.NORM_NEXT) or before
    if position in ("none", "unknown"):
        return position, None
    name = before or after
    if name is None:
        missing = not known and not source.runs and model not in layouts.FIRST_UNNORMED_MODELS
        return ("unknown" if missing else "none"), None
    return position, (after or before) if position == "post" else name


def _position(source: Source, prefix: str, before: str | None, after: str | None) -> NormPosition:
    model = model_type(source, prefix)
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


def _registered_norm(source: Source, prefix: str, block: str, width: int, name: str) -> tuple[str, str]:
    """The module that a layout names as the norm before attention, and the name of its weight there."""
    vectors = [found for found, shape in source.shapes.items() if shape == (width,) and not found.endswith("bias")]
    for around in modules_around(prefix, block):
        module = joined_name(around, name)
        own = [found.rpartition(".")[2] for found in vectors if found.rpartition(".")[0] == module]
        if own:
            return module, "weight" if "weight" in own else own[0]
    inside = block + "." if block else ""
    others = [found.rpartition(".")[0].removeprefix(inside) for found in vectors if found.startswith(inside)]
    raise InputError(
        f"{prefix}: there is no norm {name!r} of {width} features around it; give register one of "
        f"{', '.join(dict.fromkeys(other for other in others if other)) or 'its modules'} as norm="
    )


def _norm_of(source: Source, prefix: str, name: str, weight: str = "weight") -> Norm:
    seen = source.norm_form(name, weight)
    if seen is not None:
        return Norm(name, *seen, source, weight)
    model = model_type(source, prefix)
    layer = f"{name}.bias" in source.shapes or model in layouts.BIASLESS_LAYER_NORM_MODELS
    return Norm(name, "layer" if layer else "rms", float(model in layouts.OFFSET_NORM_MODELS), source, weight)


def _causal(source: Source, prefix: str) -> bool | None:
    is_causal = source.attribute(prefix, ("is_causal",))
    if isinstance(is_causal, bool):
        return is_causal
    if not source.config:
        return None
    model = model_type(source, prefix)
    if model in layouts.CAUSAL_MODELS or "decoder" in prefix:
        return True
    return False if model in layouts.BIDIRECTIONAL_MODELS else None
