"""Reference values are the gallery's committed figures."""

import json

import pytest
from support.places import ROOT

from oversmooth.results.references import REFERENCES

FIGURES = {one["model"]: one for one in json.loads((ROOT / "results" / "gallery.json").read_text(encoding="utf-8"))}
RENAMED = {"small ViT (Fashion-MNIST)": "ViT (unmodified)"}


def test_every_gallery_model_is_a_reference():
    assert {RENAMED.get(r.name, r.name) for r in REFERENCES} == set(FIGURES)


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda r: r.name)
def test_references_equal_the_committed_figures(reference):
    figures = FIGURES[RENAMED.get(reference.name, reference.name)]
    before, after = figures["hfc_lfc"]
    assert reference.hfc_lfc_ratio == pytest.approx(after / before, rel=5e-3)
    assert reference.cosine == pytest.approx(figures["cos"][1], rel=5e-3)
    assert reference.smoothing_share == pytest.approx(figures["smoothing_share"], rel=5e-3)
    assert (reference.kind == "decoder") == figures["causal"]
