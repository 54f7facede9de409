"""What benchmarks compare with is what they say, as far as a CPU shows it."""

import importlib.util
from dataclasses import replace

import pytest
import torch
from support.places import ROOT

from oversmooth_papers.tasks.images.recipe import Shape


@pytest.fixture
def train(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # they import each other
    spec = importlib.util.spec_from_file_location("benchmark_of_training", ROOT / "benchmarks" / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_timms_model_is_compiled_as_the_row_says(train, monkeypatch):
    asked = []

    def compile(model, mode=None):
        asked.append(mode)
        return model

    monkeypatch.setattr(torch, "compile", compile)
    cpu = torch.device("cpu")
    recipe = replace(train.settings(cpu), shape=Shape(patch=8, width=16, depth=1, heads=2), batch=2)
    rows = {"eager": {}, "compiled": {"compiled": True}, "reduce-overhead": {"graphed": True}}
    for word, settings in rows.items():
        name, step = train.timm_step(recipe, cpu, **settings)
        assert name.endswith(word) or f", {word}, fused AdamW" in name
        step()
        step()
    assert asked == [None, "reduce-overhead"]
    assert {"step", "compiled", "graphed"} <= set(train.PARTS) & set(train.REACH)
