"""Table 1 and the figures of models that were trained: found again in results, or named."""

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import refusal, run
from support.dense_cases import margins
from support.train_example import RECIPE, splits, train

from oversmooth import models
from oversmooth.diagnosis.diagnose import diagnose
from oversmooth.safety.errors import InputError
from oversmooth.steering import fold, steering_of
from oversmooth_papers.engine import loop
from oversmooth_papers.engine import saved_model as saved
from oversmooth_papers.figures import fig3
from oversmooth_papers.tables import table1, table2, trained_models
from oversmooth_papers.tasks.images.build import model_of
from oversmooth_papers.tasks.images.recipe import PAPER, VARIANTS, Shape
from oversmooth_papers.tasks.registry import load_trained

TINY = replace(PAPER, shape=Shape(image=16, patch=8, width=16, depth=2, heads=8))
SEEDS = (0, 3)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """results/models with all variants of two seeds, of the 10 % column alone; and a model of another table."""
    folder = tmp_path_factory.mktemp("results") / "models"
    folder.mkdir()
    for variant in VARIANTS:
        for seed in SEEDS:
            own = replace(TINY, share=0.1, variant=variant, seed=seed)
            model = model_of(own)
            with torch.no_grad():  # as if trained: weights that smooth in some heads and not in others
                for name, p in model.named_parameters():
                    p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name) + seed)))
            saved.save_model(model, own, folder / f"{own.key}.safetensors")
    other = replace(TINY, share=0.1, wiring="code", variant="smooth")
    saved.save_model(model_of(other), other, folder / f"{other.key}.safetensors")
    (folder / "notes.txt").write_text("no model")
    return folder.parent


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(table2, "PAPER", TINY)
    monkeypatch.setenv("COLUMNS", "160")


def test_models_are_found_by_what_they_were_trained_by(kept):
    found = [load_trained(path)[1] for path in trained_models.find(kept, 0.1)]
    assert [(r.variant, r.seed, r.wiring) for r in found] == [(v, s, "paper") for v in VARIANTS for s in SEEDS]
    assert [saved.recipe_of(path).seed for path in trained_models.find(kept, 0.1, 3)] == [3, 3, 3]
    with pytest.raises(InputError, match=r"choose 1, 0\.5 or 0\.1"):
        trained_models.find(kept, 0.2)


def cases_by_hand(path):
    """Of every input, layer and head, whether the smoothing eigenvalue dominates."""
    loaded = models.load(str(path))
    x = torch.cat([batch.inputs["images"] for batch in loaded.inputs(count=2)])
    if steering_of(loaded.model) is not None:
        fold(loaded.model)
    found = margins(loaded.model, x)
    assert abs(found).min() > 1e-4  # no tie, whatever the precision
    return found > 0


def test_table_1_of_trained_models_against_dense_eigenvalues(monkeypatch, capsys, tmp_path, kept):
    given = ("reproduce", "table1", "--trained", "--share", 0.1, "--results", kept, "--inputs", 2)
    assert run(monkeypatch, *given, "-o", tmp_path / "t.md") == 0
    text = (tmp_path / "t.md").read_text(encoding="utf-8")
    assert "ViT-Ti are other models" in " ".join(capsys.readouterr().out.split())
    for variant, name in (("plain", "ViT"), ("smooth", "ViT⁺"), ("sharpen", "ViT⁻")):
        shares = []
        for path in trained_models.find(kept, 0.1):
            own = saved.recipe_of(path)
            if own.variant == variant:
                cases = cases_by_hand(path)
                shares.append(100 * np.mean(cases))
                figures = f"{shares[-1]:.2f} | {100 - shares[-1]:.2f} | 0.00 | 0.00 | {len(cases)}"
                assert f"| {own.title} | {figures} | ours, this run |" in text
        mean, spread = np.mean(shares), np.std(shares, ddof=1)
        none = "0.00 ± 0.00 | 0.00 ± 0.00"
        means = f"{mean:.2f} ± {spread:.2f} | {100 - mean:.2f} ± {spread:.2f} | {none} | {2 * len(cases)}"
        assert f"| {name}, depth 2, 10 % of cifar100, 2 seeds | {means} | ours, mean |" in text
    assert len({line.split("|")[2] for line in text.splitlines() if "ours, this run" in line}) > 2  # not all alike
    assert "| ViT-Ti, CIFAR-100 | 98.92 | 1.08 | – | – | – | published |" in text
    # With all heads together a case is a layer and an input.
    assert run(monkeypatch, *given, "--rule", "joined") == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r" 4 +ours, this run", shown)) == 6
    assert "all heads of a layer together" in shown


def test_seeds_are_together_whoever_names_them(kept):
    paths = trained_models.find(kept, 0.1)[:2]
    found = [diagnose(str(path), depth=0, joined=0, ranks=0) for path in paths]
    assert "ViT, depth 2, 10 % of cifar100, 2 seeds" in str(table1.rows(found))
    for diagnosis in found:
        del diagnosis.model["recipe"]  # as of a model that nobody says anything of
    assert "seeds" not in str(table1.rows(found)).split("published")[0]


def test_figures_of_trained_models(monkeypatch, capsys, tmp_path, kept):
    for name, words in (("fig2", ()), ("fig3", ("predicted from spectra", "untrained, smoothing")), ("fig5", ())):
        inputs = () if name == "fig5" else ("--inputs", 2)
        given = ("reproduce", name, "--trained", "--share", 0.1, "--seed", 3, "--results", kept, *inputs)
        assert run(monkeypatch, *given, "-o", tmp_path / f"{name}.svg") == 0
        drawn = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        for word in ("10 % of cifar100", *words):
            assert word in drawn
    assert "ViT⁻, depth 2, 10 % of cifar100, seed 3: 100% of Re λ below zero" in capsys.readouterr().out


def test_fig3_shows_models_as_they_were_trained_beside_what_they_began_as(kept):
    paths = [str(path) for path in trained_models.find(kept, 0.1, 3)]
    cases = fig3.cases(paths[::-1])  # in any order
    assert [case.mode for case in cases] == [None, "sharpen", "smooth"] * 2
    x = torch.randn(2, 3, 16, 16)
    for case in cases:
        path = next(p for p in paths if saved.recipe_of(Path(p)).variant == (case.mode or "plain"))
        live, own = load_trained(path)
        wanted = live if case.state == "trained on 10 % of cifar100" else model_of(own)
        with torch.no_grad():
            assert torch.equal(case.make().model(x), wanted.eval()(x))
    found = fig3.run(cases[-1], lambda loaded: loaded.inputs(count=2))
    assert found.smoothing_share == 1
    assert found.name == "trained on 10 % of cifar100, smoothing"


@pytest.mark.parametrize("command", ["table1", "fig2", "fig3", "fig5"])
def test_what_is_not_there_is_said_with_the_command_that_makes_it(monkeypatch, capsys, tmp_path, kept, command):
    refused = partial(refusal, monkeypatch, capsys, "reproduce", command)
    nothing = refused("--trained", "--share", 0.5, "--results", kept)
    assert "there is no model ViT, depth 2, 50 % of cifar100" in nothing
    assert f"oversmooth reproduce table2 --cells 50% --results {kept}" in nothing
    # One variant alone is missing.
    (tmp_path / "models").mkdir()
    for path in trained_models.find(kept, 0.1)[:4]:
        shutil.copy(path, tmp_path / "models")
    assert "no model ViT⁻, depth 2, 10 %" in refused("--trained", "--share", 0.1, "--results", tmp_path)
    if command != "table1":
        said = refused("--trained", "--share", 0.1, "--results", kept, "--seed", 2)
        assert re.search("seed 2; make it with .*--cells 10% --seeds 3", said)
    assert "name models, or take table 2's" in refused("--trained", "gpt2", "--results", kept)
    if command != "fig3":
        assert "no model was named" in refused()


def test_fig3_refuses_models_that_do_not_compare(tmp_path, kept):
    plain, smooth, sharpen = map(str, trained_models.find(kept, 0.1, 0))
    for given, said in (
        ([plain, smooth], "2 models were given, of plain, smooth; give one each"),
        ([plain, smooth, smooth], "3 models were given, of plain, smooth; give one each"),
        ([plain, smooth, sharpen, sharpen], "4 models were given"),
        ([plain, smooth, "gpt2"], "gpt2 is no plain, smooth or sharpen ViT"),
    ):
        with pytest.raises(InputError, match=said):
            fig3.cases(given)
    other = replace(TINY, share=0.5, variant="sharpen")
    saved.save_model(model_of(other), other, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"share is 0.5 there and 0.1 here; give its like"):
        fig3.cases([plain, smooth, str(tmp_path / "other.safetensors")])


def test_constrained_blocks_without_an_output_bias(tmp_path):
    assert replace(RECIPE, output_bias=True).key == RECIPE.key
    own = replace(RECIPE, variant="sharpen", output_bias=False, initialisation="torch", epochs=1, warmup=1)
    assert own.key != replace(own, output_bias=True).key
    result = train(own, splits(), folder=tmp_path / "run")
    model, read = load_trained(tmp_path / "run" / loop.MODEL)
    assert read == own
    for trained_model in (result.model, model):
        assert all(not block.attn.proj.bias.any() for block in trained_model.blocks)
        assert all(block.mlp.fc2.bias.any() for block in trained_model.blocks)
    plain = model_of(replace(own, variant="plain"))  # not constrained: its bias is learned
    assert all(block.attn.proj.bias.requires_grad for block in plain.blocks)
