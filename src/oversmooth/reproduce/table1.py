"""The first paper's table 1: in which share of cases the smoothing eigenvalue dominates.

    oversmooth reproduce table1 MODEL... --data IMAGES

What a case is was not published. One maximum over all pairs of eigenvalues (of A, of H) per image, layer and head is
the default here: it gives the published 100 % at random initialisation, which a vote per eigenvalue does not. The other
readings are options: all heads joined (the multi-head theorem), real parts only, H with the norm folded in.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from oversmooth.diagnosis import Diagnosis
from oversmooth.errors import InputError

PUBLISHED = {
    "ViT-B/16, random weights": 100.0,
    "ViT-B/16, ImageNet": 70.27,
    "DeiT-B/16, ImageNet": 57.82,
    "ViT-Ti, CIFAR-100": 98.92,
    "ViT-Ti⁺, CIFAR-100": 100.0,
    "ViT-Ti⁻, CIFAR-100": 0.0,
}
"""Smoothing eigenvalue, in % of cases; the rest is the sharpening one."""
_COLUMNS = ("model", "smoothing %", "sharpening %", "cases", "whose")


def shares(diagnosis: Diagnosis, joined: bool = False) -> tuple[int, int, int]:
    """Cases in which smoothing, the rough part, or neither dominates."""
    found = [layer.dominance for layer in diagnosis.layers if layer.dominance]
    verdicts = (
        [v for d in found for v in d.joined_verdict]
        if joined
        else [v for d in found for row in d.verdict_heads for v in row]
    )
    return tuple(sum(v == word for v in verdicts) for word in ("smooth", "rough", "tie"))  # type: ignore[return-value]


def rules(diagnoses: Sequence[Diagnosis], joined: bool = False) -> list[str]:
    """What a case is, in words."""
    if joined:
        return ["all heads of a layer together, per input and layer"]
    return sorted({d.provenance["counting_rule"] for d in diagnoses if d.smoothing_share is not None})


def _rows(diagnoses: Sequence[Diagnosis], joined: bool) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for diagnosis in diagnoses:
        smooth, rough, tie = shares(diagnosis, joined)
        total = smooth + rough + tie
        if not total:
            raise InputError(f"{diagnosis.name} has no cases to count: it was diagnosed without them; diagnose it anew")
        shown = (f"{100 * smooth / total:.2f}", f"{100 * rough / total:.2f}", f"{total:,}")
        rows.append((diagnosis.name, *shown, "ours, this run"))
    return rows + [(name, f"{v:.2f}", f"{100 - v:.2f}", "–", "published") for name, v in PUBLISHED.items()]


def table(diagnoses: Sequence[Diagnosis], joined: bool = False) -> Table:
    out = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for place, heading in enumerate(_COLUMNS):
        out.add_column(heading, justify="right" if place in (1, 2, 3) else "left")
    for name, *numbers, whose in _rows(diagnoses, joined):
        out.add_row(escape(name), *numbers, whose, style="dim" if whose == "published" else None)
    return out


def markdown(diagnoses: Sequence[Diagnosis], joined: bool = False) -> str:
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *_rows(diagnoses, joined)]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return text + "\n\n" + "\n".join(f"A case: {rule}." for rule in rules(diagnoses, joined)) + "\n"
