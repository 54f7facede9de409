"""Tables in the terminal."""

import io

from report_example import example
from rich.console import Console

from oversmooth.report import terminal


def test_models_side_by_side_fit_a_narrow_terminal():
    names = ["ALBERT, one layer 12 times (random)", "ViT-Ti⁻, 10 % of cifar100, seed 0"]
    found = [example(name, layers=12, heads=2, head_dim=4) for name in names]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal.overview(found))
    text = console.export_text()
    assert "cases" in text
    for diagnosis in found:
        assert f"{diagnosis.smoothing_share:.1%}" in text
    assert "…" not in text
