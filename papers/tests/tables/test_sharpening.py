"""The confirmation of bounded sharpening: its runs are those of the protocol, its statistics those of the textbook."""

from hypothesis import given
from hypothesis import strategies as st

from oversmooth.steering import Spectral
from oversmooth_papers.tables.sharpening import ARMS, Sharpening, SharpeningDose, SharpeningHalf, holm


def test_the_runs_are_those_of_the_protocol():
    recipes = Sharpening(seeds=7).recipes()
    assert len(recipes) == 28
    assert [recipe.seed for recipe in recipes] == [seed for seed in range(3, 10) for _ in ARMS]
    assert all(recipe.share_seed == recipe.seed and recipe.share == 0.1 for recipe in recipes)
    table = Sharpening()
    assert {tuple(table.names_of(r).values()) for r in recipes} == {
        (a, f"seed-{s}") for s in range(3, 10) for a in ARMS
    }
    assert {table.folder(recipe) for recipe in recipes} == {"sharpening"}


def test_rows_pair_by_seed():
    table = Sharpening(seeds=7)
    gains = {"plain": 0.0, "sharpen": 0.01, "bounded": 0.02, "front-6": 0.015}
    kept = {
        recipe: {"accuracy": 0.3 + 0.001 * recipe.seed + gains[table.case_of(recipe)] + 1e-4 * (recipe.seed % 2)}
        for recipe in table.recipes()
        if (table.case_of(recipe), recipe.seed) != ("bounded", 9)  # not run yet
    }
    _, rows = table.rows(kept)
    assert rows[4][0] == "bounded − plain"
    assert rows[4][1].startswith("+2.00")
    assert rows[4][1].endswith("(6)")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_as_the_step_down_procedure_does(p_values):
    adjusted = holm(p_values)
    level, rejected = 0.05, set()
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[place] > level / (len(p_values) - rank):
            break
        rejected.add(place)
    near = any(abs(p * k - level) < 1e-9 for p in p_values for k in range(1, len(p_values) + 1))
    assert near or rejected == {i for i, p in enumerate(adjusted) if p <= level}
    assert holm([*p_values, None]) == [None] * (len(p_values) + 1)


def test_doses_are_bounds_and_the_usual_one_is_a_cell_of_the_forms():
    table = SharpeningDose()
    bounds = {name: table.recipe(name).methods()[0].bound for name in table.cases()}
    assert bounds == {name: float(name) for name in ("0.25", "0.5", "1", "2", "4")}
    assert table.recipe("1", 2).methods() == [Spectral("sharpen", start="cold", seed=2, bounded=True)]
    assert {name: table.folder(table.recipe(name)) for name in ("0.5", "1")} == {"0.5": "sharpening-dose", "1": "forms"}


def test_half_of_the_data_pairs_by_seed():
    table = SharpeningHalf()
    assert {recipe.share for recipe in table.recipes()} == {0.5}
    assert table.folder(table.recipe("plain")) == "table2"
    kept = {
        recipe: {"accuracy": 0.5 + 0.01 * recipe.seed + gain}
        for recipe in table.recipes()
        if (gain := {"plain": 0.0, "bounded": 0.02}[table.case_of(recipe)]) or recipe.seed
    }
    _, rows = table.rows(kept)
    assert rows[-1][1] == "+2.00 ± 0.00 (2)"
