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

PUBLISHED = {
    "ViT-B/16, random weights": 100.0,
    "ViT-B/16, ImageNet": 70.27,
    "DeiT-B/16, ImageNet": 57.82,
    "ViT-Ti, CIFAR-100": 98.92,
    "ViT-Ti⁺, CIFAR-100": 100.0,
    "ViT-Ti⁻, CIFAR-100": 0.0,
}
"""Smoothing eigenvalue, in % of cases; the rest is the sharpening one."""


def shares(diagnosis: Diagnosis, joined: bool = False) -> tuple[int, int, int]:
    """Cases in which smoothing, the rough part, or neither dominates."""
    found = [layer.dominance for layer in diagnosis.layers if layer.dominance]
    verdicts = (
        [v for d in found for v in d.joined_verdict]
        if joined
        else [v for d in found for row in d.verdict_heads for v in row]
    )
    return tuple(sum(v == word for v in verdicts) for word in ("smooth", "rough", "tie"))  # type: ignore[return-value]


def table(diagnoses: Sequence[Diagnosis], joined: bool = False) -> Table:
    out = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading, justify in (
        ("model", "left"),
        ("smoothing %", "right"),
        ("sharpening %", "right"),
        ("cases", "right"),
        ("whose", "left"),
    ):
        out.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for diagnosis in diagnoses:
        smooth, rough, tie = shares(diagnosis, joined)
        total = smooth + rough + tie
        if total:
            out.add_row(
                escape(diagnosis.name),
                f"{100 * smooth / total:.2f}",
                f"{100 * rough / total:.2f}",
                f"{total:,}",
                "ours, this run",
            )
    for name, value in PUBLISHED.items():
        out.add_row(name, f"{value:.2f}", f"{100 - value:.2f}", "–", "published", style="dim")
    return out


def markdown(diagnoses: Sequence[Diagnosis], joined: bool = False) -> str:
    rows = ["| model | smoothing % | sharpening % | cases | whose |", "|---|---|---|---|---|"]
    for diagnosis in diagnoses:
        smooth, rough, tie = shares(diagnosis, joined)
        total = max(1, smooth + rough + tie)
        name = diagnosis.name.replace("|", "\\|")
        rows.append(f"| {name} | {100 * smooth / total:.2f} | {100 * rough / total:.2f} | {total:,} | ours |")
    rows += [f"| {name} | {v:.2f} | {100 - v:.2f} | – | published |" for name, v in PUBLISHED.items()]
    return "\n".join(rows) + "\n"
