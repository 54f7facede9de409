"""The three ViTs of the demo: what ships with the package, and that it says what the paper says."""

import functools
import json
from dataclasses import replace

import pytest
import torch

from oversmooth.demo import vits
from oversmooth.models import load


def few(count):
    test = vits.images()
    return replace(test, images=test.images[:count], labels=test.labels[:count], corrupted=test.corrupted[:, :count])


@pytest.mark.parametrize("variant", vits.NAMES)
def test_each_file_is_small(variant):
    path = vits.file_of(variant)
    assert path.stat().st_size <= 2_000_000
    loaded = load(str(path))
    assert 5e5 < sum(p.numel() for p in loaded.model.parameters()) < 7e5
    assert loaded.about["recipe"]["variant"] == variant


def test_the_images_come_with_their_licence():
    test = vits.images()
    assert test.images.shape == (512, 1, 28, 28)
    assert test.corrupted.shape == (5, 300, 1, 28, 28)
    assert "Zalando" in (vits.FOLDER / "LICENSE").read_text()


def test_accuracy_is_that_of_a_plain_loop():
    test = few(count := 6)
    loaded = load(str(vits.file_of("sharpen")))
    found = vits.accuracy("sharpen", test)

    def by_hand(images):
        x = (images.float() / 255 - loaded.preprocessing.mean[0]) / loaded.preprocessing.std[0]
        with torch.no_grad():
            right = [int(loaded.model(x[i : i + 1]).argmax()) == int(test.labels[i]) for i in range(count)]
        return sum(right) / count

    assert found.clean == by_hand(test.images)
    assert found.corrupted == [by_hand(severity) for severity in test.corrupted]
    assert found.trained == 0.9054


def test_the_story(monkeypatch):
    monkeypatch.setattr(vits, "_INPUTS", 2)
    monkeypatch.setattr(vits, "diagnose", functools.partial(vits.diagnose, depth=0, joined=0))
    test = few(20)
    smooth, sharpen = (vits.run(variant, test) for variant in ("smooth", "sharpen"))
    assert smooth.smoothing_share == 1
    assert sharpen.smoothing_share == 0
    for diagnosis, way in ((smooth, -1), (sharpen, 1)):
        curve = diagnosis.curve("hfc_lfc")
        assert way * (curve[-1] - curve[0]) > 0
        assert any(sentence.startswith("Accuracy:") for sentence in diagnosis.verdict)
        assert json.loads(diagnosis.to_json())["accuracy"]["images"] == 20
