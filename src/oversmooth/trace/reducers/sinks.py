"""The first token and the longest one, special or not: what attention they receive, how long they are, where from."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oversmooth.metrics.moments import MASSIVE_RATIO, reducing
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.sinks import SINK, received
from oversmooth.trace.plans import BlockPlan, Plan, Site
from oversmooth.trace.reducers.base import PassFacts, Reducer, fetched
from oversmooth.trace.reducers.sites import SiteMetrics
from oversmooth.trace.reducers.tokens import Place

CHANNELS = 3
"""Features of a massive token that are named, the largest ones."""


@dataclass(frozen=True)
class FirstMassive:
    """The first point of the stream with massive tokens."""

    place: Place
    before: float  # the longest token's norm over the median, mean over inputs, at the point before; NaN: none
    after: float
    share: float  # of inputs that have one there
    position: int  # the most frequent one
    channels: list[int]  # the features in which it is largest
    channel_share: float  # of its squared norm, that they hold


@dataclass
class SinkNumbers:
    """What was measured, over inputs in order; inputs with fewer than two valid tokens are left out."""

    at: dict[Place, dict[str, Tensor]] = field(default_factory=dict)  # (inputs,) per metric, as of `TokenNumbers`
    longest: dict[Place, dict[str, Tensor]] = field(default_factory=dict)
    """Of the longest token: "ratio" to the median and "position" ``(inputs,)``; its largest "channels", and their
    "shares" of its squared norm, ``(inputs, CHANNELS)``.
    """

    def first_massive(self) -> FirstMassive | None:
        """The first place where at least half as many inputs have a massive token as anywhere."""
        shares = {place: float((one["ratio"] > MASSIVE_RATIO).double().mean()) for place, one in self.longest.items()}
        most, places = max(shares.values(), default=0.0), list(self.longest)
        if not most > 0:
            return None
        index = next(i for i, place in enumerate(places) if shares[place] >= most / 2)
        here = self.longest[places[index]]
        there = here["ratio"] > MASSIVE_RATIO
        held: Counter[int] = Counter()
        for channel, share in zip(
            *(here[name][there].flatten().tolist() for name in ("channels", "shares")), strict=True
        ):
            held[int(channel)] += share / int(there.sum())
        largest = held.most_common(CHANNELS)
        return FirstMassive(
            places[index],
            float(self.longest[places[index - 1]]["ratio"].mean()) if index else float("nan"),
            float(here["ratio"].mean()),
            shares[places[index]],
            Counter(here["position"][there].long().tolist()).most_common(1)[0][0],
            [channel for channel, _ in largest],
            sum(share for _, share in largest),
        )


class Sinks(Reducer):
    """Attention to the first token that attention sees, its norm at every site, and the first massive token; metrics of
    tokens with the special ones counted, where there are any.

    Args:
        plan: of the model.
        attention: whether attention is looked at; it is then captured in every layer.
        special: whether tokens are also measured with the special ones.
    """

    result: SinkNumbers

    def __init__(self, plan: Plan, *, attention: bool = True, special: bool = True) -> None:
        self.plan, self.attention, self.counts = plan, attention, special
        self._whole = SiteMetrics(absolute=False, directions=False)
        self._received: dict[int, list[Tensor]] = defaultdict(list)
        self._rows: dict[tuple[Place, str], list[Tensor]] = defaultdict(list)

    @reducing
    def site(self, site: Site, x: Tensor, mask: Tensor | None) -> None:
        if site.part == "enter" and site.call and self.plan.blocks[site.call].continues:
            return  # as the block before left it
        place = (site.call, site.stage)
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
            self._rows[place, name].append(values)
        if self.counts and site.depth is not None and self.special is not None:
            self._whole.update(place, x, None if mask is None else mask | self.special)

    @reducing
    def attend(self, call: int, block: BlockPlan, A: AttentionOperator) -> None:
        del block
        self._received[call].append(received(A).mT)

    def finish(self, facts: PassFacts) -> None:
        keep, found = facts.lengths > 1, SinkNumbers()
        for (place, name), values in fetched(self._rows).items():
            by_place = found.at if name == "first_norm" else found.longest
            by_place.setdefault(place, {})[name] = values[..., keep].movedim(-1, 0)
        for call, mean in fetched(self._received).items():
            columns = {"sink_rate": (mean > SINK).double().mean(0), "sink_attention": mean.mean(0)}
            last = (call, len(self.plan.blocks[call].stages) - 1)
            found.at[last] |= {name: values[keep] for name, values in columns.items()}
        for whole, numbers in self._whole.finish().items():
            columns = {"hfc_lfc_special": numbers.tokens["log_hfc_lfc"].exp(), "cos_special": numbers.tokens["cos"]}
            if len(numbers.count) == len(keep):  # else some batches have no special tokens
                found.at[whole] |= {name: values[keep] for name, values in columns.items()}  # type: ignore[index]
        self.result = found
