"""The first paper's figure 3: the three notions per layer of a model forced to sharpen, forced to smooth, left alone.

    oversmooth reproduce fig3 -o fig3.png                        untrained: a ViT-Ti of ours
    oversmooth reproduce fig3 MODEL --data IMAGES -o fig3.png    untrained and as it is, steered from its own weights

The paper trains each of the three; no numbers were published beside the drawing. Untrained models start cold, as the
paper initialises them. A trained model that is given is steered from its own weights and not trained again: what is
drawn is what forcing its spectra does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from oversmooth.diagnosing import Progress, diagnose
from oversmooth.diagnosis import Diagnosis
from oversmooth.inputs import Inputs, Preprocessing
from oversmooth.models import Loaded, load
from oversmooth.steering import Spectral, steer

FIGURE = "steered"
"""The figure of `report.figures` that it is."""
Mode = Literal["sharpen", "smooth"]
_NAMES: dict[Mode | None, str] = {None: "left alone", "sharpen": "sharpening", "smooth": "smoothing"}


@dataclass(frozen=True)
class Case:
    """One line of the figure."""

    state: str
    """"untrained" or "trained"."""
    mode: Mode | None
    make: Callable[[], Loaded]

    @property
    def name(self) -> str:
        return f"{self.state}, {_NAMES[self.mode]}"


def cases(model: str | None, seed: int = 0, device: str | None = None) -> list[Case]:
    """Untrained, and trained where a model is given; each sharpening, smoothing and left alone."""

    def untrained() -> Loaded:
        return _own(seed, device) if model is None else load(model, random=True, seed=seed, device=device)

    def trained() -> Loaded:
        assert model is not None
        return load(model, device=device)

    states: list[tuple[str, Callable[[], Loaded]]] = [("untrained", untrained)]
    if model is not None:
        states.append(("trained", trained))
    return [Case(state, mode, make) for state, make in states for mode in _NAMES]


def run(case: Case, inputs: Callable[[Loaded], Inputs], seed: int = 0, progress: Progress | None = None) -> Diagnosis:
    """A case, steered and diagnosed."""
    loaded = case.make()
    if case.mode is not None:
        begin: Literal["warm", "cold"] = "warm" if case.state == "trained" else "cold"
        # Bounded, so that what is called sharpening cannot flip back to smoothing.
        steer(loaded.model, Spectral(case.mode, bounded=True, start=begin, seed=seed))
    settings: dict[str, Any] = dict(depth=0, joined=1, seed=seed)
    diagnosis = diagnose(loaded.model, inputs(loaded), name=case.name, progress=progress, **settings)
    diagnosis.model["state"] = case.state
    return diagnosis


def groups(diagnoses: list[Diagnosis]) -> Iterator[tuple[str, list[Diagnosis]]]:
    """By state, in order."""
    for state in dict.fromkeys(str(d.model.get("state", "")) for d in diagnoses):
        yield state, [d for d in diagnoses if str(d.model.get("state", "")) == state]


def _own(seed: int, device: str | None) -> Loaded:
    """ViT-Ti with patches of 4, which a CPU runs in seconds."""
    from oversmooth.train.vit import Shape, ViT

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = ViT(Shape(patch=4))
    steps = Preprocessing(size=(32, 32))
    return Loaded(model.eval().to(device or "cpu"), "ViT-Ti", "vision", preprocessing=steps, argument="images")
