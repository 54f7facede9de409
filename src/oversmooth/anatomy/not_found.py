"""What to say where no attention was found: what the model has in its place, and how it is registered."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from oversmooth.anatomy import layouts
from oversmooth.anatomy.live import Source
from oversmooth.safety.foreign import shortened

Shapes = Mapping[str, tuple[int, ...]]


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
    owner, own = _likely_attention(matrices)
    listed = ", ".join(f"{name} {rows} × {columns}" for name, (rows, columns) in own.items())
    return (
        f"{shortened(f'{found}: {owner} has {listed}', 144)}, of no known layout; call oversmooth.anatomy.register, or "
        f"measure tokens alone by diagnose(model, x, blocks={_blocks(matrices)!r}, spectra=False)"
    )


def _likely_attention(matrices: Shapes) -> tuple[str, Shapes]:
    """A module with a weight three times as long as wide and a square one, or with four square ones, and its matrices;
    all of them if there is none.
    """
    by_owner: defaultdict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, shape in matrices.items():
        owner = name.removesuffix(".weight").rpartition(".")[0]
        weight = name.removeprefix(f"{owner}.")  # "v.weight" of a Linear, "w_v" of a parameter
        if not weight[0].isdigit():
            by_owner[owner][weight] = shape
    for owner, own in by_owner.items():
        square = [shape for shape in own.values() if shape[0] == shape[1]]
        fused = any(3 * min(shape) == max(shape) and (min(shape), min(shape)) in square for shape in own.values())
        if fused or (len(square) >= 4 and len(set(square)) == 1):
            return owner or "it", own
    return "it", matrices


def _blocks(matrices: Shapes) -> str:
    """The first blocks that are numbered, as `diagnose` takes them."""
    found = (re.match(r"(.*?\.|)\d+\.", name) for name in matrices)
    return next((f"{one[1]}*" for one in found if one), "…")
