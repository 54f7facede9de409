"""From a model and inputs to a `Diagnosis`: plan with one input, observe all of them, assemble what was found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy, NormPosition
from oversmooth.anatomy.live import check_finite
from oversmooth.anatomy.roles import Roles
from oversmooth.anatomy.steered import steered_as
from oversmooth.diagnosis import weights
from oversmooth.diagnosis.extrapolate import last_block, whole_stack
from oversmooth.diagnosis.layers import layers_observed, layers_of_blocks, massive_origin, spectra_ahead
from oversmooth.diagnosis.observing import Accuracy, Reducers
from oversmooth.diagnosis.one_input import ExampleInput
from oversmooth.diagnosis.processes import Share
from oversmooth.diagnosis.provenance import input_kind, input_notes, plan_notes, provenance
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.diagnosis.source import Options, Source, opened
from oversmooth.inputs.batches import Batch
from oversmooth.metrics.moments import MASSIVE_RATIO
from oversmooth.results.facts import ModelFacts, Number, plain
from oversmooth.results.notes import Note
from oversmooth.results.parts import Extrapolation, OneInput
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_its_own_mode
from oversmooth.safety.precision import float32_products
from oversmooth.safety.processes import are_joined
from oversmooth.theory.reasons import Reason
from oversmooth.trace import ONE_AT_A_TIME, Trace, study
from oversmooth.trace.feed import ModelInput, Runner, first_of
from oversmooth.trace.feed import OnProgress as OnProgress
from oversmooth.trace.plans import Plan
from oversmooth.trace.reducers.base import PassFacts
from oversmooth.trace.reducers.heads import HeadNumbers
from oversmooth.trace.reducers.sinks import SinkNumbers
from oversmooth.trace.reducers.tokens import TokenNumbers
from oversmooth.trace.study import Sample, Study
from oversmooth.trace.valid import LeftOut

if TYPE_CHECKING:
    from oversmooth.models import Loaded
    from oversmooth.models.on_disk import OnDisk

_STACK_BLOCKS = 48  # about how many blocks run when the whole stack is repeated


@dataclass
class _Planned:
    """What the first input showed."""

    plan: Plan
    device: torch.device
    batches: Iterator[Batch | Tensor]  # all batches, the first included
    variant: str
    extrapolation: list[Extrapolation]
    one_input: OneInput | None
    input_kind: str
    ahead: dict[Any, Any] = field(default_factory=dict)  # of `spectra_ahead`


_Observed = tuple[PassFacts, TokenNumbers, HeadNumbers | None, SinkNumbers, Number]
"""What all inputs showed, and the accuracy."""


@float32_products("highest")  # what is computed of weights has float32's rounding, as errors and verdicts assume
def diagnose(
    model: nn.Module | Loaded | str | Path,
    inputs: ModelInput | Iterable[ModelInput] | None = None,
    *,
    name: str | None = None,
    tokenizer: Any = None,
    blocks: str | None = None,
    stack: str | None = None,
    heads: int | None = None,
    norm: NormPosition | None = None,
    spectra: bool = True,
    joined: int = 1,
    ranks: int = 4,
    variant: str = "raw",
    rule: str = "complex",
    depth: int = 48,
    example: bool = True,
    exact: bool = False,
    seed: int = 0,
    special: Sequence[int] | Tensor | None = None,
    special_tokens: str = "both",
    roles: Mapping[str, Sequence[int]] | None = None,
    about: dict[str, Any] | None = None,
    progress: OnProgress | None = None,
    stream: bool = False,
    max_memory: str | int | None = None,
    processes: bool = False,
) -> Diagnosis:
    """Measure whether and where a model smooths its tokens, which sublayer does it, and what the spectra predict.

    Args:
        model: a module, run as it is (mode, precision, device); a name or path, loaded with the matching library; or
            the result of `models.load`.
        inputs: a tensor, a dict of the model's arguments, or an iterable of either. By default the package's own prose
            or pictures, if the model states its preprocessing.
        name: of the model in reports.
        tokenizer: for the default prose, if the language model is a module.
        blocks: names of the blocks, such as "layers.*", of a model whose attention is unsupported: any modules that map
            (batch, n, d) to (batch, n, d). Only tokens are measured; needs ``spectra=False``.
        stack, heads, norm: for `anatomy.locate`.
        spectra: False measures tokens alone, without attention, spectra or extrapolation.
        joined: inputs for which ρ_rough of all heads jointly is computed (slow).
        ranks: inputs whose ranks are computed, the first ones (slow).
        variant: "raw" leaves the norm before attention out of H, as the papers do; "folded" and "observed" include it.
        rule: "complex" uses eigenvalues as they are, "real" only their real parts (per head).
        depth: how often the last block is repeated: 16 times in fact, beyond by prediction; 0 for not at all.
        example: store token similarities and attention of the first input, with its text or a small picture of it.
        exact: take no shortcut. Otherwise the effective rank of arrays of more than 1,024 tokens and features is
            sketched, |cos| of more than 4,096 tokens is sampled, ρ_rough of all heads jointly has a budget, and the
            spectrum of all heads' weights together is left out where it has more than 1,024 eigenvalues.
        seed: of Arnoldi's random starts.
        special: tokens that token metrics leave out, such as registers or [CLS]: positions in the residual stream
            (negative ones count from the end), or a boolean mask ``(n,)``. The mean 1/σ of "observed" leaves them out
            as well. Spectra and extrapolation include them, because attention does.
        special_tokens: those that the tokenizer names, such as [CLS] or the beginning of a text: "leave" them out of
            token metrics, "count" them, or "both": leave them out, and give HFC/LFC and the mean cosine with them too.
        roles: positions in the residual stream by name, such as {"prefix": range(20)}: tokens are measured by role as
            well. None: [CLS], registers and patches of an image model, special tokens and text of a language model.
        about: further facts to store in `Diagnosis.model`.
        progress: called after each batch with (inputs done, inputs in all or None, the current step).
        stream: read a transformers checkpoint, by name or path, one block at a time: the model may be larger than
            memory. The numbers are the same; repeating the whole stack is skipped. See docs/large-models.md.
        max_memory: of the device, that streaming may take, such as "12GB"; None: what is free.
        processes: share the batches among the processes of torch.distributed, all of which call this with the same
            arguments. Each returns the whole diagnosis.

    Returns:
        The measurements, predictions and verdict.

    Raises:
        InputError: an argument is wrong, or the model cannot be located, run or observed.
    """
    started = time.perf_counter()
    options = Options(
        spectra=spectra, joined=joined, ranks=ranks, variant=variant, rule=rule, depth=depth, example=example,
        exact=exact, seed=seed, left_out=LeftOut.of(special), processes=processes, special_tokens=special_tokens,
        roles=None if roles is None else Roles.given(roles),
    )  # fmt: skip
    if processes and (stream or blocks is not None):
        raise InputError("processes share inputs, which stream=True and blocks= do not; leave one out")
    source = opened(model, inputs, name, tokenizer, about, stream, max_memory)
    if source.on_disk is not None:
        if blocks is not None:
            raise InputError("blocks= and stream=True cannot be combined: streaming finds blocks by their attention")
        return _streamed(source, source.on_disk, dict(stack=stack, heads=heads, norm=norm), options, progress, started)
    if blocks is not None:
        return _of_blocks(source, blocks, options, started)
    anatomy = locate(source.model, stack=stack, heads=heads, norm=norm)
    source.notes += [Note("anatomy", text=remark) for remark in anatomy.remarks]
    check_finite(source.model)
    source.about_mode()
    if source.inputs is None:
        from oversmooth import models

        source.inputs = models.default_inputs(source.model, source.tokenizer)
    run = Runner(source.model, anatomy)
    with ExitStack() as ending:
        with ONE_AT_A_TIME, torch.no_grad(), in_its_own_mode(source.model):
            planned = _plan(source, run, options)
            if options.spectra and not (options.exact or source.model.training) and _cores_idle(planned.device):
                planned.ahead = ending.enter_context(spectra_ahead(planned.plan, planned.device))
            observed = _observe(source, run, planned, options, progress)
        return _assemble(source, anatomy, planned, observed, options, started)


def _cores_idle(device: torch.device) -> bool:
    """Whether the model leaves the cores to LAPACK; sharded weights are read by all processes in one order, later."""
    return device.type == "cuda" and not are_joined()


def _plan(source: Source, run: Runner, options: Options) -> _Planned:
    """Study the first input: where the residual stream is, what more depth does to it, how its tokens look."""
    first, batches = first_of(options.batches(run, source.inputs))
    # The beginning of a text shows where the stream is; all of it is needed where that input itself is reported.
    one = run.first_input(first) if options.spectra or options.example else run.short_input(first)
    sample = study(source.model, run.anatomy, lambda: run(one), attention=options.spectra)
    example = None
    if options.example:
        example = ExampleInput(first, one, run.mask(one), source.tokenizer)
        for block in sample.blocks:
            example.add(block)
    return _Planned(
        plan=sample.plan,
        device=sample.blocks[0].x.device,
        batches=batches,
        variant=_variant(sample.plan, source, options),
        extrapolation=_extrapolate(sample, source, options, first),
        one_input=None if example is None else example.result(),
        input_kind=input_kind(source.inputs, first),
    )


def _variant(plan: Plan, source: Source, options: Options) -> str:
    """How norms enter H: raw where none is known."""
    if options.variant == "raw" or any(b.norm_position == "pre" and b.norm_agrees for b in plan.blocks):
        return options.variant
    source.notes.append(Note("variant_without_norm", what=options.variant))
    return "raw"


def _observe(
    source: Source, run: Runner, planned: _Planned, options: Options, progress: OnProgress | None
) -> _Observed:
    """Send all batches through the model; its accuracy on those that have labels, None where none has."""
    batches, share = planned.batches, None
    if options.processes:
        share = Share(list(batches))
        ranks, joined = (max(0, first - share.start) for first in (options.ranks, options.joined))
        batches, options = iter(share.batches), replace(options, ranks=ranks, joined=joined)
    reducers, accuracy = Reducers.of(source, planned.plan, planned.variant, options), Accuracy(run.classes)
    with Trace(source.model, planned.plan, reducers.all, options.left_out) as trace:
        trace.agree = trace.agree if share is None else share.union
        for batch, out in trace.over(run, batches, source.inputs, progress):
            accuracy.add(batch, out)
    observed = reducers.observed(trace.facts)
    if share is not None:
        *observed, accuracy = share.gathered(*observed, accuracy)  # type: ignore[assignment]
    return *observed, accuracy.share


def _streamed(
    source: Source, disk: OnDisk, how: dict[str, Any], options: Options, progress: OnProgress | None, started: float
) -> Diagnosis:
    """The same, with one block in memory at a time."""
    from oversmooth.diagnosis.stream_state import States, folder_for
    from oversmooth.diagnosis.streamed import Streamed, placement

    anatomy = disk.anatomy(**how)
    source.notes += [Note("anatomy", text=remark) for remark in anatomy.remarks]
    check_finite(source.model)
    source.about_mode()
    run = Runner(source.model, anatomy)
    with ONE_AT_A_TIME, torch.no_grad(), in_its_own_mode(source.model):
        first, several = first_of(options.batches(run, source.inputs))
        batches = list(several)
        inputs = sum(map(len, batches))
        one = run.first_input(first) if options.spectra or options.example else run.short_input(first)
        source.notes.append(Note("streamed", text=(placed := placement(disk, run, batches)).words))
        study = Study(source.model, anatomy, options.spectra)
        plan = Plan(anatomy, [], layouts=study.layouts, attention=options.spectra)
        reducers = Reducers.of(source, plan, options.variant, options, most_waiting=0)
        example = ExampleInput(first, one, run.mask(one), source.tokenizer) if options.example else None
        accuracy, extrapolation = Accuracy(run.classes), list[Extrapolation]()

        def on_progress(block: int, blocks: int, done: int) -> None:
            if progress is not None:
                part = f"block {block + 1} of {blocks}, input {min(done + 1, inputs)} of {inputs}"
                progress((block * inputs + done) / blocks, inputs, part)

        folder = folder_for(disk.files, batches, disk.device, disk.dtype, how, options)
        states = States(placed.where, disk.device, folder)
        stream = Streamed(
            disk, run, one, batches, reducers, example, plan, study, options.left_out, states, accuracy.add,
            on_progress,
        )  # fmt: skip
        for block in stream.blocks():
            device = block.x.device
            extrapolation = _extrapolate(Sample(plan, [block]), source, options, first, disk)
        variant, kept = _variant(plan, source, options), None if example is None else example.result()
        kind = input_kind(source.inputs, first)
        planned = _Planned(plan, device, iter(batches), variant, extrapolation, kept, kind)
        observed = *reducers.observed(stream.facts), accuracy.share
        found = _assemble(source, anatomy, planned, observed, options, started)
    stream.progress.forget()
    return found


def _assemble(
    source: Source, anatomy: Anatomy, planned: _Planned, observed: _Observed, options: Options, started: float
) -> Diagnosis:
    """Layers, facts, provenance, notes and verdict."""
    (facts, tokens, heads, sinks, top1), model = observed, source.model
    plan = planned.plan.with_undecided(facts.input_dependent, Reason("input_dependent"))
    lengths = facts.lengths.tolist()
    steering = steered_as(model)
    notes = [*source.notes, *input_notes(source.inputs, lengths)]
    notes += [Note("packed_inputs", facts.packed)] if facts.packed else []
    notes += [Note(kind) for kind in sorted(facts.unread)]
    notes += options.notes()
    notes += [Note("approximate", what=name, error=plain(e, 3)) for name, e in tokens.errors.items()]
    notes += plan_notes(plan)
    largest = max(weights.joined_size(block.layer) for block in plan.blocks if block.layer is not None)
    if options.spectra and not options.exact and largest > weights.LARGE:
        notes.append(Note("joined_weights_skipped", largest))
    notes += [Note("steering", text=remark) for remark in steering.remarks()] if steering is not None else []
    with torch.autocast(planned.device.type, enabled=False):
        layers = layers_observed(plan, tokens, heads, sinks, facts.inputs, planned.ahead, exact=options.exact)
    shared = len({block.block for block in plan.blocks}) < len(plan.blocks)
    known = weights.facts(source.name, anatomy, len(plan.blocks), shared)
    known |= {
        "causal": known["causal"] if facts.causal is None else facts.causal,
        "norm": next(block.norm_position for block in plan.blocks if block.layer is not None),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in model.parameters()),
        "input_kind": planned.input_kind,
    }
    made = provenance(started, planned.device, source.inputs, lengths, options.ranks, options.left_out)
    made |= {
        "seed": options.seed,
        "joined_inputs": min(options.joined, facts.inputs) if options.spectra else 0,
        "variant": planned.variant,
        "counting_rule": _counting_rule(planned.variant, options.rule),
        "massive_rule": f"norm over {MASSIVE_RATIO:g} times the median norm of the input's tokens, layer by layer",
        "top1": top1,
    }
    steered = None if steering is None else steering.report()
    more = dict(extrapolation=planned.extrapolation, steering=steered, one_input=planned.one_input)
    origin = massive_origin(plan, sinks)
    return source.diagnosis(known, made, layers, notes, massive_origin=origin, **more)


def _counting_rule(variant: str, rule: str) -> str:
    of_h, parts = (
        "" if variant == "raw" else f"; H {variant}",
        "" if rule == "complex" else "; real parts of both spectra",
    )
    pairs = "one maximum over all pairs of eigenvalues of A and of a head's H, per input, layer and head"
    return f"{pairs}; the d − k zeros of H left out{of_h}{parts}"


def _of_blocks(source: Source, blocks: str, options: Options, started: float) -> Diagnosis:
    """Tokens alone, where only the names of blocks are known."""
    if options.spectra:
        raise InputError("blocks= selects modules whose attention is unknown: no spectra; pass spectra=False")
    model = source.model
    check_finite(model)
    if source.inputs is None:
        raise InputError("there are no inputs, and blocks= has no default ones; give a tensor or a dict")
    source.about_mode()
    with ONE_AT_A_TIME, in_its_own_mode(model):
        layers, tokens, width = layers_of_blocks(model, source.inputs, blocks, options.ranks, options.left_out)
    parameters, names = list(model.parameters()), [layer.name for layer in layers[1:]]
    facts: ModelFacts = {
        "name": source.name,
        "stack": blocks,
        "layers": len(names),
        "shared": len(set(names)) < len(names),
        "width": width,
        "heads": 0,
        "parameters": sum(p.numel() for p in parameters),
    }
    device = parameters[0].device if parameters else "cpu"
    made = provenance(started, device, source.inputs, tokens, options.ranks, options.left_out)
    made["joined_inputs"] = 0
    notes = [*source.notes, *input_notes(None, tokens), *options.notes(), Note("tokens_only")]
    return source.diagnosis(facts, made, layers, notes)


def _extrapolate(
    sample: Sample, source: Source, options: Options, first: Batch | Tensor, disk: OnDisk | None = None
) -> list[Extrapolation]:
    if not options.spectra or not options.depth:
        return []
    several, A = len({block.block for block in sample.plan.blocks}) > 1, sample.last.A
    if A is None or int(A.valid_count()[0, 0]) < 2:
        source.notes.append(Note("single_token"))
        return []
    modules = dict(source.model.named_modules(remove_duplicate=False))
    entries = [last_block(sample, modules, options.depth, options.seed, exact=options.exact)]
    if several and disk is not None:
        source.notes.append(Note("stack_skipped", text="its blocks are not in memory together"))
    elif several:
        passes = max(1, round(min(options.depth, _STACK_BLOCKS) / len(sample.plan.blocks)))
        entries.append(whole_stack(sample, modules, passes))
    source.notes += [Note("real_blocks_failed", what=entry.what) for entry in entries if entry.real is None]
    special = options.left_out is not None
    special |= isinstance(first, Batch) and first.special is not None and bool(first.special[:1].any())
    for entry in entries:
        entry.notes += [Note("special_counted")] if special else []
        entry.note = "; ".join(str(one) for one in (entry.reason, *entry.notes) if one is not None)
    return entries
