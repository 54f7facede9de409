"""Made-up diagnoses that know one thing each, by name: what the verdict says of each is in verdicts.txt."""

import math
from dataclasses import replace

from oversmooth.diagnosis.result import Diagnosis
from oversmooth.results import parts
from oversmooth.results.notes import Note
from oversmooth.theory.reasons import Reason


def diagnosis(*blocks, first=None, model=None, **found):
    """One that knows nothing but this, so that nothing else is said."""
    provenance = {"data": "none", "inputs": 1, "seconds": 0.0, "massive_rule": "norm over 10 times the median"}
    facts = {"name": "m", "layers": len(blocks), "heads": 2, "width": 4, **(model or {})}
    return Diagnosis(facts, provenance, [parts.Layer("embedding", first or {}), *blocks], **found)


def block(tokens=None, *, spectrum=None, dominance=None, massive=None, without_massive=None, **changes):
    """changes: of log HFC/LFC, by part."""
    changed = [parts.Change(part, value, None, None, None) for part, value in changes.items()]
    return parts.Layer(
        "block",
        tokens or {},
        changes=changed,
        spectrum=spectrum,
        dominance=dominance,
        massive=massive,
        without_massive=without_massive,
    )


def spectrum(negative, count):
    joined = parts.Eigenvalues(negative, None, None, [0.0] * count, [0.0] * count)
    return parts.Spectrum(negative, None, None, {"raw": joined}, {"raw": []})


def dominance(heads=(), joined=(), undecided=None, reasons=()):
    """heads: the verdicts of one input; joined: those of all heads jointly, of as many inputs."""
    return parts.LayerDominance(
        None,
        None,
        [None] * len(heads),
        [[None] * len(heads)],
        [list(heads)],
        joined_inputs=list(range(len(joined))),
        joined_rho_smooth=[None] * len(joined),
        joined_rho_rough=[None] * len(joined),
        joined_verdict=list(joined),
        joined_residual=[None] * len(joined),
        undecided_share=undecided,
        undecided_because=list(map(str, reasons)),
        undecided_reasons=list(reasons),
    )


def massive(ratio, *positions):
    return {"input_share": 1.0, "tokens": 2, "positions": dict.fromkeys(positions, 1), "largest_ratio": ratio}


def steered(*ends, margins=(None,), ok=True, problems=(), doubts=(), **more):
    """ends: the least and the greatest eigenvalue of each layer."""
    known = {"outside_when_folded": False, "zero_eigenvalues": 0, **more}
    layers = [
        {"layer": i, "least": least, "greatest": greatest, "room": margin, **known}
        for i, ((least, greatest), margin) in enumerate(zip(ends, margins * len(ends), strict=False))
    ]
    verified = {"ok": ok, "problems": list(problems), "layers": layers, "doubts": list(doubts)}
    return diagnosis(block(), steering={"verified": verified})


FALLING = parts.Course([0.0, 24.0], [0.5, 0.5 - 24 * 0.03])
LEVEL = parts.Course([0.0, 24.0], [0.5, 0.52])
ENTRY = parts.Extrapolation("last block", 0, 1.1, 1.0, "smooth", 1e-6, "observed")
RUN = parts.Course([float(depth) for depth in range(17)], [0.5 - 0.3 * math.log1p(depth) for depth in range(17)])
BEYOND = parts.Course([16.0, 32.0, 48.0], [-0.35, -0.55, -0.676])
GROWING = dict(real=RUN, predicted=BEYOND, way="log time", error=0.02, checked=0.05, growth=1.94, conclusive=True)
CLOSE = Reason("radii_too_close", 1e-6, 2e-5)


def further(**changes):
    return diagnosis(block(), extrapolation=[replace(ENTRY, **changes)])


def measured(hfc_lfc, cos, rank, *, changes=None, model=None):
    before, after = ({"hfc_lfc": h, "cos": c, "effective_rank": r} for h, c, r in zip(hfc_lfc, cos, rank, strict=True))
    return diagnosis(block(after, **(changes or {})), first=before, model=model)


def old_verified():
    """A model steered and saved before version 4: warnings in words only."""
    found = steered((-0.5, 0.5), doubts=["layer 0 (a): with its norm and layer scale H has eigenvalues from -1 to 1"])
    for layer in found.steering["verified"]["layers"]:
        del layer["outside_when_folded"], layer["zero_eigenvalues"]
    return found


IMAGE, TEXT = {"input_kind": "image", "causal": False}, {"input_kind": "text", "causal": False}
ORIGIN = parts.MassiveOrigin(1, "mlp", 0, 2.4, 9.4, 1.0, [7, 3], 0.74)

CASES = {
    "nothing is known": diagnosis(block()),
    "one token explains a valley": diagnosis(
        block({"hfc_lfc": 2.1, "hfc_lfc_special": 0.9, "first_norm": 9.4, "sink_rate": 0.5}),
        first={"hfc_lfc": 2.2, "hfc_lfc_special": 2.2},
        massive_origin=ORIGIN,
    ),
    "special tokens hide a fall": diagnosis(
        block({"hfc_lfc": 1.0, "hfc_lfc_special": 1.5, "sink_rate": 0.0}),
        first={"hfc_lfc": 2.2, "hfc_lfc_special": 2.2},
    ),
    "massive tokens explain a rise": diagnosis(
        block({"hfc_lfc": 8.0}, massive=massive(50.0, "0"), without_massive={"hfc_lfc": 1.1}),
        first={"hfc_lfc": 1.0},
        massive_origin=replace(ORIGIN, depth=0, part="enter", before=None),
    ),
    "smooths by all": measured((2.0, 0.6), (0.1, 0.5), (60, 20), changes=dict(attention=-1.5, mlp=0.3), model=TEXT),
    "does not smooth": measured((1.2, 1.5), (0.44, 0.3), (61, 91), changes=dict(attention=0.2, mlp=0.02), model=IMAGE),
    "definitions disagree": measured((3.3, 1.6), (0.08, 0.29), (58, 66), changes=dict(attention=-0.1, norm=-0.6)),
    "hardly changes": measured((1.0, 1.002), (0.2, 0.2), (10, 10), changes=dict(attention=0.5, mlp=-0.496)),
    "the only reference itself": measured(
        (3.3, 1.6), (0.08, 0.29), (66, 58), model={"name": "stories15m", "input_kind": "text", "causal": True}
    ),
    "begins at zero": measured((0.0, 0.4), (0.2, 0.2), (10, 10)),
    "cosine alone": diagnosis(block({"cos": -0.004}), first={"cos": -0.1}),
    "massive tokens hide smoothing": diagnosis(
        block({"hfc_lfc": 3.0}, massive=massive(41.26, "0", "57"), without_massive={"hfc_lfc": 0.5}),
        first={"hfc_lfc": 1.5},
    ),
    "train mode": diagnosis(block(), model={"dropout": True}),
    "massive tokens": diagnosis(block(massive=massive(12.0, "0")), block(massive=massive(41.26, "0", "57")), block()),
    "constraint to sharpen": steered((-0.9, -0.2), (-0.95, -0.1), margins=(0.25, 0.125)),
    "constraint to smooth": steered((0.0, 0.886)),
    "constraint up to rounding": steered((-0.9e-6, 1.0), (-0.1e-6, 0.5)),
    "constraint on both sides": steered((-0.5, 0.5)),
    "constraint violated": steered((-1.0, 0.5), ok=False, problems=["layer 1: λ is 0.5", "layer 2: λ is 0.25"]),
    "constraint with warnings": steered((-0.5, 0.5), (-0.5, 0.5), outside_when_folded=True, zero_eigenvalues=2),
    "constraint of an old file": old_verified(),
    "spectra": diagnosis(block(spectrum=spectrum(0.25, 4), dominance=dominance(["smooth", "rough"], ["smooth"]))),
    "spectra, some undecided": diagnosis(
        block(dominance=dominance(["smooth", "undecided", "rough", "undecided"], undecided=0.5, reasons=[CLOSE]))
    ),
    "spectra, all undecided": diagnosis(
        block(dominance=dominance(["undecided"] * 2, undecided=1.0, reasons=[Reason("attention_sink")]))
    ),
    "spectra, jointly": diagnosis(block(dominance=dominance(joined=["tie", "undecided", "smooth", "tie"]))),
    "directions agree": diagnosis(block(attention=-0.1, dominance=dominance(joined=["smooth"]))),
    "directions differ": diagnosis(
        *(block(attention=0.1 if i in (1, 2, 5) else -0.1, dominance=dominance(joined=["smooth"])) for i in range(7))
    ),
    "accuracy": diagnosis(block(), accuracy=parts.Accuracy(80, 0.625, [], 20, "")),
    "accuracy under corruption": diagnosis(block(), accuracy=parts.Accuracy(80, 0.625, [0.6, 0.5, 0.25], 20, "", 0.5)),
    "repeated": further(**GROWING),
    "repeated, deep enough to be inconclusive": further(**{**GROWING, "error": 0.6, "conclusive": False}),
    "repeated, as far as it ran": further(**{**GROWING, "predicted": None, "error": 0.0}),
    "repeated, geometric": further(
        real=parts.Course([0.0, 8.0, 16.0], [0.0, -4.0, -8.0]),
        predicted=parts.Course([16.0, 48.0], [-8.0, -24.0]),
        way="geometric",
        error=0.01,
        checked=0.5,
        growth=-0.01,
        conclusive=True,
    ),
    "repeated, nearly equal tokens shrink": further(**GROWING, equal_rate=-0.62),
    "repeated, nearly equal tokens drift apart": further(**GROWING, equal_rate=0.19),
    "repeated, no rate": further(**GROWING, equal_reason=Reason("no_fixed_point")),
    "repeated, geometric near equal tokens": further(
        real=parts.Course([0.0, 8.0, 16.0], [0.0, -4.0, -8.0]),
        predicted=parts.Course([16.0, 48.0], [-8.0, -24.0]),
        way="geometric",
        error=0.01,
        growth=-0.01,
        conclusive=True,
        equal_rate=-0.478,
    ),
    "repeated, the stack": further(what="stack", verdict="", rho_smooth=None, rho_rough=None, real=FALLING),
    "repeated, and it stays": further(
        real=LEVEL,
        predicted=parts.Course([24.0, 48.0], [0.52, 0.52]),
        way="log time",
        error=0.0,
        growth=2.0,
        conclusive=True,
    ),
    "attention pulls to smoothing": further(real=FALLING),
    "nothing decays": further(real=LEVEL),
    "wrong in sign": further(real=parts.Course([0.0, 24.0], [0.5, 1.5])),
    "no smoothing by the spectra": further(verdict="rough", real=LEVEL),
    "no smoothing by the spectra, and it falls": further(
        verdict="rough", real=parts.Course([0.0, 8.0, 16.0], [0.0, -1, -2])
    ),
    "a tie": further(verdict="tie", reason=Reason("equal_radii")),
    "undecided": further(verdict="undecided", reason=CLOSE, real=FALLING),
    "undecided in an old file": further(verdict="undecided", note="radii"),
    "undecided layer": further(
        what="stack",
        verdict="undecided",
        rho_rough=None,
        reason=Reason("steering", detail="X acts"),
        notes=[Note("special_counted")],
    ),
}  # fmt: skip
