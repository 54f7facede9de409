"""The diagnosis of every family held against the oracle, column by column of the table in docs/models.md.

Each check raises AssertionError with what is wrong and by how much, and returns "" where all is right or, where the
right answer is no number, the sentence that says why.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from adversary.numbers import family_oracle as oracle
from adversary.numbers.family_cases import CASES
from adversary.numbers.family_oracle import Passage
from support.families import HEADS, Family, Refused, run
from support.nightly import some
from torch import Tensor, nn

from oversmooth import Diagnosis, InputError, diagnose
from oversmooth.anatomy import Anatomy, locate

NO_PADDING = "takes no padding"
NO_FILE = "its factors are in no weight of a known name"
_REASONS = {"token": ("token",), "sink": ("sink", "row", "less than one", "less than 1")}


# Diagnoses, each made once


@functools.cache
def diagnosis(name: str, how: str = "padded", implementation: str = "") -> Diagnosis:
    case, usual = CASES[name], how == "padded" and not implementation
    model = case.make()
    if implementation:
        model.set_attn_implementation(implementation)
    amount = dict(joined=2, ranks=4) if usual else dict(joined=0, ranks=0)
    depth = 2 if usual and case.gated else 0  # more depth must not be told of what has no verdict
    return diagnose(model, case.inputs(how=how), name=name, depth=depth, **amount, **case.settings)


def of(name: str, how: str = "padded") -> tuple[Family, Diagnosis, list[Passage], list[oracle.Sequence]]:
    case, passages = CASES[name], oracle.passages(name, how)
    return case, diagnosis(name, how), passages, case.together(how, passages[0].x)


def attending(found: Diagnosis, passages: list[Passage]) -> Iterator[tuple[Any, Passage]]:
    """The blocks with attention; no spectra are given of the others."""
    for layer, passage in zip(found.layers[1:], passages, strict=True):
        if passage.heads is not None:
            yield layer, passage
        else:
            assert layer.spectrum is None, f"{layer.name}: a spectrum, and it has no attention"
            assert layer.dominance is None, f"{layer.name}: dominance, and it has no attention"


# Comparisons


def near(got: Any, expected: Any, what: str, tolerance: float = 1e-4) -> None:
    got, expected = float("nan") if got is None else float(got), float(expected)
    off = abs(got - expected)
    assert off <= tolerance * max(1.0, abs(expected)), f"{what}: {got:.6g}, and {expected:.6g} is true"


def same_tokens(found: Diagnosis, arrays: list[Tensor], which: list[oracle.Sequence], tolerance: float = 1e-4) -> None:
    """Every metric before the first block and after each one."""
    assert len(found.layers) == len(arrays), f"{len(found.layers) - 1} blocks, and {len(arrays) - 1} is true"
    for layer, X in zip(found.layers, arrays, strict=True):
        for metric, values in oracle.over_sequences(X, which).items():
            # Ranks may be left out; the cosine with a token of zeros (Mllama's padding patches) has no meaning.
            if metric in layer.tokens and not values.isnan().any():
                near(layer.tokens[metric], values.mean(), f"{layer.name}: {metric}", tolerance)
        assert {"hfc_lfc", "log_hfc_lfc", "cos", "abs_cos"} <= set(layer.tokens)


def same_changes(
    found: Diagnosis,
    course: tuple[oracle.Step, ...],
    states: list[list[Tensor] | None],
    which: list[oracle.Sequence],
    tolerance: float = 1e-4,
) -> None:
    """The parts by name, what each changed, and that all of them together are the block's change."""
    for layer, through in zip(found.layers[1:], states, strict=True):
        if through is None:  # without attention
            assert [change.part for change in layer.changes] == ["block"]
            continue
        wanted = [step.part for step in course]
        parts = [change.part for change in layer.changes]
        assert parts == wanted, f"{layer.name}: parts {', '.join(parts)}, and {', '.join(wanted)} is true"
        truth = oracle.changes(through, which)
        for change, true in zip(layer.changes, truth, strict=True):
            for metric, value in true.items():
                near(getattr(change, metric), value, f"{layer.name}: {metric} by {change.part}", tolerance)
        whole = oracle.changes([through[0], through[-1]], which)[0]["log_hfc_lfc"]
        got = sum(change.log_hfc_lfc or 0.0 for change in layer.changes)
        near(got, whole, f"{layer.name}: all changes together", tolerance * len(parts))


def same_eigenvalues(found: Any, H: Tensor, what: str, tolerance: float = 1e-4) -> None:
    """Each has a partner in the dense spectrum, and each of those that is not zero has one here."""
    got = torch.complex(torch.tensor(found.real, dtype=torch.float64), torch.tensor(found.imag, dtype=torch.float64))
    true = torch.linalg.eigvals(H)
    size = float(true.abs().max())
    assert len(got), f"{what}: no eigenvalues"
    away = (got[:, None] - true[None]).abs()
    off = max(float(away.amin(1).max()), float(away.amin(0)[true.abs() > 1e-3 * size].max())) / size
    assert off <= tolerance, f"{what}: eigenvalues off by {off:.2g}"


def said(found: Diagnosis) -> list[str]:
    """All reasons and remarks."""
    reasons = [why for layer in found.layers if layer.dominance for why in layer.dominance.undecided_because]
    return [*reasons, *found.remarks, *(entry.note for entry in found.extrapolation if entry.note)]


def no_verdict(case: Family, found: Diagnosis) -> str:
    """That nothing is decided, and the sentence that says why."""
    for layer in found.layers[1:]:
        words = {word for row in layer.dominance.verdict_heads for word in row} if layer.dominance else set()
        words |= set(layer.dominance.joined_verdict) if layer.dominance else set()
        assert words <= {"undecided"}, f"{layer.name}: {', '.join(sorted(words))}, and no verdict is right"
    decided = [entry.what for entry in found.extrapolation if entry.verdict in ("smooth", "rough")]
    assert not decided, f"a verdict on more depth ({', '.join(decided)}), and none is right"
    reasons = [why for why in said(found) if any(word in why.lower() for word in _REASONS[case.gated])]
    assert reasons, f"no reason is given that has one of {_REASONS[case.gated]}"
    return reasons[0]


# Columns


def check_tokens(name: str, how: str = "padded") -> str:
    _, found, passages, which = of(name, how)
    same_tokens(found, [passages[0].x, *(p.y for p in passages)], which)
    rows, counts = len(passages[0].x), [len(places) for _, places in which]
    inputs, tokens = found.provenance["inputs"], found.provenance["tokens"]
    assert inputs in (rows, len(which)), f"{inputs} inputs, and {rows} is true"
    if rows == len(which):
        assert tokens == [min(counts), max(counts)], f"tokens {tokens}, and {[min(counts), max(counts)]} is true"
    elif rows > len(which):
        assert any("token" in why for why in found.remarks), "an input is left out, and no remark says so"
    return ""


def check_changes(name: str, how: str = "padded") -> str:
    case, found, passages, which = of(name, how)
    unexplained = [layer for layer in found.layers[1:] for c in layer.changes if c.log_hfc_lfc is None]
    if case.may_decline and unexplained:
        reasons = [why for why in found.remarks if unexplained[0].name in why]
        assert reasons, f"{unexplained[0].name}: a change is left out without a remark"
        return reasons[0]
    _same_parts(case, found, passages, which)
    _same_attention_out(case, found, passages, which)
    return ""


def _same_parts(
    case: Family, found: Diagnosis, passages: list[Passage], which: list[oracle.Sequence], tolerance: float = 1e-4
) -> None:
    """By the case's course, or by the other one where there are two."""
    try:
        own = [p.states if p.place in case.runs else None for p in passages]
        same_changes(found, case.course, own, which, tolerance)
    except AssertionError as first:
        if not case.other_course:
            raise
        try:
            same_changes(found, case.other_course, [p.other_states for p in passages], which, tolerance)
        except AssertionError as second:
            raise AssertionError(f"{first}; or {second}") from second


def _same_attention_out(case: Family, found: Diagnosis, passages: list[Passage], which: list[oracle.Sequence]) -> None:
    if case.other_course:
        return
    place = case.attention_step
    place += place + 1 < len(case.course) and case.course[place + 1].part == "norm"
    for layer, passage in attending(found, passages):
        assert layer.attention_out is not None, f"{layer.name}: nothing after attention"
        true = oracle.over_sequences(passage.states[place + 1], which)
        for metric in ("hfc_lfc", "log_hfc_lfc", "cos", "abs_cos"):
            near(layer.attention_out[metric], true[metric].mean(), f"{layer.name}: {metric} after attention")


def check_rho(name: str, how: str = "padded") -> str:
    """H of each head, its two radii and the verdict."""
    case, found, passages, which = of(name, how)
    for layer, passage in attending(found, passages):
        assert layer.spectrum is not None, f"{layer.name}: no spectrum"
        _same_heads(case, layer, passage)
        _same_inverse_sigma(layer, passage, which)
        if case.gated:
            continue
        assert layer.dominance is not None, f"{layer.name}: no dominance"
        rows, margins = layer.dominance.rho_rough_heads, []
        assert len(rows) == len(which), f"{layer.name}: {len(rows)} inputs, and {len(which)} is true"
        for i, sequence in enumerate(which):
            smooth, rough = oracle.head_radii(passage.heads, oracle.attention_among(passage, sequence))
            for h in range(HEADS):
                where = f"{layer.name}: head {h} of input {i}"
                near(layer.dominance.rho_smooth_heads[h], smooth[h], f"{where}: ρ_smooth", 1e-3)
                near(rows[i][h], rough[h], f"{where}: ρ_rough", 1e-3)
                _same_verdict(layer.dominance.verdict_heads[i][h], float(smooth[h] - rough[h]), where)
                margins.append(float(smooth[h] - rough[h]))
        if min(map(abs, margins)) > 1e-3:
            share = sum(margin > 0 for margin in margins) / len(margins)
            near(layer.dominance.smoothing_share, share, f"{layer.name}: share of smoothing heads")
    return no_verdict(case, found) if case.gated else ""


def _same_inverse_sigma(layer: Any, passage: Passage, which: list[oracle.Sequence]) -> None:
    """The mean of 1/σ over the same inputs as everything, σ about the mean of features or about zero.

    With what norms add to σ² where tokens are all zeros (Mllama's padding patches): without it the mean is infinite.
    """
    got, ways = layer.spectrum.inverse_sigma, []
    for x in (passage.x, passage.x - passage.x.mean(-1, keepdim=True)):
        for epsilon in (0.0, 1e-6, 1e-5):
            inverse = (x.square().mean(-1) + epsilon).rsqrt()
            ways.append(float(torch.stack([inverse[i, places].mean() for i, places in which]).mean()))
    off = 0.0 if got is None else min(abs(got - way) / way for way in ways if math.isfinite(way))
    assert off < 1e-3, f"{layer.name}: mean 1/σ: {got:.6g}, and one of {', '.join(f'{w:.6g}' for w in ways)} is true"


def _same_heads(case: Family, layer: Any, passage: Passage) -> None:
    modules = dict(case.make(torch.float64).named_modules())
    ways = case.product(modules, passage.place) if case.product else [passage.heads.W_V]
    errors = []
    for W_V in ways:
        try:
            for h, head in enumerate(layer.spectrum.heads["raw"]):
                same_eigenvalues(head, W_V[h] @ passage.heads.W_O[h], f"{layer.name}: H of head {h}")
            return
        except AssertionError as error:
            errors.append(error)
    raise errors[0]


def _same_verdict(got: str, margin: float, where: str) -> None:
    if abs(margin) > 1e-3:
        true = "smooth" if margin > 0 else "rough"
        assert got == true, f"{where}: {got}, and {true} is true (by {margin:.2g})"


def check_joined(name: str) -> str:
    """All heads together: H, and the radii of the whole matrix."""
    case, found, passages, which = of(name)
    for place, (layer, passage) in enumerate(attending(found, passages)):
        if not case.product:
            same_eigenvalues(layer.spectrum.joined["raw"], passage.heads.H.sum(0), f"{layer.name}: H")
        if case.gated or place >= 2:  # the whole matrix is slow
            continue
        assert layer.dominance is not None, f"{layer.name}: no dominance"
        rows = len(layer.dominance.joined_rho_rough)
        assert rows == len(which), f"{layer.name}: {rows} inputs, and {len(which)} is true"
        for i, sequence in enumerate(which):
            smooth, rough = oracle.joined_radii(passage.heads, oracle.attention_among(passage, sequence))
            where = f"{layer.name}: all heads, input {i}"
            near(layer.dominance.joined_rho_smooth[i], smooth, f"{where}: ρ_smooth", 1e-3)
            near(layer.dominance.joined_rho_rough[i], rough, f"{where}: ρ_rough", 1e-3)
            _same_verdict(layer.dominance.joined_verdict[i], smooth - rough, where)
    return no_verdict(case, found) if case.gated else ""


def check_padding(name: str) -> str:
    """Without a mask, and with padding on the left where tokens are words."""
    case = CASES[name]
    if case.mask() is None:
        return NO_PADDING
    check_tokens(name)
    for how in case.other_ways():
        try:
            check_tokens(name, how)
            check_changes(name, how)
            check_rho(name, how)
        except AssertionError as error:
            raise AssertionError(f"{how}: {error}") from error
    return ""


def check_bf16(name: str) -> str:
    """Against the states of the same model in bfloat16, also with a massive token."""
    case = CASES[name]
    for massive in (False, True) if case.massive else (False,):
        model, heard = (case.make(torch.bfloat16) for _ in range(2))
        if massive:
            model, heard = _massive(model, case), _massive(heard, case)
        given = case.inputs(torch.bfloat16)
        passages = oracle.listen(case, heard)
        run(heard, given)
        for passage in passages:
            oracle.tell(case, dict(heard.named_modules()), passage)
        which = case.together("padded", passages[0].x)
        found = diagnose(model, given, joined=0, depth=0, ranks=0, **case.settings)
        try:
            arrays = [passages[0].x, *(p.y for p in passages)]
            same_tokens(found, arrays, which, 1e-2)
            if massive:
                _same_without_massive(found, arrays, which)
            declined = any(c.log_hfc_lfc is None for layer in found.layers[1:] for c in layer.changes)
            if not (case.may_decline and declined):
                _same_parts(case, found, passages, which, 1e-2)
        except AssertionError as error:
            raise AssertionError(("with a massive token: " if massive else "") + str(error)) from error
    return ""


def _same_without_massive(found: Diagnosis, arrays: list[Tensor], which: list[oracle.Sequence]) -> None:
    """The metrics of the rest, which a massive token would hide; massive: over five times the median norm."""
    for layer, X in zip(found.layers, arrays, strict=True):
        rest = []
        for i, places in which:
            norms = X[i, places].double().norm(dim=-1)
            rest.append((i, places[norms <= 5 * norms.median()]))
        if all(len(a) == len(b) for (_, a), (_, b) in zip(rest, which, strict=True)):
            continue
        assert layer.without_massive is not None, f"{layer.name}: a massive token is not seen"
        for metric in ("log_hfc_lfc", "cos"):
            true = oracle.over_sequences(X, rest)[metric].mean()
            near(layer.without_massive[metric], true, f"{layer.name}: {metric} without massive tokens", 1e-2)


@torch.no_grad()
def _massive(model: nn.Module, case: Family) -> nn.Module:
    """The first token of every input a thousand times as large."""
    weight = dict(model.named_parameters())[case.massive]
    given = case.given("padded")
    rows = given["input_ids"][:, 0].unique() if isinstance(given, dict) and "input_ids" in given else slice(None)
    weight[rows] *= 1e3
    return model


def check_sdpa(name: str) -> str:
    """The same numbers with attention computed step by step."""
    case = CASES[name]
    if case.library != "transformers":
        return ""
    fused, eager = diagnosis(name), diagnosis(name, implementation="eager")
    for a, b in zip(fused.layers, eager.layers, strict=True):
        for metric, value in b.tokens.items():
            near(a.tokens[metric], value, f"{a.name}: {metric}")
        assert [c.part for c in a.changes] == [c.part for c in b.changes], f"{a.name}: other parts"
        for c, d in zip(a.changes, b.changes, strict=True):
            near(c.log_hfc_lfc, d.log_hfc_lfc, f"{a.name}: {c.part}")
        for x, y in zip(
            *((layer.dominance.rho_rough_heads if layer.dominance else []) for layer in (a, b)), strict=True
        ):
            for v, w in zip(x, y, strict=True):
                assert (v is None) == (w is None)
                near(v or 0.0, w or 0.0, f"{a.name}: ρ_rough", 1e-3)
    return ""


@contextmanager
def on_disk(case: Family) -> Iterator[Anatomy]:
    """What anatomy finds in a checkpoint; without a configuration it is told heads and norm."""
    model = case.make()
    with tempfile.TemporaryDirectory() as folder:
        if case.library == "transformers":
            model.save_pretrained(folder)
            yield locate(folder, **case.settings)
        else:
            file = Path(folder) / "weights.pt"
            torch.save(model.state_dict(), file)
            yield locate(file, heads=HEADS, norm=case.norm or None)


def check_disk(name: str) -> str:
    """W_V and W_O with the factor, and the norm, from a checkpoint."""
    case, passages = CASES[name], [one for one in oracle.passages(name) if one.heads is not None]
    if not case.on_disk:
        return NO_FILE
    with on_disk(case) as layers:
        assert len(layers) == len(passages), f"{len(layers)} layers, and {len(passages)} is true"
        for layer, passage in zip(layers, passages, strict=True):
            same_layer(case, layer, passage)
    return ""


def same_layer(case: Family, layer: Any, passage: Passage) -> None:
    modules = dict(case.make(torch.float64).named_modules())
    ways = case.product(modules, passage.place) if case.product else [passage.heads.W_V]
    off = min(_off(layer.W_V, W_V) for W_V in ways)
    assert off < 1e-5, f"{layer}: W_V off by {off:.2g}"
    off = _off(layer.W_O, passage.heads.W_O)
    assert off < 1e-5, f"{layer}: W_O with its factor off by {off:.2g}"
    near(layer.keep, passage.heads.keep, f"{layer}: keep")
    same_norm(case, layer, passage)


def same_norm(case: Family, layer: Any, passage: Passage) -> None:
    """Where it stands, and that it gives what attention got; a norm that is not known is right as well."""
    if layer.norm is None or not case.norm:
        return
    position = layer.norm_position
    assert position == case.norm, f"{layer}: the norm is {position}, and {case.norm} is true"
    if position != "pre":
        return
    z = passage.x - passage.x.mean(-1, keepdim=True) if layer.norm.kind == "layer" else passage.x
    z = z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.gamma.double()
    z = z if layer.norm.beta is None else z + layer.norm.beta.double()
    off = _off(z, passage.heard["in:" + case.value])
    assert off < 1e-2, f"{layer}: its norm off by {off:.2g}"


def _off(got: Tensor, true: Tensor) -> float:
    if got.shape != true.shape:
        return float("inf")
    return float((got.double() - true).abs().max() / true.abs().max())


COLUMNS: dict[str, Callable[[str], str]] = {
    "tokens": check_tokens,
    "changes": check_changes,
    "ρ per head": check_rho,
    "joined": check_joined,
    "padding": check_padding,
    "bf16": check_bf16,
    "sdpa and eager": check_sdpa,
    "disk": check_disk,
}


@functools.cache
def outcome(column: str, name: str) -> str | Exception:
    """Of one cell, which is made once for the tests and for the table: "", a sentence, or what is wrong."""
    try:
        return COLUMNS[column](name)
    except InputError as error:
        return str(error) if CASES[name].may_decline else error
    except Exception as error:
        return error


@functools.cache
def refusal(model: Refused) -> str:
    """What is said of a model that cannot be looked at; AssertionError where it does not name the reason."""
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            diagnose(model.build().eval(), model.given(), depth=0)
    except InputError as error:
        text = str(error)
        assert any(word in text.lower() for word in model.says), f"none of {model.says} in: {text}"
        return text
    raise AssertionError(f"{model.name} is not refused")


def usable() -> list[str]:
    from support import timm_models

    return [name for name, case in CASES.items() if case.library != "timm" or timm_models.available()]


def sampled() -> list[str]:
    """One family in fifteen and half of our own modules; all of them in `make nightly`."""
    own = [name for name in usable() if name.startswith("own")]
    libraries = [name for name in usable() if name not in own]
    return [name for name in usable() if name in (*some(own, 2), *some(libraries, 15))]
