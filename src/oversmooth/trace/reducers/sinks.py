"""Tokens apart from the others: the first one, the longest one, special ones, and those of a role."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oversmooth.anatomy.roles import Roles
from oversmooth.metrics.moments import reducing
from oversmooth.metrics.roles import by_role
from oversmooth.safety.errors import InputError
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.sinks import SINK, received
from oversmooth.trace.plans import BlockPlan, Plan, Site
from oversmooth.trace.reducers.base import PassFacts, Reducer, fetched
from oversmooth.trace.reducers.sites import SiteMetrics
from oversmooth.trace.reducers.tokens import SiteKey

CHANNELS = 3
"""Features of a massive token that are named, the largest ones."""


@dataclass
class SinkNumbers:
    """What was measured, over inputs in order; inputs with fewer than two valid tokens are left out."""

    at: dict[SiteKey, dict[str, Tensor]] = field(default_factory=dict)  # (inputs,) per metric, as of `TokenNumbers`
    longest: dict[SiteKey, dict[str, Tensor]] = field(default_factory=dict)
    """Of the longest token: "ratio" to the median and "position" ``(inputs,)``; its largest "channels", and their
    "shares" of its squared norm, ``(inputs, CHANNELS)``.
    """

    roles: dict[SiteKey, dict[str, dict[str, Tensor]]] = field(default_factory=dict)
    """By role and metric, ``(inputs,)``, at every depth."""


class Sinks(Reducer):
    """Attention to the first token that attention sees, its norm at every site, and the first massive token; metrics of
    tokens with the special ones counted, where there are any.

    Args:
        plan: of the model.
        attention: whether attention is looked at; it is then captured in every layer.
        special: whether tokens are also measured with the special ones.
        roles: by which tokens are measured; None: special tokens and text, where there are special ones.
    """

    STATE = ("_received", "_rows", "_by_role", "_whole")
    result: SinkNumbers

    def __init__(self, plan: Plan, *, attention: bool = True, special: bool = True, roles: Roles | None = None) -> None:
        self.plan, self.attention, self.counts, self.given = plan, attention, special, roles
        self._whole = SiteMetrics(absolute=False)
        self._received: dict[int, list[Tensor]] = defaultdict(list)
        self._rows: dict[tuple[SiteKey, str], list[Tensor]] = defaultdict(list)
        self._by_role: dict[tuple[SiteKey, str, str], list[Tensor]] = defaultdict(list)

    @reducing
    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        if site.part == "enter" and site.call and self.plan.blocks[site.call].continues:
            return  # as the block before left it
        key = (site.call, site.stage)
        norms = torch.linalg.vector_norm(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))
        first = norms[:, 0]
        if self.visible is not None:
            norms = torch.where(self.visible, norms, torch.nan)
            first = norms.gather(-1, self.visible.byte().argmax(-1, keepdim=True))[:, 0]
        median = norms.nanmedian(-1).values
        length, position = norms.nan_to_num(0.0, posinf=torch.inf).max(-1)
        longest = x[torch.arange(len(x), device=x.device), position].to(norms.dtype)
        found = {"first_norm": first / median, "ratio": length / median, "position": position}
        shares, channels = (longest / length[:, None]).square().topk(min(CHANNELS, x.shape[-1]))
        for name, values in {**found, "shares": shares.mT, "channels": channels.mT}.items():
            self._rows[key, name].append(values)
        if self.counts and site.depth is not None and self.special is not None:
            self._whole.update(key, x, None if mask is None else mask | self.special)
        if site.depth is not None and (roles := self._roles(x, mask)):
            for metric, values in by_role(x, torch.stack(list(roles.values()), -2)).items():
                for role, column in zip(roles, values.unbind(-1), strict=True):
                    self._by_role[key, role, metric].append(column)

    def _roles(self, x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Which tokens of ``(inputs, n, d)`` have each role, ``(inputs, n)``."""
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        if self.given is None:
            return {"special": self.special, "text": valid} if self.special is not None and self.counts else {}
        visible = torch.ones_like(valid) if self.visible is None else self.visible
        found = {}
        for role, positions in self.given.positions.items():
            if outside := [position for position in positions if not -x.shape[1] <= position < x.shape[1]]:
                raise InputError(f"role {role!r} names token {outside[0]}, but blocks receive {x.shape[1]} tokens")
            found[role] = torch.zeros_like(valid)
            found[role][:, list(positions)] = True
            found[role] &= visible
        return {**found, self.given.others: valid & ~torch.stack(list(found.values())).any(0)}

    @reducing
    def attend(self, call: int, block: BlockPlan, A: AttentionOperator) -> None:
        del block
        self._received[call].append(received(A).mT)

    def finish(self, facts: PassFacts) -> None:
        keep, found = facts.lengths > 1, SinkNumbers()
        for (key, name), values in fetched(self._rows).items():
            by_key = found.at if name == "first_norm" else found.longest
            by_key.setdefault(key, {})[name] = values[..., keep].movedim(-1, 0)
        for call, mean in fetched(self._received).items():
            columns = {"sink_rate": (mean > SINK).double().mean(0), "sink_attention": mean.mean(0)}
            last = (call, len(self.plan.blocks[call].stages) - 1)
            found.at[last] |= {name: values[keep] for name, values in columns.items()}
        for whole, numbers in self._whole.finish().items():
            columns = {"hfc_lfc_special": numbers.tokens["log_hfc_lfc"].exp(), "cos_special": numbers.tokens["cos"]}
            if len(numbers.count) == len(keep):  # else some batches have no special tokens
                found.at[whole] |= {name: values[keep] for name, values in columns.items()}  # type: ignore[index]
        for (key, role, metric), values in fetched(self._by_role).items():
            if len(values) == len(keep):
                found.roles.setdefault(key, {}).setdefault(role, {})[metric] = values[keep]
        self.result = found
