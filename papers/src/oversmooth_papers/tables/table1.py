"""Dovonon et al.'s table 1: in which share of cases the smoothing eigenvalue dominates.

    oversmooth reproduce table1 MODEL... --data IMAGES
    oversmooth reproduce table1 --trained --data IMAGES      table 2's models, all seeds that are there

What a case is was not published. One maximum over all pairs of eigenvalues (of A, of H) per image, layer and head is
the default here: it gives the published 100 % at random initialisation, which a vote per eigenvalue does not. The other
readings are options: all heads joined (the multi-head theorem), real parts only, H with the norm folded in.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.safety.errors import InputError
from oversmooth_papers.tables import table_text
from oversmooth_papers.tasks.images.recipe import Recipe, percent

PUBLISHED = {
    "ViT-B/16, random weights": 100.0,
    "ViT-B/16, ImageNet": 70.27,
    "DeiT-B/16, ImageNet": 57.82,
    "ViT-Ti, CIFAR-100": 98.92,
    "ViT-Ti⁺, CIFAR-100": 100.0,
    "ViT-Ti⁻, CIFAR-100": 0.0,
}
"""Smoothing eigenvalue, in % of cases; the rest is the sharpening one."""
COLUMNS = ("model", "smoothing %", "sharpening %", "tie %", "undecided %", "cases", "whose")
WORDS = ("smooth", "rough", "tie", "undecided")


def shares(diagnosis: Diagnosis, joined: bool = False) -> tuple[int, ...]:
    """Cases in which smoothing, the rough part, or neither dominates, and those that rounding could turn."""
    verdicts: list[str] = []
    for layer in diagnosis.layers:
        if layer.dominance:
            verdicts += layer.dominance.joined_verdict if joined else itertools.chain(*layer.dominance.verdict_heads)
    return tuple(verdicts.count(word) for word in WORDS)


def notes(diagnoses: Sequence[Diagnosis], joined: bool = False) -> list[str]:
    """What a reader must know to compare: what a case is, of what inputs, and on what ours were trained."""
    rules = sorted({d.provenance["counting_rule"] for d in diagnoses if d.smoothing_share is not None})
    rules = ["all heads of a layer together, per input and layer"] if joined else rules
    sentences = [f"A case: {rule}." for rule in rules]
    if any(shares(d, joined)[2] for d in diagnoses):
        sentences.append("A tie: both radii are the same as far as they were computed; the paper has no such column.")
    if any(shares(d, joined)[3] for d in diagnoses):
        why = "rounding of attention or of the weights could turn it"
        sentences.append(f"Undecided: {why}; the paper has no such column.")
    inputs = dict.fromkeys((int(d.provenance["inputs"]), str(d.provenance["data"])) for d in diagnoses)
    sentences += [f"Inputs of ours, {count:,} a model: {data}." for count, data in inputs]
    recipes = [recipe for d in diagnoses if (recipe := trained_by(d)) is not None]
    if recipes:
        saw = ", ".join(dict.fromkeys(f"{percent(r.share)} of {r.data}" for r in recipes))
        sentences.append(
            f"Our trained models saw {saw}; the published ViT-Ti are other models, and on what share they were "
            "trained was not published beside them. ± is the standard deviation over seeds (n − 1)."
        )
    return sentences


def trained_by(diagnosis: Diagnosis) -> Recipe | None:
    """The recipe of a model that `oversmooth train` wrote."""
    recipe = diagnosis.model.get("recipe")
    return None if recipe is None else Recipe.from_dict(recipe, f"the recipe of {diagnosis.name}")


def rows(diagnoses: Sequence[Diagnosis], joined: bool = False) -> list[tuple[str, ...]]:
    """A row per model; under models that differ in their seed alone, their mean."""
    groups: dict[str, list[Diagnosis]] = {}
    for index, diagnosis in enumerate(diagnoses):
        recipe = trained_by(diagnosis)
        key = str(index) if recipe is None else dataclasses.replace(recipe, seed=0).key
        groups.setdefault(key, []).append(diagnosis)
    lines: list[tuple[str, ...]] = []
    for group in groups.values():
        percents, cases = [], 0
        for one in group:
            counts = shares(one, joined)
            if not sum(counts):
                raise InputError(f"{one.name} has no cases to count: it was diagnosed without them; diagnose it again")
            percents.append([100 * count / sum(counts) for count in counts])
            cases += sum(counts)
            lines.append((one.name, *(f"{p:.2f}" for p in percents[-1]), f"{sum(counts):,}", "ours, this run"))
        recipes = [recipe for d in group if (recipe := trained_by(d)) is not None]
        if len(group) == len({recipe.seed for recipe in recipes}) > 1:
            means = [table_text.mean_and_spread(column) for column in zip(*percents, strict=True)]
            figures = [f"{mean:.2f} ± {spread:.2f}" for mean, spread in means]
            lines.append((f"{recipes[0].label}, {len(group)} seeds", *figures, f"{cases:,}", "ours, mean"))
    return lines + [(name, f"{v:.2f}", f"{100 - v:.2f}", "–", "–", "–", "published") for name, v in PUBLISHED.items()]
