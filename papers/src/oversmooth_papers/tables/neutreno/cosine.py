"""Nguyen et al.'s curves: the mean cosine similarity of tokens, layer by layer, several models in one figure.

    oversmooth reproduce neutreno cosine MODEL... --data DATA -o cosine.pdf -o cosine.md
    oversmooth reproduce neutreno cosine results/neutreno/segmentation/*.json -o cosine.md

The paper draws it for a model and the same one with NeuTRENO, whose tokens stay further apart; it has no numbers. Cells
have the curve of the last look at their model in training, at 8 inputs of its task.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import NamedTuple

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report.charts.base import distinct
from oversmooth.report.style import fixed
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import read_json
from oversmooth_papers.tables import cells

FIGURE = "cos"
"""The figure of `report.figures` that it is."""
_BETWEEN = ", "
_LAST_LOOK = "From cells: the last look in training, at 8 inputs of the task"


class Curve(NamedTuple):
    """The mean cosine of a model's tokens by depth, and of which inputs."""

    name: str
    cosines: Sequence[float | None]
    data: str


def curve_of(diagnosis: Diagnosis) -> Curve:
    return Curve(diagnosis.name, diagnosis.curve("cos"), str(diagnosis.provenance["data"]))


def curves_of_cells(names: Sequence[str]) -> list[Curve] | None:
    """Of cells of trained models; None where none of these is one."""

    def is_cell(path: Path) -> bool:
        if path.suffix.lower() != ".json" or not path.is_file():
            return False
        content = read_json(path, "give a diagnosis or a cell")
        return isinstance(content, dict) and "recipe" in content

    others = [name for name in names if not is_cell(Path(name))]
    if len(others) == len(names):
        return None
    if others:
        raise InputError(f"{others[0]} is no cell and others are, which have inputs of their own; give either")
    curves = []
    for name in names:
        cell = cells.read(Path(name)) or {}
        snapshots = [snapshot for snapshot in cell.get("smoothing", []) if snapshot.get("cos")]
        if not snapshots:
            raise InputError(f"{name} has no cosines: its model was not looked at in training; leave it out")
        curves.append(Curve(cell["title"], snapshots[-1]["cos"], _LAST_LOOK))
    return curves


def shortened(curves: Sequence[Curve]) -> tuple[list[Curve], str]:
    """Curves whose models' names lack what all of them end with, and that end: "10 % of cifar100, seed 0"."""
    names = [curve.name.split(_BETWEEN) for curve in curves]
    ends = zip(*(reversed(parts[1:]) for parts in names), strict=False)
    common = len([*takewhile(lambda end: len(set(end)) == 1, ends)]) if len(names) > 1 else 0
    shortened_names = [_BETWEEN.join(parts[: len(parts) - common]) for parts in names]
    end = _BETWEEN.join(names[0][len(names[0]) - common :])
    return [curve._replace(name=name) for curve, name in zip(curves, shortened_names, strict=True)], end


def rows(curves: Sequence[Curve]) -> tuple[list[str], list[list[str]]]:
    """The heading, and a row per layer: the mean cosine of each model; a dash where a model has no such layer."""
    head = ["after block", *distinct([curve.name for curve in curves])]
    by_depth = enumerate(zip_longest(*(curve.cosines for curve in curves)))
    return head, [[str(d), *("–" if v is None else fixed(v, 3) for v in values)] for d, values in by_depth]


def notes(curves: Sequence[Curve], common: str = "") -> list[str]:
    """Paragraphs under the table. common: what `shortened` left out of all names."""
    models = f" All models: {common}." if common else ""
    data = "; ".join(dict.fromkeys(curve.data for curve in curves))
    return [f"Mean cosine of pairs of different tokens, over inputs; 0 is what enters the first block.{models} {data}."]


def conclusion(curves: Sequence[Curve]) -> str:
    """One sentence: how similar tokens end in each model."""
    ends = [
        f"{fixed(known[-1], 2)} in {one.name}" for one in curves if (known := [c for c in one.cosines if c is not None])
    ]
    return f"The mean cosine ends at {', '.join(ends)}." if ends else "No model has two valid tokens."
