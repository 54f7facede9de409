"""The second paper's tables of trained models: their recipes, their rows from cells, and a small version of each."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
from support.commands import refusal, run
from support.nightly import nightly
from support.places import ROOT

from oversmooth import steering
from oversmooth.safety.errors import InputError
from oversmooth_papers.tables import cells, status
from oversmooth_papers.tables.neutreno import language, methods, segmentation
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images.recipe import PAPER


def cell(recipe, **scores):
    look = {"step": 1, "hfc_lfc": [1.0, 0.5], "cos": [0.1, 0.2], "abs_cos": [0.3, 0.4]}
    facts = {"title": recipe.title, "hardware": "a machine", "day": "2026-01-01", "seed": recipe.seed}
    return {**facts, **scores, "recipe": recipe.to_dict(), "smoothing": [look]}


def test_every_method_has_the_recipe_of_table_2_and_the_same_seeds():
    recipes = methods.Methods(seeds=2).recipes()
    base = replace(PAPER, share=0.1)
    assert {replace(recipe, variant="plain", seed=0) for recipe in recipes} == {base}
    assert {recipe.seed for recipe in recipes} == {0, 1}
    assert len(recipes) == len(set(recipes)) == 2 * len(methods.METHODS)
    assert {r.key for r in recipes if r.variant == "plain"} <= {r.key for r in Table2(seeds=2).recipes()}
    table = methods.Methods()
    assert table.folder(base) == "table2"
    assert table.folder(replace(base, variant="featscale")) == "neutreno/methods"
    for variant in methods.METHODS.values():
        replace(base, variant=variant).methods()  # each is one that there is
    compared = {type(m).__name__ for v in methods.METHODS.values() for m in replace(base, variant=v).methods()}
    assert set(steering.METHODS) - compared == {"Laplacian"}


def test_rows_that_were_added_leave_the_cells_that_are_there():
    table = methods.Methods()
    kept = cells.read_cells(table.recipes(), ROOT / "results", table.folder)
    there = {path.stem for path in (ROOT / "results" / "neutreno" / "methods").glob("*.json")}
    assert there == {recipe.key for recipe in kept if table.folder(recipe) == "neutreno/methods"}
    assert [row[0] for row in table.rows(kept)[1]] == [case.title for case in table.case_by_name.values()]


def test_tables_share_their_cells():
    ours = {methods.Methods().folder(r) + r.key for r in methods.Methods().recipes()}
    theirs = {methods.Classification().folder(r) + r.key for r in methods.Classification().recipes()}
    assert theirs < ours
    table = methods.Ablation()
    shared = [r for r in table.recipes() if table.folder(r) + r.key in ours]
    assert {r.variant for r in shared} == {"plain", "neutreno:strength=0.6"}


def test_rows_say_what_cells_say():
    table = methods.Methods(seeds=2)
    kept = {
        r: cell(r, accuracy=0.3 + 0.02 * r.seed)
        for r in table.recipes()
        if r.variant in ("plain", "featscale") and (r.seed == 0 or r.variant == "plain")
    }
    head, rows = table.rows(kept)
    found = {row[0]: row[1:] for row in rows}
    assert found["plain ViT-Ti"] == ["31.00 ± 1.41 (2)", "0.5 ± 0", "0.4 ± 0", "ours"]
    assert found["FeatScale"] == ["30.00 (1)", "0.5", "0.4", "ours"]
    assert found["AttnScale"] == ["–", "–", "–", "ours"]
    assert len(head) == 5
    published = methods.Classification().rows(kept)[1]
    assert [row[1] for row in published if row[-1].startswith("published")] == ["72.17", "73.01"]
    assert {row[0]: row[1] for row in methods.Ablation().rows(kept)[1]}["0"] == "31.00 ± 1.41 (2)"


def test_rows_of_language_and_segmentation():
    table = language.Language(seeds=1)
    kept = {
        r: cell(
            r, valid_perplexity=9.0, valid_perplexity_sliding=8.0, test_perplexity_sliding=7.0 + (r.variant == "plain")
        )
        for r in table.recipes()
        if r.shape.norm == "post"
    }
    rows = table.rows(kept)[1]
    assert rows[0] == ["baseline, Post-LN", "8.00", "8.00", "0.5", "ours"]
    assert rows[1] == ["baseline, Post-LN", "–", "34.29", "–", "published, WikiText-103"]
    assert rows[2][2] == "7.00"
    assert rows[4][1:4] == ["–", "–", "–"]
    segments = segmentation.Segmentation(seeds=1)
    kept = {r: cell(r, miou=0.5, miou_multiscale=0.52, pixel_accuracy=0.9) for r in segments.recipes()[:1]}
    assert segments.rows(kept)[1][0] == ["baseline", "50.00 (1)", "52.00 (1)", "90.00 (1)", "0.5", "ours"]
    assert [row[1] for row in segments.rows(kept)[1] if "published" in row[-1]] == ["35.72", "37.24"]


def test_a_ramp_is_a_row_of_its_own():
    table = segmentation.Segmentation(seeds=1)
    (rising,) = cells.chosen(table.recipes(), ["ramp"], table.names_of)
    assert (rising.variant, rising.ramp) == ("neutreno:strength=0.6", 0.5)
    kept = cells.read_cells(table.recipes(), ROOT / "results", table.folder)
    assert {recipe.key for recipe in kept} == {p.stem for p in (ROOT / "results/neutreno/segmentation").glob("*.json")}
    assert kept[rising]["epochs"][0]["strength_share"] == 1 / 32  # of 64 epochs it rises over half
    found = {row[0]: row[1] for row in table.rows(kept)[1] if row[-1] == "ours"}
    assert found[table.case_by_name["ramp"].title] == "44.73 (1)"
    assert found[table.case_by_name["neutreno"].title] == "42.46 (1)"


def test_cells_are_named_and_read_again(tmp_path):
    table = language.Language(seeds=2)
    recipes = table.recipes()
    assert [table.names_of(r) for r in cells.chosen(recipes, ["plain:pre"], table.names_of)] == [
        {"variant": "plain", "norm": "pre"}
    ] * 2
    with pytest.raises(InputError, match=r"name variants \(plain, neutreno\), norms \(post, pre\)"):
        cells.chosen(recipes, ["both"], table.names_of)
    first = recipes[0]
    path = cells.cell_path(tmp_path, table.folder, first)
    assert path.parent == tmp_path / "neutreno" / "language"
    path.parent.mkdir(parents=True)
    cells.write(path, cell(first, valid_perplexity=9.0))
    assert cells.read_cells(recipes, tmp_path, table.folder)[first]["valid_perplexity"] == 9.0
    assert status.status(tmp_path)[0][:3] == ("neutreno/language", first.title, "perplexity 9.00 on validation")
    path.write_text(json.dumps(cell(first)))
    with pytest.raises(InputError, match="it has no score 'valid_perplexity'"):
        status.status(tmp_path)


@nightly
def test_the_quick_language_table_from_its_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(language.Language, "small", replace(language.QUICK, epochs=1, batch=64))
    given = ("reproduce", "neutreno", "language", "--quick", "--results", tmp_path, "--device", "cpu")
    assert run(monkeypatch, *given, "--cells", "plain:pre", "-o", tmp_path / "t.md") == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "quick" in shown
    text = (tmp_path / "t.md").read_text(encoding="utf-8")
    assert text.count("ours, quick") == 4
    there = sorted((tmp_path / "neutreno" / "language-quick").glob("*.json"))
    assert len(there) == 1
    values = [json.loads(path.read_text())["test_perplexity_sliding"] for path in there]
    assert all(f"{value:.2f}" in text for value in values)
    assert run(monkeypatch, *given, "--show") == 0  # of what is there, nothing is run


def test_tasks_and_their_options(monkeypatch, capsys, tmp_path):
    refused = partial(refusal, monkeypatch, capsys, "train", "-o", tmp_path / "run", "--device", "cpu")
    assert "--task is 'paint'; choose images or language or segmentation" in refused("--task", "paint")
    assert "--patch is no setting of --task language" in refused("--task", "language", "--patch", 2)
    assert "--length is no setting of --task images" in refused("--length", 9)
    assert "--augment is no setting of --task language" in refused("--task", "language", "--augment")
    assert "no file, no folder and no known text" in refused("--task", "language", "--data", "nowhere")
    recipe = tmp_path / "recipe.json"
    recipe.write_text(language.QUICK.to_json())
    assert "is a recipe for language and --task is images" in refused("--recipe", recipe, "--task", "images")
    assert not (tmp_path / "run").exists()
    small = ("--depth", 2, "--width", 16, "--heads", 2, "--hidden", 16)
    options = ("--epochs", 1, "--batch", 64, *small, "--variant", "neutreno:strength=0.4")
    assert run(monkeypatch, "train", "--recipe", recipe, *options, "-o", tmp_path / "run", "--device", "cpu") == 0
    assert "on validation" in capsys.readouterr().out
