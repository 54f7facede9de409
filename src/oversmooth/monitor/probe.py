"""A probe: a fixed batch, and what forward passes of it show. The training is as it would be without them.

Tokens come from one pass that is read at the ends of blocks alone; all that needs attention comes from a study and
another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.steered import steered_as
from oversmooth.diagnosis.layers import changes
from oversmooth.monitor.model import MonitoredModel
from oversmooth.monitor.reduced import band_norms
from oversmooth.results.facts import plain
from oversmooth.results.parts import share_of_smoothing
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import preserve_state
from oversmooth.trace import DepthMetrics, HeadSpectra, Plan, Reducer, SpectraSettings, TokenMetrics, Trace, study
from oversmooth.trace.feed import mover, runs_on
from oversmooth.trace.reducers.sinks import Sinks

Row = dict[str, list[float | None]]
_PARTS = ("attention", "mlp", "norm")


class Probe:
    """A fixed batch, in the form in which the model takes it: a tensor, a dict of its arguments, or a tuple of them."""

    def __init__(self, model: MonitoredModel, batch: Any, loss: Callable[[Any, Any], Tensor] | None = None) -> None:
        values = batch.values() if isinstance(batch, Mapping) else batch
        values = list(values) if isinstance(batch, (Mapping, tuple, list)) else [values]
        tensors = [value for value in values if isinstance(value, Tensor)]
        if not tensors or not (isinstance(batch, Mapping) or isinstance(values[0], Tensor)):
            raise InputError(
                f"the probe is {arguments.shown(batch)}; give a batch: a tensor, a dict of the model's arguments, "
                "or a tuple of them"
            )
        if any(one.ndim and not len(one) for one in tensors):
            raise InputError("the probe has no inputs: one of its tensors has none; give a batch of at least one input")
        self.model, self.loss = model, loss
        self.batch = _copied(batch)  # the batch is its owner's, who may write to it
        self.layouts: dict[str, bool] = {}
        """By name of a block: whether it takes (batch, n, d), where a pass showed it."""

    def run(self) -> Any:
        """What the model returns for it, on the model's device and in its precision."""
        model = self.model.module
        batch = _copied(self.batch, mover(model))  # copied: a model may write to its arguments
        with runs_on("the probe"):
            if isinstance(batch, Mapping):
                return model(**{str(name): value for name, value in batch.items()})
            return model(*([batch] if isinstance(batch, Tensor) else batch))

    @contextmanager
    def _apart(self, *, gradients: bool = False) -> Iterator[None]:
        """Around a pass: afterwards the model is as it was."""
        with self.model.sharded_again(), preserve_state(self.model.module), torch.set_grad_enabled(gradients):
            yield

    def tokens(self, names: Sequence[str], ranks: int) -> tuple[dict[str, list[float]], list[str]]:
        """Metrics of the tokens at every depth, mean over inputs; and the names of the blocks as they ran."""
        depths = DepthMetrics(ranks=ranks, absolute="abs_cos" in names)
        with self._through_blocks([depths]) as (_, trace):
            ran = [block.block for block in trace.plan.blocks]
        silent = [name for name, _ in self.model.blocks if name not in ran]
        if silent:
            raise InputError(
                f"{len(silent)} of {len(self.model.blocks)} blocks did not run on the probe, {silent[0]} first; "
                "give inputs that pass through all of them, or name the blocks"
            )
        return depths.means(names), ran

    def gradients(self) -> Row:
        """Of the probe's loss: the norm of the gradient after every block, and the share of it that is HFC."""
        if self.model.is_sharded:
            raise InputError("gradients by band of a sharded model come from the training batch alone; leave them out")
        with self._through_blocks([], gradients=True) as (out, trace):
            found = trace.gradients(self._loss_of(out))
        pairs = [(None, None) if one is None else tuple(map(plain, band_norms(*one))) for one in found]
        return {"gradient_norm": [norm for norm, _ in pairs], "gradient_hfc": [share for _, share in pairs]}

    @contextmanager
    def _through_blocks(self, reducers: Sequence[Reducer], *, gradients: bool = False) -> Iterator[tuple[Any, Trace]]:
        """One pass that is read at the ends of blocks: what the model returns, and the pass."""
        layers = {layer.block: layer for layer in self.model.anatomy or ()}
        plan = Plan.of_names({name: layers.get(name) for name, _ in self.model.blocks}, self.layouts)
        with self._apart(gradients=gradients):
            with Trace(self.model.module, plan, reducers) as trace:
                trace.begin()
                out = self.run()
            yield out, trace

    def _loss_of(self, out: Any) -> Tensor:
        """A number to differentiate."""
        if self.loss is not None:
            try:
                loss: Any = self.loss(out, _copied(self.batch))
            except Exception as error:
                why = f"{type(error).__name__}: {str(error)[:120]}"
                raise InputError(f"loss failed ({why}); it is called as loss(what the model returns, probe)") from error
        else:
            loss = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise InputError(
                "the probe comes without a loss, which gradients need; give labels in it, or loss=, of what the "
                "model returns and the probe"
            )
        return loss

    def by_attention(self, *, parts: bool, dominance: bool, joined: bool) -> Row:
        """Change of log HFC/LFC through each sublayer; the share of (input, layer, head) triples that smooth, and
        attention sinks; and the radii of all heads jointly for the first input. One pass shows the plan, another the
        numbers.
        """
        model, found = self.model.module, Row()
        with self._apart():
            plan = study(model, self.model.require_anatomy("sublayers"), self.run, attention=dominance or joined).plan
            tokens, sinks = TokenMetrics(plan, ranks=0, absolute=False), Sinks(plan, special=False)
            heads = HeadSpectra(plan, SpectraSettings(joined=int(joined)), steered_as(model))
            wanted = ((tokens, parts), (sinks, dominance), (heads, dominance or joined))
            with Trace(model, plan, [one for one, is_wanted in wanted if is_wanted]) as trace:
                trace.begin()
                self.run()
        calls = range(len(plan.blocks))
        for call in calls if parts else ():
            for change in changes(plan, tokens.result, call):
                name = f"change_{change.part if change.part in _PARTS else 'other'}"
                row = found.setdefault(name, [None] * len(plan.blocks))
                if change.log_hfc_lfc is not None:
                    row[call] = (row[call] or 0.0) + change.log_hfc_lfc
        if dominance:
            verdicts = [[v for row in heads.result.verdict.get(call, []) for v in row] for call in calls]
            found["smoothing_share"] = [share_of_smoothing(words) if words else None for words in verdicts]
            ends = [sinks.result.at[call, len(plan.blocks[call].stages) - 1] for call in calls]
            for name in ("sink_rate", "sink_attention"):
                found[name] = [plain(end[name].mean()) if name in end else None for end in ends]
        if joined:
            first = [next(iter(heads.result.joined.get(call, [])), None) for call in calls]
            found["joined_rho_smooth"] = [None if row is None else row[1] for row in first]
            found["joined_rho_rough"] = [None if row is None else row[2] for row in first]
        return found


def _copied(value: Any, moved: Callable[[Tensor], Tensor] = Tensor.detach) -> Any:
    """With tensors of its own, as deep as they lie, each of them moved."""
    if isinstance(value, Tensor):
        return moved(value.detach().clone())
    if isinstance(value, Mapping):
        return {name: _copied(one, moved) for name, one in value.items()}
    if not isinstance(value, (tuple, list)):
        return value
    parts = [_copied(one, moved) for one in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
