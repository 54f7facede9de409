"""docs/first-paper.md: every figure of it is that of a cell, and what is missing is said to be."""

import json
import statistics
from dataclasses import replace

import pytest
from support.interpreters import python
from support.places import ROOT

from oversmooth.steering import Spectral
from oversmooth_papers.tables import cells, claims, first_paper, table_text
from oversmooth_papers.tables.forms import Controls, Forms, Mixtures, parameters
from oversmooth_papers.tasks.images.build import model_of
from oversmooth_papers.tasks.images.recipe import PAPER, Shape

RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "first-paper.md"


def test_the_page_is_what_the_cells_say():
    """Written again after every run: oversmooth reproduce first-paper -o docs/first-paper.md."""
    assert PAGE.read_text(encoding="utf-8") == first_paper.page(RESULTS)


def test_its_accuracies_are_those_of_the_files():
    """By hand, from the JSON alone."""
    by_cell = {}
    for path in (RESULTS / "table2").glob("*.json"):
        cell = json.loads(path.read_text())
        by_cell.setdefault((cell["recipe"]["variant"], cell["recipe"]["share"]), []).append(100 * cell["accuracy"])
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    names = {"plain": "ViT-Ti", "smooth": "ViT-Ti⁺", "sharpen": "ViT-Ti⁻"}
    for share in (1.0, 0.5, 0.1):
        for variant, name in names.items():
            (line,) = (x for x in lines if x.startswith(f"| {name} on {100 * share:g} % of CIFAR-100"))
            ours = by_cell.get((variant, share))
            assert (f"{statistics.fmean(ours):.2f}" if ours else "| missing |") in line


def test_what_is_not_there_is_missing(tmp_path):
    page = first_paper.page(tmp_path)
    lines = [line for line in page.splitlines() if line.startswith("| ") and "`oversmooth" in line]
    assert len(lines) > 25
    assert all(line.endswith("| missing |") for line in lines)


def test_the_readme_has_the_claims():
    """Written again after every run: oversmooth reproduce claims -o FILE, into README.md."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table_text.markdown(claims.HEAD, claims.rows(RESULTS)).strip() in readme


# The tables of variants


@pytest.mark.parametrize("table", [Mixtures(), Forms(), Controls()], ids=lambda table: table.name)
def test_cases_are_recipes_of_their_own_and_found_again(table):
    recipes = table.recipes()
    assert len({recipe.key for recipe in recipes}) == len(recipes) == 3 * len(table.cases())
    for name in table.cases():
        assert table.names_of(table.recipe(name, 2)) == {"variant": name}
    quick = replace(table, quick=True)
    for name in quick.cases():
        assert quick.names_of(quick.recipe(name)) == {"variant": name}
    shared = [recipe for recipe in recipes if table.folder(recipe) == "table2"]
    assert {recipe.variant for recipe in shared} == {
        "plain",
        "sharpen",
        *(["smooth"] if table.name == "controls" else []),
    }
    head, rows = table.rows(cells.read_cells(recipes, RESULTS, table.folder))
    assert len(rows) == len(table.cases())
    assert {len(row) for row in rows} == {len(head)}


def test_mixtures_are_quarters_from_either_end():
    layers = {name: case.changes.get("layers") for name, case in Mixtures().cases().items()}
    assert layers == {
        "plain": None, "front-3": "0-2", "front-6": "0-5", "front-9": "0-8",
        "back-3": "9-11", "back-6": "6-11", "back-9": "3-11", "sharpen": None,
    }  # fmt: skip


def test_forms_are_the_methods_they_say():
    methods = {name: Forms().recipe(name, 5).methods() for name in Forms().cases()}
    cold = dict(mode="sharpen", start="cold", seed=5)
    assert methods == {
        "plain": [],
        "sharpen": [Spectral(**cold)],
        "general": [Spectral(**cold, form="general")],
        "cayley": [Spectral(**cold, orthogonal="cayley")],
        "bounded": [Spectral(**cold, bounded=True)],
        "warm": [Spectral(**{**cold, "start": "warm"})],
        "code": [Spectral(**cold, wiring="code")],
    }


def test_parameters_are_counted_by_hand():
    """And by building the models."""
    shape = Shape(image=8, patch=4, classes=4, width=16, depth=2, heads=2)
    plain = replace(PAPER, shape=shape)
    assert parameters(plain) == shape.parameters
    # Θ in place of W_V, ψ in place of W_O.
    assert parameters(replace(plain, variant="sharpen")) == shape.parameters - 2 * (16 * 16 - 16)
    cayley = replace(plain, variant="spectral:start=cold,orthogonal=cayley")
    assert parameters(cayley) == shape.parameters - 2 * (2 * 16 * 16 - 16 - 16 * 15 // 2)
    freed = replace(plain, variant="sharpen", freed=True)
    others = [replace(plain, variant=f"spectral:start=cold,{words}") for words in ("form=general", "signs=fixed")]
    for recipe in (plain, cayley, freed, *others):
        assert parameters(recipe) == sum(p.numel() for p in model_of(recipe).parameters() if p.requires_grad)


_DIAGNOSIS = """
import json
import torch
from oversmooth import diagnose
from oversmooth_papers.tasks.images.build import load_vit

model, _ = load_vit({model!r})
model.blocks = model.blocks[:1]
picture = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
print(json.dumps(diagnose(model, picture).layers[1].dominance.verdict_heads))
"""


def test_a_model_of_the_repository_is_diagnosed_with_several_threads():
    """257 tokens: torch's LU of such batches hangs once threads were set. In a process that may be ended."""
    code = _DIAGNOSIS.format(model=str(RESULTS / "models" / "fa1e4b4ff5f3.safetensors"))
    done = python("-c", code, OMP_NUM_THREADS=2, OMP_WAIT_POLICY="passive")
    assert done.returncode == 0, done.stderr
    assert "oneMKL" not in done.stdout + done.stderr  # it says where it finds itself at fault
    verdicts = json.loads(done.stdout)
    assert {word for head in verdicts for word in head} <= {"smooth", "tie", "undecided"}  # no eigenvalue is negative
