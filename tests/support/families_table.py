"""Writes docs/models.md: which families are right, as the oracle of tests/adversary/numbers finds it.

PYTHONPATH=tests python -m support.families_table
"""

import re
import sys
import warnings

from adversary.numbers import family_cases
from adversary.numbers.family_cases import CASES
from adversary.numbers.family_columns import outcome, refusal, usable
from support import timm_models
from support.families import REFUSED, Refused
from support.places import ROOT

TABLE = ROOT / "docs" / "models.md"
ALL_REFUSED = [*REFUSED, *family_cases.REFUSED]
COLUMNS = ("tokens", "changes", "ρ per head", "joined", "padding", "bf16", "disk")
_HEAD = """\
# Models that are known to work

Made by `PYTHONPATH=tests python -m support.families_table` from an oracle that shares no code with the package
(`tests/adversary/numbers/family_oracle.py`): eager attention in float64, explicit loops, dense eigenvalues, and hooks
written from each family's own source, on a small random model of each. Other models of the same layout work the same
way; `oversmooth.anatomy.register` teaches a new one.

* **tokens**: every metric before the first block and after each one.
* **changes**: what attention, MLP and norms on the stream each change, with whatever factor they are added; together
  they are the block's change.
* **ρ per head**: the eigenvalues of H with that factor, ρ_smooth, ρ_rough and the verdict of each head.
* **joined**: the same for all heads together, against the whole n·d by n·d matrix.
* **padding**: the same numbers without a mask and with padding on the left; padded tokens are nowhere.
* **bf16**: tokens, parts and changes of the model in bfloat16, also with a token a thousand times as large as the rest.
* **disk**: W_V, W_O with the factor, and the norm, from a checkpoint.

A number is a note below the table: there no number is given, and that is what is said instead.

"""
_WHO = """
## Who counts as a token

The same columns, with inputs whose padding is told in other ways.

"""
_REFUSED = """
## Models that are refused

Each says why in one sentence; nothing is measured.

"""


class Notes(dict[str, int]):
    """Sentences, numbered as they come."""

    def number(self, sentence: str) -> int:
        return self.setdefault(sentence, len(self) + 1)


def row(name: str, notes: Notes) -> str:
    return f"| {name} | " + " | ".join(_cell(column, name, notes) for column in COLUMNS) + " |"


def _cell(column: str, name: str, notes: Notes) -> str:
    came = outcome(column, name)
    if isinstance(came, Exception):
        return "wrong"
    return f"[{notes.number(_tidy(came))}]" if came else "right"


def _tidy(sentence: str) -> str:
    """Without names of temporary folders, and safe in a table."""
    return re.sub(r"/\S*/tmp\w+", "the checkpoint", sentence).replace("|", "\\|")


def refused(model: Refused) -> str:
    """In our words, or in the package's."""
    try:
        return f"| {model.name} | {model.why or _tidy(refusal(model))} |"
    except AssertionError:
        return f"| {model.name} | wrong |"


def families() -> list[str]:
    return [name for name in CASES if name not in family_cases.WHO]


def text() -> str:
    notes = Notes()
    head = ["| family | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    first = [*head, *(row(name, notes) for name in families())]
    second = [*head, *(row(name, notes) for name in family_cases.WHO)]
    footnotes = [f"{number}. {sentence}" for sentence, number in notes.items()]
    more = ["| model | why |", "|---|---|", *map(refused, ALL_REFUSED)]
    parts = ["\n".join(first) + "\n", _WHO, "\n".join(second) + "\n", "\n## Notes\n\n", "\n".join(footnotes) + "\n"]
    return _HEAD + "".join(parts) + _REFUSED + "\n".join(more) + "\n"


if __name__ == "__main__":
    if not timm_models.available():
        sys.exit("timm is not here, and the table has its models: install it first")
    warnings.simplefilter("ignore")
    assert usable() == list(CASES)
    TABLE.write_text(text(), encoding="utf-8")
    print(f"wrote {TABLE}")
