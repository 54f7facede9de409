"""One pass through someone else's model: every site of a plan is handed to reducers, and nothing else is kept.

The model's outputs are what they would be without it, bit for bit (torch's own encoder layers run step by step, though,
which changes last bits). Reducers keep small arrays on the device; nothing
here waits for it until the pass has ended, except for masks, which are read once a batch.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_its_own_mode
from oversmooth.trace.attention import CapturedAttention
from oversmooth.trace.feed import ONE_AT_A_TIME, ModelInput, OnProgress, Runner, batches_for, called, first_of
from oversmooth.trace.layout import as_tokens
from oversmooth.trace.plans import BlockPlan, Plan, Site, Stage
from oversmooth.trace.reducers.base import PassFacts, Reducer
from oversmooth.trace.sums import few_tokens, holds, to_match
from oversmooth.trace.valid import LeftOut, ValidTokens, mask_of
from oversmooth.trace.watch import Watch


@dataclass
class _Batch:
    """What is known of the batch that runs."""

    special: Tensor | None = None  # (b, n): tokens that are left out
    tokens: ValidTokens | None = None  # None until it is known which they are
    earlier: ValidTokens | None = None  # those of another stream of the same inputs, which ran before
    waiting: list[tuple[Site, Tensor]] = field(default_factory=list)  # what was met before the valid tokens were known


@dataclass
class _Block:
    """What is known of the block that runs."""

    plan: BlockPlan
    x: Tensor
    few: Tensor | None  # a few tokens of x, copied, since blocks may add in place; None: no factors are compared
    terms: dict[tuple[str, int], Tensor] = field(default_factory=dict)  # a few tokens of what is added to x
    ran: Counter[str] = field(default_factory=Counter)


def run(
    model: nn.Module,
    inputs: ModelInput | Iterable[ModelInput],
    plan: Plan,
    reducers: Sequence[Reducer],
    *,
    left_out: LeftOut | None = None,
    progress: OnProgress | None = None,
) -> Trace:
    """Send inputs through a model, and hand every site to reducers, each of which has its ``result`` afterwards.

    Args:
        model: a module; it runs as it is, without gradients.
        inputs: a tensor, a dict of the model's arguments, or an iterable of either.
        plan: the plan of this model.
        reducers: one or several.
        left_out: tokens that are valid and measured nowhere.
        progress: called after each batch with (inputs done, inputs in all or None, the current step).

    Returns:
        The pass, which knows how many valid tokens each input has.
    """
    inside = unwrapped(check_is_module(model))
    _, batches = first_of(batches_for(inside, inputs))
    # Of an encoder with a decoder, the stack that the plan is of; where only names are known, the whole model.
    call = Runner(inside, plan.anatomy) if plan.anatomy is not None else lambda batch: called(inside, batch, {})
    trace = Trace(inside, plan, reducers, left_out)
    with ONE_AT_A_TIME, torch.no_grad(), in_its_own_mode(inside), trace:
        for _ in trace.over(call, batches, inputs, progress):
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
        self.facts = PassFacts()
        self._checks_factors = not model.training  # dropout scales at random what is added
        self._announce: Callable[[str], object] = lambda _: None
        self.agree: Callable[[set[int]], set[int]] = lambda calls: calls  # of several processes: what all found
        self._sites = {(site.call, site.stage): site for site in plan.sites}
        self._lengths: list[Tensor] = []
        self._explained: dict[int, list[Tensor]] = {}  # by call: whether its factors explain the stream, on the device
        # Where gradients are recorded: what each block returned, whether batch first, and the valid tokens.
        self._ends: list[tuple[Tensor, bool, Tensor | None]] = []
        self._batch = _Batch()
        self._block: _Block
        self._learns, self._begun = not plan.blocks, False
        attention = any(reducer.attention for reducer in reducers)
        if attention and not plan.attention:
            raise InputError(
                "the plan was made without attention, which a reducer wants; make it with plan(..., attention=True)"
            )
        self._modules, layouts = dict(model.named_modules(remove_duplicate=False)), plan.layouts
        self._how = dict(attention=attention, layouts=layouts if self._learns else dict(layouts))
        self._watch = Watch(self._modules, plan.watched, self, plan.parts, **self._how)  # type: ignore[arg-type]

    def __enter__(self) -> Trace:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)
        if error[0] is None:
            self._check_calls()
            self.finish()

    def finish(self) -> None:
        """All inputs have passed: hand reducers what is known of them."""
        facts = self.facts
        facts.lengths = torch.cat([part.cpu() for part in self._lengths]) if self._lengths else facts.lengths
        if not bool((facts.lengths > 1).any()):
            raise InputError("every input has fewer than two valid tokens; give longer ones")
        fits = self._explained.items()
        facts.input_dependent = self.agree({call for call, each in fits if not bool(torch.stack(each).all())})
        for reducer in self.reducers:
            reducer.finish(facts)

    def begin(self, *, special: Tensor | None = None) -> None:
        """Announce the next call of the model. special: ``(batch, n)``: tokens that are left out."""
        if self._begun:
            self._check_calls()
        self._begun, self._batch = True, _Batch(special)

    def over(
        self,
        call: Callable[[Batch | Tensor], Any],
        batches: Iterable[Batch | Tensor],
        inputs: Any,
        progress: OnProgress | None = None,
    ) -> Iterator[tuple[Batch | Tensor, Any]]:
        """Every batch, and what the model returns for it when it is called.

        inputs: what the batches come from, which may know how many there are. progress: called after each batch, and as
        each block begins.
        """
        total = inputs.count if isinstance(inputs, Inputs) else None
        for batch in batches:
            if progress is not None:
                self._announce = functools.partial(progress, self.facts.inputs, total)
            self.begin(special=batch.special if isinstance(batch, Batch) else None)
            yield batch, call(batch)
            if progress is not None:
                progress(self.facts.inputs, total, "observing")

    def gradients(self, loss: Tensor) -> list[tuple[Tensor, Tensor | None] | None]:
        """The gradient of a loss at the end of every block that ran, ``(b, n, d)``, with the valid tokens ``(b, n)``;
        None where the loss does not depend on it. No parameter gets a ``.grad``.

        The loss is made of what the model returned in this trace, while gradients were recorded.
        """
        ends = [y for y, _, _ in self._ends if y.requires_grad]
        if not ends:
            raise InputError("no block has a gradient: all before the loss is frozen; leave gradients out")
        found = dict(zip(map(id, ends), torch.autograd.grad(loss, ends, allow_unused=True), strict=True))
        rows = [(found.get(id(y)), first, mask) for y, first, mask in self._ends]
        return [None if gradient is None else (as_tokens(gradient, first), mask) for gradient, first, mask in rows]

    def _check_calls(self) -> None:
        """Raise where blocks ran another number of times: a shared block would be taken for another depth."""
        calls, blocks = self._watch.calls, self.plan.blocks
        if not blocks:
            name = next(iter(self.plan.watched))
            raise InputError(f"the model ran without running {name}; give inputs that pass through its blocks")
        shared = len({block.block for block in blocks}) < len(blocks)
        if calls % len(blocks) or (shared and self._begun and calls != len(blocks)):
            raise InputError(
                f"{calls} blocks ran where {len(blocks)} did for the first input; give inputs that take one way"
            )
        self._watch.calls, self._learns = 0, False

    # As a listener

    def enter(self, call: int, block: str, x: Tensor, _args: Any, _kwargs: Any) -> None:
        if self._learns:  # a block of which only the name is known
            self.plan.blocks.append(BlockPlan(block, [Stage("block", "end")]))
            self._sites |= {(call, site.stage): site for site in self.plan.blocks[-1].sites(call)}
        call %= len(self.plan.blocks)
        plan = self.plan.blocks[call]
        if plan.block != block:
            raise InputError(f"{block} ran where {plan.block} did for the first input; give inputs that take one way")
        self._announce(f"block {call + 1}" if self._learns else f"block {call + 1} of {len(self.plan.blocks)}")
        if not call:
            self._batch = _Batch(self._batch.special)
        elif not plan.continues:  # another stream may have other tokens
            self._batch.tokens, self._batch.earlier = None, self._batch.tokens
        self._block = _Block(plan, x, None if plan.branch is None else few_tokens(x))
        if not call and (self.plan.named or plan.layer is None):
            self._watch.wants_mask = self._watch.misfit is not None
            if not self._watch.wants_mask:
                self._find_valid(None)
        self._site(call, -1, x)

    def part(self, call: int, _block: str, name: str, x: Tensor, y: Tensor) -> None:
        here, call = self._block, call % len(self.plan.blocks)
        nth, branch = here.ran[name], here.plan.branch
        here.ran[name] += 1
        if branch is not None and (name, nth) in branch.terms:
            here.terms[name, nth] = few_tokens(y)
        for index, stage in enumerate(here.plan.stages):
            if (stage.module, stage.nth) != (name, nth):
                continue
            if stage.where == "sum":
                assert stage.keep is not None
                assert stage.factor is not None
                self._site(call, index, here.x * to_match(stage.keep, here.x) + y * to_match(stage.factor, y))
            else:
                state = x if stage.where == "input" else y
                self._check_factors(call, state)
                self._site(call, index, state)

    def attention(self, call: int, block: str, captured: CapturedAttention, _x: Tensor | None, _y: Tensor) -> None:
        if self._batch.tokens is None:
            self._find_valid(captured)
        tokens, wanting = self._batch.tokens, [reducer for reducer in self.reducers if reducer.attention]
        if not wanting or tokens is None:
            return
        if tokens.cross(captured.pairs.allowed):
            raise InputError(
                f"{block} lets tokens see each other that the first layer keeps apart as different texts; "
                "give it texts one by one"
            )
        A = tokens.operators(captured.A)
        self.facts.causal = A.causal
        for reducer in wanting:
            reducer.attend(call % len(self.plan.blocks), self._block.plan, A)

    def leave(self, call: int, block: str, y: Tensor, returned: Tensor) -> None:
        call %= len(self.plan.blocks)
        if self._batch.tokens is None:
            self._find_valid(None)
        self._check_factors(call, y)
        self._site(call, len(self._block.plan.stages) - 1, y)
        if returned.requires_grad and (tokens := self._batch.tokens) is not None:
            first = self._watch.batch_first(block, block, returned)
            self._ends.append((returned, first, mask_of(y, tokens.mask)))

    def _site(self, call: int, stage: int, x: Tensor) -> None:
        site = self._sites[call, stage]
        if self._batch.tokens is None:  # a copy, for blocks that add in place
            self._batch.waiting.append((site, x.clone()))
        else:
            self._reduce(site, x, self._batch.tokens)

    def _reduce(self, site: Site, x: Tensor, tokens: ValidTokens) -> None:
        x = tokens.apart(x)
        mask = mask_of(x, tokens.valid)
        for reducer in self.reducers:
            reducer.site(site, x, mask)

    def _find_valid(self, captured: CapturedAttention | None) -> None:
        """Decide which tokens are valid, now that attention has shown its mask, and reduce what waited for that."""
        batch, x, facts = self._batch, self._block.x, self.facts
        if captured is None and batch.earlier is not None:
            batch.tokens = batch.earlier
        else:
            given, special, shape = self._watch.argument_mask, batch.special, x.shape[:2]
            if captured is None and (self._watch.misfit or (given is not None and given.shape != shape)):
                given = None
                facts.unread.add("mask_unread")
            if special is not None and special.shape != shape:
                special = None
                facts.unread.add("special_unread")
            left_out = None if self.left_out is None else self.left_out.mask(x)
            pairs, packed = None if captured is None else captured.pairs, not (self.plan.windows or self.plan.named)
            batch.tokens = ValidTokens.of(pairs, given, special, left_out, packed=packed)
        self._hand_masks(batch.tokens)
        if batch.earlier is None:  # not the same inputs once more
            valid, here = batch.tokens.valid, len(batch.tokens.apart(x))
            facts.width = x.shape[-1]
            facts.packed += 0 if batch.tokens.segments is None else here
            self._lengths.append(torch.full((here,), x.shape[1]) if valid is None else valid.sum(-1))
            for reducer in self.reducers:
                reducer.begin(facts.inputs, here)
            facts.inputs += here
        for site, waiting in batch.waiting:
            self._reduce(site, waiting, batch.tokens)
        batch.waiting = []

    def _hand_masks(self, tokens: ValidTokens) -> None:
        """Hand reducers the masks of the batch that runs, beside that of its valid tokens."""
        for reducer in self.reducers:
            reducer.visible = tokens.mask_apart(tokens.visible)
            reducer.special = None if tokens.special is None else tokens.mask_apart(tokens.special)

    def _check_factors(self, call: int, state: Tensor) -> None:
        """A gate may depend on the input: the factors that one input showed are compared with every other, at the first
        stage after attention.
        """
        branch, here = self._block.plan.branch, self._block
        if branch is None or here.few is None or set(branch.terms) - here.terms.keys():
            return
        if self._checks_factors or len(branch.terms) > 1:
            terms = [here.few, *(here.terms.pop(term) for term in branch.terms)]
            self._explained.setdefault(call, []).append(holds(few_tokens(state), terms, branch.factors))
