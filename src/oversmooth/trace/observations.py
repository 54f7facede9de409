"""What observing a model gives, and what is to be observed: numbers by call and stage, over inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

MASSIVE_RATIO = 5.0
"""A token is massive where its norm exceeds the median norm of its input's tokens by this factor."""


@dataclass
class Observations:
    """What was collected, over inputs in order.

    Sites are (call, stage); stage −1 is what entered the block.
    """

    tokens: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    """``(inputs,)`` per metric; ranks of the first inputs only."""
    without_massive: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    massive: dict[tuple[int, int], list[tuple[int, int, float]]] = field(default_factory=dict)
    """(input, position, norm over the median) of each massive token."""
    inverse_sigma: dict[int, Tensor] = field(default_factory=dict)
    """``(inputs,)`` per call: mean 1/σ of the tokens before the norm."""
    rho_smooth: dict[int, Tensor] = field(default_factory=dict)
    rho_rough: dict[int, Tensor] = field(default_factory=dict)
    """``(inputs, heads)`` per call, as is ``rho_smooth``."""
    verdict: dict[int, list[list[str]]] = field(default_factory=dict)
    joined: dict[int, list[tuple[int, float, float, str, float]]] = field(default_factory=dict)
    """By call: (input, rho_smooth, rho_rough, verdict, residual)."""
    certified: dict[int, list[int]] = field(default_factory=dict)
    """By call and input: heads whose verdict is proven."""
    undecided_because: dict[int, list[str]] = field(default_factory=dict)
    """By call: the reasons of the first few undecided cases."""
    causal: bool | None = None
    inputs: int = 0
    """As the stream has them; each packed text is one input."""
    packed: int = 0
    """How many of them came packed with others."""
    short: int = 0
    """Inputs with fewer than two tokens that count: they enter no number."""
    varies: set[int] = field(default_factory=set)
    """Calls in which the factor on attention's output differs between inputs."""
    unread: set[str] = field(default_factory=set)
    """What was given about tokens and could not be used."""
    tokens_seen: list[int] = field(default_factory=list)
    """How many tokens count, per input."""


@dataclass(frozen=True)
class Settings:
    """What to compute, and how."""

    ranks: int = 4
    """Ranks are computed for this many inputs, the first ones."""
    spectra: bool = True
    joined: int = 1
    """Dominance of all heads together is computed for this many inputs, the first ones."""
    variant: str = "raw"
    """How the norm before attention enters H: raw, folded or observed."""
    rule: str = "complex"
    """Per head: "complex" for eigenvalues as they are, "real" for their real parts alone."""
    seed: int = 0
