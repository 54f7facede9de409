"""What a diagnosis says in English: every sentence, in one file, so that a change of wording is one change there.

    python tests/diagnosis/test_verdict.py

writes tests/diagnosis/verdicts.txt again. Values behind the sentences are tested in test_findings.py.
"""

from pathlib import Path
from typing import get_args

import pytest
import torch
from support.conformance_methods import make
from support.report_example import example
from support.verdict_cases import CASES, block, diagnosis

from oversmooth.results.notes import Note, NoteKind
from oversmooth.results.parts import Accuracy
from oversmooth.results.verdict import constraint, headline, sentences
from oversmooth.steering import Spectral, steer, steering_of, verify
from oversmooth.theory.reasons import Reason, ReasonKind

SNAPSHOT = Path(__file__).with_name("verdicts.txt")
REASON = Reason("radii_too_close", 1e-6, 2e-5, 1e-3, 40.0, detail="in words")


def notes():
    """One of each kind."""
    full = dict(count=2, total=3, what="effective_rank", names=["a.0", "a.1"], error=0.012, reason=REASON, text="text")
    return {kind: Note(kind, **full) for kind in get_args(NoteKind)}


def written() -> str:
    """All sentences, by what they are said of."""
    verdicts = [f"[{name}]\n" + "".join(f"{said}\n" for said in sentences(found)) for name, found in CASES.items()]
    reasons = [f"{kind}: {Reason(kind, 1e-6, 2e-5, 1e-3, 40.0, 'in words')}\n" for kind in get_args(ReasonKind)]
    remarks = [f"{kind}: {note}\n" for kind, note in notes().items()]
    return "\n".join([*verdicts, "[reasons]\n" + "".join(reasons), "[notes]\n" + "".join(remarks)])


def test_every_sentence_is_that_of_the_snapshot():
    assert SNAPSHOT.read_text(encoding="utf-8").splitlines() == written().splitlines(), f"run {Path(__file__).name}"


def test_the_first_sentence_answers():
    found = example("m", layers=3)
    assert sentences(found)[0] == str(found).splitlines()[0] == headline(found)


def test_sentences_come_in_one_order():
    found = example("m", layers=3)
    found.steering = {"verified": {"ok": False, "problems": ["λ"], "layers": [], "doubts": []}}
    found.accuracy = Accuracy(80, 0.5, [], 0, "")
    assert [said.split(":")[0].split(" (")[0] for said in sentences(found)] == [
        "m smooths",
        "Measured, first block to last",
        "Measured by sublayer",
        "Massive tokens",
        "Constraint violated",
        "Predicted by the spectra of attention alone",
        "Prediction against measurement",
        "Accuracy",
        "Repeating the last block",
        "Repeating the stack",
    ]


@pytest.mark.parametrize("steering", [None, {}, {"verified": None}])
def test_a_model_without_a_constraint_satisfies_none(steering):
    assert constraint(diagnosis(block(), steering=steering)) == ""


def test_warnings_of_a_steered_model_are_counted_by_kind():
    model = steer(make("ViT", torch.float64), Spectral("sharpen"))
    with torch.no_grad():
        for layer in steering_of(model).reparametrized:
            layer.psi.clamp_(-0.7, 0.7)  # so that the constraint is satisfied
        layer.psi.view(-1)[0] = 0.0
    said = constraint(diagnosis(block(), steering={"verified": verify(model).summary()}))
    assert "occur in 1 layer." in said
    assert "folded in" not in said


if __name__ == "__main__":
    SNAPSHOT.write_text(written(), encoding="utf-8")
