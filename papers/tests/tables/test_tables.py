"""Tables of trained models as objects: the cells that were kept are theirs, and a new table is one file."""

import io

import pytest
import rich.console
from support.interpreters import python
from support.nightly import nightly
from support.places import ROOT

from oversmooth_papers.cli import train as train_command
from oversmooth_papers.engine.options import option_fields
from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import cells, table_text
from oversmooth_papers.tables.rules import RulesOfTable1
from oversmooth_papers.tables.table2 import SHARES
from oversmooth_papers.tables.table3 import Table3
from oversmooth_papers.tables.table_registry import TABLES, all_tables

RESULTS = ROOT / "results"
WIDTHS = '''
"""Accuracy against the width of a model."""

from dataclasses import dataclass, replace

from oversmooth_papers.figures import table_charts
from oversmooth_papers.tables import table_text
from oversmooth_papers.tables.base import Table, register
from oversmooth_papers.engine.options import option
from oversmooth_papers.tasks.images.recipe import QUICK


@register
@dataclass(frozen=True, kw_only=True)
class Widths(Table):
    """Accuracy of narrow models."""

    name = "widths"
    quick_test_images = 50

    heads: int = option(2, "Attention heads of each model.")

    def recipes(self):
        base = replace(QUICK, share=1.0, epochs=1, batch=20)
        shapes = [replace(base.shape, patch=8, depth=1, width=width, heads=self.heads) for width in (8, 16)]
        return [replace(base, shape=shape, seed=seed) for shape in shapes for seed in range(self.seeds)]

    def _accuracies(self, kept, width):
        return [cell["accuracy"] for recipe, cell in kept.items() if recipe.shape.width == width]

    def rows(self, kept):
        rows = [[str(width), table_text.percent_over_seeds(self._accuracies(kept, width)), "ours"] for width in (8, 16)]
        return ["width", "accuracy", "whose"], rows

    def chart(self, kept):
        points = [table_charts.point("ViT", "ours", 100 * cell["accuracy"], None, x=recipe.shape.width)
                  for recipe, cell in kept.items()]
        return table_charts.lines([("widths", points, "accuracy, %")], "width")

    def notes(self):
        return ["Made up."]
'''


@pytest.mark.parametrize("name", [home for home in TABLES if (RESULTS / home).is_dir()])
def test_every_cell_that_was_kept_is_found_by_its_recipe(name):
    """Keys are hashes of recipes: a field renamed, or a default changed, would lose cells that took GPU hours."""
    by_share = {"table3": Table3, "rules": RulesOfTable1}
    tables = (
        [by_share[name](share=share) for share in SHARES] if name in by_share else [TABLES[name](seeds=7)]
    )  # the most that any has
    tables += [RulesOfTable1(depths=True)] if name == "rules" else []
    found = {
        cells.cell_path(RESULTS, table.folder, recipe)
        for table in tables
        for recipe in cells.read_cells(table.recipes(), RESULTS, table.folder)
    }
    kept = set((RESULTS / name).glob("*.json"))
    assert kept
    assert {path for path in found if path.parent == RESULTS / name} == kept  # other tables' cells may be among them


def test_tables_are_listed_by_number_and_then_by_name():
    assert [table.home() for table in all_tables()] == [
        "table2",
        "table3",
        *("controls", "depth", "forms", "mixtures", "rules", "sharpening", "sharpening-dose", "sharpening-half"),
        *(f"neutreno/{name}" for name in ("ablation", "classification", "language", "language-ablation")),
        *(f"neutreno/{name}" for name in ("methods", "segmentation")),
        *(f"text/{name}" for name in ("causal", "glue", "masked", "wikitext")),
    ]
    assert set(TABLES) == {table.home() for table in all_tables()}


@nightly
def test_a_new_table_is_one_file(monkeypatch, tmp_path, cifar):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "tables").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "tables" / "widths.py").write_text(WIDTHS)

    kept_in = ("--results", tmp_path / "results")
    given = ("widths", "--quick", "--heads", 1, "--data", cifar, "--device", "cpu", *kept_in)
    commands = [
        ("--help",),
        ("widths", "--help"),
        ("widths", "--quick", "--show", *kept_in),
        (*given, "-o", tmp_path / "widths.md", "-o", tmp_path / "widths.svg"),
        ("status", *kept_in),
    ]
    # In a process of its own, since which tables there are is found out once.
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "tables")!r})
import widths
from oversmooth.cli import main
for arguments in {[list(map(str, command)) for command in commands]!r}:
    sys.argv = ["oversmooth", "reproduce", *arguments]
    try:
        main()
    except SystemExit as left:
        assert not left.code, arguments
    print("NEXT")
"""
    done = python("-c", code)
    assert not done.returncode, done.stderr
    listed, offered, empty, shown, status, _ = (" ".join(said.split()) for said in done.stdout.split("NEXT"))
    assert "widths Accuracy of narrow models." in listed
    for word in ("--heads", "Attention heads of each model. [default: 2]", "--at-once", "--quick", "--output"):
        assert word in offered
    assert "8 – ours" in empty
    kept = list((tmp_path / "results" / "widths-quick").iterdir())
    assert len(kept) == 2
    assert {f"{100 * cells.read(path)['accuracy']:.2f} (1)" in shown for path in kept} == {True}
    assert {cells.read(path)["recipe"]["shape"]["heads"] for path in kept} == {1}
    assert "Made up." in (tmp_path / "widths.md").read_text()
    assert (tmp_path / "widths.svg").is_file()
    assert all(path.stem in status for path in kept)


def test_options_of_train_are_those_of_the_recipes():
    offered = [name for _, _, names in train_command._SETTINGS for name in names]
    assert len(offered) == len(set(offered))
    recipes = [recipe for both in train_command.TASKS.values() for recipe in both]
    kinds = {kind for recipe in recipes for kind in (type(recipe), type(recipe.shape))}
    assert set(offered) == {field.name for kind in kinds for field in option_fields(kind)}


MANY_COLUMNS = [["", *(f"heading{column}" for column in range(9)), "whose"]]
MANY_COLUMNS += [[f"model {row}", *(f"{row}{column}.25→7" for column in range(9)), "ours"] for row in range(3)]
LONG_CELLS = [
    ["", "accuracy, %", "HFC/LFC, last", "parameters", "decays", "minutes", "whose"],
    ["symmetric, QR", "34.61 ± 0.61 (3)", "3.65", "4,963,108", "Θ (scale without effect), ψ", "2 to 6", "ours"],
    ["plain", "66.78 ± 0.1", "1.74 ± 0.046", "5,403,172", "W_V, W_O", "2.1", "published, 100 %"],
]


@pytest.mark.parametrize("width", [40, 60, 66, 72, 80, 90, 200])
@pytest.mark.parametrize("table", [MANY_COLUMNS, LONG_CELLS], ids=["many columns", "long cells"])
def test_a_table_loses_nothing_where_it_is_narrow(table, width):
    """Every word stands there whole, and the last column on one line; too narrow for columns, rows are stacked."""
    console = rich.console.Console(width=width, file=io.StringIO())
    console.print(table_text.terminal(table[0], table[1:]))
    text = console.file.getvalue()
    assert "…" not in text
    assert {word for row in table for cell in row for word in cell.split()} <= set(text.split())
    assert all(row[-1] in text for row in table)
    assert max(map(len, text.splitlines())) <= width
    if table is MANY_COLUMNS:
        assert ("heading3  03.25→7" in text) == (width < 200)


def test_a_model_keeps_its_colour_where_another_is_missing():
    def colours(names):
        points = [table_charts.point(name, "ours", 1.0, None, x=x) for name in names for x in (0, 1)]
        drawn = table_charts.lines([("title", points, "accuracy, %")], "width").to_dict()
        scale = drawn["hconcat"][0]["layer"][0]["encoding"]["color"]["scale"]
        return dict(zip(scale["domain"], scale["range"], strict=False))

    every = colours(["ViT-Ti", "ViT-Ti⁺", "ViT-Ti⁻"])
    assert len(set(every.values())) == 3
    assert colours(["ViT-Ti", "ViT-Ti⁻"]) == {name: every[name] for name in ("ViT-Ti", "ViT-Ti−")}
