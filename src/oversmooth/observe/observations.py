"""What observing a model gives, and what is to be observed: numbers by call and stage, over inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

MASSIVE_RATIO = 5.0
"""A token is massive where its norm is more than so many times the median norm of its input's tokens."""


@dataclass
class Observations:
    """What was collected, over inputs in their order. Sites are (call, stage); stage −1 is what entered the block."""

    tokens: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    """Metric by name, ``(inputs,)``; ranks of the first inputs only."""
    without_massive: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    massive: dict[tuple[int, int], list[tuple[int, int, float]]] = field(default_factory=dict)
    """(input, position, norm over the median) of each massive token."""
    inverse_sigma: dict[int, Tensor] = field(default_factory=dict)
    """Mean 1/σ of the tokens before the norm, by call, ``(inputs,)``."""
    rho_smooth: dict[int, Tensor] = field(default_factory=dict)
    rho_rough: dict[int, Tensor] = field(default_factory=dict)
    """By call, ``(inputs, heads)``."""
    verdict: dict[int, list[list[str]]] = field(default_factory=dict)
    joined: dict[int, list[tuple[int, float, float, str, float]]] = field(default_factory=dict)
    """By call: (input, rho_smooth, rho_rough, verdict, residual)."""
    certified: dict[int, list[int]] = field(default_factory=dict)
    """By call and input: heads whose verdict is proven."""
    undecided_because: dict[int, list[str]] = field(default_factory=dict)
    """By call: of the first few undecided cases."""
    causal: bool | None = None
    inputs: int = 0
    """As the stream has them; packed texts are one each."""
    packed: int = 0
    """How many of them came packed with others."""
    short: int = 0
    """Inputs with fewer than two tokens that count: they have no part in any number."""
    varies: set[int] = field(default_factory=set)
    """Calls in which what multiplies attention's output was another for other inputs."""
    unread: set[str] = field(default_factory=set)
    """What was given about tokens and could not be used."""
    tokens_seen: list[int] = field(default_factory=list)
    """How many tokens count, input by input."""


@dataclass(frozen=True)
class Settings:
    ranks: int = 4
    """Inputs whose ranks are taken: the first so many."""
    spectra: bool = True
    joined: int = 1
    """Inputs for which all heads are taken together."""
    variant: str = "raw"
    """How the norm enters H for dominance: raw, folded or observed."""
    rule: str = "complex"
    """Per head: complex eigenvalues as they are, or only their real parts, as if spectra were real."""
    seed: int = 0
