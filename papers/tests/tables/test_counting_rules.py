"""Table 1's counting rules on a small ViT, each against numpy; and the table of them."""

from dataclasses import replace

import pytest
import torch
from support.commands import run
from support.dense_cases import margins
from support.train_example import RECIPE, SHAPE, splits

from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tables import cells, counting_rules, rules
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images.build import augment_of, model_of
from oversmooth_papers.tasks.images.data import Images


@pytest.fixture(scope="module")
def model():
    model = model_of(RECIPE).eval()
    with torch.no_grad():  # as if trained: of both verdicts
        generator = torch.Generator().manual_seed(1)
        for p in model.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=generator))
        for block in model.blocks:
            block.attn.proj.weight.sub_(0.7 * block.attn.qkv.weight[2 * SHAPE.width :].T)
    return model


def test_every_rule_is_numpys(model):
    images = splits().test.images[:6]
    measured = counting_rules.measure(model, RECIPE, images, joined=2)
    x = augment_of(RECIPE).normalise(images.float())
    kinds = {
        "heads": dict(normed=True, real=False, folded=False),
        "real": dict(normed=True, real=True, folded=False),
        "folded": dict(normed=True, real=False, folded=True),
        "unnormalised": dict(normed=False, real=False, folded=False),
    }
    shares = {}
    for rule, kind in kinds.items():
        counts = measured["rules"][rule]
        assert sum(counts.values()) == 6 * SHAPE.depth * SHAPE.heads
        shares[rule] = counts["smooth"] / sum(counts.values())
        open_share = (counts["undecided"] + counts["tie"]) / sum(counts.values())
        by_numpy = (margins(model, x, **kind) > 0).mean()  # which has no doubts
        assert shares[rule] - 1e-9 <= by_numpy <= shares[rule] + open_share + 1e-9, rule
        assert open_share < 0.3
    assert len(set(shares.values())) > 1  # or nothing would be told apart here
    assert sum(measured["rules"]["joined"].values()) == 2 * SHAPE.depth
    assert all(len(curve) == SHAPE.depth + 1 for curve in measured["notions"].values())
    assert None not in measured["notions"]["effective_rank"]


def test_the_table_measures_models_that_are_there(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.setattr(
        Table2, "recipes", lambda _self: [replace(RECIPE, share=1.0), replace(RECIPE, variant="smooth")]
    )
    data = splits()
    small = data.__class__(data.train, Images(data.test.images, data.test.labels, data.test.classes, "blobs"))
    monkeypatch.setattr("oversmooth_papers.cli.tables.load", lambda *_: small)
    (tmp_path / "models").mkdir()
    save_model(model, RECIPE, cells.model_path(tmp_path, RECIPE), notes={"accuracy": 0.5})
    given = ("reproduce", "rules", "--seeds", 1, "--images", 4, "--joined", 1, "--results", tmp_path, "--device", "cpu")
    assert run(monkeypatch, *given) == 2  # one of the two could not be measured
    shown = capsys.readouterr()
    assert "no model" in shown.err
    assert "models are missing: not all cells are there" in shown.out
    cell = cells.read(tmp_path / "rules" / f"{RECIPE.key}.json")
    assert f"{100 * cell['rules']['heads']['smooth'] / sum(cell['rules']['heads'].values()):.2f}" in shown.out
    assert "98.92" in shown.out
    assert cell["command"].startswith("oversmooth reproduce rules --seeds 1")
    other = replace(RECIPE, variant="smooth")
    save_model(model, other, cells.model_path(tmp_path, other))
    assert run(monkeypatch, *given) == 2
    assert "does not say how accurate the model was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (dict(smooth=87, rough=0, tie=0, undecided=9), "90.62 (9.38 open)"),
        (dict(smooth=0, rough=97, tie=2, undecided=1), "0.00 (3.00 open)"),
        (dict(smooth=3, rough=1, tie=0, undecided=0), "75.00"),
    ],
)
def test_what_is_open_is_told_from_what_sharpens(counts, text):
    assert rules.share_text({"rules": {"heads": counts}}, "heads") == text
