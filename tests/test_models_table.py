"""docs/models.md says what the checks find, and what is refused says why."""

import families_table
import pytest
import timm_models
from families import FAMILIES, REFUSED, usable
from family_checks import COLUMNS

from oversmooth import InputError, diagnose

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
WRITTEN = families_table.TABLE.read_text(encoding="utf-8").splitlines() if families_table.TABLE.exists() else []
AGAIN = "run python tests/families_table.py"


def test_every_family_is_listed_once():
    named = [line.split("|")[1].strip() for line in WRITTEN if line.startswith("| ")]
    assert named == ["family", *FAMILIES, "model", *(model.name for model in REFUSED)], AGAIN
    assert "| family | " + " | ".join(COLUMNS) + " |" in WRITTEN, AGAIN


@pytest.mark.parametrize("name", usable())
def test_results_are_those_of_the_checks(name):
    assert families_table.rows([name])[name] in WRITTEN, AGAIN


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: model.name)
def test_what_is_refused_says_why(model):
    if model.library == "timm" and not timm_models.available():
        pytest.skip("no timm here")
    with pytest.raises(InputError) as error:
        diagnose(model.build().eval(), model.given())
    assert model.says in str(error.value)
    assert families_table.refused()[REFUSED.index(model)] in WRITTEN, AGAIN
