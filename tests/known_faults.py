"""Faults of the package that tests expect until they are mended: each entry fails, strictly, where it should not."""

import pytest

FAULTS: dict[tuple[str, str], str] = {
    (
        "check_folded_negative_share",
        "attention alone (Pre-LN)",
    ): "the zero that centring leaves is off by more than 1e-6",
}
"""By name of the check in family_checks and of the family: why."""


def with_faults(check: str, names: list[str]) -> list[object]:
    """The names as parameters, those that are known to fail marked so."""
    marks = {n: pytest.mark.xfail(strict=True, reason=FAULTS[check, n]) for n in names if (check, n) in FAULTS}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]
