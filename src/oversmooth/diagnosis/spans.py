"""Which blocks can be left out or run twice: what every span of blocks does to the tokens, and what its loss costs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.live import check_is_module, unwrapped
from oversmooth.anatomy.roles import Roles
from oversmooth.diagnosis.diagnose import diagnose
from oversmooth.diagnosis.effects import (
    EffectOn,
    effect_of,
    ids_of,
    masked,
    mean_token,
    next_tokens,
    scores_of,
    with_ids,
)
from oversmooth.diagnosis.finished import Finished
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.results.facts import Number, plain
from oversmooth.results.parts import Change, Layer
from oversmooth.results.spans import Effect, Span, Spans, Vector
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import preserve_state
from oversmooth.trace import ONE_AT_A_TIME, Rerouting, study
from oversmooth.trace.feed import ModelInput, OnProgress, Runner, batches_for
from oversmooth.trace.rerouting import BlockRange

ALL, SHORT = 12, 4
"""Blocks of models in which spans of every length are measured by default, and the longest span of deeper ones."""
_DOING = {"drop": "leaving out", "repeat": "running twice"}

Inside = Batch | Tensor
Columns = dict[str, dict[BlockRange, Tensor]]  # by name and span: of each input


def spans(
    model: nn.Module | Any,
    inputs: ModelInput | Iterable[ModelInput] | None = None,
    labels: Tensor | Sequence[int] | None = None,
    *,
    drop: bool = True,
    repeat: bool = True,
    longest: int | None = None,
    tokenizer: Any = None,
    memory: str | Path | None = None,
    progress: OnProgress | None = None,
) -> Diagnosis:
    """Measure what leaving out each span of blocks costs, and what running it twice does.

    The effect is the increase of the model's own loss: of given labels, of the next token, or of masked tokens. A
    classifier without labels has the KL divergence from the unchanged model, and an encoder without a head 1 − the
    cosine of its pooled vector to the unchanged model's. The model is unchanged afterwards, bit for bit.

    Args:
        model: a module, a name or path, or the result of `models.load`. It runs in eval mode.
        inputs: a tensor, a dict of the model's arguments, or an iterable of either. By default the package's own prose
            or pictures, if the model states its preprocessing.
        labels: ``(inputs,)`` or ``(inputs, n)``, −100 where there is none. By default those that come with the inputs.
        drop: whether to leave spans out.
        repeat: whether to run spans twice.
        longest: blocks of the longest span. By default all of up to 12, and 4 of deeper models.
        tokenizer: of a masked language model that is given as a module.
        memory: a directory for finished spans, from which an interrupted call resumes.
        progress: called after each changed forward pass with (passes done, passes in all, the current step).

    Returns:
        A diagnosis of the tokens alone, whose ``spans`` has one entry per span; ``plot("spans")`` draws them.

    Raises:
        InputError: an argument is wrong, the model cannot be run, or its blocks pass on more than tokens.
    """
    ways = [way for way, wanted in (("drop", drop), ("repeat", repeat)) if arguments.flag(wanted, way)]
    folder = None if memory is None else arguments.path(memory, "memory", "give a directory")
    longest = None if longest is None else arguments.whole(longest, "longest", least=1)
    source, tokenizer, given = _opened(model, inputs, tokenizer)
    module = unwrapped(check_is_module(source if isinstance(source, nn.Module) else source.model))
    held = given.kept() if isinstance(given, Inputs) else list(batches_for(module, given))
    found = diagnose(source, held, tokenizer=tokenizer, spectra=False, example=False)
    blocks = len(found.layers) - 1
    if blocks < 2:
        raise InputError("the model has a single block, so there is none to choose; give a deeper model")
    run = Runner(module, locate(module))
    batches = list(run.batches(held))
    targets = _labels(batches, labels)
    one = run.short_input(batches[0])  # which may run the model
    with ONE_AT_A_TIME, torch.no_grad(), preserve_state(module):
        plan = study(module, run.anatomy, lambda: run(one), attention=False).plan
        with Rerouting(module, plan) as route:
            mask_token = getattr(tokenizer, "mask_token_id", None)
            whose: Any = "given" if labels is not None else "" if any(one is None for one in targets) else "own"
            effect, vector = _effect(route, run, (batches[0], one), whose, mask_token is not None)
            passes = _Passes(route, run, effect, vector, ways, mask_token, folder, progress)
            ranges = route.spans(min(longest or (blocks if blocks <= ALL else SHORT), blocks))
            columns = passes.over(batches, targets, ranges)
    rows = [_span(one, columns, found.layers) for one in ranges]
    _predict(rows)
    loss = _mean(columns["unchanged"][ranges[0]])[0] if "unchanged" in columns else None
    found.spans = Spans(effect, loss, vector, found.provenance["inputs"], rows)
    return found


def block_influence(before: Tensor, after: Tensor, valid: Tensor | None = None) -> Tensor:
    """``(b,)``: 1 − mean cosine of a token ``(b, n, d)`` before and after, over valid ones ``(b, n)``.

    Men et al., ShortGPT (2024), equation 1, of one block or of several.
    """
    return 1 - mean_token(F.cosine_similarity(before, after, dim=-1)[..., None], valid)[:, 0]


def angular_distance(before: Tensor, after: Tensor) -> Tensor:
    """``(b,)``: arccos/π of the cosine of two vectors ``(b, d)``.

    Gromov et al., The Unreasonable Ineffectiveness of the Deeper Layers (2024), equation 7.
    """
    return F.cosine_similarity(before, after, dim=-1).clamp(-1, 1).arccos() / math.pi


def _opened(model: Any, inputs: Any, tokenizer: Any) -> tuple[Any, Any, Any]:
    """A module or a loaded model, its tokenizer, and inputs for it."""
    from oversmooth import models  # a module with inputs needs nothing of it

    if not isinstance(model, (nn.Module, models.Loaded)):
        model = models.load(str(arguments.path(model, "the model", "give a module, a path or a name")))
    if isinstance(model, models.Loaded):
        if model.untrained:  # a head that was drawn at random has no loss worth knowing
            model = replace(model, model=getattr(model.model, "base_model", model.model))
        return model, tokenizer or model.tokenizer, model.inputs() if inputs is None else inputs
    return model, tokenizer, models.default_inputs(model, tokenizer) if inputs is None else inputs


def _labels(batches: list[Inside], labels: Any) -> list[Tensor | None]:
    """The labels of each batch: those given, or its own."""
    if labels is None:
        return [batch.labels if isinstance(batch, Batch) else None for batch in batches]
    given = arguments.tensor(labels, "labels", "class numbers, one per input", least=1, floating=False)
    sizes = [len(batch) for batch in batches]
    if given.is_floating_point() or len(given) != sum(sizes):
        raise InputError(
            f"labels have shape {tuple(given.shape)} and dtype {given.dtype} for {sum(sizes)} inputs; give one class "
            "number for each"
        )
    return list(given.split(sizes))


def _effect(
    route: Rerouting, run: Runner, inputs: tuple[Inside, Inside], labelled: Literal["given", "own", ""], masks: bool
) -> tuple[Effect, Vector]:
    """What is measured, and of which vector the angle is. inputs: the first batch, and a short input of it. labelled:
    whose labels there are. masks: whether the tokenizer has a mask token.
    """
    first, one = inputs
    out = route.record(lambda: run(first))
    route.check(out)
    scores, tokens = scores_of(out), route.ends((0, 1))[0]
    if scores.shape[:2] == tokens.shape[:2][::-1] != tokens.shape[:2]:
        raise InputError(f"the model returns (n, b, d), {tuple(scores.shape)}; wrap it so that it returns (b, n, d)")
    fit = scores.ndim == 2 and scores.shape[1] == run.classes  # labels that come with inputs may be of another task
    causal = _is_causal(route, run, one)
    labels = labelled == "given" or (labelled == "own" and fit)
    effect = effect_of(run.model, out, labelled=labels, classes=run.classes, causal=causal, masks=masks)
    if causal:
        return effect, "last token"
    roles = Roles.found(run.model)
    cls = roles is not None and "cls" in roles.positions
    cls |= isinstance(first, Batch) and first.special is not None and bool(first.special[:, 0].all())
    return effect, "first token" if cls and effect in ("labels", "KL") else "mean token"


def _is_causal(route: Rerouting, run: Runner, one: Inside) -> bool:
    """Whether the earlier tokens of a text stay as they are when its last one changes."""
    ids, valid = ids_of(one), run.mask(one)
    if ids is None:
        return False
    last = ids.shape[1] - 1 if valid is None else int(valid[0].nonzero().max())
    other = ids.clone()
    other[0, last] = (ids[0, last] - 1).abs()  # every vocabulary has it
    streams = []
    for text in (ids, other):
        route.record(lambda text=text: run(with_ids(one, text)))  # type: ignore[misc]
        streams.append(route.ends((0, len(route.plan.blocks)))[1][0, :last])
    return last > 0 and torch.allclose(streams[0], streams[1])


@dataclass
class _Passes:
    """The passes of a model in which spans of its blocks are left out or run twice."""

    route: Rerouting
    run: Runner
    effect: Effect
    vector: Vector
    ways: list[str]
    mask_token: int | None
    memory: Path | None
    progress: OnProgress | None

    def over(self, batches: list[Inside], labels: list[Tensor | None], ranges: list[BlockRange]) -> Columns:
        """What was found, by "influence", "angle", "unchanged" and way."""
        found: dict[str, dict[BlockRange, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        masks, finished = torch.Generator().manual_seed(0), []
        done, total = 0, len(batches) * len(ranges) * len(self.ways)
        for batch, targets in zip(batches, labels, strict=True):
            effect = self._unchanged(batch, targets, masks)
            if effect.targets is not None:
                found["unchanged"][ranges[0]].append(effect.before)
            for blocks in ranges:
                before, after = (x.double() for x in self.route.ends(blocks))
                valid = effect.valid if effect.valid is not None and effect.valid.shape == before.shape[:2] else None
                found["influence"][blocks].append(block_influence(before, after, valid))
                ends = (_vector(self.vector, x, valid) for x in (before, after))
                found["angle"][blocks].append(angular_distance(*ends))
            arrays = b"".join(x.cpu().numpy().tobytes() for x in (effect.before, after))
            question = self.effect.encode() + arrays
            kept = None if self.memory is None else Finished[list[float]](self.memory, "spans", question, list[float])
            finished.append(kept)
            known = {} if kept is None else kept.read()
            for way in self.ways:
                again = self.route.without if way == "drop" else self.route.twice
                for blocks in ranges:
                    name = f"{way} {blocks}"
                    values = torch.tensor(known[name], dtype=torch.float64) if name in known else effect(again(blocks))
                    if kept is not None and name not in known:
                        kept.add(name, values.tolist())
                    found[way][blocks].append(values)
                    done += 1
                    if self.progress is not None:
                        self.progress(done, total, _DOING[way])
        for kept in filter(None, finished):
            kept.forget()
        return {
            name: {blocks: torch.cat([x.cpu() for x in parts]) for blocks, parts in columns.items()}
            for name, columns in found.items()
        }

    def _unchanged(self, batch: Inside, targets: Tensor | None, masks: torch.Generator) -> EffectOn:
        """One pass of the model as it is, with which others are compared."""
        valid, ids = self.run.mask(batch), ids_of(batch)
        if self.effect == "next token":
            assert ids is not None
            targets = next_tokens(ids, valid)
        elif self.effect == "masked token":
            assert self.mask_token is not None
            batch, targets = masked(batch, valid, self.mask_token, masks)
        out = self.route.record(lambda: self.run(batch))
        return EffectOn(self.effect, out, targets, valid)


def _vector(which: Vector, x: Tensor, valid: Tensor | None) -> Tensor:
    """``(b, d)``: one vector of each input ``(b, n, d)``."""
    if which == "mean token":
        return mean_token(x, valid)
    if which == "first token" or valid is None:
        return x[:, 0 if which == "first token" else -1]
    last = (valid * torch.arange(1, x.shape[1] + 1, device=x.device)).argmax(-1)
    return x[torch.arange(len(x), device=x.device), last]


def _span(blocks: BlockRange, columns: Columns, layers: list[Layer]) -> Span:
    """One row of the table. layers: of the diagnosis, the input of the first block first."""
    first, last = blocks[0] + 1, blocks[1]
    inside = [change for layer in layers[first : last + 1] for change in layer.changes]
    parts = dict.fromkeys(change.part for change in inside)
    span = Span(first, last, _mean(columns["influence"][blocks])[0], _mean(columns["angle"][blocks])[0])
    span.changes = [_summed([change for change in inside if change.part == part]) for part in parts]
    if "drop" in columns:
        span.drop, span.drop_error = _mean(columns["drop"][blocks])
    if "repeat" in columns:
        span.repeat, span.repeat_error = _mean(columns["repeat"][blocks])
    return span


def _predict(rows: list[Span]) -> None:
    """Rank spans without running them; docs/spans.md has how well that works."""
    single = [span for span in rows if span.length == 1]
    for span in rows:
        influences = [block.influence for block in single[span.first - 1 : span.last]]
        grown = [change.log_hfc for block in single[span.last :] for change in block.changes]
        if None not in influences and None not in grown:
            growth = math.exp(math.fsum(grown) / 2)  # type: ignore[arg-type]
            span.predicted_drop = plain(math.fsum(influences) * growth)  # type: ignore[arg-type]
            span.predicted_repeat = plain(max(influences) * growth)  # type: ignore[type-var,operator]


def _summed(changes: list[Change]) -> Change:
    """What one part of several blocks did together; the spread of sums is not known."""

    def total(name: str) -> Number:
        values = [getattr(change, name) for change in changes]
        return None if None in values else plain(math.fsum(values))

    return Change(changes[0].part, total("log_hfc_lfc"), None, total("log_hfc"), total("log_lfc"))


def _mean(values: Tensor) -> tuple[Number, Number]:
    """Of the inputs in which something was measured, with its standard error."""
    known = values[values.isfinite()]
    return plain(known.mean()), plain(known.std() / math.sqrt(len(known))) if len(known) > 1 else None
