"""Nguyen et al.'s curves: the mean cosine similarity of tokens, layer by layer, several models in one figure.

    oversmooth reproduce neutreno cosine MODEL... --data DATA -o cosine.pdf -o cosine.md

The mean is over all pairs of different tokens and over inputs. The paper draws it for a model and the same one with
NeuTRENO, whose tokens stay further apart; no numbers were published beside the drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.report.charts.base import distinct
from oversmooth.report.style import fixed
from oversmooth.reproduce import table_text

FIGURE = "cosines"
"""The figure of `report.figures` that it is."""


def rows(diagnoses: Sequence[Diagnosis]) -> tuple[list[str], list[list[str]]]:
    """The heading, and a row per layer: the mean cosine of each model; a dash where a model has no such layer."""
    head = ["after block", *distinct([diagnosis.name for diagnosis in diagnoses])]
    curves = [diagnosis.curve("cos") for diagnosis in diagnoses]
    table = []
    for depth in range(max(map(len, curves))):
        values = (curve[depth] if depth < len(curve) else None for curve in curves)
        table.append([str(depth), *("–" if value is None else fixed(value, 3) for value in values)])
    return head, table


def notes(diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Paragraphs under the table."""
    data = dict.fromkeys(str(d.provenance["data"]) for d in diagnoses)
    return [
        f"Mean cosine of pairs of different tokens, over inputs; 0 is what enters the first block. {'; '.join(data)}."
    ]


def markdown(diagnoses: Sequence[Diagnosis]) -> str:
    """The table as a file."""
    return table_text.markdown(*rows(diagnoses), notes(diagnoses))
