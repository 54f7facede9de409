"""Diagnoses as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from oversmooth.metrics import METRICS
from oversmooth.report.style import UNKNOWN, arrow, fixed, percent
from oversmooth.report.style import number as _number
from oversmooth.results.data import DiagnosisData
from oversmooth.results.parts import Eigenvalues, Layer
from oversmooth.results.spans import EFFECTS, Span, Spans

if TYPE_CHECKING:
    from oversmooth.steering.record import Moved

_MOST_ROWS = 300  # of deeper models every so many layers are shown: a terminal takes seconds to lay out thousands
_SHORT = {"attention": "attn", "cross-attention and mlp": "rest"}
_BAR = "▏▎▍▌▋▊▉█"
number, share = partial(_number, digits=3), partial(percent, decimals=0)


def overview(diagnoses: Sequence[DiagnosisData]) -> Table:
    """A row per model: its first input and last output, and its spectra."""
    # No wider than 80 columns: what does not fit is cut off, and the last column is what many come for.
    table = plain_table("model", "blocks", "HFC/LFC\nfirst → last", "cos", "eff. rank", "Re λ\n< 0", "smooth\nshare")
    table.columns[0].min_width = 10  # names are what rows are told apart by
    for d in diagnoses:
        courses = [arrow(d.curve(m), fixed if m == "cos" else number) for m in ("hfc_lfc", "cos", "effective_rank")]
        shares = share(d.negative_share), percent(d.smoothing_share)
        table.add_row(d.name, str(d.model["layers"]), *courses, *shares)
    return table


def accuracies(diagnoses: Sequence[DiagnosisData]) -> Table:
    """A row a tested model: clean, and by the intensity of corruption."""
    tested = [(d.name, d.accuracy) for d in diagnoses if d.accuracy is not None]
    most = max((len(a.corrupted) for _, a in tested), default=0)
    table = plain_table("model", "accuracy\nclean", *(f"intensity\n{i + 1}" for i in range(most)))
    for name, accuracy in tested:
        values = [accuracy.clean, *accuracy.corrupted]
        table.add_row(name, *(percent(v) for v in values), *[UNKNOWN] * (most + 1 - len(values)))
    return table


def layers(diagnosis: DiagnosisData) -> Table:
    """A row per block."""
    parts = list(dict.fromkeys(change.part for layer in diagnosis.layers for change in layer.changes))
    headings = [f"Δ\n{_SHORT.get(part, part)}" for part in parts]
    columns = [metric for metric in METRICS.values() if metric.heading]
    known = "Re λ\n< 0", "ρ\nsmooth", "ρ\nrough", "smooth\nshare"
    table = plain_table("depth", *(metric.heading for metric in columns), *headings, *known)
    if len(parts) > 2:  # to fit into 80 columns
        table.padding = 0
    for depth, layer in _some(list(enumerate(diagnosis.layers)), table):
        changes = [layer.change(part) for part in parts]
        s, d = layer.spectrum, layer.dominance
        tokens = ((fixed if metric.fixed else number)(layer.tokens.get(metric.name)) for metric in columns)
        radii = fixed(layer.rho_smooth), fixed(d.rho_rough if d else None)
        shares = share(s.negative_share if s else None), share(d.smoothing_share if d else None)
        table.add_row(str(depth), *tokens, *(fixed(c, sign=True) for c in changes), shares[0], *radii, shares[1])
    return table


def special(diagnosis: DiagnosisData) -> Table | None:
    """A row per depth: the first token, and metrics with special tokens; None where there is nothing to see."""
    names = ("sink_rate", "sink_attention", "first_norm", "hfc_lfc_special", "cos_special")
    seen = [names[0], *names[3:]]
    if not any(value for name in seen for value in diagnosis.curve(name)) and diagnosis.massive_origin is None:
        return None
    headings = "sink\nrate", "attn to\nfirst", "first norm\n/ median", "HFC/LFC\nwith special", "cos\nwith special"
    table = plain_table("depth", *headings)
    table.title, table.title_justify = Text("The first token that attention sees, and special tokens"), "left"
    for depth, layer in _some(list(enumerate(diagnosis.layers)), table):
        shown = ((fixed if METRICS[name].fixed else number)(layer.tokens.get(name)) for name in names)
        table.add_row(str(depth), *shown)
    return table


def roles(diagnosis: DiagnosisData) -> Table | None:
    """A row per depth, by role of tokens; None where there are no roles but special tokens and text."""
    names = list(dict.fromkeys(role for layer in diagnosis.layers for role in layer.roles))
    if names in ([], ["special", "text"]):
        return None
    parts = {"norm": "norm\n/ mean", "hfc_lfc": "HFC/\nLFC", "cos_others": "cos to\nothers"}
    known = [
        (role, part)
        for role in names
        for part in parts
        if any(layer.roles.get(role, {}).get(part) is not None for layer in diagnosis.layers)
    ]
    table = plain_table("depth", *(f"{role}\n{parts[part]}" for role, part in known))
    table.title, table.title_justify = Text("Tokens by role"), "left"
    for depth, layer in _some(list(enumerate(diagnosis.layers)), table):
        cells = ((layer.roles.get(role, {}).get(part), part) for role, part in known)
        table.add_row(str(depth), *((fixed if part == "cos_others" else number)(value) for value, part in cells))
    return table


def moved(layers: Sequence[Moved]) -> Table:
    """How far each layer's H is from that before steering, head by head."""
    table = plain_table("layer", "‖H' − H‖ / ‖H‖, mean", "by head")
    for layer in layers:
        mean = sum(layer.heads) / len(layer.heads)
        table.add_row(str(layer.index), fixed(mean), "  ".join(fixed(value) for value in layer.heads))
    return table


def spectra(diagnosis: DiagnosisData) -> Table:
    """A row per layer: H from weights alone."""
    folded = any("folded" in layer.spectrum.heads for layer in diagnosis.layers if layer.spectrum)
    joined = any(layer.spectrum.joined["raw"].real for layer in diagnosis.layers if layer.spectrum)
    columns = ["layer", "Re λ\n< 0", "mean\nRe λ", "ρ\nsmooth", *(["norm\nfolded"] if folded else [])]
    decided = any(layer.spectrum.verdicts for layer in diagnosis.layers if layer.spectrum)
    verdicts = {"smooth": "heads\nsmooth", "rough": "\nrough", "open": "\nundecided"} if decided else {}
    table = plain_table(*columns, "Re λ < 0\nby head", *verdicts.values())
    # Two different matrices.
    table.title = Text("H of all heads jointly" if joined else "H of each head, all eigenvalues pooled")
    table.title_justify = "left"
    for place, layer in _some(list(enumerate(layer for layer in diagnosis.layers if layer.spectrum)), table):
        s = layer.spectrum
        assert s is not None
        by_head = s.heads["raw"]
        means = s.joined["raw"] if joined else _pooled(by_head)
        row = [str(place), share(means.negative_share), number(means.mean_real), number(means.rho_smooth)]
        if folded:
            norm = s.joined.get("folded") if joined else _pooled(s.heads.get("folded", []))
            row.append(number(norm.rho_smooth if norm else None))
        known = [e.negative_share for e in by_head if e.negative_share is not None]
        low, high = (share(pick(known, default=None)) for pick in (min, max))
        row.append(f"{low} to {high}" if by_head else UNKNOWN)
        table.add_row(*row, *(str(s.verdicts.count(word)) if s.verdicts else UNKNOWN for word in verdicts))
    return table


def spans(found: Spans) -> list[Table | str]:
    """A row per block, then the span of every length whose effect is least."""
    single = [span for span in found.spans if span.length == 1]
    ways = [way for way in ("drop", "repeat") if any(getattr(span, way) is not None for span in single)]
    parts = list(dict.fromkeys(change.part for span in single for change in span.changes))
    changes = [f"Δ\n{_SHORT.get(part, part)}" for part in parts]
    table = plain_table("block", "influ-\nence", "angle\n/π", *changes, *ways)
    for span in single:
        by_part = {change.part: change for change in span.changes}
        logs = (by_part[part].log_hfc_lfc for part in parts)
        numbers = [fixed(span.influence, 3), fixed(span.angle, 3), *(fixed(log, sign=True) for log in logs)]
        table.add_row(span.blocks, *numbers, *(_effect(span, way) for way in ways))
    shown = ways or ["drop", "repeat"]
    headings = [(f"least to\n{way}", "effect", "as pre-\ndicted") if ways else (f"predicted\n{way}",) for way in shown]
    least = plain_table("blocks", *(text for texts in headings for text in texts))
    for length in dict.fromkeys(span.length for span in found.spans):
        cells = []
        for way in shown:
            best, predicted = (found.by_length(by).get(length) for by in (way, f"predicted_{way}"))
            cells += [best[0].blocks, _effect(best[0], way)] if best else []
            cells.append(predicted[0].blocks if predicted else UNKNOWN)
        least.add_row(str(length), *cells)
    loss = "" if found.unchanged is None else f" (unchanged: {number(found.unchanged)})"
    words = (
        f"Effect: {EFFECTS[found.effect]}{loss}, with its standard error over {found.inputs} inputs. " if ways else ""
    )
    return [table, least, f"{words}Δ: change of log HFC/LFC by part. Angle of the {found.vector}."]


def _effect(span: Span, way: str) -> str:
    error = getattr(span, f"{way}_error")
    return _number(getattr(span, way), 2) + ("" if error is None else f" ± {_number(error, 1)}")


def histogram(diagnosis: DiagnosisData, rows: int = 15) -> Table:
    """Real parts of the eigenvalues of H over all layers (Dovonon et al.'s figure 5), as bars."""
    values = diagnosis.real_parts
    table = Table(box=None, show_header=False, pad_edge=False)
    for side in ("right", "left", "right"):
        table.add_column(justify=side)
    if not values:
        return table
    size = sorted(abs(v) for v in values)[int(0.99 * (len(values) - 1))] or 1.0
    width = 2 * size / rows
    counts = [0] * rows
    for value in values:
        counts[min(rows - 1, max(0, int((value + size) / width)))] += 1
    for place, count in enumerate(counts):
        middle = (place - (rows - 1) / 2) * width  # from the middle: the one at zero is exactly there
        eighths = round(count / max(counts) * 40 * 8)
        bar = "█" * (eighths // 8) + (_BAR[eighths % 8 - 1] if eighths % 8 else "")
        drawn = Text(bar, style="magenta" if middle < 0 else "cyan")
        table.add_row(_number(middle, 2, sign=True), drawn, percent(count / len(values)))
    return table


def _pooled(heads: list[Eigenvalues]) -> Eigenvalues:
    real = [v for head in heads for v in head.real]
    if not real:
        return Eigenvalues(None, None, None)
    largest = max((head.rho_smooth for head in heads if head.rho_smooth is not None), default=None)
    return Eigenvalues(sum(v < 0 for v in real) / len(real), math.fsum(real) / len(real), largest)


def _some(rows: list[tuple[int, Layer]], table: Table) -> list[tuple[int, Layer]]:
    """All rows that a table can take, the last among them; a caption says how many are left out."""
    step = math.ceil(len(rows) / _MOST_ROWS)
    if step < 2:
        return rows
    table.caption = f"every {step}th of {len(rows):,} layers is shown; --json writes all of them"
    return [*rows[:-1:step], rows[-1]]


def plain_table(*headings: str) -> Table:
    """With names on the left and numbers on the right."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1), collapse_padding=True)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=place > 0 or heading != "model")
    return table
