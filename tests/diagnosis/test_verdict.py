"""Every sentence that a diagnosis can say: what must yield it, word by word, and what just must not."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from support.conformance_methods import make
from support.report_example import example

from oversmooth.anatomy.steered import FOLDED
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.results.parts import (
    SPECIAL_COUNTED,
    Accuracy,
    Change,
    Course,
    Eigenvalues,
    Extrapolation,
    Layer,
    LayerDominance,
    Spectrum,
)
from oversmooth.results.verdict import agreement, sentences
from oversmooth.steering import Spectral, steer, steering_of, verify
from oversmooth.theory.stack import Verdict

WORDS = ("smooth", "rough", "tie", "undecided")


def diagnosis(*blocks, first=None, **found):
    """One that knows nothing but this, so that nothing else is said."""
    provenance = {"data": "none", "inputs": 1, "seconds": 0.0, "massive_rule": "norm over 10 times the median"}
    model = {"name": "m", "layers": len(blocks), "heads": 2, "width": 4}
    return Diagnosis(model, provenance, [Layer("embedding", first or {}), *blocks], **found)


def block(tokens=None, *, spectrum=None, dominance=None, massive=None, without_massive=None, **changes):
    """changes: of log HFC/LFC, by part."""
    parts = [Change(part, value, None, None, None) for part, value in changes.items()]
    return Layer(
        "block",
        tokens or {},
        changes=parts,
        spectrum=spectrum,
        dominance=dominance,
        massive=massive,
        without_massive=without_massive,
    )


def test_where_nothing_is_known_nothing_is_said():
    assert sentences(diagnosis(block())) == []


# Measured.


MORE, LESS, SAME = "tokens end more alike", "tokens end less alike", "tokens end about as alike as they began"


NAMES = {"hfc_lfc": "HFC/LFC", "cos": "the mean cosine", "effective_rank": "the effective rank"}


@pytest.mark.parametrize(
    ("metric", "before", "after", "said"),
    [
        ("hfc_lfc", 0.8, 0.4, f"from 0.8 to 0.4 (× 0.5); {MORE}"),
        ("hfc_lfc", 0.4, 0.8, f"from 0.4 to 0.8 (× 2); {LESS}"),
        ("hfc_lfc", 1.0, 0.994, f"from 1 to 0.994 (× 0.994); {MORE}"),
        ("hfc_lfc", 1.0, 0.996, f"from 1 to 0.996; {SAME}"),
        ("hfc_lfc", 1.0, 1.004, f"from 1 to 1; {SAME}"),
        ("hfc_lfc", 1.0, 1.006, f"from 1 to 1.01 (× 1.01); {LESS}"),
        ("hfc_lfc", 0.5, 0.0, f"from 0.5 to 0 (× 0); {MORE}"),
        ("hfc_lfc", 0.0, 0.4, f"from 0 to 0.4; {LESS}"),  # no factor leads there
        ("hfc_lfc", 0.0, 0.0, f"from 0 to 0; {SAME}"),
        ("cos", 0.2, 0.815, f"from 0.20 to 0.81; {MORE}"),
        ("cos", -0.001, -0.004, f"from 0.00 to 0.00; {SAME}"),  # and never -0.00
        ("cos", -0.006, 0.004, f"from -0.01 to 0.00; {MORE}"),
        ("cos", 0.2, 0.1, f"from 0.20 to 0.10; {LESS}"),
        ("effective_rank", 61.25, 3.0, f"from 61.2 to 3; {MORE}"),
        ("effective_rank", 3.0, 4.0, f"from 3 to 4; {LESS}"),
    ],
)
def test_how_far_apart_tokens_end(metric, before, after, said):
    found = diagnosis(block({metric: 7.0}), block({metric: after}), first={metric: before})
    assert sentences(found) == [f"Measured: from the first block to the last, {NAMES[metric]} goes {said}."]


@pytest.mark.parametrize("metric", ["hfc_lfc", "cos", "effective_rank"])
def test_what_is_unknown_at_either_end_is_not_measured(metric):
    known, unknown = {metric: 0.5}, {metric: None}
    for first, last in ((known, unknown), (unknown, known), (known, {}), ({}, known)):
        assert sentences(diagnosis(block(last), first=first)) == []


@pytest.mark.parametrize(
    ("hfc_lfc", "cos", "rank", "said"),
    [
        (0.25, 0.5, 5.0, "tokens end more alike by all three"),
        (1.0, 0.1, 20.0, "tokens end less alike by all three"),
        (0.5, 0.25, 10.0, "tokens end about as alike as they began by all three"),
        (
            0.25,
            0.1,
            20.0,
            "the notions disagree: tokens end more alike by HFC/LFC, less alike by the mean cosine and the effective "
            "rank",
        ),
        (
            0.5,
            0.5,
            5.0,
            "the notions disagree: tokens end more alike by the mean cosine and the effective rank, about as alike as "
            "they began by HFC/LFC",
        ),
        (0.25, 0.5, None, "tokens end more alike by both"),
    ],
)
def test_notions_that_disagree_are_told(hfc_lfc, cos, rank, said):
    first = {"hfc_lfc": 0.5, "cos": 0.25, "effective_rank": 10.0}
    found = diagnosis(block({"hfc_lfc": hfc_lfc, "cos": cos, "effective_rank": rank}), first=first)
    (sentence,) = sentences(found)
    assert sentence.partition("; ")[2] == f"{said}."


def test_all_that_is_measured_is_one_sentence():
    first, last = ({"hfc_lfc": 2.0 * x, "cos": x, "effective_rank": 10 * x} for x in (0.25, 0.5))
    assert sentences(diagnosis(block(last), first=first)) == [
        "Measured: from the first block to the last, HFC/LFC goes from 0.5 to 1 (× 2), the mean cosine from 0.25 to "
        "0.50, the effective rank from 2.5 to 5; the notions disagree: tokens end more alike by the mean cosine, less "
        "alike by HFC/LFC and the effective rank."
    ]


# By part.


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (
            [dict(attention=-0.2, mlp=0.3, norm=0.0, gate=0.0), dict(attention=-0.5, mlp=-0.1, norm=-0.001, gate=0.25)],
            "-0.25, through attention -0.70, MLPs +0.20, norms +0.00, gate +0.25; most smoothing comes from attention, "
            "above all at depth 2",
        ),
        (
            [dict(attention=0.2, mlp=-0.1), dict(attention=0.5, mlp=-0.3)],
            "+0.30, through attention +0.70, MLPs -0.40; tokens are set apart above all by attention, most at depth 2",
        ),
        (
            [dict(attention=0.5, mlp=-0.506)],
            "-0.01, through attention +0.50, MLPs -0.51; most smoothing comes from MLPs, above all at depth 1",
        ),
        ([dict(attention=0.5, mlp=-0.496)], "+0.00, through attention +0.50, MLPs -0.50"),  # nothing has no cause
        (
            [dict(attention=None, mlp=None), dict(attention=-0.1, mlp=None)],
            "-0.10, through attention -0.10; most smoothing comes from attention, above all at depth 2",
        ),
    ],
)
def test_parts_and_where_most_smoothing_comes_from(blocks, said):
    found = diagnosis(*(block(**changes) for changes in blocks))
    assert sentences(found) == [f"By part: over all blocks log HFC/LFC changes by {said}."]


def test_parts_that_are_known_nowhere_are_left_out():
    assert sentences(diagnosis(block(attention=None, mlp=None))) == []


# Massive tokens.


def massive(ratio, *positions):
    return {"input_share": 1.0, "tokens": 2, "positions": dict.fromkeys(positions, 1), "largest_ratio": ratio}


def test_massive_tokens_where_they_are_largest():
    blocks = [block(massive=massive(12.0, "0")), block(massive=massive(41.26, "0", "57")), block()]
    assert sentences(diagnosis(*blocks)) == [
        "Massive tokens (norm over 10 times the median): at 2 of 4 depths; the largest at depth 2, position 0, 57, "
        "41.3 times the median."
    ]


@pytest.mark.parametrize(
    ("tokens", "without", "effect"),
    [
        ({"hfc_lfc": 1.5}, {"hfc_lfc": 0.25}, "; there HFC/LFC is 1.5 with them and 0.25 without"),
        ({"hfc_lfc": 1.5}, {"hfc_lfc": None}, ""),
        ({"hfc_lfc": None}, {"hfc_lfc": 0.25}, ""),
        ({"hfc_lfc": 1.5}, None, ""),
    ],
)
def test_what_massive_tokens_do_to_the_ratio(tokens, without, effect):
    found = diagnosis(block(tokens, massive=massive(20.0, "3"), without_massive=without))
    assert sentences(found) == [
        f"Massive tokens (norm over 10 times the median): at 1 of 2 depths; the largest at depth 1, position 3, 20 "
        f"times the median{effect}."
    ]


# Steered.


def steered_as(*ends, rooms=(None,), ok=True, problems=(), doubts=()):
    """ends: the least and the greatest eigenvalue of each layer."""
    layers = [
        {"least": least, "greatest": greatest, "room": room}
        for (least, greatest), room in zip(ends, rooms * len(ends), strict=False)
    ]
    verified = {"ok": ok, "problems": list(problems), "layers": layers, "doubts": list(doubts)}
    return sentences(diagnosis(block(), steering={"verified": verified}))


def test_a_model_that_was_not_steered_or_not_verified_promises_nothing():
    for steering in (None, {}, {"verified": None}):
        assert sentences(diagnosis(block(), steering=steering)) == []


PROMISED = "Steered as promised: the eigenvalues of H lie from"


@pytest.mark.parametrize(
    ("ends", "rooms", "said"),
    [
        (
            [(-0.9, -0.2), (-0.95, -0.1)],
            (0.25, 0.125),
            "-0.95 to -0.1 in 2 layers, 0.12 from where sharpening could turn into smoothing",
        ),
        ([(-0.5, 0.5)], (None,), "-0.5 to 0.5 in 1 layer"),
        (
            [(-0.5, -0.1), (-0.4, 0.0)],
            (None, 0.5),
            "-0.5 to 0 in 2 layers, 0.5 from where sharpening could turn into smoothing",
        ),
        ([(-0.01, 0.9)], (0.99,), "-0.01 to 0.9 in 1 layer"),  # what smooths too is not said to sharpen
        ([(0.0, 0.886)], (1.0,), "0 to 0.886 in 1 layer, none below zero, so none sharpens"),
        ([(0.25, 0.886)], (1.0,), "0.25 to 0.886 in 1 layer, none below zero, so none sharpens"),
        ([(-0.9e-6, 1.0)], (None,), "0 to 1 in 1 layer, none below zero, so none sharpens"),  # by rounding
        ([(-1.1e-6, 1.0)], (None,), "-1.1e-06 to 1 in 1 layer"),
        ([(-0.9, 2e-19)], (None,), "-0.9 to 0 in 1 layer"),
    ],
)
def test_where_the_eigenvalues_of_a_steered_model_lie(ends, rooms, said):
    assert steered_as(*ends, rooms=rooms) == [f"{PROMISED} {said}."]


def test_a_promise_that_does_not_hold_says_how():
    said = steered_as((-1.0, 0.5), ok=False, problems=["layer 1: λ is 0.5", "layer 2: λ is 0.25"])
    assert said == ["Steered, but not as promised: layer 1: λ is 0.5; layer 2: λ is 0.25."]


def test_doubts_are_told_apart():
    folded = f"layer 0 (a): {FOLDED} from -1 to 1"
    still = "layer 1 (b): 2 eigenvalues are 0, which neither smooths nor sharpens"
    held = "Steered as promised: the eigenvalues of H lie from -0.5 to 0.5 in 2 layers"
    with_norms = "; with norms and layer scales folded in, 1 layer has others too"
    with_zeros = "; 1 layer has some that are 0, which neither smooth nor sharpen"
    for doubts, said in (
        ([], ""),
        ([folded], with_norms),
        ([still], with_zeros),
        ([folded, still], with_norms + with_zeros),
    ):
        assert steered_as((-0.5, 0.5), (-0.5, 0.5), doubts=doubts) == [f"{held}{said}."]


def test_doubts_of_a_steered_model_are_counted_by_kind():
    model = steer(make("ViT", torch.float64), Spectral("sharpen"))
    with torch.no_grad():
        for layer in steering_of(model).reparametrized:
            layer.psi.clamp_(-0.7, 0.7)  # so that the promise holds
        layer.psi.view(-1)[0] = 0.0
    (said,) = sentences(diagnosis(block(), steering={"verified": verify(model).summary()}))
    assert said.endswith("; 1 layer has some that are 0, which neither smooth nor sharpen.")
    assert "folded in" not in said


# Spectra.


def spectrum(negative, count):
    joined = Eigenvalues(negative, None, None, [0.0] * count, [0.0] * count)
    return Spectrum(negative, None, None, {"raw": joined}, {"raw": []})


def dominance(heads=(), joined=(), undecided=None, because=()):
    """heads: the verdicts of one input; joined: those of all heads together, of as many inputs."""
    return LayerDominance(
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
        undecided_because=list(because),
    )


def test_eigenvalues_are_counted_over_layers_of_any_size():
    found = diagnosis(block(spectrum=spectrum(0.5, 4)), block(spectrum=spectrum(1.0, 12)), block())
    assert sentences(found) == ["Spectra: 88% of the eigenvalues of H have a negative real part."]
    assert sentences(diagnosis(block(spectrum=spectrum(None, 4)))) == []


@pytest.mark.parametrize(
    ("heads", "undecided", "said"),
    [
        (["smooth", "rough", "tie", "smooth"], None, "50.0% of 4 cases (one per input, layer and head)"),
        (["smooth", "rough", "tie", "smooth"], 0.0, "50.0% of 4 cases (one per input, layer and head)"),
        (
            ["smooth", "undecided", "rough", "undecided"],
            0.5,
            "25.0% of 4 cases (one per input, layer and head), 2 undecided",
        ),
        (["rough", "tie"], None, "0.0% of 2 cases (one per input, layer and head)"),
        (["smooth"] * 1500, None, "100.0% of 1,500 cases (one per input, layer and head)"),
    ],
)
def test_how_often_smoothing_dominates_head_by_head(heads, undecided, said):
    found = diagnosis(block(dominance=dominance(heads, undecided=undecided, because=["undecided: too near"])))
    assert sentences(found) == [f"Spectra: head by head the smoothing eigenvalue dominates in {said}."]


def test_where_no_case_is_decided_the_first_reason_is_given():
    undecided = [dominance(["undecided"] * 2, undecided=1.0, because=[f"undecided: {why}"]) for why in ("one", "two")]
    found = diagnosis(*(block(dominance=one) for one in undecided))
    assert sentences(found) == ["Spectra: head by head no case is decided (one)."]
    undecided[1].verdict_heads[0][0], undecided[1].undecided_share = "rough", 0.5
    assert sentences(found) == [
        "Spectra: head by head the smoothing eigenvalue dominates in 0.0% of 4 cases (one per input, layer and head), "
        "3 undecided."
    ]
    assert sentences(diagnosis(block(dominance=dominance()))) == []


@pytest.mark.parametrize(
    ("joined", "said"),
    [
        (["smooth", "rough", "smooth"], "2 of 3"),
        (["smooth", "tie", "tie"], "1 of 3 (2 ties)"),
        (["undecided", "rough"], "0 of 2 (1 undecided)"),
        (["tie", "undecided", "smooth"], "1 of 3 (1 tie, 1 undecided)"),
    ],
)
def test_all_heads_together(joined, said):
    blocks = [block(dominance=dominance(joined=[word])) for word in joined]
    assert sentences(diagnosis(*blocks)) == [f"Spectra: with all heads together in {said}."]


def test_all_that_spectra_say_is_one_sentence():
    one = dominance(["smooth", "rough"], ["smooth"])
    assert sentences(diagnosis(block(spectrum=spectrum(0.25, 4), dominance=one))) == [
        "Spectra: 25% of the eigenvalues of H have a negative real part, head by head the smoothing eigenvalue "
        "dominates in 50.0% of 2 cases (one per input, layer and head), with all heads together in 1 of 1."
    ]


# Prediction and measurement.

SIDE = "moved HFC/LFC to the side that its spectrum (all heads) favours in the long run"


@pytest.mark.parametrize(
    ("joined", "change", "agrees"),
    [
        (["smooth"], -0.1, True),
        (["smooth"], 0.1, False),
        (["smooth"], 0.0, False),  # no smoothing was seen
        (["rough"], 0.1, True),
        (["rough"], -0.1, False),
        (["rough"], 0.0, False),
        (["smooth", "smooth", "rough"], -0.1, True),
        (["smooth", "undecided", "undecided"], -0.1, True),  # what is undecided has no vote
        (["smooth", "tie"], -0.1, True),  # nor has a tie
        (["rough", "rough", "smooth", "tie"], 0.1, True),
    ],
)
def test_whether_one_pass_went_where_its_spectrum_points(joined, change, agrees):
    found = diagnosis(block(attention=change, dominance=dominance(joined=joined)))
    where = "" if agrees else "; they disagree at depth 1"
    assert (
        sentences(found)[-1]
        == f"Prediction and measurement: in {int(agrees)} of 1 blocks one pass of attention {SIDE}{where}."
    )


def test_where_prediction_or_measurement_is_missing_nothing_is_compared():
    for one in (
        block(attention=-0.1),
        block(attention=-0.1, dominance=dominance(["smooth"])),
        block(attention=-0.1, dominance=dominance(joined=["undecided"])),
        block(attention=-0.1, dominance=dominance(joined=["tie", "tie"])),
        block(attention=0.0, dominance=dominance(joined=["tie"])),
        block(attention=-0.1, dominance=dominance(joined=["smooth", "rough"])),
        block(attention=None, dominance=dominance(joined=["smooth"])),
        block(mlp=-0.1, dominance=dominance(joined=["smooth"])),
    ):
        assert agreement([one]) == (0, [])
        assert "Prediction and measurement" not in " ".join(sentences(diagnosis(one)))


@pytest.mark.parametrize(
    ("apart", "said"),
    [([2], "2"), ([1, 2], "1–2"), ([1, 3], "1, 3"), ([1, 2, 3, 5, 7, 8], "1–3, 5, 7–8")],
)
def test_depths_in_a_row_are_joined(apart, said):
    blocks = [
        block(attention=0.1 if 1 + i in apart else -0.1, dominance=dominance(joined=["smooth"])) for i in range(8)
    ]
    assert (
        sentences(diagnosis(*blocks))[-1]
        == f"Prediction and measurement: in {8 - len(apart)} of 8 blocks one pass of attention {SIDE}; they disagree "
        f"at depth {said}."
    )


# Accuracy.


@pytest.mark.parametrize(
    ("corrupted", "trained", "said"),
    [
        ([], None, "Accuracy: 62.5% of 80 test images."),
        ([], 0.5, "Accuracy: 62.5% of 80 test images (50.0% of all, noted after training)."),
        ([], 0.0, "Accuracy: 62.5% of 80 test images (0.0% of all, noted after training)."),
        (
            [0.6, 0.5, 0.25],
            None,
            "Accuracy: 62.5% of 80 test images; of 20 of them, corrupted, from 60.0% ± 11.0 at intensity 1 to 25.0% "
            "± 9.7 at 3 (points, one standard error).",
        ),
    ],
)
def test_accuracy(corrupted, trained, said):
    assert sentences(diagnosis(block(), accuracy=Accuracy(80, 0.625, corrupted, 20, "", trained))) == [said]


# More depth.

FALLING = Course([0.0, 4.0], [0.5, 0.25])
ENTRY = Extrapolation("stack", 0, 1.1, 1.0, "smooth", 0.9, 1e-6, "observed", FALLING, "smooth", None)
SAID = {
    "smooth": "smoothing, in the end × 0.9 per block",
    "rough": "no smoothing, HFC/LFC stays above zero",
    "tie": "a tie, which spectra do not decide",
    "undecided": "neither, the two radii being nearer to one another than they are known",
}
SEEN = {
    "smooth": "smooths",
    "rough": "does not smooth within its depth",
    "open": "has not settled after its last layer",
}


def further(entry):
    (said,) = sentences(diagnosis(block(), extrapolation=[entry]))
    return said


@pytest.mark.parametrize("said", WORDS)
@pytest.mark.parametrize("seen", SEEN)
def test_every_verdict_has_words(said, seen):
    entry = replace(ENTRY, verdict=said, predicted_rate=0.9 if said == "smooth" else None, simulated_verdict=seen)
    alone = "agrees" if said == seen else SEEN[seen]
    assert (
        further(entry)
        == f"Repeating the stack on the first input: spectra say {SAID[said]}; attention alone, simulated, {alone}."
    )


def test_these_are_all():
    assert get_args(Verdict) == WORDS


def test_smoothing_whose_rate_is_not_known():
    said = further(replace(ENTRY, what="last block", predicted_rate=None))
    assert (
        said
        == "Repeating the last block on the first input: spectra say smoothing; attention alone, simulated, agrees."
    )


def test_where_spectra_know_nothing_they_say_why():
    entry = replace(ENTRY, verdict="undecided", predicted_rate=None, rho_rough=None, note="undecided: a gate; by input")
    entry = replace(entry, simulated=None, simulated_verdict="open")
    assert further(entry) == (
        "Repeating the stack on the first input: spectra say nothing (a gate); attention alone was not simulated."
    )
    assert "a gate" not in further(replace(entry, rho_rough=1.0))


@pytest.mark.parametrize(
    ("real", "said"),
    [
        (Course([0.0, 8.0, 16.0], [0.0, None, -1.0]), "from 1 to 0.368 in 16 blocks"),
        (Course([0.0], [0.0]), None),
        (Course([0.0, 8.0], [0.0, None]), None),
        (Course([0.0, 8.0], [None, 0.0]), None),
        (None, None),
    ],
)
def test_what_the_real_blocks_do(real, said):
    end = "" if said is None else f"; the real blocks, norm and MLP included, take HFC/LFC {said}"
    assert further(replace(ENTRY, real=real)) == (
        f"Repeating the stack on the first input: {'spectra say ' + SAID['smooth']}; attention alone, simulated, "
        f"agrees{end}."
    )


def test_the_input_and_the_mean_of_all_are_told_apart():
    found = diagnosis(block({"hfc_lfc": 2.0}), extrapolation=[replace(ENTRY, real=Course([0.0, 8.0], [0.0, -1.0]))])
    assert "the mean" not in sentences(found)[0]
    found.provenance["inputs"] = 2
    assert sentences(found)[0].endswith(
        "take HFC/LFC from 1 to 0.368 in 8 blocks (1 is of this input alone; the mean over all inputs is 2)."
    )
    found.layers[-1].tokens["hfc_lfc"] = 1.0
    assert "the mean" not in sentences(found)[0]


def test_special_tokens_that_were_counted_are_told():
    end = "attention alone, simulated, agrees"
    assert further(replace(ENTRY, note=f"radii; {SPECIAL_COUNTED}")).endswith(f"{end} (special tokens counted).")
    assert further(replace(ENTRY, note="radii")).endswith(f"{end}.")


# The whole.


def test_sentences_come_in_one_order():
    found = example("m", layers=3)
    found.steering = {"verified": {"ok": False, "problems": ["λ"], "layers": [], "doubts": []}}
    found.accuracy = Accuracy(80, 0.5, [], 0, "")
    assert [said.split(":")[0].split(" (")[0] for said in sentences(found)] == [
        "Measured",
        "By part",
        "Massive tokens",
        "Steered, but not as promised",
        "Spectra",
        "Prediction and measurement",
        "Accuracy",
        "Repeating the last block on the first input",
        "Repeating the stack on the first input",
    ]
