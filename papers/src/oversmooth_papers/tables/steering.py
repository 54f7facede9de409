"""What each method and strength does to a trained model, without any training: the curves, the prediction, top-1.

    oversmooth reproduce steering MODEL --data IMAGES --inputs 1000 -o steering.md

Not in either paper, which train with their methods from the start: here a model that never saw them is changed under
way, and most of what is changed is lost. It says what a method does, not what it is worth.
"""

from __future__ import annotations

from collections.abc import Sequence

from oversmooth import steering as ways
from oversmooth.diagnosis.diagnose import OnProgress, diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import Inputs
from oversmooth.models import Loaded
from oversmooth.report.terminal import number
from oversmooth.safety.errors import InputError
from oversmooth.steering import Method, Spectral, steer, steering_of, unsteer

SWEEP: list[tuple[str, Method | None, str]] = [
    ("left alone", None, "all"),
    ("Spectral, sharpen", Spectral("sharpen"), "all"),
    ("Spectral, sharpen, first half", Spectral("sharpen"), "first half"),
    ("Spectral, sharpen, |λ| < 1", Spectral("sharpen", bounded=True), "all"),
    ("Spectral, sharpen, general", Spectral("sharpen", form="general"), "all"),
    ("Spectral, sharpen, wiring of the code", Spectral("sharpen", wiring="code"), "all"),
    ("Spectral, smooth", Spectral("smooth"), "all"),
    ("Spectral, smooth, first half", Spectral("smooth"), "first half"),
    *[(f"NeuTRENO, λ̃ = {s}", ways.NeuTRENO(s), "all") for s in (0.05, 0.2, 0.6)],
    *[(f"AttnScale, w = {s}", ways.AttnScale(s, learned=False), "all") for s in (-0.1, 0.1, 0.5)],
    *[(f"FeatScale, t = {s}", ways.FeatScale(0.0, s, learned=False), "all") for s in (0.1, 0.5)],
    *[(f"FeatScale, s = {s}", ways.FeatScale(s, 0.0, learned=False), "all") for s in (0.1, 0.5)],
    *[(f"ContraNorm, s = {s}", ways.ContraNorm(s), "all") for s in (0.1, 0.5)],
    *[(f"value residual, s = {s}", ways.ValueResidual(s), "all") for s in (0.05, 0.5)],
    *[(f"centred attention, s = {s}", ways.Centred(s), "all") for s in (0.1, 1.0)],
    *[(f"Laplacian heads, c = {s}", ways.Laplacian(s), "all") for s in (0.1, 1.0)],
    *[(f"orthogonal update, s = {s}", ways.OrthogonalUpdate(s), "all") for s in (0.1, 1.0)],
    *[(f"LayerNorm scaling, s = {s}", ways.LayerNormScaling(s), "all") for s in (0.1, 1.0)],
]
"""What changes a model without training: Inversion and GatedAttention learn all that they do, from nothing."""
COLUMNS = ("method", "moved", "HFC/LFC, first, most, last", "cos, last", "eff. rank, last", "smoothing cases", "top-1")


def sweep(
    loaded: Loaded, inputs: Inputs, few: Inputs, name: str, method: Method | None, layers: str, progress: OnProgress
) -> Diagnosis | None:
    """One row: tokens and top-1 of all inputs, spectra of a few; None if the model's layers do not take the method."""
    if method is not None:
        try:
            steer(loaded.model, method, layers)
        except InputError:
            return None
    try:
        whole = diagnose(loaded.model, inputs, name=name, spectra=False, progress=progress)
        spectra = diagnose(loaded.model, few, name=name, depth=0, joined=0, ranks=0)
        whole.steering, whole.provenance["spectra_inputs"] = spectra.steering, spectra.provenance["inputs"]
        for layer, other in zip(whole.layers, spectra.layers, strict=True):
            layer.dominance = other.dominance
        return whole
    finally:
        if steering_of(loaded.model) is not None:
            unsteer(loaded.model)


def rows(diagnoses: Sequence[Diagnosis | None]) -> list[tuple[str, ...]]:
    """Of all of `SWEEP`."""
    lines: list[tuple[str, ...]] = []
    for (name, _, _), d in zip(SWEEP, diagnoses, strict=True):
        if d is None:
            lines.append((name, "refused", "–", "–", "–", "–", "–"))
            continue
        curve = [v for v in d.curve("hfc_lfc") if v is not None]
        moved = [h for m in (d.steering or {}).get("moved", []) for h in m["heads"]]
        curves = ", ".join(map(number, (curve[0], max(curve), curve[-1])))
        ends = [number(d.curve(name)[-1]) for name in ("cos", "effective_rank")]
        shares = ["–" if share is None else f"{share:.1%}" for share in (d.smoothing_share, d.provenance.get("top1"))]
        lines.append((name, f"{sum(moved) / len(moved):.2f}" if moved else "–", curves, *ends, *shares))
    return lines
