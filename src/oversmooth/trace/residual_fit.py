"""The residual stream through one block, fitted: what each part adds, with which factor, and where it can be read.

Names say little about what is added to what; arrays do. One input passes through, every module's input and output is
kept, and the sums that lead from the block's input to its output are searched for among these arrays. A part that no
sum explains is reported as unexplained, and has no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from oversmooth.anatomy.layer import AttentionLayer, NormPosition
from oversmooth.theory.reasons import Reason
from oversmooth.trace.plans import Branch, ModuleCall, ResidualFit, Stage
from oversmooth.trace.sums import CONSTANT, Granularity, Sum, fit_sum, same

# Mixers that run beside attention, by the names of their modules; what else runs beside it is an MLP.
_MIXERS = ("mamba", "ssm", "conv", "rnn", "recurrent")


@dataclass
class _Array:
    """One array, where it was met first."""

    x: Tensor
    where: Literal["input", "output"]
    event: ModuleCall
    later: bool


@dataclass
class _Addition:
    """The sum in which attention's output enters the stream."""

    state: _Array | None
    """None: the block's end."""
    base: _Array | None
    """None: what entered the block."""
    branch: Tensor
    source: ModuleCall | None
    total: Sum
    beside: ModuleCall | None = None


@dataclass(frozen=True)
class Route:
    """How attention's output was found to enter the stream of one block; most blocks of a model are alike."""

    state: tuple[str, int, str] | None
    base: tuple[str, int, str] | None
    source: tuple[str, int] | None
    beside: tuple[str, int] | None
    granularity: Granularity
    used: frozenset[tuple[str, int]]
    """Modules whose outputs were terms of sums that hold."""


@dataclass(frozen=True)
class BlockArrays:
    """What was recorded of one call of a block."""

    layer: AttentionLayer
    """The block's attention."""
    events: list[ModuleCall]
    """What its modules received and returned, in order."""
    x: Tensor
    """``(b, n, d)``: what entered the block."""
    out: Tensor
    """``(b, n, d)``: what attention's output projection returned."""
    values_in: Tensor | None
    """``(b, n, d)``: what values were computed from; None: unknown."""
    y: Tensor
    """``(b, n, d)``: what left the block."""
    rest: str
    """The name of the block's other part, such as "mlp"."""


def fit_residual(arrays: BlockArrays, route: Route | None = None) -> tuple[ResidualFit, Route | None]:
    """How attention enters the stream of one block, and where that stream can be read.

    Args:
        arrays: what was recorded.
        route: that of the block before, which is tried first; it only saves time.

    Returns:
        The account, and how it was found; None: attention does not add to the stream.
    """
    fitting = _Search(arrays, route)
    found = fitting.close()
    return found, fitting.found


class _Search:
    def __init__(self, arrays: BlockArrays, route: Route | None) -> None:
        self.layer, self.events, self.rest = arrays.layer, arrays.events, arrays.rest
        self.x, self.out, self.y, self.values_in = arrays.x, arrays.out, arrays.y, arrays.values_in
        layer, events, x, self.route = arrays.layer, arrays.events, arrays.x, route
        self.found: Route | None = None
        self.used: set[tuple[str, int]] = set()
        self.likely = events if route is None else sorted(events, key=lambda event: self._key(event) not in route.used)
        """Those first whose outputs were terms in the block before."""
        self.arrays = self._distinct()
        self.before = [s for s in self.arrays if not s.later]
        self.branches = self._branches()
        known = [x, *(s.x for s in self.before), *(branch for branch, _ in self.branches)]
        self.after = [s for s in self.arrays if s.later and not any(same(s.x, k) for k in known)]
        self.scale = None if layer.scale is None else layer.scale.detach().cpu()

    def close(self) -> ResidualFit:
        addition = self._same_as_before() or self._attention()
        if addition is None:
            return self._unexplained()
        keep, factor, why = self._factors(addition)
        stages = self._stages_before(addition)
        if addition.beside is None:
            stages.append(_stage("attention", addition.state))
        else:
            name, nth = self._source(addition.source)
            stages.append(Stage("attention", "sum", name, nth, addition.total.factors[0], _last(addition.total)))
            stages.append(_stage(self._label(addition.beside), addition.state))
        normed = False
        if addition.state is not None:
            # Where nothing is kept, attention itself was seen to lead there.
            kept = bool(addition.total.factors[0].any())
            if kept and not self._leads_to_the_end(addition.state.x):
                return self._unexplained()
            following, normed = self._stages_after(addition.state)
            stages += following
        position, values_factor = self._before_values(addition)
        if normed or (position == "none" and stages[0].part == "norm"):
            position = "post"
        branch = None
        if addition.base is None and addition.total.granularity != "by token":
            beside = None if addition.beside is None else (addition.beside.name, addition.beside.nth)
            branch = Branch(*self._source(addition.source), addition.total.factors, beside)
        source = None if addition.source is None else self._key(addition.source)
        beside_key = None if addition.beside is None else self._key(addition.beside)
        self.found = Route(
            self._place(addition.state),
            self._place(addition.base),
            source,
            beside_key,
            addition.total.granularity,
            frozenset(self.used),
        )
        return ResidualFit(stages, position, values_factor, keep, factor, why, branch)

    def _key(self, event: ModuleCall) -> tuple[str, int]:
        """A module's name inside its block, and which of its calls."""
        return event.name[len(self.layer.block) :], event.nth

    def _place(self, seen: _Array | None) -> tuple[str, int, str] | None:
        return None if seen is None else (*self._key(seen.event), seen.where)

    def _same_as_before(self) -> _Addition | None:
        """The sum of the block before, if it holds here too."""
        route = self.route
        if route is None or route.granularity == "by token":
            return None
        states = {self._place(seen): seen for seen in self.arrays if seen.later}
        bases = {self._place(seen): seen for seen in self.before}
        branches = {None if source is None else self._key(source): (x, source) for x, source in self.branches}
        events = {self._key(event): event for event in self.events}
        if not (
            (route.state is None or route.state in states)
            and (route.base is None or route.base in bases)
            and route.source in branches
            and (route.beside is None or route.beside in events)
        ):
            return None
        state, base = states.get(route.state), bases.get(route.base)
        beside = None if route.beside is None else events[route.beside]
        (branch, source), terms = branches[route.source], [self._of(base)]
        if beside is not None:
            if beside.output is None:
                return None
            terms.append(beside.output)
        total = self._fitted(state, [*terms, branch], source is None, route.granularity)
        if total is None or not all(bool(f.any()) for f in total.factors):
            return None
        return _Addition(state, base, branch, source, total, beside)

    def _unexplained(self) -> ResidualFit:
        return ResidualFit(
            [Stage(f"attention and {self.rest}", "end")], self._position(None), undecided=Reason("unexplained")
        )

    def _distinct(self) -> list[_Array]:
        """Every array once, in the order met; where a norm reads an array, at that norm, which reads whole tokens."""
        distinct: list[_Array] = []
        for event in self.events:
            # The input of a module around attention was there before attention returned anything.
            around = (self.layer.name + ".").startswith(event.name + ".")
            before = None if event.input is None else _Array(event.input, "input", event, event.later and not around)
            after = None if event.output is None else _Array(event.output, "output", event, event.later)
            for new in (before, after):
                if new is None or new.x is self.x:
                    continue
                old = next((s for s in distinct if s.x is new.x), None)
                if old is None:
                    distinct.append(new)
                elif new.where == "input" and event.acts_on_features and not old.event.acts_on_features:
                    old.where, old.event = "input", event
        return distinct

    # What attention adds

    def _branches(self) -> list[tuple[Tensor, ModuleCall | None]]:
        """Attention's output, and what modules on its way to the stream made of it."""
        branches: list[tuple[Tensor, ModuleCall | None]] = [(self.out, None)]
        for event in self.events:
            x, y = event.input, event.output
            if not event.later or y is None or any(y is branch for branch, _ in branches):
                continue
            follows = event.name == self.layer.name or (x is not None and any(same(x, b) for b, _ in branches))
            if follows and not any(same(y, b) or self._is_on_the_stream(y, b) for b, _ in branches):
                branches.append((y, event))
        return branches

    def _is_on_the_stream(self, array: Tensor, branch: Tensor) -> bool:
        """Some attention modules add what they give to the stream themselves; what reads that is no branch."""
        total = fit_sum(array, [self.x, branch])
        return total is not None and all(bool(factor.any()) for factor in total.factors)

    def _attention(self) -> _Addition | None:
        targets: list[_Array | None] = [*self.after, None]
        bases: list[_Array | None] = [None, *reversed(self.before)]
        # The plainest sum first: arrays that have little in them are explained by many.
        for granularity in CONSTANT:
            for target in targets:
                fitted = None
                for branch, source in self.branches:
                    for base in bases:
                        total = self._fitted(target, [self._of(base), branch], source is None, granularity)
                        if total is not None and bool(_last(total).any()):
                            addition = _Addition(target, base, branch, source, total)
                            if self._is_plain(total):
                                return addition
                            fitted = fitted or addition
                # In half precision a factor fits what a norm made of the branch too: what is added as it is goes first.
                if fitted is not None:
                    return fitted
            for target in targets:
                for beside in self._beside():
                    assert beside.output is not None
                    for branch, source in self.branches:
                        total = self._fitted(target, [self.x, beside.output, branch], source is None, granularity)
                        if total is not None and all(bool(f.any()) for f in total.factors[1:]):
                            return _Addition(target, None, branch, source, total, beside)
        shut = next((s for s in self.arrays if s.later and s.where == "input" and same(s.x, self.x)), None)
        if shut is not None and shut.event.acts_on_features and self._leads_to_the_end(shut.x):
            # A gate that is shut: what follows attention is a copy of what came before it.
            return _Addition(shut, None, self.out, None, Sum((_one(self.x), 0 * _one(self.x)), "no"))
        for branch, source in self.branches:
            if same(self.y, branch) or self._adds(self.y, branch) is not None:
                # Attention replaces the stream: its output goes on.
                total = Sum((0 * _one(self.x), _one(self.x)), "no")
                return _Addition(None if same(self.y, branch) else self._array_at(branch), None, branch, source, total)
        for target in targets:
            for branch, source in self.branches:
                for base in bases:
                    total = self._fitted(target, [self._of(base), branch], source is None, "by token")
                    if total is not None and bool(_last(total).any()):
                        return _Addition(target, base, branch, source, total)
        return None

    def _is_plain(self, total: Sum) -> bool:
        """Whether nothing was fitted: every factor is 1, 0, or what the weights say."""
        known = (1.0, 0.0) if self.scale is None or self.scale.ndim else (1.0, 0.0, float(self.scale))
        return all(factor.ndim == 0 and float(factor) in known for factor in total.factors)

    def _fitted(self, target: _Array | None, terms: list[Tensor], plain: bool, granularity: Granularity) -> Sum | None:
        array = self.y if target is None else target.x
        return fit_sum(array, terms, [*[None] * (len(terms) - 1), self.scale if plain else None], (granularity,))

    def _beside(self) -> Iterator[ModuleCall]:
        """Modules that may run beside attention: those next to it first, then those inside them."""
        prefix = len(self.layer.block) + 1 if self.layer.block else 0
        taken = [branch for branch, _ in self.branches]
        for event in sorted(self.events, key=lambda e: e.name[prefix:].count(".")):
            if event.output is None or event.acts_on_features or event.name.startswith(self.layer.name):
                continue
            if self.layer.name.startswith(event.name + ".") or any(event.output is t for t in taken):
                continue
            yield event

    def _array_at(self, array: Tensor) -> _Array:
        return next(seen for seen in self.arrays if seen.x is array)

    def _of(self, base: _Array | None) -> Tensor:
        return self.x if base is None else base.x

    def _factors(self, addition: _Addition) -> tuple[float, Tensor | None, Reason | None]:
        """(keep, factor on attention's output, why none acts alike on all tokens, or nothing)."""
        keep, factor = addition.total.factors[0], _last(addition.total)
        if addition.total.granularity == "by token":
            return 1.0, None, Reason("gated_per_token")
        if keep.ndim > 0:
            return 1.0, None, Reason("scaled_per_channel")
        if addition.source is not None and addition.source.norms:
            return (
                float(keep),
                None,
                Reason("norm_after_attention"),
            )  # even where the tokens of this input are of one size
        if addition.source is not None:
            made = fit_sum(addition.branch, [self.out], [self.scale])
            if made is None:
                return float(keep), None, Reason("changed_after_attention")
            factor = factor * made.factors[0]
        one = factor.ndim == 0 and float(factor) == 1.0
        return float(keep), None if one else factor, None

    # The way from what entered, and the way to what left

    def _stages_before(self, addition: _Addition) -> list[Stage]:
        base = addition.base
        if base is None:
            return []
        if base.where == "output" and base.event.acts_on_features:
            norm_input = base.event.input
            if norm_input is not None and not same(norm_input, self.x):
                return [Stage(self.rest, "input", base.event.name, base.event.nth), _stage("norm", base)]
            return [_stage("norm", base)]
        return [_stage(self.rest, base)]

    def _stages_after(self, state: _Array) -> tuple[list[Stage], bool]:
        """What follows the state after attention, and whether a norm stands on the stream there."""
        norms = [e for e in self.events if e.acts_on_features and e.later]
        reading = [e for e in norms if e.input is not None and same(e.input, state.x)]
        ending = [e for e in norms if e.output is not None and same(e.output, self.y)]
        for first in reading:
            assert first.output is not None
            normed = _Array(first.output, "output", first, True)
            if first in ending:
                return [Stage("norm", "end")], True
            for last in ending:
                assert last.input is not None
                if not self._plainer(last.input, state.x, normed.x):
                    between = Stage(self.rest, "input", last.name, last.nth)
                    return [_stage("norm", normed), between, Stage("norm", "end")], True
            if not ending and self._plainer(self.y, normed.x, state.x):
                return [_stage("norm", normed), Stage(self.rest, "end")], True
        for last in ending:
            if last.input is not None and self._adds(last.input, state.x) is not None:
                return [Stage(self.rest, "input", last.name, last.nth), Stage("norm", "end")], False
        return [Stage(self.rest, "end")], False

    def _leads_to_the_end(self, state: Tensor) -> bool:
        """Whether what left the block was made from this state: by norms on it, and by adding outputs of modules."""
        # Not by taking attention's output off again: then it never was on the stream.
        # (The output of the whole attention module may be the stream already, normed.)
        taken = [branch for branch, source in self.branches if source is None or source.name != self.layer.name]
        parts = [e for e in self.likely if e.later and e.output is not None and not _among(e.output, taken)]
        reached = [state]
        ends = [self.y, *(e.input for e in parts if e.input is not None)]
        while True:
            new = [e.output for e in parts if e.input is not None and e.acts_on_features and _among(e.input, reached)]
            for target in ends:
                if not _among(target, reached) and any(self._is_sum(target, base, parts) for base in reached):
                    if target is self.y:
                        return True
                    new.append(target)
            more = [x for x in new if x is not None and not _among(x, reached)]
            reached += more
            if _among(self.y, reached):
                return True
            if not more:
                return False

    def _is_sum(self, target: Tensor, base: Tensor, events: list[ModuleCall]) -> bool:
        """Whether target is base plus the output of one module, or of two side by side, times some factors."""
        every: tuple[Granularity, ...] = (*CONSTANT, "by token")
        parts = [e for e in events if e.output is not None and e.output is not target and e.output is not base]
        for event in parts:
            assert event.output is not None
            if _counts(fit_sum(target, [base, event.output], granularity=every)):
                self.used.add(self._key(event))
                return True
        beside = [e for e in parts if not e.acts_on_features and e.name.rpartition(".")[0] == self.layer.block]
        pairs = ((a.output, b.output) for i, a in enumerate(beside) for b in beside[:i])
        return any(a is not None and b is not None and _counts(fit_sum(target, [base, a, b])) for a, b in pairs)

    def _plainer(self, target: Tensor, base: Tensor, other: Tensor) -> bool:
        """Whether target is a sum on base, and not as plain a one on the other."""
        this, that = self._adds(target, base), self._adds(target, other)
        return this is not None and (that is None or this < that)

    def _adds(self, target: Tensor, base: Tensor) -> int | None:
        """How plainly target is base, times a factor, plus some module's output, times another: 0 for numbers,
        1 for factors by channel, None where it is not.
        """
        for plainness, granularity in enumerate(CONSTANT):
            for event in self.likely:
                if event.acts_on_features and event.input is base:
                    continue  # what a norm makes of the base is no part beside it
                if event.later and event.output is not None and event.output is not target and event.output is not base:
                    total = fit_sum(target, [base, event.output], granularity=(granularity,))
                    if total is not None and all(bool(f.any()) for f in total.factors):
                        self.used.add(self._key(event))
                        return plainness
        return None

    # The norm before attention

    def _before_values(self, addition: _Addition) -> tuple[NormPosition, float]:
        base = self._of(addition.base)
        if self.values_in is None:
            return self._position(base), 1.0
        for event in self.events:
            if event.later or not event.acts_on_features or event.input is None or event.output is None:
                continue
            if not same(event.input, base):
                continue
            total = fit_sum(self.values_in, [event.output])
            if total is not None and total.granularity == "no":
                return "pre", float(total.factors[0])
        total = fit_sum(self.values_in, [base])
        return "none", float(total.factors[0]) if total is not None and total.granularity == "no" else 1.0

    def _position(self, base: Tensor | None) -> NormPosition:
        start = self.x if base is None else base
        norms = (e for e in self.events if e.acts_on_features and not e.later and e.input is not None)
        return "pre" if any(same(e.input, start) for e in norms if e.input is not None) else "none"

    def _label(self, event: ModuleCall) -> str:
        own = event.name.rpartition(".")[2]
        return own if any(word in own.lower() for word in _MIXERS) else self.rest

    def _source(self, event: ModuleCall | None) -> tuple[str, int]:
        """The module that returns the branch, and which of its calls."""
        if event is None:
            event = next((e for e in self.events if e.output is self.out), None)
        return (self.layer.name, 0) if event is None else (event.name, event.nth)


def _stage(part: str, seen: _Array | None) -> Stage:
    return Stage(part, "end") if seen is None else Stage(part, seen.where, seen.event.name, seen.event.nth)


def _among(x: Tensor, others: list[Tensor]) -> bool:
    return any(x is other or same(x, other) for other in others)


def _counts(total: Sum | None) -> bool:
    """Whether the base is in the sum."""
    return total is not None and bool(total.factors[0].any())


def _last(total: Sum) -> Tensor:
    return total.factors[-1]


def _one(like: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.float64, device=like.device)
