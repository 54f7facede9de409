"""What to say where no attention was found: what the model has in its place, and how it is registered."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from oversmooth.anatomy import layouts
from oversmooth.anatomy.live import Source
from oversmooth.safety.foreign import shortened

Shapes = Mapping[str, tuple[int, ...]]
_KEYS_AND_VALUES = re.compile(r"(to|w|c|in)?_?(kv|k_v|key_?value)s?(_?proj(ection)?|_?lin(ear)?)?")


def nothing_found(source: Source, remarks: list[str]) -> str:
    """The problem and, after a semicolon, the remedy. remarks: on weights that look like parts of attention."""
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
    if (likely := _likely_attention(matrices)) is not None:
        owner, own = likely
        listed = ", ".join(f"{name} {rows} × {columns}" for name, (rows, columns) in own.items())
        problem = shortened(f"{found}: {owner or 'it'} has {listed}, which no known layout names", 172)
        return (
            f"{problem}; call oversmooth.anatomy.register('mine', value=, output=), with packing='stacked' for q, k "
            "and v in one"
        )
    return (
        f"{found}: its weights have no known names ({shortened(next(iter(matrices)), 40)} and so on); name them by "
        f"oversmooth.anatomy.register('mine', value=, output=), or {alone}"
    )


def _split(name: str) -> tuple[str, str]:
    """The module that has a projection, and the weight's name there: "v.weight" of a Linear, "w_v" of a parameter."""
    owner = name.removesuffix(".weight").rpartition(".")[0]
    return owner, name.removeprefix(f"{owner}.")


def _likely_attention(matrices: Shapes) -> tuple[str, Shapes] | None:
    """A module with a weight three times as long as wide and a square one, or with four square ones; its matrices."""
    by_owner: defaultdict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, shape in matrices.items():
        owner, weight = _split(name)
        if not weight[0].isdigit():
            by_owner[owner][weight] = shape
    for owner, own in by_owner.items():
        square = [shape for shape in own.values() if shape[0] == shape[1]]
        fused = any(3 * min(shape) == max(shape) and (min(shape), min(shape)) in square for shape in own.values())
        if fused or (len(square) >= 4 and len(set(square)) == 1):
            return owner, own
    return None


def _blocks(name: str | None, matrices: Shapes) -> str:
    """The blocks that a weight lies in, or the first that are numbered, as `diagnose` takes them."""
    for one in (name or "", *matrices):
        if number := re.search(r"(?<![^.])\d+(?=\.)", one):
            return f"{one[: number.start()]}*"
    return "…"
