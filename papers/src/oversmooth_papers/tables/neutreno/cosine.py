"""Nguyen et al.'s curves: the mean cosine similarity of tokens, layer by layer, several models in one figure.

    oversmooth reproduce neutreno cosine MODEL... --data DATA -o cosine.pdf -o cosine.md
    oversmooth reproduce neutreno cosine results/neutreno/segmentation/*.json -o cosine.md

The mean is over all pairs of different tokens and over inputs. The paper draws it for a model and the same one with
NeuTRENO, whose tokens stay further apart; no numbers were published beside the drawing. Cells have the curve of the
last look at their model in training, at 8 inputs of its task; a model that was not kept, or whose task `diagnose` does
not read, has no other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report.charts.base import distinct
from oversmooth.report.style import fixed
from oversmooth.safety.errors import InputError
from oversmooth_papers.tables import cells, table_text

FIGURE = "cos"
"""The figure of `report.figures` that it is."""
_BETWEEN = ", "
_LAST_LOOK = "From cells: the last look in training, at 8 inputs of the task"


@dataclass(frozen=True)
class KeptCurve:
    """What a cell has of a model: its curve at the last look."""

    name: str
    cosines: Sequence[float]

    def curve(self, _name: str) -> Sequence[float]:
        return self.cosines


def kept_curves(names: Sequence[str]) -> list[KeptCurve] | None:
    """Of cells of trained models; None where none of these is one.

    Raises:
        InputError: some are cells and others models, which have other inputs; or a cell has no curve.
    """
    found = [_is_cell(name) for name in names]
    if not any(found):
        return None
    if not all(found):
        other = names[found.index(False)]
        raise InputError(f"{other} is no cell and others are, which were looked at on inputs of their own; give either")
    curves = []
    for name in names:
        cell: dict[str, Any] = cells.read(Path(name)) or {}
        looks = [look for look in cell.get("smoothing", []) if look.get("cos")]
        if not looks:
            raise InputError(f"{name} has no cosines: its model was not looked at in training; leave it out")
        curves.append(KeptCurve(str(cell["title"]), looks[-1]["cos"]))
    return curves


def _is_cell(name: str) -> bool:
    path = Path(name)
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # whoever reads it as a diagnosis says what is wrong
    return isinstance(content, dict) and "recipe" in content


_Curves = TypeVar("_Curves", Diagnosis, KeptCurve)


def shortened(diagnoses: Sequence[_Curves]) -> tuple[list[_Curves], str]:
    """Diagnoses whose models' names lack what all of them end with, and that end: "10 % of cifar100, seed 0"."""
    names = [diagnosis.name.split(_BETWEEN) for diagnosis in diagnoses]
    common = 0
    while len(names) > 1 and all(len(parts) > common + 1 for parts in names):
        if len({parts[-1 - common] for parts in names}) > 1:
            break
        common += 1
    if not common:
        return list(diagnoses), ""
    short = [_BETWEEN.join(parts[:-common]) for parts in names]
    return [_named(d, name) for d, name in zip(diagnoses, short, strict=True)], _BETWEEN.join(names[0][-common:])


def _named(one: _Curves, name: str) -> _Curves:
    return replace(one, name=name) if isinstance(one, KeptCurve) else replace(one, model={**one.model, "name": name})


def rows(diagnoses: Sequence[Diagnosis] | Sequence[KeptCurve]) -> tuple[list[str], list[list[str]]]:
    """The heading, and a row per layer: the mean cosine of each model; a dash where a model has no such layer."""
    head = ["after block", *distinct([diagnosis.name for diagnosis in diagnoses])]
    curves = [diagnosis.curve("cos") for diagnosis in diagnoses]
    table = []
    for depth in range(max(map(len, curves))):
        values = (curve[depth] if depth < len(curve) else None for curve in curves)
        table.append([str(depth), *("–" if value is None else fixed(value, 3) for value in values)])
    return head, table


def notes(diagnoses: Sequence[Diagnosis] | Sequence[KeptCurve], common: str = "") -> list[str]:
    """Paragraphs under the table. common: what `shortened` left out of all names."""
    data = dict.fromkeys(_LAST_LOOK if isinstance(d, KeptCurve) else str(d.provenance["data"]) for d in diagnoses)
    models = f" All models: {common}." if common else ""
    seen = "Mean cosine of pairs of different tokens, over inputs; 0 is what enters the first block."
    return [f"{seen}{models} {'; '.join(data)}."]


def markdown(diagnoses: Sequence[Diagnosis] | Sequence[KeptCurve], common: str = "") -> str:
    """The table as a file."""
    return table_text.markdown(*rows(diagnoses), notes(diagnoses, common))
