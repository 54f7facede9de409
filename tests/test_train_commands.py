"""train and the tables of trained models as a user meets them, on a small data set of our own."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from train_example import RECIPE, blobs, splits

from oversmooth import cli
from oversmooth.errors import InputError
from oversmooth.reproduce import cells, table2, table3
from oversmooth.steering import steering_of
from oversmooth.train import loop, recipe, saved
from oversmooth.train.evaluate import Evaluator
from oversmooth.train.many import Job, run_many
from oversmooth.train.runs import first_of_test, load_splits
from oversmooth.train.vit import Shape

SMALL = ("--no-augment", "--patch", 8, "--depth", 2, "--width", 16, "--heads", 2, "--batch", 10, "--device", "cpu")


def run(monkeypatch, *arguments):
    """The exit code of the console script with these arguments."""
    monkeypatch.setattr(sys, "argv", ["oversmooth", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code or 0


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """CIFAR-100's binary layout, but 200 and 100 pictures: noise, whose class is its level."""
    folder = tmp_path_factory.mktemp("data") / "cifar-100-binary"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for split, count in (("train", 200), ("test", 100)):
        labels = np.arange(count, dtype=np.uint8) % 100
        pixels = draw.integers(0, 40, (count, 3072)) + 2 * labels[:, None]
        rows = np.concatenate([labels[:, None] // 5, labels[:, None], pixels.astype(np.uint8)], axis=1)
        (folder / f"{split}.bin").write_bytes(rows.astype(np.uint8).tobytes())
    names = "\n".join(f"class{i}" for i in range(100)) + "\n"
    (folder / "fine_label_names.txt").write_text(names)
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{i}" for i in range(20)) + "\n")
    return folder


def test_help_names_what_can_be_given(monkeypatch, capsys):
    assert run(monkeypatch, "train", "--help") == 0
    shown = capsys.readouterr().out
    for word in ("--variant", "sharpen", "--share", "--resume", "--minutes", "Ctrl-C", "model.safetensors"):
        assert word in shown


def test_train_stops_goes_on_and_ends(monkeypatch, capsys, tmp_path, cifar):
    given = ("train", "--data", cifar, "--variant", "sharpen", "--epochs", 1, "--warmup", 1, "--lr", 0.01, *SMALL)
    folder = tmp_path / "run"
    assert run(monkeypatch, *given, "-o", folder, "--minutes", 0) == 0
    said = capsys.readouterr().out
    assert "out of time after 1 of 40 steps; go on with: oversmooth train" in said
    assert said.strip().endswith("--resume")
    assert run(monkeypatch, *given, "-o", folder) == 2
    assert "--resume" in capsys.readouterr().err
    assert run(monkeypatch, *given, "-o", folder, "--resume", "--seed", 1) == 2
    assert "seed is 0 there and 1 here" in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert run(monkeypatch, *given, "-o", folder, "--resume") == 0
    assert "accuracy" in capsys.readouterr().out
    _, found = saved.load_model(folder / loop.MODEL)
    assert (found.variant, found.data, found.shape.width) == ("sharpen", "cifar100", 16)
    # The recipe alone makes the same run.
    (tmp_path / "recipe.json").write_text(found.to_json())
    again = tmp_path / "again"
    assert (
        run(monkeypatch, "train", "--recipe", tmp_path / "recipe.json", "--data", cifar, "-o", again, "--device", "cpu")
        == 0
    )
    assert saved.load_model(again / loop.MODEL)[1] == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--share", 0), "share is 0"),
        (("--share", 1.5), "share is 1.5"),
        (("--variant", "rougher"), "no method 'rougher'"),
        (("--patch", 5), "patches of 5 do not tile"),
        (("--batch", 1000), "less than one batch of 1000"),
        (("--epochs", "many"), "--help shows"),
        (("--device", "cuda"), "no GPU"),
        (("--data", "nowhere"), "no known data set"),
        (("--recipe", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_options_leave_with_one_sentence(monkeypatch, capsys, tmp_path, cifar, options, said):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "train", "--data", cifar, "-o", tmp_path / "run", *SMALL, *options) == 2
    shown = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert said in shown
    assert shown.count("oversmooth:") == 1


@pytest.fixture
def tiny(monkeypatch):
    """--quick with less of everything."""
    quick = replace(recipe.QUICK, share=1.0, epochs=1, batch=20, shape=Shape(patch=8, width=16, depth=2, heads=2))
    monkeypatch.setattr(table2, "QUICK", quick)
    monkeypatch.setattr(table2, "QUICK_TEST_IMAGES", 50)


@pytest.mark.usefixtures("tiny")
def test_quick_tables_are_run_kept_shown_and_called_quick(monkeypatch, capsys, tmp_path, cifar):
    results, text, chart = tmp_path / "results", tmp_path / "table2.md", tmp_path / "table2.svg"
    given = ("reproduce", "table2", "--quick", "--data", cifar, "--results", results, "--device", "cpu")
    assert run(monkeypatch, *given, "-o", text, "-o", chart) == 0
    shown = capsys.readouterr().out
    assert "quick" in shown
    assert "published" not in text.read_text().replace("nothing that is published", "")
    assert "66.78" not in shown + text.read_text() + chart.read_text()
    kept = sorted((results / "table2-quick").glob("*.json"))
    assert len(kept) == 3
    cell = json.loads(kept[0].read_text())
    assert {"recipe", "seed", "versions", "hardware", "seconds", "accuracy", "epochs"} <= cell.keys()
    assert [row["epoch"] for row in cell["epochs"]] == [1, 2]
    assert len(list((results / "models").iterdir())) == 3
    assert not list((results / "work").iterdir())
    # All is there: nothing is run again, and the data are not needed to show it.
    times = [path.stat().st_mtime_ns for path in kept]
    assert run(monkeypatch, *given) == 0
    assert run(monkeypatch, "reproduce", "table2", "--quick", "--show", "--results", results) == 0
    assert f"{100 * cell['accuracy']:.2f} (1)" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in kept] == times
    # Half of them came from elsewhere.
    elsewhere = tmp_path / "elsewhere" / "table2-quick"
    elsewhere.mkdir(parents=True)
    shutil.move(kept[0], elsewhere)
    assert run(monkeypatch, "reproduce", "status", "--results", results) == 0
    assert capsys.readouterr().out.count("table2-quick") == 2
    shutil.copy(elsewhere / kept[0].name, kept[0])
    assert run(monkeypatch, "reproduce", "status", "--results", results) == 0
    assert capsys.readouterr().out.count("table2-quick") == 3
    # Their corruptions.
    monkeypatch.setattr(table3, "KINDS", ("brightness", "contrast"))
    monkeypatch.setattr(
        table3.fill, "__kwdefaults__", {**table3.fill.__kwdefaults__, "kinds": ("brightness", "contrast")}
    )
    given = ("reproduce", "table3", "--quick", "--data", cifar, "--results", results, "--device", "cpu")
    assert run(monkeypatch, *given, "-o", tmp_path / "table3.md", "-o", tmp_path / "table3.png") == 0
    assert "published, 100" not in (tmp_path / "table3.md").read_text()
    assert "whose weights are in bf16" in (tmp_path / "table3.md").read_text()
    cell = json.loads(next((results / "table3-quick").glob("*.json")).read_text())
    assert list(cell["kinds"]) == ["brightness", "contrast"]
    assert len(cell["mean"]) == 5
    test = first_of_test(load_splits(cifar), table2.QUICK_TEST_IMAGES).test
    shutil.rmtree(results / "table3-quick-official", ignore_errors=True)
    assert run(monkeypatch, *given, "--official", tmp_path) == 2  # not answered with the cells that were made here
    assert "brightness.npy does not exist" in capsys.readouterr().err
    for path in (results / "table3-quick").glob("*.json"):  # one evaluator did for all three
        model, own = saved.load_model(results / "models" / f"{path.stem}.safetensors")
        alone = Evaluator(own, model, torch.device("cpu")).accuracy(test.images, test.labels)
        assert json.loads(path.read_text())["accuracy"] == pytest.approx(alone, abs=0.011)


def test_an_interrupted_cell_goes_on(tmp_path):
    one = replace(RECIPE, epochs=2)
    told = []
    assert not cells.fill([one], splits(), tmp_path, "table2", minutes=0, device="cpu", told=told.append)
    assert cells.status(tmp_path)[0][:3] == ("on its way", one.title, "epoch 0 of 3")
    assert cells.fill([one], splits(), tmp_path, "table2", device="cpu", told=told.append)
    kept = cells.read(cells.cell_path(tmp_path, "table2", one))
    assert [row[:3] for row in cells.status(tmp_path)] == [("table2", one.title, f"{100 * kept['accuracy']:.2f} %")]
    assert "out of time" in told[1]


def test_a_damaged_cell_is_refused(tmp_path):
    path = cells.cell_path(tmp_path, "table2", RECIPE)
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        cells.missing([RECIPE], tmp_path, "table2")
    path.write_text(json.dumps({"recipe": RECIPE.to_dict(), "title": "no figure"}))
    with pytest.raises(InputError, match="damaged"):
        cells.status(tmp_path)
    whole = {"title": "a", "accuracy": 0.5, "hardware": "b", "day": "c"}
    path.write_text(json.dumps({"recipe": replace(RECIPE, seed=1).to_dict(), **whole}))
    with pytest.raises(InputError, match="not the one it is named by"):
        cells.read(path)


def test_directories_on_the_way_are_made(monkeypatch, tmp_path, cifar):
    monkeypatch.chdir(tmp_path)
    given = ("--data", cifar, *SMALL, "--epochs", 1, "--warmup", 0, "--share", 0.2)
    assert run(monkeypatch, "train", *given, "-o", "runs/deep/one") == 0
    assert (tmp_path / "runs" / "deep" / "one" / "model.safetensors").is_file()


@pytest.mark.parametrize("command", ["train", "table2", "table3", "depth"])
def test_what_cannot_be_written_is_said_before_the_data_is_read(monkeypatch, capsys, tmp_path, command):
    def read(_):
        raise AssertionError("the data was read first")

    monkeypatch.setattr("oversmooth.cli.train.load", read)
    monkeypatch.setattr("oversmooth.cli.cells.load", read)
    (tmp_path / "file").touch()
    given = ["train", "-o"] if command == "train" else ["reproduce", command, "--results"]
    assert run(monkeypatch, *given, tmp_path / "file" / "in") == 2
    assert "is a file, not a directory; choose another place" in " ".join(capsys.readouterr().err.split())


def test_what_is_recommended_is_not_refused(monkeypatch, capsys, tmp_path):
    """The quick table has another share than the paper's columns."""
    given = ("reproduce", "table2", "--quick", "--results", tmp_path, "--cells")
    assert run(monkeypatch, *given, "10%", "--data", tmp_path) == 2  # before the data is looked for
    said = " ".join(capsys.readouterr().err.split())
    (example,) = re.findall(r"such as (\S+)$", said)
    every = table2.recipes(1, quick=True)
    assert len(cells.chosen(every, [example])) == 1


def test_cells_are_chosen_by_words():
    every = table2.recipes(3)
    assert len(every) == 27
    assert len({one.key for one in every}) == 27
    assert {(r.variant, r.share) for r in cells.chosen(every, ["plain:10%", "50%"])} == {
        ("plain", 0.1), ("plain", 0.5), ("smooth", 0.5), ("sharpen", 0.5),
    }  # fmt: skip
    with pytest.raises(InputError, match="no cell is called '20%'"):
        cells.chosen(every, ["20%"])


def test_published_figures_stand_beside_ours():
    values = {("plain", 0.1): [0.32, 0.33, 0.34]}
    text = table2.markdown(values)
    assert "33.00 ± 1.00 (3)" in text
    assert "32.47 ± 0.9" in text
    assert "published" in text
    assert table2.chart(values) is not None
    values = {"plain": [[0.5, 0.4, 0.3, 0.2, 0.1, 0.05]], "smooth": [], "sharpen": []}
    assert "ours, 10 % of the data" in table3.markdown(values, 0.1)
    assert "published, 100 % of the data" in table3.markdown(values, 0.1)
    assert table3.chart(values, 0.1) is not None


def test_several_runs_at_once(tmp_path, cifar):
    base = replace(recipe.QUICK, share=1.0, epochs=1, batch=20, shape=Shape(patch=8, width=16, depth=1, heads=2))
    jobs = [Job(base, tmp_path / "good"), Job(replace(base, batch=5000), tmp_path / "bad")]
    told = []
    outcomes = run_many(jobs, str(cifar), at_once=2, minutes=5, device="cpu", told=told.append)
    said = {outcome.job.folder.name: outcome.said for outcome in outcomes}
    assert said["good"] == "finished"
    assert "code 2" in said["bad"]
    assert "less than one batch" in said["bad"]
    late = run_many([Job(base, tmp_path / "late")], str(cifar), at_once=1, minutes=0)
    assert late[0].said == "not begun, as time is up"


def test_cells_filled_at_once_are_those_filled_one_by_one(tmp_path, cifar):
    base = replace(recipe.QUICK, share=1.0, epochs=1, batch=20, shape=Shape(patch=8, width=16, depth=1, heads=2))
    both = load_splits(cifar)
    fitted = [replace(base, variant=variant).fitted(both.train) for variant in ("plain", "sharpen")]
    given = dict(data=str(cifar), device="cpu")
    assert not cells.fill(fitted, both, tmp_path / "at-once", "table2", at_once=2, minutes=0, **given)
    assert cells.fill(fitted, both, tmp_path / "at-once", "table2", at_once=2, **given)
    assert cells.fill(fitted[1:], both, tmp_path / "alone", "table2", **given)
    one, other = (cells.read(cells.cell_path(tmp_path / where, "table2", fitted[1])) for where in ("at-once", "alone"))
    assert one["accuracy"] == other["accuracy"]
    broken = [replace(one, batch=5000) for one in fitted]
    with pytest.raises(InputError, match=r"2 of 2 runs failed; .* less than one batch of 5000"):
        cells.fill(broken, both, tmp_path / "broken", "table2", at_once=2, **given)
    assert steering_of(saved.load_model(cells.model_path(tmp_path / "at-once", fitted[1]))[0]).methods


def test_test_images_are_those_of_the_recipe():
    with pytest.raises(InputError, match="recipe is for cifar100"):
        loop.train(replace(RECIPE, data="cifar100"), splits(), device="cpu")
    assert blobs(3, 0).name == "blobs"
