"""Writes docs/models.md: which families work, as the tests find it.

python tests/families_table.py
"""

import sys
import warnings
from pathlib import Path

import timm_models
from families import FAMILIES, REFUSED, usable
from family_checks import COLUMNS, outcome

TABLE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
_HEAD = """\
# Models that are known to work

Made by `python tests/families_table.py` from the checks that the tests run (`tests/family_checks.py`), on a small
random model of each family with two inputs, the second one padded. Other models of the same layout work the same way;
`oversmooth.anatomy.register` teaches a new one.

* **located**: layers, heads, shared value heads, norm and layer scale are found, and
  `Σ_h A_h (x W_V^h + b_V^h) W_O^h + b_O` is what attention returned.
* **outputs identical**: bit for bit with and without observation, in eval and in train mode; the same random numbers
  follow.
* **numbers of tokens**: attention, metrics after every block and after attention, and the changes of each part, against
  eager attention and hooks in float64.
* **spectra equal the dense route**: eigenvalues of H, ρ_smooth and ρ_rough per head and together, against dense
  matrices in float64.
* **live equal disk**: the same weights and facts from the checkpoint as from the module.

"""
_REFUSED = """
## Models that are refused

Each says why in one sentence; nothing is measured.

"""


def rows(names: list[str]) -> dict[str, str]:
    """A line of the table for each family."""
    return {name: f"| {name} | " + " | ".join(_cell(column, name) for column in COLUMNS) + " |" for name in names}


def _cell(column: str, name: str) -> str:
    return "no" if any(outcome(check, name) for check in COLUMNS[column]) else "yes"


def refused() -> list[str]:
    return [f"| {model.name} | {model.why} |" for model in REFUSED]


def text() -> str:
    head = "| family | " + " | ".join(COLUMNS) + " |"
    lines = [head, "|---" * (len(COLUMNS) + 1) + "|", *rows(list(FAMILIES)).values()]
    more = ["| model | why |", "|---|---|", *refused()]
    return _HEAD + "\n".join(lines) + "\n" + _REFUSED + "\n".join(more) + "\n"


if __name__ == "__main__":
    if not timm_models.available():
        sys.exit("timm is not here, and the table has its models: install it first")
    warnings.simplefilter("ignore")
    assert usable() == list(FAMILIES)
    TABLE.write_text(text(), encoding="utf-8")
    print(f"wrote {TABLE}")
