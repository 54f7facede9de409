"""Figures for papers: which are written, in which form, and what is refused."""

import pytest
from support.report_example import example

from oversmooth import InputError
from oversmooth.report import figures

ALL = ["changes", "curves", "eigenvalues", "plane", "dominance", "radii", "extrapolation"]
SIGNS = {"pdf": b"%PDF", "svg": b"<svg", "png": b"\x89PNG"}


@pytest.fixture(scope="module")
def small():
    return [example(layers=3, heads=2, head_dim=4, inputs=3), example("other", layers=5, heads=1, head_dim=4, seed=1)]


@pytest.mark.parametrize("format", figures.FORMATS)
def test_every_figure_is_written_whole(small, tmp_path, format):
    written = figures.save(small, tmp_path / "figures", format)
    assert written == [tmp_path / "figures" / f"{name}.{format}" for name in ALL]
    assert sorted(written) == sorted((tmp_path / "figures").iterdir())  # and nothing else is left there
    for path in written:
        assert path.read_bytes().startswith(SIGNS[format])
    if format == "svg":
        curves = written[1].read_text(encoding="utf-8")
        assert all(word in curves for word in ("tiny vit", "other", "input convergence", "mean cos"))
        assert "with Re λ &lt; 0" in written[2].read_text(encoding="utf-8")


def test_figures_without_data_are_left_out(tmp_path):
    bare = example(layers=2, heads=1, head_dim=4)
    bare.extrapolation = []
    for layer in bare.layers:
        layer.spectrum = layer.dominance = None
        layer.changes = []
        layer.tokens["hfc_lfc"] = None
        layer.spread = {}
    assert [path.stem for path in figures.save([bare], tmp_path, "svg")] == ["curves"]
    for layer in bare.layers:
        layer.tokens = {}
    (tmp_path / "none").mkdir()
    assert figures.save([bare], tmp_path / "none", "svg") == []


def test_courses_that_fall_below_what_a_number_holds(tmp_path):
    deep = example(layers=1, heads=1, head_dim=2, inputs=1)
    deep.extrapolation[0].real.log_hfc_lfc = [-400.0 * i for i in range(17)]
    deep.extrapolation[1].real = None
    assert figures.drawn([deep], "extrapolation").save(tmp_path / "x.svg") is None


def test_what_is_refused(small, tmp_path):
    with pytest.raises(InputError, match=r"'gif'; choose one of pdf, svg, png"):
        figures.save(small, tmp_path, "gif")
    with pytest.raises(InputError, match="give at least one"):
        figures.save([], tmp_path, "svg")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file is a file, not a directory; choose another place"):
        figures.save(small, tmp_path / "file" / "such", "svg")
    with pytest.raises(InputError, match="name a directory"):
        figures.save(small, tmp_path / "file", "svg")
