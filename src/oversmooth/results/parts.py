"""The parts of a `Diagnosis`: its layers with their spectra and dominance, extrapolations, and accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from oversmooth.results.facts import Alone, Massive, Number, Numbers, Pull, Verdict
from oversmooth.results.notes import Note
from oversmooth.theory.reasons import Reason


@dataclass
class Change:
    """What one sublayer of a block did: mean differences of logarithms over inputs. Negative log_hfc_lfc smooths."""

    part: str  #: attention, mlp, or norm if it acts on the residual stream.
    log_hfc_lfc: Number
    spread: Number
    log_hfc: Number  #: Growth of the high-frequency component, in which tokens differ.
    log_lfc: Number  #: Growth of the low-frequency component, which tokens share.


@dataclass
class Eigenvalues:
    """A spectrum of H and its summary."""

    negative_share: Number  #: Share of eigenvalues with negative real part.
    mean_real: Number
    rho_smooth: Number  #: The largest |1 + λ|; None if a factor between H and the residual stream varies by token.
    real: list[float] = field(default_factory=list, repr=False)
    imag: list[float] = field(default_factory=list, repr=False)


@dataclass
class Spectrum:
    """Spectra of H of one layer, from weights alone except for the observed 1/σ."""

    negative_share: Number  #: Of H of all heads jointly, as are the next two.
    mean_real: Number
    rho_smooth: Number
    joined: dict[str, Eigenvalues] = field(repr=False)
    """By how the norm before the layer enters: raw (not at all, as in the papers), folded (its γ and centring),
    observed (also the mean 1/σ of the measured tokens).
    """
    heads: dict[str, list[Eigenvalues]] = field(repr=False)
    inverse_sigma: Number = None
    verdicts: list[Alone] = field(default_factory=list)
    """Per head, of raw H and for any attention: smooth, rough, or open if weights alone do not decide. Empty unless
    requested.
    """


@dataclass(frozen=True)
class LayerDominance:
    """Which eigenvalue dominates in one layer. A triple is an (input, layer, head)."""

    smoothing_share: Number  #: Share of triples in which the smoothing eigenvalue dominates; None if none is decided.
    rho_rough: Number  #: Of all heads jointly, mean over the sample of inputs; compare with joined_rho_smooth.
    rho_smooth_heads: list[Number]
    rho_rough_heads: list[list[Number]] = field(repr=False)  #: One row per input, one column per head.
    verdict_heads: list[list[Verdict]] = field(repr=False)
    """smooth, rough, tie or undecided, in the same rows and columns."""
    joined_inputs: list[int] = field(default_factory=list, repr=False)  #: The inputs of the sample, counted from 0.
    joined_rho_smooth: list[Number] = field(default_factory=list, repr=False)
    joined_rho_rough: list[Number] = field(default_factory=list, repr=False)
    joined_verdict: list[Verdict] = field(default_factory=list, repr=False)
    joined_residual: list[Number] = field(default_factory=list, repr=False)
    undecided_share: Number = None
    """Share of triples without a verdict, because rounding could change it or no theorem covers the layer."""
    certified_share: Number = None
    """Share of triples whose verdict is proven, rounding included; the other decided ones are estimated."""
    undecided_because: list[str] = field(default_factory=list)  #: Why, for the first few such triples, in words.
    undecided_reasons: list[Reason] = field(default_factory=list, repr=False)
    """The same as values; empty before version 4."""


def share_of_smoothing(verdicts: list[str]) -> Number:
    """The share of triples that smooth, among all; None if all are undecided."""
    if all(v == "undecided" for v in verdicts):
        return None
    return sum(v == "smooth" for v in verdicts) / len(verdicts)


def standard_error(share: float, count: int) -> float:
    """Of a share counted over so many independent samples.

    >>> standard_error(0.5, 100)
    0.05
    """
    return math.sqrt(share * (1 - share) / count) if count > 0 else math.nan


@dataclass
class Layer:
    """One block, or, first in the list, what enters the first block."""

    name: str
    tokens: Numbers  #: After the block.
    spread: Numbers = field(default_factory=dict, repr=False)  #: Standard deviation over inputs.
    attention_out: Numbers | None = field(default=None, repr=False)
    """After the attention sublayer (and, in Post-LN, the norm that follows it)."""
    attention_out_spread: Numbers | None = field(default=None, repr=False)
    without_massive: Numbers | None = field(default=None, repr=False)
    """The same as tokens without massive-activation tokens; None if there are none."""
    massive: Annotated[dict[str, Any], Massive] | None = None
    """Share of inputs that have such tokens, their most frequent positions, the largest norm over the median."""
    roles: dict[str, Numbers] = field(default_factory=dict)
    """By role of tokens, such as cls, registers and patches: mean norm over that of all, HFC/LFC and mean cosine within
    the role, mean cosine with all others."""
    changes: list[Change] = field(default_factory=list)
    spectrum: Spectrum | None = None
    dominance: LayerDominance | None = None

    @property
    def rho_smooth(self) -> Number:
        """Of all heads jointly: what rho_rough was compared with, or from weights alone if nothing was compared."""
        known = [v for v in (self.dominance.joined_rho_smooth if self.dominance else []) if v is not None]
        if known:
            return sum(known) / len(known)
        return self.spectrum.rho_smooth if self.spectrum else None

    def change(self, part: str) -> Number:
        """Change of log HFC/LFC through one sublayer, all its stages added up; None if it was not measured."""
        values = [c.log_hfc_lfc for c in self.changes if c.part == part]
        known = [v for v in values if v is not None]
        return math.fsum(known) if known and len(known) == len(values) else None


@dataclass
class MassiveOrigin:
    """The first point of the residual stream with massive tokens, special ones included."""

    depth: int  #: Of the block, counted from 1; 0 if they enter the first block.
    part: str  #: The sublayer that makes them; enter if they enter the block.
    position: int  #: The most frequent one.
    before: Number  #: The longest token's norm over the median before that sublayer, mean over inputs.
    after: Number
    input_share: Number
    channels: list[int]  #: The features in which they are largest.
    channel_share: Number  #: Of their squared norm, that these features hold.


@dataclass
class Course:
    """HFC/LFC over further depth, from the last block's output: ``log_hfc_lfc[i]`` after ``depth[i]`` more blocks."""

    depth: list[float]
    log_hfc_lfc: list[Number]

    def __repr__(self) -> str:
        ends = [self.log_hfc_lfc[end] for end in (0, -1)] if self.log_hfc_lfc else []
        course = " → ".join("unknown" if v is None else f"{v:.3g}" for v in ends)
        return f"Course(log HFC/LFC {course}, {len(self.depth)} depths)"


@dataclass
class Extrapolation:
    """What more depth would do: the real blocks repeated and how that goes on, and where attention alone pulls."""

    what: str  #: last block, or stack.
    input: int
    rho_smooth: Number
    rho_rough: Number
    verdict: Pull  #: The side to which attention pulls, fixed as last measured, without MLPs; empty for the stack.
    residual: Number
    variant: str
    """How the norm entered: raw, folded, observed, or post (tokens whose features have zero mean, as after a norm)."""
    real: Course | None = None
    """The blocks themselves, with attention recomputed each time; None if they cannot be run."""
    predicted: Course | None = None
    """From there on, by `theory.depth.log_time`; None for the stack, and before version 5."""
    way: Annotated[str, Literal["log time", "geometric", ""]] = ""  #: How it goes on.
    error: Number = None  #: Of the last predicted log HFC/LFC, estimated.
    conclusive: bool = False  #: Whether that is small enough for the prediction to say something.
    checked: Number = None  #: Of log HFC/LFC at the end of `real` as predicted from its first half, measured.
    growth: Number = None  #: Of the root mean square of tokens, per real block.
    equal_rate: Number = None
    """Once tokens are nearly equal: the exponent of depth by which HFC/LFC goes (log time), or the change of its
    logarithm per block (geometric), by `theory.constant_state`; of blocks without a causal mask, where it still falls.
    """
    equal_reason: Reason | None = None  #: Why that is undecided.
    note: str = ""  #: The reason and the notes, in words.
    reason: Reason | None = None
    """Why the verdict is undecided, a tie, or not what the radii say; None before version 4."""
    notes: list[Note] = field(default_factory=list)  #: What else limits this entry; empty before version 4.


@dataclass
class Accuracy:
    """Shares of images that are classified correctly."""

    images: int
    clean: float
    corrupted: list[float]  #: Per intensity of corruption, from 1; of ``corrupted_images`` images.
    corrupted_images: int
    how: str  #: How images were corrupted, in words.
    trained: Number = None  #: On the whole test set, as recorded after training.


@dataclass
class Picture:
    """A small copy of an image: three bytes a pixel, row by row, in base64."""

    width: int
    height: int
    pixels: str = field(repr=False)


@dataclass
class OneInput:
    """Which tokens of one input are similar after every block, for the report. Bytes are in base64."""

    what: str  #: Which input it is.
    kind: Annotated[str, Literal["image", "text", "tokens"]]
    tokens: int
    groups: int  #: Tokens as shown: all, or groups of them if there are too many.
    grid: list[int] | None  #: Rows and columns of an image's patches.
    leading: int  #: Tokens before the patches, such as [CLS].
    labels: list[str] = field(repr=False)  #: The text of each; empty if unknown.
    picture: Picture | None
    similarity: list[str] = field(repr=False)
    """Per depth, the cosines of all pairs, row by row above the diagonal: byte / 127 − 1."""
    received: list[str] = field(repr=False)
    """Per block and head, the mean attention that each token receives, in 255ths of the largest; empty if attention was
    not observed.
    """
    received_most: list[Number] = field(repr=False)  #: Per block, the largest of these.
    aggregated: str = ""  #: How tokens were grouped, in words; empty if each is shown by itself.
