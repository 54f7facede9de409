"""One pass through someone else's model: every site of a plan is handed to reducers, and nothing else is kept.

The model's outputs are what they would be without it, bit for bit. Reducers keep small arrays on the device; nothing
here waits for it until the pass has ended, except for masks, which are read once a batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.safety.errors import InputError
from oversmooth.safety.untouched import in_its_own_mode
from oversmooth.trace.attention import CapturedAttention
from oversmooth.trace.feed import ONE_AT_A_TIME, Given, OnProgress, Runner
from oversmooth.trace.plans import Plan, Site, Stage
from oversmooth.trace.reducers.base import PassFacts, Reducer
from oversmooth.trace.sums import beside, few_tokens, holds
from oversmooth.trace.valid import LeftOut, ValidTokens
from oversmooth.trace.watch import Watch


@dataclass
class _Batch:
    """What is known of the batch that runs."""

    named: Tensor | None = None
    """``(b, n)``: tokens that are not padding, from an argument of the model."""
    special: Tensor | None = None
    """``(b, n)``: tokens that are left out."""
    tokens: ValidTokens | None = None
    """None until attention has shown its mask."""
    earlier: ValidTokens | None = None
    """Those of another stream of the same inputs, which ran before."""
    waiting: list[tuple[Site, Tensor]] = field(default_factory=list)
    """What was met before the valid tokens were known."""
    start: int = 0
    """Number of the first input."""


@dataclass
class _Block:
    """What is known of the block that runs."""

    x: Tensor
    few: Tensor
    """A few tokens of x, copied, since blocks may add in place."""
    branch: Tensor | None = None
    beside: Tensor | None = None
    ran: Counter[str] = field(default_factory=Counter)


def run(
    model: nn.Module,
    inputs: Given | Iterable[Given],
    plan: Plan,
    reducers: Sequence[Reducer],
    *,
    progress: OnProgress | None = None,
) -> Trace:
    """Send inputs through a model, and hand every site to reducers, each of which has its ``result`` afterwards.

    Args:
        model: a module; it runs as it is, without gradients.
        inputs: a tensor, a dict of the model's arguments, or an iterable of either.
        plan: the plan of this model.
        reducers: one or several.
        progress: called after each batch with (inputs done, inputs in all or None, the current step).

    Returns:
        The pass, which knows of how many valid tokens each input was.
    """
    inside = unwrapped(check_is_module(model))
    feed = Runner(inside, plan.anatomy)
    batches = feed.batches(inputs)
    first = next(batches, None)
    if first is None:
        raise InputError("there are no inputs; give at least one")
    with ONE_AT_A_TIME, torch.no_grad(), in_its_own_mode(inside), Trace(inside, plan, reducers) as trace:
        for _ in trace.over(feed, itertools.chain([first], batches), inputs, progress):
            pass
    return trace


class Trace:
    """Context manager around calls of a model; each reducer has its result afterwards.

    Args:
        model: the model that is called inside.
        plan: of this model.
        reducers: what every site is handed to.
        left_out: tokens that are valid and measured nowhere, beside the special ones of each batch.

    >>> import torch
    >>> from oversmooth.anatomy import locate
    >>> from oversmooth.trace import TokenMetrics, study
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    >>> x = torch.randn(3, 5, 8)
    >>> with torch.no_grad():
    ...     plan = study(model, locate(model), lambda: model(x[:1])).plan
    ...     with Trace(model, plan, [tokens := TokenMetrics(plan)]) as trace:
    ...         trace.begin()
    ...         y = model(x)
    >>> tokens.result.at[1, 1]["cos"].shape
    torch.Size([3])
    """

    def __init__(
        self, model: nn.Module, plan: Plan, reducers: Sequence[Reducer], left_out: LeftOut | None = None
    ) -> None:
        self.plan, self.reducers, self.left_out = plan, reducers, left_out
        self.checks_factors = not model.training
        """Whether factors are compared between inputs; not where dropout scales at random what is added."""
        self.facts = PassFacts()
        self._sites = {(site.call, site.stage): site for site in plan.sites}
        self._lengths: list[Tensor] = []
        self._held: dict[int, list[Tensor]] = {}
        """By call: whether its factors held, on the device."""
        self._batch = _Batch()
        self._block: _Block | None = None
        layers: list[AttentionLayer] = list({block.layer.block: block.layer for block in plan.blocks}.values())
        modules = dict(model.named_modules(remove_duplicate=False))
        attention = any(reducer.attention for reducer in reducers)
        if attention and not plan.attention:
            raise InputError(
                "the plan was made without attention, which a reducer wants; make it with plan(..., attention=True)"
            )
        self._watch = Watch(modules, layers, self, self.parts, attention=attention, layouts=dict(plan.layouts))
        self._begun = False

    def __enter__(self) -> Trace:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)
        if error[0] is None:
            self._check_way()
            self._finish()

    def begin(self, *, mask: Tensor | None = None, special: Tensor | None = None) -> None:
        """Announce the next call of the model.

        The mask that attention uses decides which tokens are valid; the one given here decides what that leaves open.

        Args:
            mask: ``(batch, n)``: tokens that are not padding.
            special: ``(batch, n)``: special tokens, which are left out.
        """
        if self._begun:
            self._check_way()
        self._begun = True
        self._watch.mask = mask
        self._batch = _Batch(mask, special)

    def over(
        self, feed: Runner, batches: Iterable[Batch | Tensor], inputs: Any, progress: OnProgress | None = None
    ) -> Iterator[tuple[Batch | Tensor, Any]]:
        """Every batch, and what the model gives for it.

        Args:
            feed: calls the model.
            batches: what it is called with.
            inputs: what they come from, which may know how many there are.
            progress: called after each batch.
        """
        total = inputs.count if isinstance(inputs, Inputs) else None
        for batch in batches:
            special, mask = batch.special if isinstance(batch, Batch) else None, feed.mask(batch)
            special = special.to(mask.device) if special is not None and mask is not None else special
            self.begin(mask=mask, special=special)
            yield batch, feed(batch)
            if progress is not None:
                progress(self.facts.inputs, total, "observing")

    def _check_way(self) -> None:
        """Raise where blocks ran another number of times: a shared block would be taken for another depth."""
        calls, blocks = self._watch.calls, self.plan.blocks
        shared = len({block.layer.block for block in blocks}) < len(blocks)
        if calls % len(blocks) or (shared and self._begun and calls != len(blocks)):
            raise InputError(
                f"{calls} blocks ran where {len(blocks)} did for the first input; give inputs that take one way"
            )
        self._watch.calls = 0

    def _finish(self) -> None:
        if self._lengths:
            self.facts.lengths = torch.cat([part.cpu() for part in self._lengths])
        if not bool((self.facts.lengths > 1).any()):
            raise InputError("every input has fewer than two valid tokens; give longer ones")
        self.facts.input_dependent = {call for call, held in self._held.items() if not bool(torch.stack(held).all())}
        for reducer in self.reducers:
            reducer.finish(self.facts)

    # As a listener

    def parts(self, layer: AttentionLayer) -> list[str]:
        """The modules of a block that the plan reads."""
        here = [block for block in self.plan.blocks if block.layer.block == layer.block]
        modules = {stage.module for block in here for stage in block.stages if stage.module}
        branches = [block.branch for block in here if block.branch is not None]
        modules |= {branch.module for branch in branches} | {b.beside[0] for b in branches if b.beside is not None}
        return sorted(modules)

    def enter(self, call: int, layer: AttentionLayer, x: Tensor, _args: Any, _kwargs: Any) -> None:
        call %= len(self.plan.blocks)
        block = self.plan.blocks[call]
        if block.layer.block != layer.block:
            raise InputError(
                f"{layer.block} ran where {block.layer.block} did for the first input; give inputs that take one way"
            )
        if call and not block.continues:  # another stream may have other tokens
            self._batch.tokens, self._batch.earlier = None, self._batch.tokens
        elif not call:
            self._batch = _Batch(self._batch.named, self._batch.special)
        self._block = _Block(x, few_tokens(x))
        self._site(call, -1, x)

    def part(self, call: int, _layer: AttentionLayer, name: str, x: Tensor, y: Tensor) -> None:
        call %= len(self.plan.blocks)
        block, here = self.plan.blocks[call], self._here
        nth = here.ran[name]
        here.ran[name] += 1
        if block.branch is not None and (block.branch.module, block.branch.nth) == (name, nth):
            here.branch = few_tokens(y)
        if block.branch is not None and block.branch.beside == (name, nth):
            here.beside = few_tokens(y)
        for index, stage in enumerate(block.stages):
            if stage.module == name and stage.nth == nth:
                state = self._added(stage, y) if stage.where == "sum" else x if stage.where == "input" else y
                if stage.where != "sum":
                    self._check_factors(call, state)
                self._site(call, index, state)

    def attention(
        self, call: int, layer: AttentionLayer, caught: CapturedAttention, _x: Tensor | None, _y: Tensor
    ) -> None:
        call %= len(self.plan.blocks)
        if self._batch.tokens is None:
            self._know(caught)
        if caught.A is None:
            return
        tokens = self._batch.tokens
        assert tokens is not None
        if tokens.cross(caught.pairs.allowed):
            raise InputError(
                f"{layer.name} lets tokens see each other that the first layer keeps apart as different texts; "
                "give it texts one by one"
            )
        A = tokens.operators(caught.A)
        self.facts.causal = A.causal
        for reducer in self.reducers:
            if reducer.attention:
                reducer.attend(call, self.plan.blocks[call], A)

    def leave(self, call: int, _layer: AttentionLayer, y: Tensor) -> None:
        call %= len(self.plan.blocks)
        if self._batch.tokens is None:
            self._know(None)
        self._check_factors(call, y)
        self._site(call, len(self.plan.blocks[call].stages) - 1, y)
        self._block = None

    @property
    def _here(self) -> _Block:
        assert self._block is not None
        return self._block

    def _site(self, call: int, stage: int, x: Tensor) -> None:
        site = self._sites[call, stage]
        if self._batch.tokens is None:  # a copy, for blocks that add in place
            self._batch.waiting.append((site, x.clone()))
        else:
            self._reduce(site, x, self._batch.tokens)

    def _reduce(self, site: Site, x: Tensor, tokens: ValidTokens) -> None:
        x = tokens.apart(x)
        mask = None if tokens.counted is None else tokens.counted.to(x.device)
        for reducer in self.reducers:
            reducer.site(site, x, mask)

    def _know(self, caught: CapturedAttention | None) -> None:
        """Decide which tokens are valid, now that attention has shown its mask, and reduce what waited for that."""
        batch, shape = self._batch, self._here.x.shape
        if caught is None and batch.earlier is not None:
            batch.tokens = batch.earlier
        else:
            batch.tokens = self._valid(caught, shape)
        if batch.earlier is None:  # not the same inputs once more
            valid, here = batch.tokens.counted, len(batch.tokens.apart(self._here.x))
            self.facts.packed += 0 if batch.tokens.segments is None else here
            self._lengths.append(torch.full((here,), shape[1]) if valid is None else valid.sum(-1))
            batch.start, self.facts.inputs = self.facts.inputs, self.facts.inputs + here
            for reducer in self.reducers:
                reducer.begin(batch.start, here)
        for site, x in batch.waiting:
            self._reduce(site, x, batch.tokens)
        batch.waiting = []

    def _valid(self, caught: CapturedAttention | None, shape: torch.Size) -> ValidTokens:
        named, special = self._batch.named, self._batch.special
        if caught is None and named is not None:
            named = named.to(self._here.x.device) if named.shape == shape[:2] else None
            if named is None:
                self.facts.unread.add("mask_unread")
        if special is not None and special.shape != shape[:2]:
            self.facts.unread.add("special_unread")
            special = None
        if self.left_out is not None:
            left_out = self.left_out.mask(self._here.x)
            special = left_out if special is None else special.to(left_out.device) | left_out
        pairs = None if caught is None else caught.pairs
        return ValidTokens.of(pairs, named, special, packed=not self.plan.windows)

    def _added(self, stage: Stage, branch: Tensor) -> Tensor:
        x = self._here.x
        assert stage.keep is not None
        assert stage.factor is not None
        return x * beside(stage.keep, x) + branch * beside(stage.factor, branch)

    def _check_factors(self, call: int, state: Tensor) -> None:
        """A gate may depend on the input: the factors that one input showed are compared with every other."""
        branch, here = self.plan.blocks[call].branch, self._here
        if branch is None or here.branch is None or (branch.beside is not None and here.beside is None):
            return
        if not self.checks_factors and branch.beside is None:
            return
        terms = [here.few, *([] if here.beside is None else [here.beside]), here.branch]
        self._held.setdefault(call, []).append(holds(few_tokens(state), terms, branch.factors))
        here.branch = None  # at the first stage after attention only
