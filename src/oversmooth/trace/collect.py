"""Tokens and attention reduced to numbers while the model runs: nothing of the size of an input outlives its layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from oversmooth import metrics
from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.metrics import registry
from oversmooth.safety.errors import InputError, about
from oversmooth.theory.dominance import JOINT_STEPS, Dominance, dominance
from oversmooth.theory.operators import AttentionOperator
from oversmooth.theory.weights import fold_norm
from oversmooth.trace.catch import Caught
from oversmooth.trace.observations import MASSIVE_RATIO, Observations, Settings
from oversmooth.trace.real_rule import real_rule
from oversmooth.trace.stages import BY_INPUT, SeenBlock, Stage
from oversmooth.trace.study import inverse_sigma
from oversmooth.trace.sums import few_tokens, holds
from oversmooth.trace.tokens import Tokens, tokens_of

# Reasons kept per layer of its undecided cases.
_REASONS = 3


Look = Callable[[int, SeenBlock, AttentionOperator, Tensor, Tensor], None]
"""Gets the number of the call, the block, A ``(b, heads, n, n)``, W_V and W_O, in place of dominance."""


class Collect:
    """The listener that reduces tokens and attention to numbers.

    Args:
        blocks: what `study` gave.
        settings: what to compute.
        steering: what was done to the model, if anything; dominance is then that of steered attention.
        look: called with every layer's attention, which is then not looked at here.
    """

    def __init__(
        self, blocks: list[SeenBlock], settings: Settings, steering: Any = None, look: Look | None = None
    ) -> None:
        self.look = look
        self.watch_factors = True
        """Whether to compare factors between inputs; not where dropout scales at random what is added."""
        self.blocks, self.settings, self.steering = blocks, settings, steering
        self.observations = Observations()
        self._rows: dict[tuple[int, int], dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        self._extra = registry.extra()
        self._without: dict[tuple[int, int], dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        self._lists: dict[str, dict[int, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        self._weights: tuple[AttentionLayer, Tensor, Tensor] | None = None
        self._named: Tensor | None = None
        self._special: Tensor | None = None
        self._tokens: Tokens | None = None
        self._before: Tokens | None = None
        """Those of an earlier stream of the same inputs."""
        self._waiting: list[tuple[tuple[int, int], Tensor, bool]] = []
        self._start = 0
        self._x: Tensor | None = None
        self._ran: Counter[str] = Counter()
        self._sigma: Tensor | None = None
        self._branch: Tensor | None = None
        self._beside: Tensor | None = None
        self._few: Tensor | None = None

    def parts(self, layer: AttentionLayer) -> list[str]:
        here = [block for block in self.blocks if block.layer.block == layer.block]
        modules = {stage.module for block in here for stage in block.stages if stage.module}
        branches = [block.branch for block in here if block.branch is not None]
        modules |= {branch.module for branch in branches} | {b.beside[0] for b in branches if b.beside is not None}
        return sorted(modules)

    def begin(self, named: Tensor | None, special: Tensor | None) -> None:
        """A batch is about to run.

        Args:
            named: ``(b, n)``: tokens that are not padding, from an argument of the model.
            special: ``(b, n)``: tokens that are not counted.
        """
        self._named, self._special = named, special

    def enter(self, call: int, layer: AttentionLayer, x: Tensor, _args: Any, _kwargs: Any) -> None:
        call %= len(self.blocks)
        block = self.blocks[call]
        if block.layer.block != layer.block:
            raise InputError(
                f"{layer.block} ran where {block.layer.block} did for the first input; give inputs that take one way"
            )
        if call == 0:
            self._tokens, self._before, self._waiting = None, None, []
        elif not block.continues:  # another stream may have other tokens
            self._tokens, self._before = None, self._tokens
        self._x, self._sigma, self._branch, self._beside = x, None, None, None
        self._few = few_tokens(x)  # a copy, for blocks that add in place
        self._ran.clear()
        if call == 0 or not block.continues:
            self._site((call, -1), x, cosines=True)

    def _know(self, caught: Caught | None) -> None:
        """Decide which tokens count, now that attention has shown its mask, and measure what waited for that."""
        if caught is None and self._before is not None:
            self._tokens = self._before
        else:
            self._look(caught)
        for site, x, cosines in self._waiting:
            self._site(site, x, cosines)
        self._waiting = []

    def _look(self, caught: Caught | None) -> None:
        assert self._x is not None
        shape, named, special = self._x.shape, self._named, self._special
        tokens = None if caught is None else caught.tokens
        if caught is None and named is not None:
            if named.shape == shape[:2]:
                tokens = named.to(self._x.device)
            else:
                self.observations.unread.add("the mask does not fit the tokens and was not read: all of them count")
        if special is not None and special.shape != shape[:2]:
            self.observations.unread.add("special tokens count too: the stream has other tokens than the text")
            special = None
        allowed = None if caught is None else caught.allowed
        self._tokens = tokens_of(shape, tokens, allowed, special, packed=not self.blocks[0].windows)
        if self._before is not None:
            return  # the same inputs
        counted = self._tokens.counted
        here = shape[0] if self._tokens.rows is None else len(self._tokens.rows)
        self.observations.packed += here if self._tokens.rows is not None else 0
        self.observations.tokens_seen += [shape[1]] * here if counted is None else counted.sum(-1).tolist()
        self._start, self.observations.inputs = self.observations.inputs, self.observations.inputs + here

    def _inverse_sigma(self, call: int) -> Tensor | None:
        """Mean 1/σ of what entered the block, where a norm stands before attention; noted once."""
        block = self.blocks[call]
        if self._sigma is None and block.norm_position == "pre":
            assert self._x is not None
            assert self._tokens is not None
            kind = block.layer.norm.kind if block.layer.norm is not None else "layer"
            x = self._tokens.apart(self._x)
            self._sigma = inverse_sigma(x, kind, self._counted(x), block.norm_eps)
            self._lists["sigma"][call].append(self._sigma)
        return self._sigma

    def part(self, call: int, _layer: AttentionLayer, name: str, x: Tensor, y: Tensor) -> None:
        call %= len(self.blocks)
        nth = self._ran[name]
        self._ran[name] += 1
        branch = self.blocks[call].branch
        if branch is not None and (branch.module, branch.nth) == (name, nth):
            self._branch = few_tokens(y)
        if branch is not None and branch.beside == (name, nth):
            self._beside = few_tokens(y)
        for index, stage in enumerate(self.blocks[call].stages):
            if stage.module == name and stage.nth == nth:
                state = self._added(stage, y) if stage.where == "sum" else x if stage.where == "input" else y
                if stage.where != "sum":
                    self._check_factors(call, state)
                self._site((call, index), state, cosines=index == self.blocks[call].attention_stage)

    def _check_factors(self, call: int, state: Tensor) -> None:
        """A gate may depend on the input: the factors that one input showed are compared with every other."""
        branch = self.blocks[call].branch
        if branch is None or self._branch is None or (branch.beside is not None and self._beside is None):
            return
        if not self.watch_factors and branch.beside is None:
            return
        assert self._few is not None
        terms = [self._few, *([] if self._beside is None else [self._beside]), self._branch]
        if not holds(few_tokens(state), terms, branch.factors):
            self.observations.varies.add(call)
        self._branch = None  # at the first stage after attention only

    def _added(self, stage: Stage, branch: Tensor) -> Tensor:
        assert self._x is not None
        assert stage.keep is not None
        assert stage.factor is not None
        return self._x * stage.keep.to(self._x) + branch * stage.factor.to(branch)

    def leave(self, call: int, _layer: AttentionLayer, y: Tensor) -> None:
        call %= len(self.blocks)
        if self._tokens is None:
            self._know(None)
        self._inverse_sigma(call)
        self._check_factors(call, y)
        self._site((call, len(self.blocks[call].stages) - 1), y, cosines=True)
        self._x = None

    def attention(self, call: int, layer: AttentionLayer, caught: Caught, _x: Tensor | None, _y: Tensor) -> None:
        call %= len(self.blocks)
        if self._tokens is None:
            self._know(caught)
        self._inverse_sigma(call)
        if caught.A is None:
            return
        assert self._tokens is not None
        self._check_apart(layer, caught)
        A = self._tokens.operators(caught.A)
        self.observations.causal = A.causal
        block = self.blocks[call]
        if self.look is not None:
            self.look(call, block, A, *self._layer_weights(block.layer))
            return
        if block.undecided:
            self._undecided(call, A, block)
            return
        # As it was seen: with its factors.
        layer = block.layer
        W_V, W_O = self._layer_weights(layer)
        W_V = self._with_norm(W_V, layer, block)
        site = None if self.steering is None else self.steering.site(layer.name)
        change = None if site is None else site.change(call)
        with about(layer.name):
            if self.settings.rule == "real":
                if change is not None:
                    raise InputError("rule='real' knows plain attention only, and this model is steered; use 'complex'")
                smooth, rough, verdicts = real_rule(A, W_V, W_O, layer.keep)
            else:
                per_head = dominance(
                    A, W_V, W_O, per_head=True, residual=layer.keep, change=change, seed=self.settings.seed
                )
                smooth, rough, verdicts = per_head.rho_smooth, per_head.rho_rough, per_head.verdict
                self._note_certainty(call, per_head)
            self._lists["rho_smooth"][call].append(smooth)
            self._lists["rho_rough"][call].append(rough)
            self.observations.verdict.setdefault(call, []).extend(verdicts)
            few = self.settings.joined - self._start
            if few > 0:
                some = torch.arange(min(few, A.shape[0]), device=A.device)
                V = W_V[some] if W_V.ndim == 4 else W_V
                all_heads = dominance(
                    A.select(some),
                    V,
                    W_O,
                    residual=layer.keep,
                    change=change,
                    limit=False,
                    steps=JOINT_STEPS,
                    seed=self.settings.seed,
                )
                rows = zip(
                    (some + self._start).tolist(),
                    all_heads.rho_smooth.tolist(),
                    all_heads.rho_rough.tolist(),
                    all_heads.verdict,
                    all_heads.residual.tolist(),
                    strict=True,
                )
                self.observations.joined.setdefault(call, []).extend(rows)

    def _undecided(self, call: int, A: AttentionOperator, block: SeenBlock) -> None:
        """Cases that no theorem decides: counted, with their reason."""
        unknown = torch.full(A.shape[:2], torch.nan)
        self._lists["rho_smooth"][call].append(unknown)
        self._lists["rho_rough"][call].append(unknown)
        self.observations.verdict.setdefault(call, []).extend([["undecided"] * A.shape[1]] * A.shape[0])
        self.observations.certified.setdefault(call, []).extend([0] * A.shape[0])
        self.observations.undecided_because[call] = [f"undecided: {block.undecided}"]

    def _note_certainty(self, call: int, per_head: Dominance) -> None:
        proven = [sum(word == "certified" for word in row) for row in per_head.certainty]
        self.observations.certified.setdefault(call, []).extend(proven)
        if bool(per_head.undecided.any()):
            words = zip(per_head.verdict, per_head.reason, strict=True)
            new = [why for v, r in words for word, why in zip(v, r, strict=True) if word == "undecided"]
            kept = self.observations.undecided_because.setdefault(call, [])
            kept += new[: _REASONS - len(kept)]

    def _layer_weights(self, layer: AttentionLayer) -> tuple[Tensor, Tensor]:
        if self._weights is None or self._weights[0] is not layer:
            self._weights = (layer, layer.W_V.float(), layer.W_O.float())  # one layer at a time
        return self._weights[1:]

    def _with_norm(self, W_V: Tensor, layer: AttentionLayer, block: SeenBlock) -> Tensor:
        if (
            self.settings.variant == "raw"
            or block.norm_position != "pre"
            or layer.norm is None
            or not block.norm_agrees
        ):
            return W_V
        folded = fold_norm(W_V, layer.norm.gamma.to(W_V), kind=layer.norm.kind)
        if self.settings.variant == "observed" and self._sigma is not None:
            folded = folded * self._sigma.to(folded)[:, None, None, None]
        return folded

    def _check_apart(self, layer: AttentionLayer, caught: Caught) -> None:
        """Texts that are packed stay apart in every layer."""
        assert self._tokens is not None
        assert caught.A is not None
        if self._tokens.cross(caught.A.tokens, caught.allowed):
            raise InputError(
                f"{layer.name} lets tokens see each other that the first layer keeps apart as different texts; "
                "give it texts one by one"
            )

    def _counted(self, x: Tensor) -> Tensor | None:
        assert self._tokens is not None
        return None if self._tokens.counted is None else self._tokens.counted.to(x.device)

    def _site(self, site: tuple[int, int], x: Tensor, cosines: bool) -> None:
        if self._tokens is None:  # measured once it is known which tokens count; a copy, for blocks that add in place
            self._waiting.append((site, x.clone(), cosines))
            return
        x = self._tokens.apart(x)
        mask = self._counted(x)
        summary = metrics.summary(x, mask=mask, cosines=cosines)
        self._write(self._rows[site], summary, cosines)
        if cosines and self._start < self.settings.ranks:
            few = self.settings.ranks - self._start
            some = x[:few]
            s = metrics.singular_values(some, mask=None if mask is None else mask[:few])
            for name, value in metrics.ranks_of(s).items():
                self._rows[site][name].append(value)
        if not cosines:
            return
        for metric in self._extra:
            assert metric.of is not None
            self._rows[site][metric.name].append(metric.of(x, mask=mask))
        norms = summary.token_norms
        counted = norms > 0
        middle = torch.where(counted, norms, torch.nan).nanmedian(-1, keepdim=True).values
        massive = norms > MASSIVE_RATIO * middle
        if bool(massive.any()):
            rest = counted & ~massive
            for i, position in massive.nonzero().tolist():
                ratio = float(norms[i, position] / middle[i])
                self.observations.massive.setdefault(site, []).append((self._start + i, position, ratio))
            affected = massive.any(-1)
            summary = _replace(summary, affected, metrics.summary(x[affected], mask=rest[affected]))
        self._write(self._without[site], summary, cosines)

    @staticmethod
    def _write(row: dict[str, list[Tensor]], summary: metrics.Summary, cosines: bool) -> None:
        row["log_hfc"].append(summary.log_hfc)
        row["log_lfc"].append(summary.log_lfc)
        if cosines:
            row["cos"].append(summary.cos)
            row["abs_cos"].append(summary.abs_cos)

    def finish(self) -> Observations:
        """Everything on the CPU, concatenated over inputs, without inputs that are too short."""
        observed = self.observations
        keep = torch.tensor(observed.tokens_seen) > 1
        observed.short = int((~keep).sum())
        if not bool(keep.any()):
            raise InputError("no input has two tokens that count; give longer ones")
        for target, rows in ((observed.tokens, self._rows), (observed.without_massive, self._without)):
            for site, columns in rows.items():
                whole = {name: _joined(parts) for name, parts in columns.items()}
                target[site] = {name: value[keep[: len(value)]] for name, value in whole.items()}
                target[site]["log_hfc_lfc"] = target[site]["log_hfc"] - target[site]["log_lfc"]
                target[site]["hfc_lfc"] = target[site]["log_hfc_lfc"].exp()
        for name, values in (
            ("sigma", observed.inverse_sigma),
            ("rho_smooth", observed.rho_smooth),
            ("rho_rough", observed.rho_rough),
        ):
            values.update({call: _joined(parts)[keep] for call, parts in self._lists[name].items()})
        for call in observed.varies:
            # Sums with a factor that is not these inputs' own have no meaning.
            for index, stage in enumerate(self.blocks[call].stages):
                if stage.where == "sum":
                    unread = {name: value * torch.nan for name, value in observed.tokens[(call, index)].items()}
                    observed.tokens[(call, index)] = unread
        for call in observed.varies & set(observed.verdict):
            unknown = torch.full_like(observed.rho_rough[call], torch.nan)
            observed.rho_rough[call] = observed.rho_smooth[call] = unknown
            observed.verdict[call] = [["undecided"] * len(row) for row in observed.verdict[call]]
            observed.certified[call] = [0] * len(observed.verdict[call])
            observed.undecided_because[call] = [f"undecided: {BY_INPUT}"]
            observed.joined.pop(call, None)
        kept = keep.tolist()

        def stay(entries: list[Any]) -> list[Any]:
            return [entry for entry, stays in zip(entries, kept, strict=True) if stays]

        observed.verdict = {call: stay(rows) for call, rows in observed.verdict.items()}
        observed.certified = {call: stay(counts) for call, counts in observed.certified.items()}
        observed.joined = {call: [row for row in rows if kept[row[0]]] for call, rows in observed.joined.items()}
        observed.massive = {site: [row for row in rows if kept[row[0]]] for site, rows in observed.massive.items()}
        observed.massive = {site: rows for site, rows in observed.massive.items() if rows}
        return observed


def _joined(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().double().cpu() for part in parts])


def _replace(summary: metrics.Summary, at: Tensor, other: metrics.Summary) -> metrics.Summary:
    values = {}
    for name in ("log_hfc", "log_lfc", "cos", "abs_cos"):
        value = getattr(summary, name).clone()
        value[at] = getattr(other, name).to(value.dtype)
        values[name] = value
    return metrics.Summary(**values, token_norms=summary.token_norms)
