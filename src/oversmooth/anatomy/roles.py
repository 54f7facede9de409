"""Which tokens of an image model are no patches, by the names of the parameters that it puts in front."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

# In the order in which models put them.
_ROLES = {
    "cls": r"(cls|class)_(token|embedding)",
    "distillation": r"dist(illation)?_token",
    "registers": r"reg(ister)?_tokens?",
}


@dataclass(frozen=True)
class Roles:
    """Positions in the residual stream by role, and what all other valid tokens are called."""

    positions: Mapping[str, tuple[int, ...]]  # negative ones count from the end
    others: str

    @classmethod
    def given(cls, roles: object) -> Roles:
        """Of a mapping from names to positions."""
        remedy = "give a dict of positions by name, such as {'prefix': range(20)}"
        if not isinstance(roles, Mapping) or not all(isinstance(name, str) and name for name in roles):
            raise InputError(f"roles is {arguments.shown(roles)}; {remedy}")
        positions: dict[str, tuple[int, ...]] = {}
        for name, places in roles.items():
            if not isinstance(places, Iterable) or isinstance(places, str) or not (listed := list(places)):
                raise InputError(f"role {name!r} is {arguments.shown(places)}; {remedy}")
            positions[name] = tuple(
                int(arguments.whole(place, f"a position of role {name!r}", least=-(2**31))) for place in listed
            )
        return cls(positions, "others")

    @classmethod
    def found(cls, model: nn.Module) -> Roles | None:
        """[CLS], distillation and register tokens of an image model; None where it has none."""
        sizes = {
            role: sum(
                p.shape[-2] if p.ndim > 1 else 1
                for name, p in model.named_parameters()
                if re.search(rf"(^|\.){pattern}$", name)
            )
            for role, pattern in _ROLES.items()
        }
        prefix = getattr(model, "num_prefix_tokens", sum(sizes.values()))  # as timm's models say
        if not prefix or prefix != sum(sizes.values()):
            return None
        positions, start = {}, 0
        for role, size in sizes.items():
            if size:
                positions[role] = tuple(range(start, start + size))
            start += size
        return cls(positions, "patches")
