"""`oversmooth sweep`: the cells that a file names, and their table."""

import pytest
from support.commands import make_cifar, refusal, run

from oversmooth.safety.errors import InputError
from oversmooth_papers.tables.cells import read_folder
from oversmooth_papers.tables.sweep import read_sweep, variants

SWEEP = (
    'quick = true\nmethods = ["plain", "neutreno"]\nstrengths = [0.3]\nseeds = 1\n[recipe]\nepochs = 1\nwarmup = 0\n'
)


def test_the_cells_of_a_sweep_are_shared_and_only_missing_ones_are_run(tmp_path, monkeypatch, capsys):
    data, file = make_cifar(tmp_path / "cifar-100-binary", 1000, 40), tmp_path / "sweep.toml"
    given = ("sweep", file, "--results", tmp_path / "r", "--device", "cpu", "-o", tmp_path / "sweep.md")
    file.write_text(f'data = "{data}"\n{SWEEP}')
    assert run(monkeypatch, *given) == 0
    assert capsys.readouterr().err.count(": begins") == 2
    file.write_text(f'data = "{data}"\n{SWEEP.replace("0.3", "0.3, 0.6")}')
    assert run(monkeypatch, *given) == 0
    shown = capsys.readouterr()
    assert shown.err.count(": begins") == 1
    cells = read_folder(tmp_path / "r" / "sweep-quick")
    assert sorted(cell["recipe"]["variant"] for cell in cells) == [
        *("neutreno:strength=0.3", "neutreno:strength=0.6", "plain"),
    ]
    accuracy = {cell["recipe"]["variant"]: cell["accuracy"] for cell in cells}
    rows = [line.strip("| ").split(" | ")[:2] for line in (tmp_path / "sweep.md").read_text().splitlines()[2:5]]
    names = {"plain": "plain", "neutreno, 0.3": "neutreno:strength=0.3", "neutreno, 0.6": "neutreno:strength=0.6"}
    assert rows == [[title, f"{100 * accuracy[name]:.2f} (1)"] for title, name in names.items()]
    assert run(monkeypatch, "reproduce", "status", "--results", tmp_path / "r") == 0
    assert "sweep-quick" in capsys.readouterr().out


def test_only_methods_with_a_strength_have_a_row_for_each():
    assert variants(["plain", "smooth", "neutreno", "contranorm:strength=0.2"], [0.1, 0.5]) == {
        "plain": "plain",
        "smooth": "smooth",
        "neutreno, 0.1": "neutreno:strength=0.1",
        "neutreno, 0.5": "neutreno:strength=0.5",
        "contranorm:strength=0.2": "contranorm:strength=0.2",
    }
    assert variants(["neutreno"], []) == {"neutreno": "neutreno"}
    with pytest.raises(InputError, match="variant is 'nutreno'"):
        variants(["nutreno"], [0.1])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("methods = [", "sweep.toml: "),
        ("seeds = 2", "it has no 'methods'"),
        ("methods = []", "it has no cells"),
        (f"methods = {'[' * 20_000}", "maximum recursion depth"),
        ('methods = ["plain"]\nseed = 2', "it has 'seed', which is not known"),
        ('methods = "plain"', "methods is 'plain', not a list"),
        ('methods = ["plain"]\nseeds = 0', "it has no cells, or more than 10,000"),
        ('methods = ["plain"]\nseeds = 100000', "it has no cells, or more than 10,000"),
        ('methods = ["plain"]\ntask = "chess"', "task is 'chess'; choose images or"),
        ('methods = ["plain"]\n[recipe]\nepoch = 2', "[recipe] has a setting that images does not have"),
    ],
)
def test_a_file_that_names_no_sweep_is_refused(tmp_path, monkeypatch, capsys, text, sentence):
    (tmp_path / "sweep.toml").write_text(text)
    said = refusal(monkeypatch, capsys, "sweep", tmp_path / "sweep.toml", "--results", tmp_path / "r")
    assert sentence in said


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_sweep(tmp_path / "none.toml")
