"""Notes on how something was measured: values, and the one place that turns them into English."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from oversmooth.theory.reasons import Reason

MOST_NAMES = 4  # layers that a note names
_APPROXIMATE = {
    "abs_cos": "mean |cos| is sampled",
    "effective_rank": "the effective rank is sketched",
    "sigma_ratio": "stable rank, σ₂/σ₁ and the distance to rank one come from followed directions",
}
_WORDS: dict[str, Callable[[Note], str]] = {
    # What was run.
    "wrapped": lambda n: f"{n.what} is a wrapper: the module inside it was measured",
    "loading": lambda n: n.text,
    "anatomy": lambda n: n.text,
    "steering": lambda n: n.text,
    "streamed": lambda n: f"streamed from disk: {n.text}",
    "train_mode": lambda _: "the model is in train mode, without dropout",
    "train_mode_with_dropout": lambda _: "the model is in train mode: dropout is active and part of every number",
    "tokens_only": lambda _: "blocks were selected by name, so only tokens were measured; spectra need known attention",
    # Which inputs and tokens were measured.
    "short_inputs": lambda n: f"{n.count} of {n.total} inputs have fewer than two valid tokens and are skipped",
    "packed_inputs": lambda n: f"{n.count} texts were packed with others into one input; each is measured by itself",
    "mask_unread": lambda _: "the padding mask does not fit the tokens and was ignored: all tokens are valid",
    "special_unread": lambda _: "special tokens are not left out: the residual stream has other tokens than the text",
    "left_out": lambda n: (
        f"{'token' if n.count == 1 else 'tokens'} {', '.join(n.names)} left out of token metrics, and of them only"
    ),
    "skipped_input": lambda n: n.text,
    "more_skipped_inputs": lambda n: f"{n.count} more inputs were skipped",
    # How exact it is, and what theory does not cover.
    "approximate": lambda n: (
        f"{_APPROXIMATE.get(n.what, n.what)}, with an error of about {n.error or 0.0:.2g}; exact=True avoids it"
    ),
    "joined_weights_skipped": lambda n: (
        f"the spectrum of all heads' weights together ({n.count:,} eigenvalues a layer) is left out; exact=True "
        "computes it, as does `oversmooth spectrum`"
    ),
    "idle_layers": lambda n: f"{n.count} attention layers did not run: {', '.join(n.names)}",
    "norm_elsewhere": lambda n: (
        f"{n.count} norms are not where their names suggest (first: {n.first}); using the observed position, {n.what}"
    ),
    "undecided_layers": lambda n: f"{_of(n)} attention layers are undecided (first: {n.first}): {n.reason}",
    "variant_without_norm": lambda n: (
        f"variant={n.what!r} has no effect: no known norm stands before attention, so H is raw"
    ),
    "norm_not_found": lambda n: (
        f"variant has no effect in {_of(n)} layers (first: {n.first}): the norm before "
        "attention was not found by its name, such as norm1 or ln_1"
    ),
    "norm_of_another_kind": lambda n: (
        f"variant has no effect in {_of(n)} layers (first: {n.first}): the norm before "
        "attention is not a known LayerNorm or RMSNorm"
    ),
    # More depth.
    "single_token": lambda _: "more depth was skipped: the first input has a single valid token",
    "stack_skipped": lambda n: f"repeating the stack was skipped: {n.text}",
    "real_blocks_failed": lambda n: (
        f"repeating the {n.what}: the blocks cannot run by themselves, so the prediction is compared with nothing"
    ),
    "not_simulated": lambda n: f"not simulated: {n.text}",  # before version 5
    "leaky_rows": lambda _: (
        "1/σ of the norm enters by its mean; with a σ for each token rows would not sum to one, and whether attention "
        "alone makes tokens parallel is undecided"
    ),
    "raw_before_norm": lambda _: "FeatScale acts before the norm removes the mean of features, so H is raw",
    "radii_per_block": lambda _: "radii are per block: the geometric mean over the stack",
    "special_counted": lambda _: "special tokens are included",
}
NoteKind: Any = Literal[tuple(_WORDS)]


@dataclass(frozen=True)
class Note:
    """One note, as a value: ``str`` turns it into English."""

    kind: Annotated[str, NoteKind]
    count: int | None = None
    total: int | None = None
    what: str = ""  # a name: of a layer, a variant, a metric, a position, or of what is repeated
    names: list[str] = field(default_factory=list)  # the first few layers, or positions of tokens
    error: float | None = None
    reason: Reason | None = None
    text: str = ""  # what another part of the package or another library says, in its own words

    def __str__(self) -> str:
        return _WORDS[self.kind](self)

    @property
    def first(self) -> str:
        """The first of the names."""
        return self.names[0] if self.names else ""


def _of(note: Note) -> str:
    return f"{note.count}" if note.total is None else f"{note.count} of {note.total}"
