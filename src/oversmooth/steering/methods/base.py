"""What all ways of steering have in common: settings, the point where they act, and a formula as a small module.

A method is a frozen dataclass of settings. For each layer it makes a part, the module that carries the formula and what
is learned; the part does not know where in a model it stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from oversmooth.anatomy.layer import Anatomy, AttentionLayer
from oversmooth.safety import arguments
from oversmooth.theory.radii import AttentionChange

Place = Literal["weights", "norms", "values", "attention", "output"]
"""Where a method acts: on the value and output weights, on the weights of norms, on the values V, on A V, or on the
output of the output projection. The first two have no parts.
"""


class Part(nn.Module):
    """One layer's share of a method: ``forward`` is the formula."""

    why_unknown: ClassVar[str] = "is not linear in attention"
    """Why there is no `change`, where there is none."""
    needs_input: ClassVar[bool] = False
    """Attention: whether `forward` receives x, the input of the value projection, as its last argument."""
    strength: Tensor | float
    """``(size,)`` where it is learned, a number where it is fixed, and ``()`` where a ramp changes it."""

    @property
    def ramped(self) -> float | None:
        """The strength that a ramp has reached; None where there is none."""
        strength = self._buffers.get("strength")
        return None if strength is None else float(strength)

    def let_ramp(self, device: torch.device) -> None:
        """Hold a fixed strength as an array that a ramp can fill: compiled code reads it anew in every pass."""
        value = self.__dict__.pop("strength")
        # In float64, so that it is the number itself; not saved, as the settings say it.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.register_buffer("strength", torch.tensor(value, dtype=dtype, device=device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Part:
        before = self._buffers.get("strength")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self._buffers.get("strength")
        if before is not None and after is not None and after.dtype != before.dtype:  # model.half() must not round it
            self._buffers["strength"] = before.to(after.device)
        return self

    def change(self) -> AttentionChange | None:
        """What it does to attention, where that is linear in A."""
        return None

    def output_gains(self) -> tuple[Tensor, Tensor] | None:
        """``(d,)`` each: what it multiplies the layer's output by, on constant and on centred arrays."""
        return None


class PartWithStrength(Part):
    """A part of a `MethodWithStrength`: a number, or learned, one for all heads or one for each.

    Args:
        method: whose strength it starts from.
        heads: of the layer.
        size: how many strengths are learned, 1 or one for each head.
    """

    def __init__(self, method: MethodWithStrength, heads: int, size: int) -> None:
        super().__init__()
        self.method, self.heads = method, heads
        number_or_parameter(self, "strength", method.strength, size, method.learned)

    @property
    def by_head(self) -> Tensor:
        """``(heads,)``, the strength of each head now; a copy, as sharded parameters are gone after their block."""
        return torch.as_tensor(self.strength, dtype=torch.float32).detach().clone().expand(self.heads)


class Method:
    """A way of steering; subclasses are frozen dataclasses of settings."""

    place: ClassVar[Place]
    averages: ClassVar[bool] = False
    """Whether it takes a mean over all tokens, which attention that hides some from others forbids."""
    uses_first_values: ClassVar[bool] = False
    """Whether it needs V⁰, and so acts in every layer but the first."""
    uses_stream: ClassVar[bool] = False
    """Output: whether `Part.forward` receives the stream that attention adds to as its last argument."""
    renamed: ClassVar[dict[str, str]] = {}
    """Settings by the name they once had, as files that were saved then have them."""
    why_no_fold: ClassVar[str]
    """What no weight of a stock model does; empty where weights alone can do it."""

    def part(self, layer: AttentionLayer) -> Part:
        """The formula for one layer, with what is learned.

        Args:
            layer: the attention it will act on.
        """
        raise NotImplementedError

    def changes_nothing(self) -> bool:
        """Whether it changes nothing and never will: strength 0, not learned."""
        return False

    def refusal(self, layer: AttentionLayer, anatomy: Anatomy) -> str | None:
        """Why this layer cannot take the method, or None.

        Args:
            layer: the one to steer.
            anatomy: the stack that it is part of.
        """
        if layer.cannot_steer is not None:
            return layer.cannot_steer
        if self.place != "weights" and not (layer.output_runs and (layer.value_runs or self.place == "output")):
            return "its weights are bare parameters, so no module returns what the method changes; use Spectral"
        if self.averages and layer.causal:
            return (
                "it averages over all tokens, so with causal attention a token would see later ones; use NeuTRENO, "
                "ValueResidual or Laplacian"
            )
        if self.averages and layer.window is not None:
            return (
                f"it averages over all tokens, and with a window of {layer.window} this attention hides those beyond "
                "it; leave such layers out"
            )
        first = anatomy.layers[0]
        if self.uses_first_values and (first.kv_heads, first.head_dim) != (layer.kv_heads, layer.head_dim):
            return (
                f"it has {layer.kv_heads} value heads of {layer.head_dim} features and the first layer "
                f"{first.kv_heads} of {first.head_dim}, so the first layer's values do not fit"
            )
        return None

    def always_shown(self) -> tuple[str, ...]:
        """Names of settings that `str` shows even at their defaults."""
        return ()

    def settings(self) -> dict[str, Any]:
        """As JSON stores it; `method_from` reads it back."""
        assert dataclasses.is_dataclass(self)
        return {"method": type(self).__name__, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        assert dataclasses.is_dataclass(self)
        always = (*self.always_shown(), *(["learned"] if getattr(self, "learned", False) else []))
        shown = [f for f in dataclasses.fields(self) if f.name in always or getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"


METHODS: dict[str, type[Method]] = {}
"""Every method by its name."""
M = TypeVar("M", bound=type[Method])


def register(method: M) -> M:
    """Class decorator that makes a method known by its name to the command line and to files."""
    METHODS[method.__name__] = method
    return method


@dataclasses.dataclass(frozen=True)
class MethodWithStrength(Method):
    """A method with a single strength; with 0 nothing changes.

    Args:
        strength: how much.
        learned: whether training starts from there.
    """

    strength: float = 0.0
    learned: bool = False

    def __post_init__(self) -> None:
        arguments.number(self.strength, "strength")
        arguments.flag(self.learned, "learned")

    def changes_nothing(self) -> bool:
        return self.strength == 0 and not self.learned

    def always_shown(self) -> tuple[str, ...]:
        return ("strength",)


def number_or_parameter(part: nn.Module, name: str, value: float, size: int, learned: bool) -> None:
    """Give a part ``size`` parameters that start at value, or, not learned, the number itself, which is not rounded."""
    if learned:
        part.register_parameter(name, nn.Parameter(torch.full((size,), float(value))))
    else:
        setattr(part, name, float(value))
