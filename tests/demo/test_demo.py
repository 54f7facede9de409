"""The three ViTs of the demo: what ships with the package, and that it says what the paper says."""

import functools

import pytest

from oversmooth.demo import vits
from oversmooth.models import load


@pytest.mark.parametrize("variant", vits.NAMES)
def test_each_file_is_small(variant):
    path = vits.file_of(variant)
    assert path.stat().st_size <= 2_000_000
    loaded = load(str(path))
    assert 5e5 < sum(p.numel() for p in loaded.model.parameters()) < 7e5
    assert loaded.about["recipe"]["variant"] == variant


def test_the_images_come_with_their_licence():
    pixels, labels = vits.images()
    assert pixels.shape == (512, 1, 28, 28)
    assert labels.shape == (512,)
    assert "Zalando" in (vits.FOLDER / "LICENSE").read_text()


def test_the_story(monkeypatch):
    monkeypatch.setattr(vits, "_INPUTS", 2)
    monkeypatch.setattr(vits, "diagnose", functools.partial(vits.diagnose, depth=0, joined=0))
    smooth, sharpen = (vits.run(variant) for variant in ("smooth", "sharpen"))
    assert smooth.smoothing_share == 1
    assert sharpen.smoothing_share == 0
    for diagnosis, way in ((smooth, -1), (sharpen, 1)):
        curve = diagnosis.curve("hfc_lfc")
        assert way * (curve[-1] - curve[0]) > 0
        assert diagnosis.provenance["top1"] in (0, 0.5, 1)
