"""What special, first and massive tokens do to a diagnosis, in words; `verdict` has the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oversmooth.results.data import DiagnosisData
from oversmooth.results.facts import Number

_LEAST = 0.1  # difference of log HFC/LFC that is worth a sentence
_NOTABLE = 0.1  # share of heads with a sink that is, at the depth that has most
_PARTS = {"mlp": "MLP"}


@dataclass(frozen=True)
class Difference:
    """Where a few tokens matter most for the course of HFC/LFC."""

    depth: int
    counted: float  # HFC/LFC there with them
    without: float
    explains: bool  # whether they account for most of the change since depth 0


def difference(counted: list[Number], without: list[Number]) -> Difference | None:
    """Between two courses of HFC/LFC; None where they do not differ by 10%."""
    logs = [[math.log(v) if v else None for v in course] for course in (counted, without)]
    rows = [(depth, a, b) for depth, (a, b) in enumerate(zip(*logs, strict=True)) if a is not None and b is not None]
    if not rows or rows[0][0]:
        return None
    _, start, other = rows[0]
    depth, a, b = max(rows, key=lambda row: abs((row[1] - start) - (row[2] - other)))
    due = (a - start) - (b - other)
    if abs(due) < _LEAST:
        return None
    return Difference(depth, math.exp(a), math.exp(b), due * (a - start) > 0 and abs(due) > abs(a - start) / 2)


def special_tokens(diagnosis: DiagnosisData) -> str:
    """HFC/LFC with special tokens, where that is another course, and whether one token explains it."""
    found = difference(diagnosis.curve("hfc_lfc_special"), diagnosis.curve("hfc_lfc"))
    if found is None:
        return ""
    counted, without = f"{found.counted:.3g}", f"{found.without:.3g}"
    said = f"Special tokens: counting them, HFC/LFC is {counted} at depth {found.depth}, not {without}."
    norm = diagnosis.layers[found.depth].tokens.get("first_norm")
    if not found.explains:
        return said
    alone = norm and norm > 5
    which = f"The first token alone ({norm:.2g} times the median norm) explains" if alone else "They explain"
    return f"{said} {which} most of the change since depth 0."


def massive_tokens(diagnosis: DiagnosisData) -> str:
    """Where massive tokens arise, and whether they explain most of a change."""
    origin = diagnosis.massive_origin
    if origin is None:
        return ""
    part = _PARTS.get(origin.part, origin.part)
    where = "enter the first block" if not origin.depth else f"arise in the {part} of block {origin.depth}"
    grows = "is" if origin.before is None else f"grows from {origin.before:.2g} to"
    features = f"{origin.channel_share:.0%} of its square in features {', '.join(map(str, origin.channels))}"
    norm = f"at position {origin.position} the norm {grows} {origin.after:.2g} times the median, {features}"
    said = f"Massive tokens {where} (special tokens included): {norm}."
    found = difference(diagnosis.curve("hfc_lfc"), diagnosis.curve("hfc_lfc", without_massive=True))
    if found is not None and found.explains:
        said += f" Massive tokens explain most of the change of HFC/LFC from depth 0 to {found.depth}."
    return said


def attention_sinks(diagnosis: DiagnosisData) -> str:
    """How many heads attend mostly to the first token."""
    rates = {depth: rate for depth, rate in enumerate(diagnosis.curve("sink_rate")) if rate is not None}
    if not rates or max(rates.values()) < _NOTABLE:
        return ""
    most = max(rates, key=lambda depth: rates[depth])
    return (
        f"Attention sinks: in {sum(rates.values()) / len(rates):.0%} of heads ({rates[most]:.0%} at depth {most}), the "
        "first token receives more than 0.3 of the attention, averaged over queries."
    )
