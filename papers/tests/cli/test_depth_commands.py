"""The depth study as a user meets it: its cells, those it shares with table 2, and its figures by other means."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.commands import refusal, run
from support.nightly import nightly
from support.oracles import mean_metric, streams

from oversmooth.safety.errors import InputError
from oversmooth_papers.tables import cells, depth
from oversmooth_papers.tables.base import last_snapshots
from oversmooth_papers.tables.depth import Depth
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images import recipe
from oversmooth_papers.tasks.images.build import augment_of
from oversmooth_papers.tasks.images.data import load_splits
from oversmooth_papers.tasks.images.evaluate import Evaluator
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.registry import load_trained


def cell(one, accuracy, last):
    """As a run leaves it, with one early look at smoothing and the last one."""
    ends = one.shape.depth + 1
    last_snapshots = [
        {"step": 1, "hfc_lfc": [9.0] * ends, "cos": [0.9] * ends, "abs_cos": [0.9] * ends},
        {"step": 7, "hfc_lfc": [1.0] * (ends - 1) + [last], "cos": [0.1] * ends, "abs_cos": [last / 9] * ends},
    ]
    where = {"title": one.title, "hardware": "x", "day": "y", "recipe": one.to_dict()}
    return {**where, "accuracy": accuracy, "smoothing": last_snapshots}


@pytest.mark.parametrize(("share", "quick"), [(0.1, False), (0.25, False), (0.5, False), (1.0, False), (0.1, True)])
def test_nothing_but_the_number_of_blocks_differs(share, quick):
    """Cells of twelve blocks are those of table 2, where it has them."""
    table = Depth(share=share, quick=quick)
    every = table.recipes()
    assert len({replace(one, variant="plain", seed=0, shape=replace(one.shape, depth=12)) for one in every}) == 1
    assert len({one.key for one in every}) == len(every) == 27
    kept_with_table2 = {one.key for one in every if table.folder(one) == "table2"}
    assert kept_with_table2 == {one.key for one in every} & {one.key for one in Table2().recipes()}
    assert len(kept_with_table2) == (0 if quick or share == 0.25 else 9)


def test_cells_are_called_by_variant_and_depth():
    every = Depth().recipes()
    assert "ViT-Ti⁻, depth 48, 10 % of cifar100, seed 2" in {one.title for one in every}
    chosen = cells.chosen(every, ["plain:depth24", "depth48"])
    assert {(one.variant, one.shape.depth) for one in chosen} == {
        ("plain", 24), ("plain", 48), ("smooth", 48), ("sharpen", 48),
    }  # fmt: skip
    with pytest.raises(InputError, match="depth12, depth24, depth48"):
        cells.chosen(every, ["depth13"])


def test_figures_are_means_over_seeds_and_table_2_is_asked_first(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    draw = np.random.default_rng(0)
    every = Depth().recipes()
    numbers = {one.key: draw.uniform(0.1, 0.9, 2) for one in every if one.shape.depth < 48}
    for one in every:
        if one.key in numbers:
            path = cells.cell_path(tmp_path, Depth().folder, one)
            cells.write(path, cell(one, *numbers[one.key]))
    assert len(list((tmp_path / "table2").iterdir())) == len(list((tmp_path / "depth").iterdir())) == 9
    assert {one.shape.depth for one in cells.missing(every, tmp_path, Depth().folder)} == {48}
    given = ("reproduce", "depth", "--show", "--results", tmp_path)
    assert run(monkeypatch, *given, "-o", tmp_path / "depth.md", "-o", tmp_path / "depth.svg") == 0
    text = (tmp_path / "depth.md").read_text(encoding="utf-8")
    assert "not published as numbers" in " ".join(capsys.readouterr().out.split())
    for variant, name in (("plain", "ViT-Ti"), ("smooth", "ViT-Ti⁺"), ("sharpen", "ViT-Ti⁻")):
        for blocks in (12, 24):
            own = [one for one in every if one.variant == variant and one.shape.depth == blocks]
            accuracy, last = np.array([numbers[one.key] for one in own]).T
            figures = ((100 * accuracy, ".2f"), (np.ones(3), ".3g"), (last, ".3g"), (last / 9, ".3g"))
            shown = " | ".join(f"{values.mean():{form}} ± {values.std(ddof=1):.2g}" for values, form in figures)
            wanted = f"| {name} | {blocks} | 3 | {shown} | ours, 10 % |"
            assert wanted in text
        assert f"| {name} | 48 | 0 | – | – | – | – | ours, 10 % |" in text
    drawn = (tmp_path / "depth.svg").read_text(encoding="utf-8")
    assert "HFC / LFC" in drawn
    assert "ViT-Ti−" in drawn
    assert run(monkeypatch, "reproduce", "status", "--results", tmp_path) == 0
    shown = capsys.readouterr().out
    assert shown.count("depth 24, 10 % of cifar100") == 9
    assert "share is 2" in refusal(monkeypatch, capsys, *given, "--share", 2)


@nightly
def test_the_quick_study_is_run_kept_and_called_quick(monkeypatch, capsys, tmp_path, cifar):
    monkeypatch.setenv("COLUMNS", "160")
    tiny = replace(recipe.QUICK, share=1.0, epochs=1, batch=20, shape=Shape(patch=8, width=16, heads=2))
    monkeypatch.setattr(depth, "QUICK_BASE", tiny)
    monkeypatch.setattr(depth, "QUICK_DEPTHS", (1, 3))
    monkeypatch.setattr(Depth, "quick_test_images", 50)
    given = ("reproduce", "depth", "--quick", "--results", tmp_path / "r", "-o", tmp_path / "d.md")
    assert run(monkeypatch, *given, "-o", tmp_path / "d.svg", "--data", cifar, "--device", "cpu") == 0
    shown = capsys.readouterr().out
    assert shown.count("ours, quick") == 6
    assert "nothing that is published" in " ".join(shown.split())
    kept = sorted((tmp_path / "r" / "depth-quick").glob("*.json"))
    assert len(kept) == 6
    text, test = (tmp_path / "d.md").read_text(encoding="utf-8"), load_splits(cifar).test
    for path in kept:
        found = json.loads(path.read_text())
        model, own = load_trained(tmp_path / "r" / "models" / f"{path.stem}.safetensors")
        assert found["smoothing"][-1]["step"] == 20  # the last
        alone = Evaluator(own, model, torch.device("cpu")).accuracy(test.images[:50], test.labels[:50])
        assert found["accuracy"] == pytest.approx(alone, abs=0.021)  # weights are kept in bf16
        first, last = by_hand(model, augment_of(own).normalise(test.images[:8].float()))
        wanted = [last for place in range(3) for last in last_snapshots({own: found}, place)]
        assert wanted[:2] == pytest.approx((first, last), rel=0.02)
        row = f"| {own.shape.depth} | 1 | {100 * found['accuracy']:.2f} | {wanted[0]:.3g} | {wanted[1]:.3g} |"
        assert row in text
    # Shown again without the data, whose sizes the cells know; and in the status.
    assert run(monkeypatch, *given, "--show") == 0
    assert (tmp_path / "d.md").read_text(encoding="utf-8") == text
    capsys.readouterr()
    assert run(monkeypatch, "reproduce", "status", "--results", tmp_path / "r") == 0
    shown = capsys.readouterr().out.split("missing from")[0]
    assert shown.count("depth-quick, on ") == 1
    assert sum(path.stem in shown for path in (tmp_path / "r" / "depth-quick").iterdir()) == 6


def by_hand(model, x):
    """Geometric means over the images of HFC/LFC of the tokens before and after all blocks."""
    first, *_, last = streams(model.blocks, lambda: model(x))
    return [math.exp(mean_metric("log_hfc_lfc", tokens)) for tokens in (first, last)]
