"""Every family against the oracle, column by column: right, or one sentence says why not."""

import dataclasses

import pytest
from adversary.numbers import family_oracle
from adversary.numbers.family_cases import CASES
from adversary.numbers.family_columns import COLUMNS, outcome, sampled, usable
from support.nightly import some

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul"),  # processors without bfloat16
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # DeBERTa
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask"),  # WavLM
]


@pytest.mark.parametrize(("name", "column"), [(name, column) for name in sampled() for column in COLUMNS])
def test_a_cell(name, column):
    came = outcome(column, name)
    if isinstance(came, Exception):
        raise came
    if came:
        one_sentence(came)


@pytest.mark.parametrize("name", some(usable(), 5))
def test_the_oracle_proves_its_own_description(name):
    for how in ("padded", *CASES[name].other_ways()):
        family_oracle.passages(name, how)


def test_a_wrong_description_is_found_out(monkeypatch):
    """The proof is one: a factor a thousandth off does not pass."""
    monkeypatch.setitem(CASES, "wrong", dataclasses.replace(CASES["Granite"], factor=0.2202))
    with pytest.raises(AssertionError, match="the state after attention"):
        family_oracle.passages("wrong")


def one_sentence(text: str) -> None:
    assert "\n" not in text
    assert 10 < len(text) < 400, f"{len(text)} letters"
