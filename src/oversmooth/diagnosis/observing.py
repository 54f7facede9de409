"""The reducers of a diagnosis, and the accuracy of classifiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from oversmooth.anatomy.roles import Roles
from oversmooth.anatomy.steered import steered_as
from oversmooth.diagnosis.source import Options, Source
from oversmooth.inputs.batches import Batch
from oversmooth.results.facts import Number, plain
from oversmooth.trace import HeadSpectra, Reducer, SpectraSettings, TokenMetrics
from oversmooth.trace.plans import Plan
from oversmooth.trace.reducers.base import PassFacts
from oversmooth.trace.reducers.heads import HeadNumbers
from oversmooth.trace.reducers.sinks import SinkNumbers, Sinks
from oversmooth.trace.reducers.tokens import TokenNumbers


@dataclass
class Reducers:
    """What all inputs are reduced by."""

    tokens: TokenMetrics
    sinks: Sinks
    heads: HeadSpectra | None

    @classmethod
    def of(
        cls, source: Source, plan: Plan, variant: str, options: Options, most_waiting: int | None = None
    ) -> Reducers:
        """most_waiting: as for `HeadSpectra`."""
        settings = SpectraSettings(options.joined, variant, options.rule, options.seed, options.exact)
        heads = HeadSpectra(plan, settings, steered_as(source.model), most_waiting) if options.spectra else None
        roles = options.roles or Roles.found(source.model)
        sinks = Sinks(plan, attention=options.spectra, special=options.special_tokens == "both", roles=roles)
        return cls(TokenMetrics(plan, options.ranks, exact=options.exact), sinks, heads)

    @property
    def all(self) -> list[Reducer]:
        return [self.tokens, self.sinks, *([] if self.heads is None else [self.heads])]

    def observed(self, facts: PassFacts) -> tuple[PassFacts, TokenNumbers, HeadNumbers | None, SinkNumbers]:
        tokens, sinks = self.tokens.result, self.sinks.result
        for key, columns in sinks.at.items():
            tokens.at[key] |= columns
        return facts, tokens, None if self.heads is None else self.heads.result, replace(sinks, at={})


@dataclass
class Accuracy:
    """Of a classifier, on the inputs that have labels."""

    classes: int | None
    right: int = 0
    labelled: int = 0

    def add(self, batch: Batch | Tensor, out: Any) -> None:
        labels, logits = batch.labels if isinstance(batch, Batch) else None, getattr(out, "logits", out)
        scores = isinstance(logits, Tensor) and logits.ndim == 2 and logits.shape[1] == self.classes
        if labels is not None and scores:
            self.right += int((logits.argmax(-1).cpu() == labels.cpu()).sum())
            self.labelled += len(labels)

    @property
    def share(self) -> Number:
        """None where no input has a label."""
        return plain(self.right / self.labelled) if self.labelled else None
