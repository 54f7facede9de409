"""What spectra predict for NeuTRENO's strength, beside what training gave: the rule, the files and the command."""

import json
import re
from dataclasses import replace

import pytest
import torch
from support import language_example
from support.commands import refusal, run
from support.train_example import blobs, plain

from oversmooth.safety.errors import InputError
from oversmooth.steering import suggest
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tables.filling import Running
from oversmooth_papers.tables.neutreno import prediction
from oversmooth_papers.tables.neutreno.methods import STRENGTHS
from oversmooth_papers.tables.neutreno.prediction import KINDS, measure, named, outcomes, table, verdict
from oversmooth_papers.tasks.images.build import augment_of, load_vit, model_of
from oversmooth_papers.tasks.registry import load_trained


def model_file(folder, variant="plain", seed=0):
    recipe = plain(variant=variant, seed=seed)
    path = folder / f"{seed}.safetensors"
    save_model(model_of(recipe), recipe, path)
    return path


def measured(paths, results, inputs=3):
    return measure(named(paths), blobs(6, 1), results, inputs, Running(device="cpu"))


def cell(results, recipe, folder, accuracy=None, **scores):
    path = results / folder / f"{recipe.key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"seed": recipe.seed, "recipe": recipe.to_dict(), "day": "2026-01-01", "hardware": "CPU"}
    scores = scores or {"accuracy": accuracy}
    path.write_text(json.dumps({"table": folder, "title": "a run", **facts, **scores}))


IMAGES, LANGUAGE = KINDS.values()
TRAINED = {
    IMAGES: ({0.0: (0.30, 0.32), 0.4: (0.40, 0.44), 0.8: (0.41, 0.41)}, "42.00 % at 0.4 ± 2.00 (standard error)"),
    LANGUAGE: ({0.0: (99.0, 97.0), 0.4: (95.0, 91.0), 0.8: (94.0, 94.0)}, "93.00 at 0.4 ± 2.00 (standard error)"),
}
"""Means 0.31, 0.42 and 0.41, or 98, 93 and 94; the best one's standard error is 0.02, or 2."""


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(
    ("proposed", "answer"), [(0.4, "yes"), (0.6, "yes"), (0.75, "yes"), (0.8, "yes"), (0.05, "no"), (None, "")]
)
def test_within_one_standard_error_of_the_best(kind, proposed, answer):
    figures, best = TRAINED[kind]
    says = verdict(proposed, figures, kind)
    assert (f"the best mean is {best}: {answer}, " in says) == (proposed is not None)
    assert ("nothing to compare" in says) == (proposed is None)


def test_what_cannot_be_decided_is_not():
    one_seed = {0.0: [0.3], 0.6: [0.4]}
    assert verdict(0.5, one_seed, IMAGES).endswith("of one seed, which has no standard error: undecided.")
    assert verdict(0.5, {0.0: [0.3]}, IMAGES).endswith("nothing is decided.")
    assert verdict(0.5, {}, IMAGES).endswith("nothing is decided.")


def test_a_row_has_what_suggest_says_and_what_was_trained(tmp_path):
    results, path = tmp_path / "results", model_file(tmp_path)
    (there,) = measured([path], results).values()
    model, recipe = load_vit(path)
    x = augment_of(recipe).normalise(blobs(6, 1).images[:3].float())
    expected = suggest(model, x)
    assert there["strength"] == expected.strength
    curve = {point["strength"]: point for point in there["curve"]}
    for point in expected.curve:
        assert curve[point.strength]["smoothing"] == pytest.approx(point.steered_share)
        assert curve[point.strength]["rho_rough"] == pytest.approx(point.rho_rough, rel=1e-5)
    cell(results, replace(recipe, seed=1), "table2", 0.25)
    cell(results, recipe, "table2", 0.35)
    cell(results, replace(recipe, variant="neutreno:strength=0.4"), "neutreno/ablation", 0.4)
    cell(results, replace(recipe, variant="neutreno:strength=0.6"), "neutreno/methods", 0.5)
    cell(results, replace(recipe, variant="neutreno:strength=0.6", lr=0.1), "neutreno/methods", 0.9)  # another recipe
    assert outcomes(recipe, results) == {0.0: [0.35, 0.25], 0.4: [0.4], 0.6: [0.5]}
    shown = {row[0]: row[1:] for row in table({recipe: there}, results)[1]}
    assert shown["0"][3].startswith("30.00 ± 7.07 (2)")
    assert shown["0.4"][0] == f"{100 * next(p for p in expected.curve if p.strength == 0.4).steered_share:.1f}"
    assert shown["0.6"][3] == "50.00 (1)"
    assert shown["0.8"][3] == "–"


def test_computed_once_and_never_replaced(tmp_path, monkeypatch):
    results, path = tmp_path / "results", model_file(tmp_path)
    first = measured([path], results)
    (file,) = (results / "neutreno" / "prediction").glob("*.json")
    written = file.read_bytes()
    monkeypatch.setattr(prediction, "suggest", None)
    assert next(iter(measured([path], results).values()))["curve"] == next(iter(first.values()))["curve"]
    with pytest.raises(InputError, match="was measured with inputs 3 and is asked for with 2"):
        measured([path], results, inputs=2)
    model, recipe = load_vit(path)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    save_model(model, recipe, path)
    with pytest.raises(InputError, match="was measured with weights"):
        measured([path], results)
    assert file.read_bytes() == written
    for damage in (written[:50], written.replace(b'"curve"', b'"curves"'), b"[]"):
        file.write_bytes(damage)
        with pytest.raises(InputError, match="remove it to run it again"):
            measured([path], results)


def test_models_that_are_not_plain_are_refused(tmp_path):
    with pytest.raises(InputError, match="predictions are those of plain models"):
        measured([model_file(tmp_path, "neutreno:strength=0.6")], tmp_path / "results")
    assert not (tmp_path / "results" / "neutreno").exists()


def test_the_command_shows_and_writes_the_table(tmp_path, monkeypatch, capsys, cifar):
    recipe = replace(plain(), data="cifar100")
    recipe = replace(recipe, shape=replace(recipe.shape, image=32, patch=8, classes=100))
    save_model(model_of(recipe), recipe, tmp_path / "model.safetensors")
    given = ("reproduce", "neutreno", "prediction", "--trained", tmp_path / "model.safetensors", "--data", cifar)
    given = (*given, "--inputs", 2, "--results", tmp_path / "r", "--device", "cpu", "-o", tmp_path / "table.md")
    assert run(monkeypatch, *given) == 0
    assert "so nothing is decided" in re.sub(r"\s+", " ", capsys.readouterr().out)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| λ̃ | cases that smooth, % | undecided, % | ρ_rough | accuracy, % |"
    assert [line.split(" | ")[0] for line in lines[2:11]] == [f"| {s:g}" for s in STRENGTHS]
    assert "name other --results" in refusal(monkeypatch, capsys, *given, "--inputs", 1)


def language_file(folder):
    recipe = replace(language_example.RECIPE, shape=replace(language_example.SHAPE, norm="post"))
    path = folder / "language.safetensors"
    save_model(language_example.task_of(recipe).model(), recipe, path)
    return path, recipe


def test_of_a_language_model_by_windows_of_its_validation_text(tmp_path):
    results, (path, recipe) = tmp_path / "results", language_file(tmp_path)
    text = language_example.counting()
    (there,) = measure(named([path]), text, results, 5, Running(device="cpu")).values()
    model, _ = load_trained(path)
    expected = suggest(model, torch.stack([text.valid[12 * n : 12 * n + 12] for n in range(5)]).long())
    assert (there["inputs"], there["strength"]) == (5, expected.strength)
    curve = {point["strength"]: point for point in there["curve"]}
    assert all(curve[p.strength]["smoothing"] == pytest.approx(p.steered_share) for p in expected.curve)
    for strength, perplexity in ((0.0, 97.0), (0.4, 95.0), (0.6, 94.5)):
        own = replace(recipe, variant=f"neutreno:strength={strength:g}" if strength else "plain")
        folder = "neutreno/language-ablation" if strength == 0.6 else "neutreno/language"
        others = {"valid_perplexity": 99.0, "test_perplexity": 99.0}
        cell(results, own, folder, valid_perplexity_sliding=perplexity, **others)
    assert outcomes(recipe, results) == {0.0: [97.0], 0.4: [95.0], 0.6: [94.5]}
    head, rows, notes = table({recipe: there}, results)
    assert head[-1] == "validation perplexity"
    assert {row[0]: row[-1] for row in rows}["0.6"] == "94.50"
    assert "5 windows of the validation text each" in notes[-1]


def test_models_that_differ_in_more_than_their_seed_are_refused(tmp_path):
    with pytest.raises(InputError, match="differ in more than their seed"):
        named([model_file(tmp_path), language_file(tmp_path)[0]])
