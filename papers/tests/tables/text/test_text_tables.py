"""Text tables: recipes, what is told apart and what is not, the fine-tuning of what was pretrained, figures."""

from dataclasses import replace

import pytest
import torch
from support import language_example
from support.commands import refusal, run
from support.nightly import nightly

from oversmooth.safety.errors import InputError
from oversmooth_papers.tables import cells
from oversmooth_papers.tables.filling import Running
from oversmooth_papers.tables.text import figures, glue, language_models
from oversmooth_papers.tables.text.glue import NOTHING, Glue, separation
from oversmooth_papers.tables.text.language_models import Causal, Masked, Wikitext
from oversmooth_papers.tasks.glue.recipe import TASKS, TOLD
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.language.data import load_text
from oversmooth_papers.tasks.language.recipe import Shape

TINY = replace(
    language.QUICK,
    epochs=1,
    batch=8,
    shape=Shape(length=64, width=16, depth=2, heads=2, hidden=16, norm="pre", dropout=0.0),
)


def test_recipes_are_those_of_the_paper_s_experiment():
    for table in (Causal(seeds=1), Masked(seeds=1), Wikitext(seeds=1)):
        recipes = table.recipes()
        assert [table.case_of(recipe) for recipe in recipes] == list(table.cases())
        assert (
            len({recipe.key for recipe in recipes})
            == len(recipes)
            == len(language_models.CASES) + (table.name == "causal")
        )
        shape = recipes[0].shape
        assert (shape.depth, shape.width, shape.vocabulary, recipes[0].tokenizer) == (12, 256, 8192, "bpe")
    assert Masked().recipes()[0].shape.length == 128
    assert not Masked().recipes()[0].shape.causal
    assert {task for task in TASKS if not TASKS[task].chance and task != "following"} == {*TOLD}
    assert len(Glue(seeds=3).recipes()) == 3 * len(TOLD) * 5  # those of the paper's start are not fine-tuned
    assert {recipe.data for recipe in Glue(chance=True).recipes()} == {*TOLD, "COPA", "WSC", "MultiRC"}


def test_the_start_is_what_the_row_says():
    table = Causal(seeds=1)
    steered = {table.case_of(recipe): recipe.methods() for recipe in table.recipes()}
    starts = {name: methods[0].start for name, methods in steered.items() if methods}
    assert starts == {name: "cold" if name.endswith("cold") else "warm" for name in table.cases() if name != "plain"}
    assert len({recipe.label for recipe in table.recipes()}) == len(table.cases())
    signs = {name: steered[name][0].signs for name in ("smooth-cold", "fixed-cold", "free-cold")}
    assert signs == {"smooth-cold": "one", "fixed-cold": "fixed", "free-cold": "free"}
    tuned = Glue(seeds=1).recipes()
    assert [Glue().case_of(recipe) for recipe in tuned[:5]] == list(language_models.WARM)


def test_only_ranges_that_do_not_meet_are_told_apart():
    assert separation([50, 51, 52], [53, 54, 60]) == "−3.0"
    assert separation([61, 62], [53, 54, 60]) == "+7.5"
    assert separation([50, 55, 52], [53, 54, 60]) == NOTHING
    assert separation([50], [53, 54]) == "–"
    kept = {
        replace(recipe, seed=seed): {
            "accuracy": 0.5 + 0.01 * seed + (recipe.variant == "plain") * 0.2,
            "majority": {"accuracy": 0.4},
            "pretraining_perplexity": 13.3 if recipe.variant == "plain" else 20.0,
        }
        for recipe in Glue(seeds=1, quick=True).recipes()
        for seed in range(3)
    }
    _, rows = Glue(quick=True).rows(kept)
    shown = {row[0]: row[2] for row in rows}
    assert [row[1] for row in rows[:3]] == ["13.30", "20.00", "20.00"]  # the models' own
    assert shown["plain"] == "71.0 [70.0, 72.0] (3)"
    assert shown["majority"] == "40.0"
    assert shown["sharpening, all layers, told apart from plain"] == "−20.0"


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--pretrained-seed", -1), "pretrained_seed is -1; give a whole number, 0 to 999"),
        (("--cells", "plain:nonsense"), "no cell is called 'plain:nonsense'"),
        (("--on-nan", "maybe"), "'maybe' is not one of 'stop', 'retry'"),
    ],
)
def test_what_is_only_shown_is_checked_too(monkeypatch, capsys, tmp_path, option, sentence):
    given = ("reproduce", "text", "glue", "--show", "--results", tmp_path, *option)
    assert sentence in refusal(monkeypatch, capsys, *given)


def test_panels_of_tasks_have_the_same_rows():
    pytest.importorskip("altair")
    own = {task: settings.metrics[0] for task, settings in TASKS.items()}
    kept = {r: {own[r.data]: 0.6} for r in Glue(seeds=1).recipes()}
    assert Glue().rows(kept)[1][5][:3] == ["majority", "–", "–"]  # where no cell says it
    assert Glue().chart(kept).to_dict()["concat"][0]["layer"][0]["encoding"]["y"]["scale"]["domain"][-1] != "majority"
    cell = {"accuracy": 0.6, "majority": {"accuracy": 0.5}}
    kept = {r: cell for r in Glue(seeds=2).recipes() if (r.variant, r.data) in (("plain", "RTE"), ("smooth", "WiC"))}
    first, second = Glue().chart(kept).to_dict()["concat"]
    rows = [layer["encoding"]["y"] for panel in (first, second) for layer in panel["layer"]]
    assert {tuple(row["scale"]["domain"]) for row in rows} == {
        ("plain", "smoothing, all layers", "smoothing, first half", "majority")
    }
    assert [row["axis"]["labels"] for row in rows] == [True, True, False, False]


def test_training_stands_beside_validation():
    cell = {"valid_perplexity": 40.0, "seconds": 60.0, "epochs": [{"loss": 9.0}, {"loss": 3.0}]}
    kept = {recipe: cell for recipe in Causal(seeds=2).recipes() if recipe.variant == "plain"}
    head, rows = Causal().rows(kept)
    assert (head[:3], rows[0][:3]) == (
        ["", "validation", "training"],
        ["plain", "40.00 ± 0 (2)", "20.09 ± 0 (2)"],
    )  # e³
    assert rows[1][1:3] == ["–", "–"]
    assert "training" not in Causal().terminal_rows(kept)[0]


@nightly
def test_text_is_trained_tuned_and_drawn(monkeypatch, capsys, tmp_path):
    """All of it, with models of a second each."""
    monkeypatch.setenv("COLUMNS", "200")
    small = replace(TINY, shape=replace(TINY.shape, causal=False))
    monkeypatch.setattr(Masked, "small", small)
    monkeypatch.setattr(glue.Glue, "tasks", lambda _self: ["following"])
    given = ("--quick", "--results", tmp_path, "--device", "cpu")
    assert run(monkeypatch, "reproduce", "text", "glue", *given) == 2
    assert "no model; oversmooth reproduce text masked --cells plain --seeds 1 --quick --results " in (
        capsys.readouterr().err.replace("\n", " ")
    )
    assert run(monkeypatch, "reproduce", "text", "masked", *given, "--cells", "plain,smooth,sharpen") == 0
    shown = capsys.readouterr().out
    kept = cells.read_folder(tmp_path / "text" / "masked-quick")
    assert len(kept) == 3
    for cell in kept:
        assert f"{cell['valid_perplexity']:.2f} (1)" in shown
        looks = [look["asymmetry"] for look in cell["smoothing"]]
        steered = cell["recipe"]["variant"] != "plain"
        assert all((max(look) < 1e-3) == steered for look in looks)  # V Λ Vᵀ is symmetric
    assert run(monkeypatch, "reproduce", "text", "glue", *given, "--cells", "plain,sharpen") == 0
    tuned = cells.read_folder(tmp_path / "text" / "glue-quick")
    assert [cell["recipe"]["variant"] for cell in tuned].count("sharpen") == 1
    assert len(tuned) == 2
    perplexities = {cell["recipe"]["variant"]: cell["valid_perplexity"] for cell in kept}
    assert all(cell["pretraining_perplexity"] == perplexities[cell["recipe"]["variant"]] for cell in tuned)
    assert not any(
        (tmp_path / "models" / f"{path.stem}.safetensors").exists()
        for path in (tmp_path / "text" / "glue-quick").iterdir()
    )
    assert run(monkeypatch, "reproduce", "text", "glue", "--quick", "--results", tmp_path, "--show") == 0
    assert f"{100 * tuned[0]['accuracy']:.1f} (1)" in capsys.readouterr().out
    drawn = ("figures", "--table", "masked", "--quick", "--results", tmp_path, "-o", tmp_path / "figures")
    assert run(monkeypatch, "reproduce", "text", *drawn, "--inputs", 2, "--length", 24) == 0
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{n}.svg" for n in ("fig2", "fig3", "fig5", "asymmetry")
    }
    with pytest.raises(InputError, match="has no plain model of text causal"):
        figures.trained("causal", tmp_path, quick=True)
    with pytest.raises(InputError, match="choose causal, wikitext, masked"):
        figures.trained("glue", tmp_path)


def test_a_column_of_test_is_there_where_something_was_tested():
    plain, table = Causal.full, Causal()
    head, rows = table.rows({plain: {"seconds": 60.0, "valid_perplexity": 40.0}})
    assert "test" not in head
    assert rows[0][:2] == ["plain", "40.00 (1)"]
    assert {len(row) for row in rows} == {len(head)}
    head, rows = table.rows({plain: {"seconds": 60.0, "valid_perplexity": 40.0, "test_perplexity": 41.0}})
    assert rows[0][head.index("test")] == "41.00 (1)"


@nightly
def test_any_folder_of_text_will_do(monkeypatch, tmp_path, capsys):
    for split, words in (("train", "a b c d " * 400), ("valid", "a b c d " * 40)):
        (tmp_path / f"{split}.txt").write_text(words)
    monkeypatch.setattr(Causal, "full", replace(TINY, batch=2))
    given = ("--data", tmp_path, "--results", tmp_path / "results", "--device", "cpu", "--seeds", 1, "--cells", "plain")
    assert run(monkeypatch, "reproduce", "text", "causal", *given) == 0
    (cell,) = cells.read_folder(tmp_path / "results" / "text" / "causal")
    assert cell["recipe"]["data"] == tmp_path.name
    assert f"{cell['valid_perplexity']:.2f} (1)" in capsys.readouterr().out
    assert load_text(tmp_path, "bytes").name == tmp_path.name
    assert Running().keep_models


@pytest.mark.parametrize("variant", ["plain", "smooth"])
def test_weight_metrics_are_those_of_each_block(variant):
    """A block's weight as it is used, by dense matrices."""
    recipe = replace(language_example.RECIPE, variant=variant)
    task = language_example.task_of(recipe)
    model = task.model()
    looked = task.weight_metrics(model)["asymmetry"]
    width, heads = recipe.shape.width, recipe.shape.heads
    for value, block in zip(looked, model.blocks, strict=True):
        values = block.attn.qkv.weight[2 * width :].detach().double().unflatten(0, (heads, -1))
        back = block.attn.proj.weight.detach().double().T.unflatten(0, (heads, -1))
        by_hand = []
        for V, O in zip(values, back, strict=True):  # noqa: E741
            H = V.T @ O
            by_hand.append(float(torch.linalg.norm(H - H.T) / torch.linalg.norm(H)))
        assert value == pytest.approx(sum(by_hand) / heads, abs=1e-4)
