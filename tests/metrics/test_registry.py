"""A metric of one's own is one function: it is measured, kept, and shown wherever metrics are."""

import io
import json

import pytest
import torch
from rich.console import Console

import oversmooth
from oversmooth import metrics
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.models.vit import ViT
from oversmooth.report import figures, page, terminal


@pytest.fixture
def spread():
    before = dict(metrics.METRICS)

    @metrics.register(label="largest norm", scale="log", heading="largest\nnorm")
    def largest_norm(x, *, mask=None):
        norms = x.norm(dim=-1)
        return (norms if mask is None else norms.where(mask, 0.0)).amax(-1)

    yield largest_norm
    metrics.METRICS.clear()
    metrics.METRICS.update(before)


@pytest.fixture
def found(spread):
    assert spread.__name__ in metrics.METRICS
    torch.manual_seed(0)
    model = ViT(image=8, patch=4, channels=3, width=16, depth=2, heads=2, classes=3).eval()
    images = torch.randn(3, 3, 8, 8)
    entering = []
    handle = model.blocks[0].register_forward_pre_hook(lambda _, args: entering.append(args[0].clone()))
    diagnosis = oversmooth.diagnose(model, images, spectra=False, depth=0)
    handle.remove()
    return diagnosis, entering[-1]


def test_it_is_measured_and_kept(found, tmp_path):
    diagnosis, entering = found
    value = diagnosis.layers[0].tokens["largest_norm"]
    assert value == pytest.approx(float(entering.norm(dim=-1).amax(-1).mean()), rel=1e-5)
    diagnosis.save(tmp_path / "d.json")
    assert Diagnosis.load(tmp_path / "d.json").curve("largest_norm")[0] == pytest.approx(value)


def test_it_is_shown_in_the_terminal_the_page_and_the_figures(found):
    diagnosis, _ = found
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal.layers(diagnosis))
    assert "largest" in console.export_text()
    text = page.render([diagnosis])
    assert '<th scope="col">largest norm</th>' in text
    assert "<option>largest norm</option>" in text
    drawn = json.dumps(figures.drawn([diagnosis], "curves").to_dict())
    assert '"largest norm"' in drawn


def test_a_diagnosis_with_a_metric_that_is_not_known_here_still_loads(found, tmp_path):
    diagnosis, _ = found
    diagnosis.save(tmp_path / "d.json")
    del metrics.METRICS["largest_norm"]
    loaded = Diagnosis.load(tmp_path / "d.json")
    assert loaded.curve("largest_norm")[1] is not None
    with pytest.raises(oversmooth.InputError, match="there is no metric 'beauty'; choose one of hfc_lfc"):
        loaded.curve("beauty")


def test_every_metric_says_how_it_is_shown():
    assert list(metrics.METRICS)[:3] == ["hfc_lfc", "log_hfc_lfc", "log_hfc"]
    for name, metric in metrics.METRICS.items():
        assert metric.name == name
        assert metric.scale in ("linear", "log")
        assert metric.label or not (metric.heading or metric.panel)
