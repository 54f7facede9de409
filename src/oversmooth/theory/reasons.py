"""Why spectra leave something undecided: values, and the one place that turns them into English."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

_WORDS: dict[str, str] = {
    # Radii and their errors.
    "fixed_features": "features that no head writes to stay fixed while everything else shrinks",
    "equal_radii": "the two radii are equal within their numerical error",
    "nearly_defective": "H is nearly defective: its eigenvalues are known to {error:.1g}, and the radii differ by "
    "{apart:.1g}",
    "ill_conditioned": "the eigenvalues of A are so ill-conditioned that rounding could change the verdict",
    "radii_too_close": "rounding or a longer search could change the verdict: the radii differ by {apart:.1g}, and "
    "rho_rough is known to {error:.1g}",
    "search_unfinished": "Arnoldi stopped before its Ritz values settled, and a larger one may still be hidden",
    "left_vector_unknown": "the left Ritz vector did not converge, so the error of rho_rough is unknown",
    # Of repeated stacks, in earlier files.
    "logarithms_too_close": "the margin of the logarithms is {apart:.1e}, and it may be off by {error:.1e} (relative "
    "residual {residual:.1e}, condition number {condition:.1e})",
    # Constant states.
    "half_precision": "numbers of half precision do not resolve it",
    "equal_tokens_part": "the block does not keep equal tokens equal",
    "no_fixed_point": "repeating the block on equal tokens reaches no fixed point",
    # Layers that the theorems do not describe.
    "gated_per_token": "attention's output is gated per token",
    "gated_inside_attention": "what attention mixes is gated per token before the output projection",
    "norm_after_attention": "a norm stands between attention and the residual stream, so the factor differs by token",
    "changed_after_attention": "another module changes attention's output before it is added to the residual stream",
    "input_dependent": "the factor on attention's output varies from input to input",
    "scaled_per_channel": "the residual stream is scaled channel by channel",
    "unexplained": "attention's contribution to the residual stream could not be told apart from the rest",
    "attention_sink": "an attention sink takes a share of attention: rows sum to less than one, so constant arrays are "
    "not kept",
    "rows_below_one": "rows of attention sum to less than one ({detail})",
    "values_normed": "values are normed token by token",
    "other_mixing": "{detail}",
    "steering": "{detail}",
}
ReasonKind = Literal[tuple(_WORDS)]  # type: ignore[valid-type]


@dataclass(frozen=True)
class Reason:
    """Why a verdict is undecided, a tie, or not what the radii say."""

    kind: Annotated[str, ReasonKind]
    apart: float | None = None
    """How far the radii, or their logarithms, differ."""
    error: float | None = None
    """How far that difference may be off."""
    residual: float | None = None
    condition: float | None = None
    detail: str = ""
    """What names or settings of a layer, or a steering method, add in words of their own."""

    def __str__(self) -> str:
        sizes = {name: getattr(self, name) for name in ("apart", "error", "residual", "condition")}
        known = {name: math.nan if size is None else size for name, size in sizes.items()}
        return _WORDS[self.kind].format(detail=self.detail, **known)


def finite(value: float) -> float | None:
    """A size as a reason keeps it, which JSON can hold."""
    return float(f"{value:.7g}") if math.isfinite(value) else None
