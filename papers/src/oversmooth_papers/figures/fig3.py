"""Dovonon et al.'s figure 3: the three notions per layer of a model forced to sharpen, forced to smooth, left alone.

    oversmooth reproduce fig3 -o fig3.png                        untrained: a ViT-Ti of ours
    oversmooth reproduce fig3 MODEL --data IMAGES -o fig3.png    untrained and as it is, steered from its own weights
    oversmooth reproduce fig3 PLAIN SMOOTH SHARPEN --data IMAGES -o fig3.png    three that `oversmooth train` wrote
    oversmooth reproduce fig3 --trained --data IMAGES -o fig3.png               those of table 2

The paper trains each of the three, which is what the last two commands show; no numbers were published beside the
drawing. Untrained models start cold, as the paper initialises them. One trained model is steered from its own weights
and not trained again: what is drawn is what forcing its spectra does to it. Three are shown as they were trained, and
beside each its untrained twin of the same seed, which is what it began as.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from oversmooth.diagnosis.diagnose import diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import Inputs
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.models import Loaded, load
from oversmooth.report.charts.base import Drawing, Panel, Shown, chart, shown
from oversmooth.report.charts.depth import notions
from oversmooth.report.charts.pieces import by_model, depth_axis, inline, nominal, quantitative
from oversmooth.report.style import Medium
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import seeded
from oversmooth.steering import Spectral, steer
from oversmooth_papers.engine.saved_model import recipe_of
from oversmooth_papers.tasks.images.recipe import Recipe, percent

FIGURE = "steered"
"""The chart that it is."""
Mode = Literal["sharpen", "smooth"]
_NAMES: dict[Mode | None, str] = {None: "left alone", "sharpen": "sharpening", "smooth": "smoothing"}
_MODES: dict[str, Mode | None] = {"plain": None, "sharpen": "sharpen", "smooth": "smooth"}
"""Of recipes' variants."""


@dataclass(frozen=True)
class SteeredCase:
    """One line of the figure; state: "untrained", "trained", or "trained" with on what."""

    state: str
    mode: Mode | None
    make: Callable[[], Loaded]
    start: Literal["warm", "cold"] | None = "cold"
    """From what it is steered; None where it was trained steered."""

    @property
    def name(self) -> str:
        return f"{self.state}, {_NAMES[self.mode]}"


def cases(models: Sequence[str] = (), seed: int = 0, device: str | None = None) -> list[SteeredCase]:
    """Untrained, and trained where models are given; each sharpening, smoothing and left alone."""
    if len(models) > 1:
        return _trained_so(models, device)
    if not models:
        return [SteeredCase("untrained", mode, partial(_own, seed, device)) for mode in _NAMES]
    as_it_began = partial(load, models[0], random=True, seed=seed, device=device)
    return [
        *(SteeredCase("untrained", mode, as_it_began) for mode in _NAMES),
        *(SteeredCase("trained", mode, partial(load, models[0], device=device), "warm") for mode in _NAMES),
    ]


def _trained_so(models: Sequence[str], device: str | None) -> list[SteeredCase]:
    """Models that were trained sharpening, smoothing and plain, in any order."""
    by_mode: dict[Mode | None, tuple[str, Recipe]] = {}
    for model in models:
        recipe = recipe_of(Path(model))
        if not isinstance(recipe, Recipe) or recipe.variant not in _MODES:
            raise InputError(
                f"{model} is no plain, smooth or sharpen ViT that oversmooth train wrote; give three that are"
            )
        by_mode[_MODES[recipe.variant]] = model, recipe
    if not len(models) == len(by_mode) == len(_NAMES):
        given = ", ".join(recipe.variant for _, recipe in by_mode.values())
        raise InputError(f"{len(models)} models were given, of {given}; give one each of plain, smooth and sharpen")
    plain = by_mode[None][1]
    for mode, (model, recipe) in by_mode.items():
        if (differs := replace(recipe, variant="plain", seed=plain.seed).difference(plain)) is not None:
            raise InputError(
                f"{model} ({_NAMES[mode]}) is not to be compared with the plain one: {differs}; give its like"
            )

    on = f"trained on {percent(plain.share)} of {plain.data}"
    return [
        SteeredCase(state, mode, partial(load, model, random=state == "untrained", seed=own.seed, device=device), None)
        for state in ("untrained", on)
        for mode, (model, own) in ((mode, by_mode[mode]) for mode in _NAMES)
    ]


def run(case: SteeredCase, inputs: Callable[[Loaded], Inputs], seed: int = 0) -> Diagnosis:
    """A case, steered and diagnosed."""
    loaded = case.make()
    if case.mode is not None and case.start is not None:
        # Bounded, so that what is called sharpening cannot flip back to smoothing.
        steer(loaded.model, Spectral(case.mode, bounded=True, start=case.start, seed=seed))
    about = {"state": case.state, "mode": case.mode or "plain"}
    return diagnose(loaded.model, inputs(loaded), name=case.name, about=about, depth=0, joined=1, seed=seed)


def _own(seed: int, device: str | None) -> Loaded:
    """ViT-Ti with patches of 4, which a CPU runs in seconds."""
    from oversmooth_papers.tasks.images.recipe import Shape
    from oversmooth_papers.tasks.images.vit import ViT

    with seeded(seed):
        model = ViT(Shape(patch=4))
    steps = Preprocessing(size=(32, 32))
    return Loaded(model.eval().to(device or "cpu"), "ViT-Ti", "vision", preprocessing=steps, argument="images")


@chart(
    title="Sharpening, smoothing and left alone",
    in_page=False,
    arranged={
        "columns": 1,
        "spacing": 48,
        "resolve": {"scale": {"color": "independent", "strokeWidth": "independent"}},
    },
)
def steered(models: list[Shown], medium: Medium) -> Drawing:
    """The three notions and what the spectra predict beside them, a row a state of training."""
    rows = []
    for state in dict.fromkeys(m.diagnosis.model["state"] for m in models if "state" in m.diagnosis.model):
        group = shown([m.diagnosis for m in models if m.diagnosis.model.get("state") == state], medium)
        panels = notions(group, medium) + _smoothing_shares(group, medium)
        if panels:
            row = [{**panel.spec, "title": panel.title} for panel in panels]
            rows.append(Panel("", {"hconcat": row, "spacing": 64, "bounds": "flush"}))
    return Drawing(rows)


def _smoothing_shares(models: list[Shown], medium: Medium) -> list[Panel]:
    """By layer, the share of cases in which the smoothing eigenvalue dominates."""
    rows = [
        {"model": m.key, "depth": depth, "value": layer.dominance.smoothing_share}
        for m in models
        for depth, layer in enumerate(m.diagnosis.layers)
        if layer.dominance
    ]
    if not rows:
        return []
    scale = {"domain": [-0.04, 1.04], "nice": False}
    # Shares are often the same, 0 or 1: the first line is the broadest, so that it shows under the others.
    broad = nominal("model", [m.key for m in models], [1.5 + 2 * i for i in reversed(range(len(models)))], None)
    encoding = {
        "x": depth_axis(max(len(m.diagnosis.layers) for m in models)),
        "y": quantitative("value", "smoothing cases", scale, format="~%", values=[0, 0.25, 0.5, 0.75, 1]),
        "color": by_model(models, medium),
        "strokeWidth": broad,
    }
    spec = {**medium.size(210, 190), "data": inline(rows), "mark": "line", "encoding": encoding}
    return [Panel("predicted from spectra", spec)]
