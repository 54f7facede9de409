"""What was found about a model, with where it comes from. It saves, loads, and knows nothing of how it was found or
drawn.

The JSON it writes is described in docs/diagnosis.md. Numbers that have no meaning (the cosine of a single token, an
infinite ratio) are None here and ``null`` there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from torch import Tensor

from oversmooth.metrics import METRICS
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_plain, check_writable, parse_json, read_bytes, whole_file
from oversmooth.safety.foreign import json_text
from oversmooth.safety.machine import check_fits
from oversmooth.safety.typed import typed

if TYPE_CHECKING:
    import pandas

SCHEMA, VERSION = "oversmooth/diagnosis", 2
_READ = (1, 2)
"""Version 1 had no undecided cases, nor how verdicts are known: what it has not is None."""
SPECIAL_COUNTED = "special tokens counted"
_MOST_BYTES = 2 * 2**30
_MEMORY_A_BYTE = 12  # of a file: what its numbers take once they are read

Number = float | None
Numbers = dict[str, Number]
"""Metrics by name, those of `metrics.METRICS`."""
Verdict = Annotated[str, Literal["smooth", "rough", "tie", "undecided"]]
Alone = Annotated[str, Literal["smooth", "rough", "open"]]
"""What weights alone decide, or a simulation."""


class _ModelAlways(TypedDict):
    name: str
    layers: int
    heads: int
    width: int


class ModelFacts(_ModelAlways, total=False):
    """What is known of the model. More may stand beside it: `diagnose(about=...)`, and its class as "class"."""

    layout: str
    stack: str
    shared: bool
    """Whether several blocks have the same weights."""
    kv_heads: int
    head_dim: int
    causal: bool | None
    norm: str | None
    """Where it stands: "pre", "post", …"""
    norm_kind: str | None
    dtype: str
    parameters: int
    training: bool
    recipe: dict[str, Any]
    """Of a model that `oversmooth train` made."""
    state: str
    mode: str | None


class _ProvenanceAlways(TypedDict):
    data: str
    inputs: int
    seconds: float


class Provenance(_ProvenanceAlways, total=False):
    """Where the figures come from. The versions of libraries stand beside it."""

    oversmooth: str
    torch: str
    platform: str
    device: str
    created: str
    seed: int
    tokens: list[int]
    """Of the shortest and of the longest input."""
    rank_inputs: int
    joined_inputs: int
    spectra_inputs: int
    joined: bool
    variant: str
    counting_rule: str
    massive_rule: str
    top1: Number


class Massive(TypedDict):
    input_share: Number
    tokens: int
    positions: dict[str, int]
    """How many such tokens at the positions seen most."""
    largest_ratio: Number


class _Moved(TypedDict):
    layer: int
    heads: list[float]


class _Verified(TypedDict):
    ok: bool
    problems: list[str]
    doubts: list[str]
    layers: list[_VerifiedLayer]


class _VerifiedLayer(TypedDict):
    layer: int
    least: Number
    greatest: Number
    room: Number


class Steered(TypedDict):
    methods: list[dict[str, Any]]
    layers: list[int]
    stack: str
    moved: list[_Moved]
    verified: _Verified | None


@dataclass
class Change:
    """What one part of a block did, mean over inputs of differences of logarithms: negative log_hfc_lfc smooths."""

    part: str
    """attention, mlp, or norm where it stands on the residual stream."""
    log_hfc_lfc: Number
    spread: Number
    log_hfc: Number
    """Growth of the band that tells tokens apart."""
    log_lfc: Number
    """Growth of the constant band."""


@dataclass
class Eigenvalues:
    """A spectrum of H and its summary."""

    negative_share: Number
    """Share of eigenvalues with negative real part."""
    mean_real: Number
    rho_smooth: Number
    """The largest |1 + λ|; None where a factor that varies by token stands between H and the stream."""
    real: list[float] = field(default_factory=list, repr=False)
    imag: list[float] = field(default_factory=list, repr=False)


@dataclass
class Spectrum:
    """Spectra of H of one layer, by weights alone but for the observed 1/σ."""

    negative_share: Number
    """Of the joined H, as are the next two."""
    mean_real: Number
    rho_smooth: Number
    joined: dict[str, Eigenvalues] = field(repr=False)
    """By how the norm before the layer enters: raw (not at all, as in the papers), folded (its γ and centring),
    observed (also the mean 1/σ of the tokens that were seen).
    """
    heads: dict[str, list[Eigenvalues]] = field(repr=False)
    inverse_sigma: Number = None
    verdicts: list[Alone] = field(default_factory=list)
    """Per head, of raw H and for whatever attention: smooth, rough, or open where weights alone do not decide. Empty
    where they were not asked for.
    """


@dataclass
class LayerDominance:
    """Which eigenvalue dominates, in one layer."""

    smoothing_share: Number
    """Share of (input, head) cases in which the smoothing eigenvalue dominates; None where none is decided."""
    rho_rough: Number
    """Of all heads together, mean over the sample of inputs; compare with joined_rho_smooth."""
    rho_smooth_heads: list[Number]
    rho_rough_heads: list[list[Number]] = field(repr=False)
    """One row an input, one column a head."""
    verdict_heads: list[list[Verdict]] = field(repr=False)
    """smooth, rough, tie or undecided, in the same places."""
    joined_inputs: list[int] = field(default_factory=list, repr=False)
    """The inputs of the sample, counted from 0."""
    joined_rho_smooth: list[Number] = field(default_factory=list, repr=False)
    joined_rho_rough: list[Number] = field(default_factory=list, repr=False)
    joined_verdict: list[Verdict] = field(default_factory=list, repr=False)
    joined_residual: list[Number] = field(default_factory=list, repr=False)
    undecided_share: Number = None
    """Share of (input, head) cases that rounding could turn either way or that no theorem covers: neither smooth nor
    rough.
    """
    certified_share: Number = None
    """Share of (input, head) cases whose verdict is proven, rounding included; the other decided ones are estimated."""
    undecided_because: list[str] = field(default_factory=list)
    """Why, of the first few such cases."""


def share_of_smoothing(verdicts: list[str]) -> Number:
    """Undecided cases are cases too; where there is no other, there is no share."""
    if all(v == "undecided" for v in verdicts):
        return None
    return sum(v == "smooth" for v in verdicts) / len(verdicts)


@dataclass
class Layer:
    """One block, or, first in the list, what enters the first block."""

    name: str
    tokens: Numbers
    """After the block."""
    spread: Numbers = field(default_factory=dict, repr=False)
    """Standard deviation over inputs."""
    attention_out: Numbers | None = field(default=None, repr=False)
    """After the attention sub-layer (and, in Post-LN, the norm that follows it)."""
    attention_out_spread: Numbers | None = field(default=None, repr=False)
    without_massive: Numbers | None = field(default=None, repr=False)
    """tokens, without massive-activation tokens; None if there were none."""
    massive: Annotated[dict[str, Any], Massive] | None = None
    """share of inputs that have such tokens, the positions seen most, the largest norm over the median."""
    changes: list[Change] = field(default_factory=list)
    spectrum: Spectrum | None = None
    dominance: LayerDominance | None = None

    @property
    def rho_smooth(self) -> Number:
        """All heads together: what rho_rough was compared with; by weights alone where nothing was compared."""
        known = [v for v in (self.dominance.joined_rho_smooth if self.dominance else []) if v is not None]
        if known:
            return sum(known) / len(known)
        return self.spectrum.rho_smooth if self.spectrum else None

    def change(self, part: str) -> Number:
        """Of log HFC/LFC through one part, all its places together; None where it was not measured."""
        values = [c.log_hfc_lfc for c in self.changes if c.part == part]
        known = [v for v in values if v is not None]
        return math.fsum(known) if known and len(known) == len(values) else None


@dataclass
class Course:
    """HFC/LFC over further depth, from what the last block gave: ``log_hfc_lfc[i]`` after ``depth[i]`` more blocks."""

    depth: list[float]
    log_hfc_lfc: list[Number]

    def __repr__(self) -> str:
        ends = [self.log_hfc_lfc[place] for place in (0, -1)] if self.log_hfc_lfc else []
        course = " → ".join("unknown" if v is None else f"{v:.3g}" for v in ends)
        return f"Course(log HFC/LFC {course}, {len(self.depth)} depths)"


@dataclass
class Extrapolation:
    """What more depth would do, by spectra, by simulating attention alone, and by running the real blocks again."""

    what: str
    """last block, or stack."""
    input: int
    rho_smooth: Number
    rho_rough: Number
    verdict: Verdict
    predicted_rate: Number
    """Factor on HFC/LFC a block, where smoothing dominates; None where a level is reached instead."""
    residual: Number
    variant: str
    """How the norm entered: raw, folded, observed, or post (tokens whose features have zero mean, as after a norm)."""
    simulated: Course | None
    """Attention alone, frozen as last seen."""
    simulated_verdict: Alone
    """smooth where HFC/LFC kept falling, rough where it did not, open where there was no telling."""
    real: Course | None
    """The blocks themselves, norm and MLP included, attention computed again each time."""
    note: str = ""


@dataclass
class Accuracy:
    """How many labels are found, as shares."""

    images: int
    clean: float
    corrupted: list[float]
    """By the intensity of corruption, from 1; of `corrupted_images` of them."""
    corrupted_images: int
    how: str
    """What was corrupted how, in words."""
    trained: Number = None
    """On the whole test set, as it was noted after training."""


@dataclass(repr=False)
class Diagnosis:
    """Everything `diagnose` found."""

    model: ModelFacts
    provenance: Provenance
    layers: list[Layer]
    extrapolation: list[Extrapolation] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    """In plain words: measured, predicted, and where the two part."""
    remarks: list[str] = field(default_factory=list)
    """What a reader should know about how this was found."""
    steering: Annotated[dict[str, Any], Steered] | None = None
    """Of a steered model: the methods, how far a warm start moved its layers, and whether the promise holds."""
    accuracy: Accuracy | None = None
    """Of a classifier that was tested as well."""

    def __repr__(self) -> str:
        """One line: the whole is what `to_dict` gives."""
        said = [f"{len(self.layers) - 1} blocks", f"{self.provenance.get('inputs', 0)} inputs"]
        known = [value for value in self.curve("hfc_lfc") if value is not None]
        if known:
            said.append(f"HFC/LFC {known[0]:.3g} → {known[-1]:.3g}")
        if self.smoothing_share is not None:
            said.append(f"{self.smoothing_share:.1%} smoothing cases")
        return f"<Diagnosis of {self.model.get('name')}: {', '.join(said)}>"

    @property
    def name(self) -> str:
        return str(self.model["name"])

    @property
    def smoothing_share(self) -> Number:
        """Over all inputs, layers and heads (the first paper's table 1)."""
        verdicts = [v for layer in self.layers if layer.dominance for row in layer.dominance.verdict_heads for v in row]
        return share_of_smoothing(verdicts)

    @property
    def undecided_share(self) -> Number:
        """Of the same cases, those that rounding could turn or no theorem covers; None where that was not asked."""
        layers = [layer.dominance for layer in self.layers if layer.dominance]
        counts = [(d.undecided_share, sum(len(row) for row in d.verdict_heads)) for d in layers]
        known = [(share * count, count) for share, count in counts if share is not None]
        total = sum(count for _, count in known)
        return sum(undecided for undecided, _ in known) / total if total else None

    @property
    def negative_share(self) -> Number:
        """Of the eigenvalues of the joined H, over all layers."""
        found = [layer.spectrum.joined["raw"] for layer in self.layers if layer.spectrum]
        counts = [(e.negative_share * len(e.real), len(e.real)) for e in found if e.negative_share is not None]
        total = sum(size for _, size in counts)
        return sum(negative for negative, _ in counts) / total if total else None

    @property
    def real_parts(self) -> list[float]:
        """Of the eigenvalues of H over all layers: joined, or of the heads where only those were computed."""
        found: list[float] = []
        for layer in self.layers:
            if layer.spectrum:
                joined = layer.spectrum.joined["raw"].real
                found += joined or [v for head in layer.spectrum.heads["raw"] for v in head.real]
        return found

    def curve(self, metric: str, *, without_massive: bool = False) -> list[Number]:
        """A metric after every block, what enters the first block included; None where it was not taken."""
        if metric not in METRICS and not any(metric in layer.tokens for layer in self.layers):
            raise InputError(f"there is no metric {metric!r}; choose one of {', '.join(METRICS)}")
        return [
            (layer.without_massive if without_massive and layer.without_massive else layer.tokens).get(metric)
            for layer in self.layers
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "version": VERSION, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        return json_text(self.to_dict(), allow_nan=False, separators=(",", ":"))

    def save(self, path: str | Path) -> None:
        """As JSON; the file is there whole or not at all."""
        place = arguments.path(path, remedy="give the path of a .json file")
        check_writable(place, (".json",))
        with whole_file(place) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Diagnosis:
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise InputError(f"this is not a diagnosis: its schema is not {SCHEMA!r}; give what Diagnosis.save wrote")
        if data.get("version") not in _READ:
            raise InputError(
                f"this diagnosis has version {data.get('version')!r} and this program reads {_READ[0]} to {_READ[-1]}; "
                "diagnose again"
            )
        try:
            for name in ("extrapolation", "verdict", "remarks"):
                if name not in data:
                    raise ValueError(f"it has no {name!r}")
            found: Diagnosis = typed(cls, {k: v for k, v in data.items() if k not in ("schema", "version")})
            _check_whole(found)
        except ValueError as error:
            raise InputError(f"this diagnosis is damaged ({reason(error)}); diagnose again") from error
        return found

    @classmethod
    def from_json(cls, text: str) -> Diagnosis:
        if not isinstance(text, (str, bytes, bytearray)):
            raise InputError(f"this is {arguments.kind(text)}, not JSON as text; give what Diagnosis.save wrote")
        return cls.from_dict(parse_json(text, "this is not JSON", "give what Diagnosis.save wrote"))

    @classmethod
    def load(cls, path: str | Path) -> Diagnosis:
        remedy = "give a file that Diagnosis.save wrote"
        path = arguments.path(path, remedy=remedy)
        check_fits(_MEMORY_A_BYTE * check_plain(path, remedy), f"reading {path}", remedy)
        try:
            text = read_bytes(path, remedy, _MOST_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} cannot be read ({reason(error)}); {remedy}") from error
        try:
            return cls.from_json(text)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def to_html(self, path: str | Path) -> None:
        """One self-contained page."""
        from oversmooth.report import page  # charts are heavy, and only reports need them

        place = arguments.path(path, remedy="give the path of a .html file")
        page.check(place)
        page.save([self], place)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a layer: metrics, changes and the summary of spectra and dominance."""
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


def plain(value: float | Tensor, digits: int = 7) -> Number:
    """A number as it is kept: rounded so that files stay small, None where it has no meaning."""
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _check_whole(found: Diagnosis) -> None:
    """What types do not say: damage shows here, and not where a report is made."""
    if not found.layers:
        raise ValueError("it has no layers")
    for layer in found.layers:
        s, d = layer.spectrum, layer.dominance
        for name in ("joined", "heads") if s else ():
            if "raw" not in getattr(s, name):
                raise ValueError(f"the spectrum of {layer.name} has no raw {name}")
        spectra = [*s.joined.values(), *(e for row in s.heads.values() for e in row)] if s else []
        _check_alike(layer.name, *((e.real, e.imag) for e in spectra))
        if d:
            _check_alike(layer.name, (d.verdict_heads, d.rho_rough_heads))
            _check_alike(layer.name, *zip(d.verdict_heads, d.rho_rough_heads, strict=True))
            sample = d.joined_inputs, d.joined_rho_smooth, d.joined_rho_rough, d.joined_verdict, d.joined_residual
            _check_alike(layer.name, *((sample[0], other) for other in sample))
            if "counting_rule" not in found.provenance and found.smoothing_share is not None:
                raise ValueError("it does not say by which rule cases are counted (provenance.counting_rule)")
    for entry in found.extrapolation:
        courses = [course for course in (entry.simulated, entry.real) if course is not None]
        _check_alike(entry.what, *((course.depth, course.log_hfc_lfc) for course in courses))


def _check_alike(what: str, *pairs: tuple[Sequence[Any], Sequence[Any]]) -> None:
    for one, other in pairs:
        if len(one) != len(other):
            raise ValueError(f"two lists of {what} have {len(one)} and {len(other)} entries and belong together")
