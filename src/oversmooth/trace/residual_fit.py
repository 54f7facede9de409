"""The residual stream through one block, fitted: what each part adds, with which factor, and where it can be read.

Names say little about what is added to what; arrays do. One input passes through, every module's input and output is
kept, and the sums that lead from the block's input to its output are searched for among these arrays. A part that no
sum explains is reported as unexplained, and has no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import torch
from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer, NormPosition
from oversmooth.theory.reasons import Reason
from oversmooth.trace.plans import BlockPlan, Branch, Stage
from oversmooth.trace.sums import CONSTANT, Granularity, Sum, fit_sum, is_plain_sum, same

# Mixers that run in parallel with attention, by the names of their modules; anything else there is an MLP.
_MIXERS = ("mamba", "ssm", "conv", "rnn", "recurrent")


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """A module of the block ran; arrays are tokens ``(b, n, d)``, or None where they have another shape."""

    name: str
    nth: int
    input: Tensor | None
    output: Tensor | None
    acts_on_features: bool  # a norm or a scale: a leaf with nothing but one number per feature
    later: bool  # whether attention had returned when this module had run
    norms: bool = False  # whether it is a norm, by its name, and no scale


@dataclass
class BlockArrays:
    """What was recorded of one call of a block; tokens are ``(b, n, d)``."""

    layer: AttentionLayer
    x: Tensor  # what entered the block
    events: list[ModuleCall] = field(default_factory=list)  # what its modules received and returned, in order
    out: Tensor | None = None  # what attention's output projection returned
    values_in: Tensor | None = None  # what values were computed from; None: unknown


@dataclass(frozen=True, eq=False)
class _Array:
    """One array of the block, where it can be read."""

    x: Tensor
    where: str  # "enter", "input", "output" or "end"
    event: ModuleCall
    later: bool = True

    def stage(self, part: str) -> Stage:
        if self.where not in ("input", "output"):
            return Stage(part, "end")
        return Stage(part, self.where, self.event.name, self.event.nth)


@dataclass(frozen=True)
class _Addition:
    """The sum in which attention's output enters the stream."""

    state: _Array
    base: _Array
    parallel: _Array | None
    branch: _Array
    total: Sum


def fit_residual(arrays: BlockArrays, y: Tensor, rest: str) -> BlockPlan:
    """How attention enters the stream of one block that left y, with which factors, and where that stream can be read.
    rest: the name of the block's other part, such as "mlp".
    """
    search, layer = _Search(arrays, y, rest), arrays.layer
    addition = search.attention()
    fit = None if addition is None else search.fit(addition)
    unexplained = BlockPlan(
        layer.block, [Stage(f"attention and {rest}", "end")], layer, why_undecided=Reason("unexplained")
    )
    return fit or replace(unexplained, norm_position=search.position(arrays.x))


class _Search:
    def __init__(self, arrays: BlockArrays, y: Tensor, rest: str) -> None:
        assert arrays.out is not None
        self.layer, self.events, self.x, self.y = arrays.layer, arrays.events, arrays.x, y
        self.values_in, self.rest = arrays.values_in, rest
        block = ModuleCall(self.layer.block, 0, self.x, y, False, False)
        attention = ModuleCall(self.layer.name, 0, None, arrays.out, False, True)
        self.start, self.end = _Array(self.x, "enter", block, False), _Array(y, "end", block)
        self.out = _Array(arrays.out, "output", next((e for e in self.events if e.output is arrays.out), attention))
        self.outputs = [_Array(e.output, "output", e, e.later) for e in self.events if e.output is not None]
        self.arrays = self._distinct()
        self.branches = self._branches()
        self.bases = [self.start, *(one for one in reversed(self.arrays) if not one.later)]
        known = [one.x for one in (*self.bases, *self.branches)]
        self.targets = [*(one for one in self.arrays if one.later and not _among(one.x, known)), self.end]
        self.is_plain_sum = cache(is_plain_sum)  # the way to the end asks for the same sums as what follows attention
        self.scale = None if arrays.layer.scale is None else arrays.layer.scale.detach().cpu()

    def fit(self, addition: _Addition) -> BlockPlan | None:
        """All that follows from the sum; None where its state does not lead to the end."""
        total, parallel, state = addition.total, addition.parallel, addition.state
        keep, factor, why = self._factors(addition)
        stages = self._stages_before(addition.base)
        source = addition.branch.event
        if parallel is None:
            stages.append(state.stage("attention"))
        else:
            stages.append(Stage("attention", "sum", source.name, source.nth, total.factors[0], total.factors[-1]))
            own = parallel.event.name.rpartition(".")[2]
            stages.append(state.stage(own if any(word in own.lower() for word in _MIXERS) else self.rest))
        normed = False
        if state is not self.end:
            # Where nothing is kept, attention itself was seen to lead there.
            if bool(total.factors[0].any()) and not self._leads_to_the_end(state.x):
                return None
            following, normed = self._stages_after(state.x)
            stages += following
        position, values_factor = self._before_values(addition.base.x)
        if normed or (position == "none" and stages[0].part == "norm"):
            position = "post"
        branch = None
        if addition.base is self.start and total.granularity != "by token":
            parallel_call = [] if parallel is None else [(parallel.event.name, parallel.event.nth)]
            branch = Branch((*parallel_call, (source.name, source.nth)), total.factors)
        layer = self.layer
        if why is None:  # the factors that the arrays show include what its weights say of them
            layer = replace(layer, layer_scale=None, on_branch=None, factor=factor, keep=keep, feed=values_factor)
        return BlockPlan(layer.block, stages, layer, position, branch=branch, why_undecided=why)

    def _distinct(self) -> list[_Array]:
        """Every array once, in the order met; where a norm reads an array, at that norm, which reads whole tokens."""
        distinct: dict[int, _Array] = {}
        for event in self.events:
            # The input of a module around attention was there before attention returned anything.
            around = (self.layer.name + ".").startswith(event.name + ".")
            for where, x in (("input", event.input), ("output", event.output)):
                if x is None or x is self.x:
                    continue
                old = distinct.get(id(x))
                if old is None:
                    distinct[id(x)] = _Array(x, where, event, event.later and not (around and where == "input"))
                elif where == "input" and event.acts_on_features and not old.event.acts_on_features:
                    distinct[id(x)] = _Array(x, where, event, old.later)
        return list(distinct.values())

    # What attention adds

    def _branches(self) -> list[_Array]:
        """Attention's output, and what modules on its way to the stream made of it."""
        branches = [self.out]
        for one in self.outputs:
            event, known = one.event, [branch.x for branch in branches]
            if not event.later or any(one.x is x for x in known):
                continue
            follows = event.name == self.layer.name or (event.input is not None and _among(event.input, known))
            # Some attention modules add what they give to the stream themselves; what reads that is no branch.
            if follows and not any(same(one.x, x) or _whole(fit_sum(one.x, [self.x, x])) for x in known):
                branches.append(one)
        return branches

    def attention(self) -> _Addition | None:
        # Simple sums first: arrays that are nearly empty fit many sums.
        for granularity in CONSTANT:
            for target in self.targets:
                if addition := self._plainest(target, granularity):
                    return addition
            for target, parallel, branch in product(self.targets, self._parallel_outputs(), self.branches):
                if target.x is parallel.x:  # beside an MLP as large, all else is rounding: it would be a sum of itself
                    continue
                if addition := self._fitted(target, self.start, parallel, branch, granularity):
                    return addition
        one, zero = (torch.full((), value, dtype=torch.float64, device=self.x.device) for value in (1.0, 0.0))
        shut = next((a for a in self.arrays if a.later and a.where == "input" and same(a.x, self.x)), None)
        shut = self.end if torch.equal(self.y, self.x) else shut
        if shut and (shut is self.end or self._leads_to_the_end(shut.x)):
            # A gate that is shut: what follows attention, or all of the block, is a copy of what came before it.
            return _Addition(shut, self.start, None, self.out, Sum((one, zero), "no"))
        for branch in self.branches:
            # Attention replaces the stream: its output goes on.
            if (ends := same(self.y, branch.x)) or self._adds(self.y, branch.x) is not None:
                state = self.end if ends else next(a for a in self.arrays if a.x is branch.x)
                return _Addition(state, self.start, None, branch, Sum((zero, one), "no"))
        found = (self._plainest(target, "by token") for target in self.targets)
        return next((addition for addition in found if addition is not None), None)

    def _plainest(self, target: _Array, granularity: Granularity) -> _Addition | None:
        """The first sum of a base and a branch in which nothing was fitted, every factor being 1, 0 or what the weights
        say, or else the first: in half precision a factor fits what a norm made of the branch too.
        """
        known = {1.0, 0.0} if self.scale is None or self.scale.ndim else {1.0, 0.0, float(self.scale)}
        found = None
        for branch, base in product(self.branches, self.bases):
            addition = self._fitted(target, base, None, branch, granularity)
            if addition and all(factor.ndim == 0 and float(factor) in known for factor in addition.total.factors):
                return addition
            found = found or addition
        return found

    def _fitted(
        self, target: _Array, base: _Array, parallel: _Array | None, branch: _Array, granularity: Granularity
    ) -> _Addition | None:
        """The sum, where all but the base is in it."""
        terms = [one.x for one in (base, parallel, branch) if one is not None]
        expected = [*[None] * (len(terms) - 1), self.scale if branch is self.out else None]
        total = fit_sum(target.x, terms, expected, (granularity,))
        enters = total is not None and all(bool(factor.any()) for factor in total.factors[1:])
        return _Addition(target, base, parallel, branch, total) if total is not None and enters else None

    def _parallel_outputs(self) -> Iterator[_Array]:
        """What may run in parallel with attention: modules next to it first, then those inside them."""
        known = {id(branch.x) for branch in self.branches}
        for one in sorted(self.outputs, key=lambda one: one.event.name.count(".")):
            event = one.event
            if event.acts_on_features or event.name.startswith(self.layer.name):
                continue
            if not self.layer.name.startswith(event.name + ".") and id(one.x) not in known:
                known.add(id(one.x))
                yield one

    def _factors(self, addition: _Addition) -> tuple[float, Tensor | None, Reason | None]:
        """(keep, factor on attention's output, why none acts alike on all tokens, or nothing)."""
        keep, factor, branch = addition.total.factors[0], addition.total.factors[-1], addition.branch
        if addition.total.granularity == "by token":
            return 1.0, None, Reason("gated_per_token")
        if keep.ndim > 0:
            return 1.0, None, Reason("scaled_per_channel")
        if branch is not self.out and branch.event.norms:  # even where the tokens of this input are of one size
            return float(keep), None, Reason("norm_after_attention")
        if branch is not self.out:
            made = fit_sum(branch.x, [self.out.x], [self.scale])
            if made is None:
                return float(keep), None, Reason("changed_after_attention")
            factor = factor * made.factors[0]
        return float(keep), None if factor.ndim == 0 and float(factor) == 1.0 else factor, None

    # The way from what entered, and the way to what left

    def _stages_before(self, base: _Array) -> list[Stage]:
        if base is self.start:
            return []
        if base.where != "output" or not base.event.acts_on_features:
            return [base.stage(self.rest)]
        entered = base.event.input is None or same(base.event.input, self.x)
        before = [] if entered else [Stage(self.rest, "input", base.event.name, base.event.nth)]
        return [*before, base.stage("norm")]

    def _stages_after(self, state: Tensor) -> tuple[list[Stage], bool]:
        """What follows the state after attention, and whether a norm stands on the stream there."""
        norms = [e for e in self.events if e.acts_on_features and e.later and e.input is not None]
        ending = [e for e in norms if e.output is not None and same(e.output, self.y)]
        for first in norms:
            if first.input is None or first.output is None or not same(first.input, state):
                continue
            if first in ending:
                return [Stage("norm", "end")], True
            normed = Stage("norm", "output", first.name, first.nth)
            for last in ending:
                assert last.input is not None
                if not self._plainer(last.input, state, first.output):
                    return [normed, Stage(self.rest, "input", last.name, last.nth), Stage("norm", "end")], True
            if not ending and self._plainer(self.y, first.output, state):
                return [normed, Stage(self.rest, "end")], True
        for last in ending:
            if last.input is not None and self._adds(last.input, state) is not None:
                return [Stage(self.rest, "input", last.name, last.nth), Stage("norm", "end")], False
        return [Stage(self.rest, "end")], False

    def _leads_to_the_end(self, state: Tensor) -> bool:
        """Whether what left the block was made from this state: by norms on it, and by adding outputs of modules."""
        # Not by taking attention's output off again: then it never was on the stream.
        # (The output of the whole attention module may be the stream already, normed.)
        taken = [b.x for b in self.branches if b is self.out or b.event.name != self.layer.name]
        parts = [one for one in self.outputs if one.later and not _among(one.x, taken)]
        ends = _once([self.y, *(one.event.input for one in parts if one.event.input is not None)])
        norms = [one for one in parts if one.event.acts_on_features]
        reached = [state]
        for plain in (True, False):  # most sums are plain ones, which are seen at once
            for base in reached:  # which grows on the way
                new = [one.x for one in norms if one.event.input is not None and same(one.event.input, base)]
                reached += [x for x in new if not _among(x, reached)]
                for target in ends:
                    if not _among(target, reached) and self._is_sum(target, base, parts, plain):
                        reached.append(target)
                    if _among(self.y, reached):
                        return True
        return False

    def _is_sum(self, target: Tensor, base: Tensor, outputs: list[_Array], plain: bool) -> bool:
        """Whether target is base plus the output of one module, or of two side by side, times some factors."""
        parts = [one for one in outputs if one.x is not target and one.x is not base]
        others = _once([one.x for one in parts])
        if plain:
            return any(self.is_plain_sum(target, base, x) for x in others)
        if any(_kept(fit_sum(target, [base, x], granularity=(*CONSTANT, "by token"))) for x in others):
            return True
        whole = (one for one in parts if not one.event.acts_on_features)
        siblings = _once([one.x for one in whole if one.event.name.rpartition(".")[0] == self.layer.block])
        return any(_kept(fit_sum(target, [base, a, b])) for i, a in enumerate(siblings) for b in siblings[:i])

    def _plainer(self, target: Tensor, base: Tensor, other: Tensor) -> bool:
        """Whether target is a sum on base, and not as plain a one on the other."""
        that = self._adds(target, other)
        this = None if that == 0 else self._adds(target, base)  # nothing is plainer than that, and the search is long
        return this is not None and (that is None or this < that)

    def _adds(self, target: Tensor, base: Tensor) -> int | None:
        """How plainly target is base, times a factor, plus some module's output, times another: 0 for numbers,
        1 for factors by channel, None where it is not.
        """
        parts = [one for one in self.outputs if one.later and one.x is not target and one.x is not base]
        # What a norm makes of the base is no part beside it.
        others = _once([one.x for one in parts if not (one.event.acts_on_features and one.event.input is base)])
        if any(self.is_plain_sum(target, base, x) for x in others):
            return 0
        for (plainness, granularity), x in product(enumerate(CONSTANT), others):
            if _whole(fit_sum(target, [base, x], granularity=(granularity,))):
                return plainness
        return None

    # The norm before attention

    def _before_values(self, base: Tensor) -> tuple[NormPosition, float]:
        if self.values_in is None:
            return self.position(base), 1.0
        for norm in self._norms_before(base):
            if norm.output is not None and (factor := _number(self.values_in, norm.output)) is not None:
                return "pre", factor
        factor = _number(self.values_in, base)
        return "none", 1.0 if factor is None else factor

    def position(self, base: Tensor) -> NormPosition:
        return "pre" if any(True for _ in self._norms_before(base)) else "none"

    def _norms_before(self, base: Tensor) -> Iterator[ModuleCall]:
        norms = (e for e in self.events if e.acts_on_features and not e.later)
        return (e for e in norms if e.input is not None and same(e.input, base))


def _once(arrays: list[Tensor]) -> list[Tensor]:
    return list({id(x): x for x in arrays}.values())


def _among(x: Tensor, others: list[Tensor]) -> bool:
    return any(same(x, other) for other in others)


def _kept(total: Sum | None) -> bool:
    """Whether the base is in the sum."""
    return total is not None and bool(total.factors[0].any())


def _whole(total: Sum | None) -> bool:
    """Whether all terms are in the sum."""
    return total is not None and all(bool(factor.any()) for factor in total.factors)


def _number(target: Tensor, x: Tensor) -> float | None:
    """What x is multiplied by to be target, if one number is."""
    if target is x:
        return 1.0
    total = fit_sum(target, [x])
    return float(total.factors[0]) if total is not None and total.granularity == "no" else None
