"""The data of a `Diagnosis`: everything measured and predicted about a model, saved to and loaded from JSON.

The JSON it writes is described in docs/diagnosis.md. Undefined numbers (the cosine of a single token, an infinite
ratio) are None here and ``null`` there.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from oversmooth.metrics import METRICS
from oversmooth.results.facts import ModelFacts, Number, Provenance, Steered
from oversmooth.results.notes import Note
from oversmooth.results.parts import Accuracy, Extrapolation, Layer, MassiveOrigin, OneInput, share_of_smoothing
from oversmooth.results.spans import Spans
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, about, reason
from oversmooth.safety.files import check_plain, check_writable, parse_json, read_text, write_text
from oversmooth.safety.foreign import json_text
from oversmooth.safety.machine import check_fits
from oversmooth.safety.typed import typed

if TYPE_CHECKING:
    import pandas

SCHEMA, VERSION = "oversmooth/diagnosis", 5
# Version 1 had neither undecided cases nor how verdicts are known, version 2 no single input to show, version 3 no
# reasons and notes as values, version 4 no prediction of repeated blocks: what they lack is None or empty.
_READ = (1, 2, 3, 4, 5)
_GONE = ("predicted_rate", "simulated", "simulated_verdict")  # from repeated blocks, with version 5
_MOST_BYTES = 2 * 2**30
_MEMORY_PER_BYTE = 12  # of a file: what its numbers take once they are read


@dataclass(repr=False)
class DiagnosisData:
    """The fields of a `Diagnosis`, what follows from them, and how they are saved and loaded."""

    model: ModelFacts
    provenance: Provenance
    layers: list[Layer]
    extrapolation: list[Extrapolation] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    """In plain words: the answer, what was measured, what was predicted, and where the two disagree."""
    remarks: list[str] = field(default_factory=list)  # what a reader should know about how this was measured, in words
    notes: list[Note] = field(default_factory=list)  #: The same as values, in the same order; empty before version 4.
    steering: Annotated[dict[str, Any], Steered] | None = None
    """Of a steered model: the methods, how far a warm start moved layers, and whether its constraint is satisfied."""
    accuracy: Accuracy | None = None  #: Of a classifier that was tested as well.
    massive_origin: MassiveOrigin | None = None  #: Where massive tokens arise; None if there are none.
    one_input: OneInput | None = None  #: The tokens of the example input; None if they were not stored.
    spans: Spans | None = None  #: What leaving out and repeating blocks does, by `oversmooth.spans`.

    def __repr__(self) -> str:
        """One line; `to_dict` gives everything."""
        facts = [f"{len(self.layers) - 1} blocks", f"{self.provenance.get('inputs', 0)} inputs"]
        known = [value for value in self.curve("hfc_lfc") if value is not None]
        if known:
            facts.append(f"HFC/LFC {known[0]:.3g} → {known[-1]:.3g}")
        if self.smoothing_share is not None:
            facts.append(f"smoothing share {self.smoothing_share:.1%}")
        return f"<Diagnosis of {self.model.get('name')}: {', '.join(facts)}>"

    @property
    def name(self) -> str:
        """Of the model, as reports show it."""
        return str(self.model["name"])

    @property
    def smoothing_share(self) -> Number:
        """Share of (input, layer, head) triples that smooth (table 1 of Dovonon et al.)."""
        verdicts = [v for layer in self.layers if layer.dominance for row in layer.dominance.verdict_heads for v in row]
        return share_of_smoothing(verdicts)

    @property
    def undecided_share(self) -> Number:
        """Share of these triples that are undecided; None if that is unknown."""
        layers = [layer.dominance for layer in self.layers if layer.dominance]
        return _share_of_all((d.undecided_share, sum(len(row) for row in d.verdict_heads)) for d in layers)

    @property
    def negative_share(self) -> Number:
        """Share of the eigenvalues of H of all heads jointly, over all layers, with a negative real part."""
        spectra = [layer.spectrum.joined["raw"] for layer in self.layers if layer.spectrum]
        return _share_of_all((e.negative_share, len(e.real)) for e in spectra)

    @property
    def real_parts(self) -> list[float]:
        """Real parts of the eigenvalues of H over all layers: of all heads jointly, or per head if only those exist."""
        parts: list[float] = []
        for layer in self.layers:
            if layer.spectrum:
                joined = layer.spectrum.joined["raw"].real
                parts += joined or [v for head in layer.spectrum.heads["raw"] for v in head.real]
        return parts

    def change(self, part: str) -> Number:
        """Change of log HFC/LFC through one sublayer over all blocks; None if it was not measured."""
        known = [value for layer in self.layers if (value := layer.change(part)) is not None]
        return math.fsum(known) if known else None

    def curve(self, metric: str, *, without_massive: bool = False) -> list[Number]:
        """A metric after every block, preceded by its value for what enters the first block.

        Args:
            metric: its name, such as "hfc_lfc".
            without_massive: leave out massive-activation tokens.

        Returns:
            One number per depth; None where it was not measured.

        Raises:
            InputError: there is no such metric.
        """
        known = {*METRICS, *(name for layer in self.layers for name in layer.tokens)}
        if not isinstance(metric, str) or metric not in known:
            raise InputError(f"there is no metric {metric!r}; choose one of {', '.join(METRICS)}")
        return [
            (layer.without_massive if without_massive and layer.without_massive else layer.tokens).get(metric)
            for layer in self.layers
        ]

    def to_dict(self) -> dict[str, Any]:
        """As plain lists, dicts and numbers, described in docs/diagnosis.md."""
        return {"schema": SCHEMA, "version": VERSION, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """As JSON text."""
        return json_text(self.to_dict(), allow_nan=False, separators=(",", ":"))

    def save(self, path: str | Path) -> None:
        """Write a JSON file, whole or not at all.

        Args:
            path: of a .json file.

        Raises:
            InputError: it cannot be written.
        """
        file = arguments.path(path, remedy="give the path of a .json file")
        check_writable(file, (".json",))
        write_text(file, self.to_json())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the result of `to_dict`.

        Args:
            data: of this version or an earlier one.

        Raises:
            InputError: it is something else, of a later version, or damaged.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise InputError(
                f"this is not a diagnosis: its schema is not {SCHEMA!r}; give a file written by Diagnosis.save"
            )
        if data.get("version") not in _READ:
            raise InputError(
                f"this diagnosis has version {data.get('version')!r}, but only {_READ[0]} to {_READ[-1]} are "
                "supported; diagnose again"
            )
        try:
            if missing := {"extrapolation", "verdict", "remarks"} - data.keys():
                raise ValueError(f"it has no {min(missing)!r}")
            fields = {k: v for k, v in data.items() if k not in ("schema", "version")}
            if data["version"] < 5 and isinstance(fields["extrapolation"], list):
                kept = [
                    {k: v for k, v in entry.items() if k not in _GONE} if isinstance(entry, dict) else entry
                    for entry in fields["extrapolation"]
                ]
                fields["extrapolation"] = kept
            diagnosis: Self = typed(cls, fields)
            _check_whole(diagnosis)
            json.dumps(data, allow_nan=False)  # what is kept of a model as it is, such as its recipe, has no type
        except (TypeError, ValueError) as error:
            raise InputError(f"this diagnosis is damaged ({reason(error)}); diagnose again") from error
        return diagnosis

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the result of `to_json`.

        Args:
            text: JSON.

        Raises:
            InputError: it is something else, of a later version, or damaged.
        """
        if not isinstance(text, (str, bytes, bytearray)):
            raise InputError(
                f"this is {arguments.kind(text)}, not JSON text; give the text of a file written by Diagnosis.save"
            )
        return cls.from_dict(parse_json(text, "this is not JSON", "give a file written by Diagnosis.save"))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save`.

        Args:
            path: of the file.

        Raises:
            InputError: it cannot be read, or is no diagnosis.
        """
        remedy = "give a file written by Diagnosis.save"
        path = arguments.path(path, remedy=remedy)
        check_fits(_MEMORY_PER_BYTE * check_plain(path, remedy), f"reading {path}", remedy)
        text = read_text(path, remedy, _MOST_BYTES)
        with about(str(path)):
            return cls.from_json(text)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per layer: metrics, changes, and the summary of spectra and dominance."""
        import pandas  # the user's own; nothing else here needs it

        rows = []
        for depth, layer in enumerate(self.layers):
            row: dict[str, Any] = {"model": self.name, "depth": depth, "layer": layer.name, **layer.tokens}
            row |= {f"attention_out_{k}": v for k, v in (layer.attention_out or {}).items()}
            row |= {f"change_{part}": layer.change(part) for part in {c.part: None for c in layer.changes}}
            if layer.spectrum:
                row |= {k: getattr(layer.spectrum, k) for k in ("negative_share", "mean_real")}
                row["rho_smooth"] = layer.rho_smooth
            if layer.dominance:
                row |= {k: getattr(layer.dominance, k) for k in ("rho_rough", "smoothing_share", "undecided_share")}
            rows.append(row)
        return pandas.DataFrame(rows)


def _share_of_all(shares: Iterable[tuple[Number, int]]) -> Number:
    """The share over all, of shares with their counts; None if none is known."""
    known = [(share * count, count) for share, count in shares if share is not None]
    total = sum(count for _, count in known)
    return sum(part for part, _ in known) / total if total else None


def _check_whole(diagnosis: DiagnosisData) -> None:
    """Check what types do not say, so that damage shows on reading and not in a report."""
    if not diagnosis.layers:
        raise ValueError("it has no layers")
    for layer in diagnosis.layers:
        s, d = layer.spectrum, layer.dominance
        if s and not ("raw" in s.joined and "raw" in s.heads):
            raise ValueError(f"the spectrum of {layer.name} has no raw eigenvalues")
        spectra = [*s.joined.values(), *(e for row in s.heads.values() for e in row)] if s else []
        _check_alike(layer.name, *((e.real, e.imag) for e in spectra))
        if d:
            _check_alike(layer.name, (d.verdict_heads, d.rho_rough_heads))
            rows = d.verdict_heads + d.rho_rough_heads
            _check_alike(layer.name, *((d.rho_smooth_heads or rows[0], row) for row in rows))
            sample = d.joined_inputs, d.joined_rho_smooth, d.joined_rho_rough, d.joined_verdict, d.joined_residual
            _check_alike(layer.name, *((sample[0], other) for other in sample))
            if "counting_rule" not in diagnosis.provenance and diagnosis.smoothing_share is not None:
                raise ValueError("it has no counting rule (provenance.counting_rule)")
    for entry in diagnosis.extrapolation:
        courses = [course for course in (entry.real, entry.predicted) if course is not None]
        _check_alike(entry.what, *((course.depth, course.log_hfc_lfc) for course in courses))


def _check_alike(what: str, *pairs: tuple[Sequence[Any], Sequence[Any]]) -> None:
    for one, other in pairs:
        if len(one) != len(other):
            raise ValueError(f"two lists of {what} have {len(one)} and {len(other)} entries and must have equally many")
