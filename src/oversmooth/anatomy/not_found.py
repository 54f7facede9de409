"""What to say where no attention was found: what the model has in its place, and the line that registers it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from oversmooth.anatomy import layouts
from oversmooth.anatomy.assemble import block_of, modules_around, stated_heads
from oversmooth.anatomy.layer import joined_name
from oversmooth.anatomy.live import Source
from oversmooth.safety.foreign import MOST_LETTERS, shortened

Shapes = Mapping[str, tuple[int, ...]]
_KEYS_AND_VALUES = re.compile(r"(to|w|c|in)?_?(kv|k_v|key_?value)s?(_?proj(ection)?|_?lin(ear)?)?")


def nothing_found(source: Source, remarks: list[str]) -> str:
    """The problem and, after a semicolon, the remedy.

    Args:
        source: a live module or a checkpoint.
        remarks: on weights that look like parts of attention.
    """
    found = f"no attention found in {source.what}"
    matrices = {name: shape for name, shape in source.shapes.items() if len(shape) == 2}
    if not matrices:
        return f"{found}: it has no weight matrices; give a transformer"
    for layout in layouts.LAYOUTS:
        for role, name in (("value", layout.value), ("output", layout.output)):
            if any(f".{one}".endswith(f".{name}.weight") for one in matrices):
                return f"{found}: {name!r} is a module; register its parameter, {role}={name + '.weight'!r}"
    if remarks:
        remark = remarks[0].removesuffix("; it is left out")
        return f"{found}: {remark}; register its layout with oversmooth.anatomy.register"
    parts = ((name, name.removesuffix(".weight").rpartition(".")[2].lower()) for name in matrices)
    keys_and_values = next((name for name, part in parts if _KEYS_AND_VALUES.fullmatch(part)), None)
    alone = f"measure tokens alone by diagnose(model, x, blocks={_blocks(keys_and_values, matrices)!r}, spectra=False)"
    if keys_and_values is not None:
        owner, _ = _split(keys_and_values)
        inside = [name.removeprefix(f"{owner}.").removesuffix(".weight") for name in matrices if name.startswith(owner)]
        return (
            f"{found}: {owner or 'it'} has keys and values in one weight ({', '.join(inside[:4])}), which no layout "
            f"describes; {alone}"
        )
    if (likely := _likely_attention(source, matrices)) is not None:
        owner, own, line = likely
        listed = ", ".join(f"{name} {rows} × {columns}" for name, (rows, columns) in own.items())
        problem = f"{found}: {owner or 'it'} has {listed}, which no known layout names"
        return f"{shortened(problem, max(90, MOST_LETTERS - 2 - len(line)))}; {line}"
    return (
        f"{found}: its weights have no known names ({shortened(next(iter(matrices)), 40)} and so on); name them by "
        f"oversmooth.anatomy.register('mine', value=, output=), or {alone}"
    )


def _split(name: str) -> tuple[str, str]:
    """The module that has a projection, and the weight's name there: "v.weight" of a Linear, "w_v" of a parameter."""
    owner = name.removesuffix(".weight").rpartition(".")[0]
    return owner, name.removeprefix(f"{owner}.")


def _likely_attention(source: Source, matrices: Shapes) -> tuple[str, Shapes, str] | None:
    """A module that has a weight three times as long as wide and a square one, or four square ones; the matrices there,
    and the call that registers them.
    """
    by_owner: defaultdict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, shape in matrices.items():
        owner, weight = _split(name)
        by_owner[owner][weight] = shape
    for owner, own in by_owner.items():
        for fused, (rows, columns) in own.items():
            width = min(rows, columns)
            outputs = [other for other, shape in own.items() if shape == (width, width)]
            if max(rows, columns) == 3 * width and len(outputs) == 1:
                both = {fused: own[fused], outputs[0]: own[outputs[0]]}
                return owner, both, _fused_call(source, owner, fused, outputs[0], columns > rows)
    for owner, own in by_owner.items():
        square = {name: shape for name, shape in own.items() if shape[0] == shape[1] and not name[0].isdigit()}
        if len(set(square.values())) == 1 and len(square) >= 4:
            return owner, square, "call oversmooth.anatomy.register('mine', value=, output=) with two of these names"
    return None


def _fused_call(source: Source, owner: str, value: str, output: str, transposed: bool) -> str:
    """The call that registers a fused weight."""
    width = min(source.shapes[joined_name(owner, value)])
    arguments = [f"value={value!r}", f"output={output!r}", "packing='stacked'"]
    if transposed:
        arguments.append("transposed='value'" if output.endswith(".weight") else "transposed=True")
    for role, weight, size in (("value_bias", value, 3 * width), ("output_bias", output, width)):
        vectors = [
            name for name, shape in source.shapes.items() if shape == (size,) and name.rpartition(".")[0] == owner
        ]
        if not weight.endswith(".weight") and len(vectors) == 1:
            arguments.append(f"{role}={vectors[0].rpartition('.')[2]!r}")
    if (norm := _unknown_norm(source, owner, width)) is not None:
        arguments.append(f"norm={norm!r}")
    heads = "" if stated_heads(source, owner, width)[0] else " and add heads=, which the model does not state"
    return f"call oversmooth.anatomy.register('mine', {', '.join(arguments)}){heads}"


def _unknown_norm(source: Source, owner: str, width: int) -> str | None:
    """The first norm around a module that is not known by its name; None where one is."""
    around = modules_around(owner, block_of(source, owner))
    known = (joined_name(module, f"{name}.weight") for module in around for name in layouts.NORM_BEFORE)
    if any(source.shapes.get(name) == (width,) for name in known):
        return None
    for name, shape in source.shapes.items():
        norm = name.rpartition(".")[0]
        if shape == (width,) and not name.endswith("bias") and norm not in around and norm.rpartition(".")[0] in around:
            return norm.rpartition(".")[2]
    return None


def _blocks(name: str | None, matrices: Shapes) -> str:
    """The blocks that a weight lies in, or the first that are numbered, as `diagnose` takes them."""
    for one in (name or "", *matrices):
        if number := re.search(r"(?<![^.])\d+(?=\.)", one):
            return f"{one[: number.start()]}*"
    return "…"
