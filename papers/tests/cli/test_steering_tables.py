"""`oversmooth reproduce fig3` and `steering`: what methods do to untrained and stock models."""

from support.commands import run
from support.nightly import nightly

from oversmooth_papers.tables.steering import SWEEP


def test_fig3_is_what_the_theory_says(monkeypatch, capsys, tmp_path):
    """Untrained, sharpening keeps tokens apart and smoothing draws them together; predicted in every case."""
    import oversmooth_papers.cli  # noqa: F401  (its options are made of the settings as they are)
    from oversmooth_papers.figures import fig3
    from oversmooth_papers.tasks.images import recipe as settings

    small = settings.Shape(patch=8, width=48, depth=6, heads=3)
    monkeypatch.setattr(settings, "Shape", lambda **_: small)
    found, diagnosed = {}, fig3.run
    monkeypatch.setattr(fig3, "run", lambda case, *given, **more: kept(case.mode, diagnosed(case, *given, **more)))

    def kept(mode, diagnosis):
        assert diagnosis.model["layers"] == 6
        return found.setdefault(mode, diagnosis)

    assert run(monkeypatch, "reproduce", "fig3", "--inputs", 4, "-o", tmp_path / "fig3.svg") == 0
    assert "untrained" in capsys.readouterr().out
    assert "predicted from spectra" in (tmp_path / "fig3.svg").read_text(encoding="utf-8")
    assert found.keys() == {case.mode for case in fig3.cases()}
    ends = {mode: d.curve("hfc_lfc")[-1] for mode, d in found.items()}
    assert ends["sharpen"] > ends[None] > ends["smooth"]
    assert found["sharpen"].smoothing_share == 0
    assert found["smooth"].smoothing_share == 1
    assert all(d.steering["verified"]["ok"] for mode, d in found.items() if mode)


@nightly
def test_the_sweep_over_methods(monkeypatch, tmp_path, vit, gpt):
    monkeypatch.setenv("COLUMNS", "160")
    assert run(monkeypatch, "reproduce", "steering", vit, "--inputs", 2, "--spectra", 2, "-o", tmp_path / "t.md") == 0
    lines = (tmp_path / "t.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + len(SWEEP)
    assert lines[2].startswith("| left alone |")
    assert run(monkeypatch, "reproduce", "steering", gpt, "--inputs", 2, "--spectra", 1, "-o", tmp_path / "g.md") == 0
    assert "| AttnScale, w = 0.1 | refused |" in (tmp_path / "g.md").read_text(encoding="utf-8")
