"""docs/models.md says what the oracle finds, and what is refused says why."""

import re

import pytest
from adversary.numbers import family_cases
from adversary.numbers.family_columns import refusal, sampled
from adversary.numbers.test_families import one_sentence
from support import families_table

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul"),  # processors without bfloat16
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # DeBERTa
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask"),  # WavLM
]
WRITTEN = families_table.TABLE.read_text(encoding="utf-8").splitlines() if families_table.TABLE.exists() else []
AGAIN = "run PYTHONPATH=tests python -m support.families_table"


def notes() -> families_table.Notes:
    """The sentences below the table, as they are numbered there."""
    found = (re.fullmatch(r"(\d+)\. (.*)", line) for line in WRITTEN)
    return families_table.Notes({match[2]: int(match[1]) for match in found if match})


def test_every_family_is_listed_once():
    named = [line.split("|")[1].strip() for line in WRITTEN if line.startswith("| ")]
    refused = [model.name for model in families_table.ALL_REFUSED]
    assert named == ["family", *families_table.families(), "family", *family_cases.WHO, "model", *refused], AGAIN
    assert "| family | " + " | ".join(families_table.COLUMNS) + " |" in WRITTEN, AGAIN


def test_nothing_is_wrong():
    assert not [line for line in WRITTEN if "| wrong |" in line]


@pytest.mark.parametrize("name", sampled())
def test_rows_are_what_the_oracle_finds(name):
    assert families_table.row(name, notes()) in WRITTEN, AGAIN


@pytest.mark.parametrize("model", families_table.ALL_REFUSED, ids=lambda model: model.name)
def test_what_is_refused_says_why(model):
    if not model.usable:
        pytest.skip("no timm here")
    one_sentence(refusal(model))
    assert families_table.refused(model) in WRITTEN, AGAIN
