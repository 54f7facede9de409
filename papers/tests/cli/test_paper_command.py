"""`oversmooth reproduce paper`: what is missing, in order of value, within a budget."""

import pytest
from support.commands import run
from support.places import ROOT

from oversmooth_papers.cli import tables as command
from oversmooth_papers.tables import status
from oversmooth_papers.tables.sharpening import SEEDS, Sharpening, SharpeningDose
from oversmooth_papers.tables.table2 import Table2


def test_every_step_names_cells_that_there_are():
    for table, words in status.steps():
        status.left(table, words, ROOT / "results")  # which refuses names of no cell


def test_the_confirmation_is_complete_and_doses_cost_what_sharpening_does():
    results = ROOT / "results"
    assert status.left(Sharpening(seeds=len(SEEDS)), (), results) == []
    doses = SharpeningDose().recipes()
    runs = status.measured(results)
    assert 15 < sum(status.cost(dose, runs) for dose in doses) < 60


def test_it_fills_in_order_and_says_what_is_left(monkeypatch, tmp_path, capsys):
    filled = []
    steps = [(SharpeningDose(seeds=1), ("2",)), (Table2(seeds=1), ("10%",))]
    monkeypatch.setattr(status, "steps", lambda: steps)
    monkeypatch.setattr(command, "load", lambda *_: None)
    monkeypatch.setattr("oversmooth_papers.tasks.images.recipe.Recipe.check_fits", lambda *_: None)

    def fill(self, recipes, _data, _results, running):
        filled.append((self.home(), len(recipes), running.command, running.minutes <= 60))
        return "out of time"

    monkeypatch.setattr("oversmooth_papers.tables.base.Table.fill", fill)
    assert run(monkeypatch, "reproduce", "paper", "--budget", "1h", "--results", tmp_path) == 0
    assert filled == [
        ("sharpening-dose", 1, "oversmooth reproduce sharpening-dose --cells 2 --seeds 1", True),
        ("table2", 3, "oversmooth reproduce table2 --cells 10% --seeds 1", True),
    ]
    assert "4 cells are missing" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(("text", "minutes"), [("30m", 30), ("1.5h", 90), ("90s", 1.5), ("45", 45)])
def test_budgets(text, minutes):
    assert command.budget_minutes(text) == minutes


@pytest.mark.parametrize("text", ["3x", "m", "-5m", "0", "1h30"])
def test_no_budget(text, monkeypatch, capsys):
    assert run(monkeypatch, "reproduce", "paper", "--budget", text) == 2
    assert "is not a time" in capsys.readouterr().err
