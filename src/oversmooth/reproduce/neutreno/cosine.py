"""Nguyen et al.'s curves: the mean cosine similarity of tokens, layer by layer, several models in one figure.

    oversmooth reproduce neutreno cosine MODEL... --data DATA -o cosine.pdf -o cosine.md

The mean is over all pairs of different tokens and over inputs. The paper draws it for a model and the same one with
NeuTRENO, whose tokens stay further apart; no numbers were published beside the drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report.charts.base import distinct
from oversmooth.report.style import fixed
from oversmooth.reproduce import table_text

FIGURE = "cosines"
"""The figure of `report.figures` that it is."""
_BETWEEN = ", "


def shortened(diagnoses: Sequence[Diagnosis]) -> tuple[list[Diagnosis], str]:
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
    renamed = [replace(d, model={**d.model, "name": name}) for d, name in zip(diagnoses, short, strict=True)]
    return renamed, _BETWEEN.join(names[0][-common:])


def rows(diagnoses: Sequence[Diagnosis]) -> tuple[list[str], list[list[str]]]:
    """The heading, and a row per layer: the mean cosine of each model; a dash where a model has no such layer."""
    head = ["after block", *distinct([diagnosis.name for diagnosis in diagnoses])]
    curves = [diagnosis.curve("cos") for diagnosis in diagnoses]
    table = []
    for depth in range(max(map(len, curves))):
        values = (curve[depth] if depth < len(curve) else None for curve in curves)
        table.append([str(depth), *("–" if value is None else fixed(value, 3) for value in values)])
    return head, table


def notes(diagnoses: Sequence[Diagnosis], common: str = "") -> list[str]:
    """Paragraphs under the table. common: what `shortened` left out of all names."""
    data = dict.fromkeys(str(d.provenance["data"]) for d in diagnoses)
    models = f" All models: {common}." if common else ""
    seen = "Mean cosine of pairs of different tokens, over inputs; 0 is what enters the first block."
    return [f"{seen}{models} {'; '.join(data)}."]


def markdown(diagnoses: Sequence[Diagnosis], common: str = "") -> str:
    """The table as a file."""
    return table_text.markdown(*rows(diagnoses), notes(diagnoses, common))
