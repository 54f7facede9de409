"""From a model and inputs to a `Diagnosis`: anatomy, observation, spectra and extrapolation put together."""

from __future__ import annotations

import datetime
import itertools
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from oversmooth._version import __version__
from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import NormPosition
from oversmooth.anatomy.live import check_finite, check_is_module, unwrapped
from oversmooth.anatomy.steered import steered_as
from oversmooth.diagnosis import weights
from oversmooth.diagnosis.blocks_alone import layers_of_blocks
from oversmooth.diagnosis.extrapolate import last_block, whole_stack
from oversmooth.diagnosis.layers import layers_observed
from oversmooth.diagnosis.one_input import one_input
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.metrics.moments import MASSIVE_RATIO
from oversmooth.results import verdict
from oversmooth.results.facts import ModelFacts, Provenance, plain
from oversmooth.results.parts import SPECIAL_COUNTED, Extrapolation
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.precision import float32_products
from oversmooth.safety.untouched import in_its_own_mode
from oversmooth.trace import ONE_AT_A_TIME, HeadSpectra, Reducer, Settings, TokenMetrics, Trace, study
from oversmooth.trace.feed import ModelInput, Runner
from oversmooth.trace.feed import OnProgress as OnProgress
from oversmooth.trace.plans import BY_INPUT, Plan
from oversmooth.trace.study import Sample

if TYPE_CHECKING:
    from oversmooth.models import Loaded

MOST_BLOCKS = 10_000
"""Limit of blocks to extrapolate over: each of them is run."""


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
    depth: int = 24,
    look: bool = True,
    exact: bool = False,
    seed: int = 0,
    about: dict[str, Any] | None = None,
    progress: OnProgress | None = None,
) -> Diagnosis:
    """Whether and where a model smooths, which part does it, and what the spectra predict.

    Args:
        model: a module, run as it is (mode, precision, device); a name or path, loaded with the matching library; or
            what `models.load` gave.
        inputs: a tensor, a dict of the model's arguments, or an iterable of either; by default the package's own prose
            or pictures, where the model says which preprocessing it needs.
        name: of the model in reports.
        tokenizer: for the default prose, with a language model given as a module.
        blocks: names of the blocks, such as "layers.*", of a model whose attention is not known: any modules that map
            (batch, n, d) to (batch, n, d). Only tokens are then measured, and ``spectra`` has to be False.
        stack, heads, norm: for `anatomy.locate`.
        spectra: False leaves out everything that needs attention itself.
        joined: inputs for which ρ_rough of all heads together is computed (slow).
        ranks: inputs whose ranks are computed exactly (slow).
        variant: "raw" compares as the papers do; "folded" and "observed" have the norm before the layer in H.
        rule: "complex" uses eigenvalues as they are, "real" only their real parts (per head).
        depth: blocks to extrapolate over; 0 for none.
        look: keep which tokens of the first input are alike, with their text or a small picture of it.
        exact: take no shortcut. Otherwise the effective rank of arrays of more than 1,024 tokens and features is
            sketched, |cos| of more than 4,096 tokens is sampled, and ρ_rough of all heads together has a budget.
        seed: of Arnoldi's random starts.
        about: further facts to keep in `Diagnosis.model`.
        progress: called after each batch with (inputs done, inputs in all or None, the current step).

    Returns:
        The measurements, predictions and verdict.

    Raises:
        InputError: an argument is wrong, or the model cannot be located, run or observed.
    """
    started = time.perf_counter()
    remarks: list[str] = []
    arguments.choice(variant, "variant", ("raw", "folded", "observed"))
    arguments.choice(rule, "rule", ("complex", "real"))
    joined, ranks = arguments.whole(joined, "joined"), arguments.whole(ranks, "ranks")
    depth = arguments.whole(depth, "depth", most=MOST_BLOCKS)
    spectra, seed = arguments.flag(spectra, "spectra"), arguments.seed(seed)
    look, exact = arguments.flag(look, "look"), arguments.flag(exact, "exact")
    if name is not None and not isinstance(name, str):
        raise InputError(f"name is {arguments.shown(name)}; give what the model is to be called, as text")
    if about is not None and not (isinstance(about, dict) and all(isinstance(key, str) for key in about)):
        raise InputError(f"about is {arguments.shown(about)}; give a dict of what is to be kept of the model")
    known: dict[str, Any] = {}
    if not isinstance(model, nn.Module):
        from oversmooth import models  # a module needs nothing of it

        loaded = models.load(str(model)) if isinstance(model, (str, Path)) else model
        if isinstance(loaded, models.Loaded):
            tokenizer = tokenizer or loaded.tokenizer
            name = name or loaded.name
            inputs = loaded.inputs() if inputs is None else inputs
            remarks += loaded.remarks
            known |= loaded.about
            model = loaded.model
    inside = unwrapped(check_is_module(model))
    if inside is not model:
        remarks.append(f"{type(model).__name__}: observed the module inside, whose outputs these are")
    if blocks is not None:
        if spectra:
            raise InputError("spectra need attention that is known, and blocks were named; give spectra=False")
        check_finite(inside)
        diagnosis = _of_blocks(inside, inputs, blocks, ranks, name or _name(inside), about or {}, started)
        diagnosis.remarks[:0] = remarks
        return diagnosis
    anatomy = locate(inside, stack=stack, heads=heads, norm=norm)
    remarks += anatomy.remarks
    check_finite(inside)
    mode = _mode(inside, remarks)
    if inputs is None:
        from oversmooth import models

        inputs = models.default_inputs(inside, tokenizer)
    run = Runner(inside, anatomy)
    batches = run.batches(inputs)
    first = next(batches, None)
    if first is None:
        raise InputError("there are no inputs; give at least one")

    with ONE_AT_A_TIME, torch.no_grad(), in_its_own_mode(inside):
        # Of a text the beginning shows where the stream is; more is wanted where the input itself is looked at.
        one = run.first_input(first) if spectra or look else run.short_input(first)
        sample = study(inside, anatomy, lambda: run(one), attention=spectra)
        plan, device = sample.plan, sample.blocks[0].x.device
        if variant != "raw" and not any(b.norm_position == "pre" and b.norm_agrees for b in plan.blocks):
            remarks.append(f"no known norm stands before attention here: H is raw, not {variant}")
            variant = "raw"
        special = isinstance(first, Batch) and first.special is not None and bool(first.special[:1].any())
        extrapolation = _extrapolate(sample, inside, depth, seed, special, remarks) if spectra and depth else []
        looked_at = one_input(sample.blocks, first, one, run.mask(one), tokenizer) if look else None
        del sample  # of the size of an input
        tokens = TokenMetrics(plan, ranks, exact=exact)
        settings = Settings(joined, variant, rule, seed, exact)
        dominance = HeadSpectra(plan, settings, steered_as(inside)) if spectra else None
        reducers: list[Reducer] = [tokens] if dominance is None else [tokens, dominance]
        with Trace(inside, plan, reducers) as trace:
            accuracy = _observe(trace, run, first, batches, inputs, progress)
        seen = trace.facts
        plan = plan.undecided(seen.input_dependent, BY_INPUT)
    remarks += _too_short(int((seen.lengths < 2).sum()), seen.inputs)
    if seen.packed:
        remarks.append(f"{seen.packed} texts came packed with others in one input: each is measured by itself")
    skipped = inputs.skipped if isinstance(inputs, Inputs) else []
    more = [f"{len(skipped) - 8} more inputs were skipped"] if len(skipped) > 8 else []
    remarks += [*sorted(seen.unread), *skipped[:8], *more, *_shortcuts(tokens.result.errors), *_doubts(plan)]
    with torch.autocast(device.type, enabled=False):
        layers = layers_observed(plan, tokens.result, dominance.result if dominance else None, seen.inputs)
    shared = len({block.layer.name for block in plan.blocks}) < len(plan.blocks)
    facts = weights.facts(name or _name(inside), anatomy, len(plan.blocks), shared)
    facts |= {
        "causal": facts["causal"] if seen.causal is None else seen.causal,
        "norm": plan.blocks[0].norm_position,
        "dtype": str(next(inside.parameters()).dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in inside.parameters()),
    }
    facts |= {**mode, "class": type(inside).__name__, **known, **(about or {})}  # type: ignore[typeddict-item]
    provenance = _provenance(started, device, inputs, seen.lengths.tolist(), seen.inputs, ranks)
    provenance |= {
        "seed": seed,
        "joined_inputs": min(joined, seen.inputs) if spectra else 0,
        "variant": variant,
        "counting_rule": "one maximum over all pairs of eigenvalues of A and of a head's H, per input, layer and "
        "head; the d − k zeros of H left out"
        + ("" if variant == "raw" else f"; H {variant}")
        + ("" if rule == "complex" else "; real parts of both spectra"),
        "massive_rule": f"norm over {MASSIVE_RATIO:g} times the median norm of the input's tokens, layer by layer",
        "top1": None if accuracy is None else plain(accuracy),
    }
    diagnosis = Diagnosis(
        model=facts,
        provenance=provenance,
        layers=layers,
        extrapolation=extrapolation,
        remarks=remarks,
        one_input=looked_at,
    )
    if (steering := steered_as(inside)) is not None:
        diagnosis.steering = steering.report()
        diagnosis.remarks += steering.remarks()
    diagnosis.verdict = verdict.sentences(diagnosis)
    return diagnosis


def _of_blocks(
    model: nn.Module, inputs: Any, blocks: str, ranks: int, name: str, about: dict[str, Any], started: float
) -> Diagnosis:
    """Tokens alone, where only the names of blocks are known."""
    remarks: list[str] = []
    if inputs is None:
        raise InputError("there are no inputs, and none are known for a model of one's own; give a tensor or a dict")
    mode = _mode(model, remarks)
    with ONE_AT_A_TIME, in_its_own_mode(model):
        layers, tokens, width = layers_of_blocks(model, inputs, blocks, ranks)
    remarks += _too_short(sum(length < 2 for length in tokens), len(tokens))
    parameters = list(model.parameters())
    names = [layer.name for layer in layers[1:]]
    facts: ModelFacts = {
        "name": name,
        "stack": blocks,
        "layers": len(names),
        "shared": len(set(names)) < len(names),
        "width": width,
        "heads": 0,
        "parameters": sum(p.numel() for p in parameters),
    }
    facts |= {**mode, "class": type(model).__name__, **about}  # type: ignore[typeddict-item]
    device = parameters[0].device if parameters else "cpu"
    provenance = _provenance(started, device, inputs, tokens, len(tokens), ranks)
    provenance["joined_inputs"] = 0
    remarks.append("blocks were named: their attention is not known, and tokens alone were measured")
    diagnosis = Diagnosis(model=facts, provenance=provenance, layers=layers, remarks=remarks)
    diagnosis.verdict = verdict.sentences(diagnosis)
    return diagnosis


def _too_short(short: int, inputs: int) -> list[str]:
    said = f"{short} of {inputs} inputs have fewer than two tokens that count: they are in no figure"
    return [said] if short else []


def _observe(
    trace: Trace,
    run: Runner,
    first: Batch | Tensor,
    rest: Iterator[Batch | Tensor],
    inputs: Any,
    progress: OnProgress | None,
) -> float | None:
    """Send all batches through the model; its accuracy on those that have labels, None where none has."""
    right = labelled = 0
    for batch, out in trace.over(run, itertools.chain([first], rest), inputs, progress):
        labels, logits = batch.labels if isinstance(batch, Batch) else None, getattr(out, "logits", out)
        scores = isinstance(logits, Tensor) and logits.ndim == 2 and logits.shape[1] == run.classes
        if labels is not None and scores:
            right += int((logits.argmax(-1).cpu() == labels.cpu()).sum())
            labelled += len(labels)
    return right / labelled if labelled else None


def _extrapolate(
    sample: Sample, model: nn.Module, depth: int, seed: int, special: bool, remarks: list[str]
) -> list[Extrapolation]:
    blocks, A = sample.plan.blocks, sample.blocks[-1].A
    if A is None or int(A.counted()[0, 0]) < 2:
        remarks.append("more depth was left out: the first input has a single token")
        return []
    modules = dict(model.named_modules(remove_duplicate=False))
    entries = [last_block(sample, modules, depth, seed)]
    if len({block.layer.name for block in blocks}) > 1:
        try:
            entries += whole_stack(sample, modules, max(1, round(2 * depth / len(blocks))), seed)
        except InputError as error:
            remarks.append(f"repeating the stack was left out: {error}")
    for entry in entries:
        if entry.real is None:
            remarks.append(
                f"repeating the {entry.what}: the blocks cannot be run by themselves, so there is no real course"
            )
        if special:
            entry.note = "; ".join(filter(None, [entry.note, SPECIAL_COUNTED]))
    return entries


def _shortcuts(errors: dict[str, float]) -> list[str]:
    """What is not exact, and by how much it may be off."""
    labels = {
        "abs_cos": "mean |cos| is sampled",
        "effective_rank": "the effective rank is sketched",
        "sigma_ratio": "stable rank, σ₂/σ₁ and the distance to rank one come from followed directions",
    }
    known = [(how, errors[name]) for name, how in labels.items() if name in errors]
    return [f"{how}, with an error of about {error:.2g}; exact=True avoids it" for how, error in known]


def _doubts(plan: Plan) -> list[str]:
    blocks = plan.blocks
    doubts, ran = [], {block.layer.name for block in blocks}
    if idle := [layer.name for layer in plan.anatomy or () if layer.name not in ran]:
        doubts.append(f"{len(idle)} attention layers did not run: {', '.join(idle[:4])}")
    if differs := [b for b in blocks if b.layer.norm is not None and b.norm_position != b.layer.norm_position]:
        doubts.append(
            f"{len(differs)} norms stand elsewhere than names suggest, {differs[0].layer.name} first: taken as seen, "
            f"{differs[0].norm_position}"
        )
    for why in dict.fromkeys(block.undecided for block in blocks if block.undecided):
        names = [block.layer.name for block in blocks if block.undecided == why]
        doubts.append(f"{len(names)} attention layers are undecided, {names[0]} first: {why}")
    without = [block for block in blocks if block.norm_position == "pre" and not block.norm_agrees]
    for found, why in (
        (True, "is not a LayerNorm or RMSNorm as known"),
        (False, "was not found by its name, such as norm1 or ln_1"),
    ):
        if names := [block.layer.name for block in without if (block.layer.norm is not None) == found]:
            doubts.append(
                f"in {len(names)} of {len(blocks)} layers, {names[0]} first, the norm before attention {why}: H is raw "
                "only, whatever the variant"
            )
    return doubts


def _mode(model: nn.Module, remarks: list[str]) -> dict[str, bool]:
    """Whether the model trains, which is added to the remarks, and drops anything: by a module, or by a function to
    which a module passes its share.
    """
    if not model.training:
        return {"training": False}
    shares = [m.p for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    shares += [v for m in model.modules() for k, v in vars(m).items() if "drop" in k and isinstance(v, float)]
    dropout = any(share > 0 for share in shares)
    how = ": dropout is active and part of what was measured" if dropout else ", without dropout"
    remarks.append(f"the model is in train mode{how}")
    return {"training": True, "dropout": dropout}


def _name(model: nn.Module) -> str:
    path = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    return Path(path).name or type(model).__name__


def _provenance(
    started: float, device: torch.device | str, inputs: Any, tokens: Iterable[int], count: int, ranks: int
) -> Provenance:
    tokens = list(tokens)
    made: dict[str, Any] = {
        "oversmooth": __version__,
        "platform": platform.platform(),
        "device": str(device),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 2),
        "data": inputs.what if isinstance(inputs, Inputs) else "given by the caller",
        "inputs": count,
        "tokens": [min(tokens), max(tokens)],
        "rank_inputs": min(ranks, count),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for library in ("transformers", "timm"):
        if library in sys.modules:
            made[library] = str(getattr(sys.modules[library], "__version__", "unknown"))
    return cast("Provenance", made)
