"""Tables in the terminal."""

import io

from rich.console import Console
from support.report_example import example

from oversmooth.report import terminal


def test_models_side_by_side_fit_a_narrow_terminal():
    names = ["chemistry ALBERT (random)", "ViT-Ti⁻, 10 % of cifar100, seed 0"]
    found = [example(name, layers=12, heads=2, head_dim=4) for name in names]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal.overview(found))
    text = console.export_text()
    assert "share" in text
    for diagnosis in found:
        assert f"{diagnosis.smoothing_share:.1%}" in text
    assert "…" not in text


def test_the_middle_of_a_histogram_is_labelled_zero():
    """15 bins of floats from -size on do not meet zero exactly; whatever the size is, the label has to."""
    for scale in (1.0, 0.1, 0.886, 1 / 3, 7e-3):
        found = example("m", layers=2, heads=2, head_dim=8)
        for layer in found.layers[1:]:
            layer.spectrum.joined["raw"].real = [scale * v for v in (-1.0, -0.4, 0.0, 0.2, 1.0)]
        labels = list(terminal.histogram(found).columns[0].cells)
        assert labels[7] == "0"
        assert labels[0] == f"−{labels[-1].removeprefix('+')}"
