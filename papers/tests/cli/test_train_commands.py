"""train and the tables of trained models as a user meets them, on a small data set of our own."""

import hashlib
import json
import os
import re
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch
from support.commands import refusal, run
from support.nightly import nightly
from support.train_example import RECIPE, blobs, splits, train

from oversmooth.monitor.history import History
from oversmooth.monitor.names import LABELS, TOKENS
from oversmooth.safety.errors import InputError
from oversmooth.steering import steering_of
from oversmooth.steering.saving import read_file
from oversmooth_papers.engine import checkpoint, lock, loop
from oversmooth_papers.engine.parallel_runs import Job, run_many
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tables import cells, table2, table_text
from oversmooth_papers.tables.filling import Running, fill
from oversmooth_papers.tables.status import status
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tables.table3 import INTENSITIES, Table3
from oversmooth_papers.tasks.images import evaluate, recipe
from oversmooth_papers.tasks.images.corruptions import SEVERITIES
from oversmooth_papers.tasks.images.data import first_of_test, load_splits
from oversmooth_papers.tasks.images.evaluate import Evaluator
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.language.data import NAMED
from oversmooth_papers.tasks.registry import load_trained

SMALL = ("--no-augment", "--patch", 8, "--depth", 2, "--width", 16, "--heads", 2, "--batch", 10, "--device", "cpu")


def test_help_names_what_can_be_given(monkeypatch, capsys):
    assert run(monkeypatch, "train", "--help") == 0
    shown = capsys.readouterr().out
    for word in ("--variant", "sharpen", "--share", "--resume", "--minutes", "Ctrl-C", "model.safetensors"):
        assert word in shown


def test_train_stops_goes_on_and_ends(monkeypatch, capsys, tmp_path, cifar):
    folder = tmp_path / "run"
    given = ("train", "--data", cifar, "--variant", "sharpen", "--epochs", 1, "--warmup", 1, "--lr", 0.01, *SMALL)
    given = (*given, "-o", folder)
    assert run(monkeypatch, *given, "--minutes", 0) == 0
    said = capsys.readouterr().out
    assert "out of time after 1 of 40 steps; go on with: oversmooth train" in said
    assert said.strip().endswith("--resume")
    assert "--resume" in refusal(monkeypatch, capsys, *given)
    assert "seed is 0 there and 1 here" in refusal(monkeypatch, capsys, *given, "--resume", "--seed", 1)
    assert run(monkeypatch, *given, "--resume") == 0
    assert "accuracy" in capsys.readouterr().out
    _, found = load_trained(folder / loop.MODEL)
    assert (found.variant, found.data, found.shape.width) == ("sharpen", "cifar100", 16)
    # The recipe alone makes the same run.
    (tmp_path / "recipe.json").write_text(found.to_json())
    again = ("--recipe", tmp_path / "recipe.json", "--data", cifar, "-o", tmp_path / "again", "--device", "cpu")
    assert run(monkeypatch, "train", *again) == 0
    assert load_trained(tmp_path / "again" / loop.MODEL)[1] == found


@pytest.mark.parametrize(
    ("folder", "options", "begins"),
    [
        ("wikitext-103", (), language.PAPER),
        ("wikitext-103-v1", (), language.PAPER),
        ("wikitext-103", ("--epochs", 3, "--norm", "pre"), language.PAPER.changed(dict(epochs=3, norm="pre"))),
        ("wikitext-103", ("--quick",), language.QUICK),
        ("wikitext-2", (), language.WIKITEXT2),
        ("novels", (), language.WIKITEXT2),
    ],
)
def test_language_begins_from_the_recipe_of_its_text(monkeypatch, capsys, tmp_path, folder, options, begins):
    class Began(Exception):
        pass

    def began(task, *_):
        raise Began(task.recipe)

    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path))
    monkeypatch.setattr(loop, "train", began)
    home = tmp_path / folder
    home.mkdir()
    for split in ("train", "valid", "test"):
        (home / f"{split}.txt").write_text("one two three\n" * 100)
    for data in [home, *([folder] if folder in NAMED else [])]:
        with pytest.raises(Began) as found:
            run(monkeypatch, "train", "--task", "language", "--data", data, *options, "-o", tmp_path / "run")
        given = found.value.args[0]
        size = given.shape.vocabulary
        assert given == replace(begins, data=given.data, shape=replace(begins.shape, vocabulary=size))
        assert given.data == folder.removesuffix("-v1")
        assert given.key in capsys.readouterr().out


def test_all_that_a_monitor_sees_is_in_the_history_and_can_be_watched(monkeypatch, capsys, tmp_path, cifar):
    given = ("--variant", "sharpen", "--epochs", 1, "--warmup", 0, "--evaluate", 0, "--monitor", 10, *SMALL)
    seen = {}
    for option, metrics in (("--look", "tokens"), ("--metrics", "all")):  # the former is its old name
        assert run(monkeypatch, "train", "--data", cifar, "-o", tmp_path / metrics, option, metrics, *given) == 0
        seen[metrics] = History.load(tmp_path / metrics)
    assert seen["tokens"].steps == seen["all"].steps == [1, 10, 20]
    assert seen["tokens"].metrics == ["hfc_lfc", "cos", "abs_cos"]
    assert {*TOKENS, "rho_smooth", "smoothing_share", "change_mlp", "room", "verified"} <= set(seen["all"].metrics)
    models = [read_file(tmp_path / metrics / loop.MODEL)[0] for metrics in seen]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    capsys.readouterr()
    page = tmp_path / "film.html"
    assert run(monkeypatch, "watch", tmp_path / "all", tmp_path / "tokens", "--html", page) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in seen["all"].metrics)
    assert LABELS["rho_smooth"].split()[0] in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--share", 0), "share is 0"),
        (("--share", 1.5), "share is 1.5"),
        (("--variant", "rougher"), "variant is 'rougher'; give plain, smooth, sharpen or"),
        (("--patch", 5), "patches of 5 do not tile"),
        (("--batch", 1000), "less than one batch of 1000"),
        (("--epochs", "many"), "--help lists"),
        (("--depth", 0), "depth is 0; give at least 1"),
        (("--seed", 2**62), "seed is 4,611,686,018,427,387,904; give at most"),
        (("--width", 1000000), "a ViT of depth 2 and width 1,000,000 has 24,0"),
        (("--depth", 10**9), "a ViT of depth 1,000,000,000 and width 16 has"),
        (("--epochs", 10**12), "the schedule of 1,000,000,000,005 epochs, 20,000,000,000,100 steps"),
        (("--lr", 1e40), "lr is 1e+40"),
        (("--device", "cuda"), "no GPU"),
        (("--data", "nowhere"), "no known data set"),
        (("--recipe", "nowhere.json"), "nowhere.json"),
        (("--metrics", "closely"), "'closely' is not one of 'tokens'"),
        (("--on-nan", "wait"), "'wait' is not one of 'stop', 'retry'"),
    ],
)
def test_bad_options_leave_with_one_sentence(monkeypatch, capsys, tmp_path, cifar, options, said):
    monkeypatch.chdir(tmp_path)
    assert said in refusal(monkeypatch, capsys, "train", "--data", cifar, "-o", tmp_path / "run", *SMALL, *options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "x"}, "RANK is 'x' in the environment"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is '-1' in the environment"),
        ({"WORLD_SIZE": "2"}, "the 2 processes of WORLD_SIZE cannot be joined"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "the 2 processes of WORLD_SIZE cannot be joined"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK is 5 of 2 processes (WORLD_SIZE); start them with torchrun"),
    ],
)
def test_an_environment_that_torchrun_did_not_make(monkeypatch, capsys, tmp_path, cifar, variables, said):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert said in refusal(monkeypatch, capsys, "train", "--data", cifar, "-o", tmp_path / "run", *SMALL)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe{}", b"[" * 100_000, b"[]", b'{"epochs": "x"}', b'{"shape": {"width": "1"}}', b'{"mean": [1, "x"]}',
     b'{"rand_augment": {"operations": 1e9}}', b'{"lr": NaN}', b'{"lr": null}', b'{"seed": true}', b'{"share": 1e999}',
     b'{"variant": "neutreno:strength=x"}', b'{"no such": 1}', b'{"lr": 1000000000000000000000000000000}'],
    ids=lambda content: content[:30].decode("latin1"),
)  # fmt: skip
def test_a_recipe_of_wrong_types_is_refused(monkeypatch, capsys, tmp_path, content):
    (tmp_path / "r.json").write_bytes(content)
    refusal(monkeypatch, capsys, "train", "--recipe", tmp_path / "r.json", "-o", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_no_file_is_refused(monkeypatch, capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        given = ("train", "--recipe", path, "-o", tmp_path / "run")
        assert "cannot be read" in refusal(monkeypatch, capsys, *given)


def signalled_after_three_steps(monkeypatch, number):
    step = Step.run

    def stopped(self):
        step(self)
        if self.done == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Step, "run", stopped)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR2, 75)])
def test_a_signal_saves_and_leaves_with_its_code(monkeypatch, capsys, tmp_path, cifar, number, code):
    signalled_after_three_steps(monkeypatch, number)
    given = ("train", "--data", cifar, "--epochs", 1, "--warmup", 1, *SMALL, "-o", tmp_path / "run")
    assert run(monkeypatch, *given) == code
    said = capsys.readouterr().out
    assert f"{'interrupted' if code == 130 else 'preempted'} after 3 of 40 steps; go on with: oversmooth train" in said
    assert checkpoint.how_far(tmp_path / "run") == "epoch 0 of 2"
    monkeypatch.undo()
    assert run(monkeypatch, *given, "--resume") == 0


@pytest.mark.usefixtures("tiny")
def test_a_table_that_is_stopped_says_so_with_its_code(monkeypatch, capsys, tmp_path, cifar):
    given = ("reproduce", "table2", "--quick", "--data", cifar, "--results", tmp_path, "--device", "cpu")
    with monkeypatch.context() as stopping:
        signalled_after_three_steps(stopping, signal.SIGUSR2)
        assert run(monkeypatch, *given) == 75
    assert "preempted: not all cells are there; the same command goes on" in capsys.readouterr().out
    with lock.held(tmp_path):
        assert "is being written by process" in refusal(monkeypatch, capsys, *given)
        assert run(monkeypatch, *given, "--force") == 0
        assert "by force" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_asked_to_leave_before_there_is_a_run_it_leaves(monkeypatch, capsys, tmp_path, number):
    monkeypatch.setattr(
        "oversmooth_papers.cli.train.load", lambda *_given: os.kill(os.getpid(), number) or time.sleep(5)
    )
    assert run(monkeypatch, "train", "-o", tmp_path / "run") == 75
    assert "preempted" in capsys.readouterr().err


@pytest.fixture
def tiny(monkeypatch):
    """--quick with less of everything."""
    quick = replace(recipe.QUICK, share=1.0, epochs=1, batch=20, shape=Shape(patch=8, width=16, depth=2, heads=2))
    monkeypatch.setattr(table2, "QUICK", quick)
    monkeypatch.setattr(Table2, "quick_test_images", 50)
    monkeypatch.setattr(Table3, "quick_test_images", 50)


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
    # One of them comes from elsewhere.
    shutil.move(kept[0], tmp_path)
    for there in (False, True):
        if there:
            shutil.copy(tmp_path / kept[0].name, kept[0])
        assert run(monkeypatch, "reproduce", "status", "--results", results) == 0
        shown = capsys.readouterr().out
        assert [path.stem in shown for path in kept] == [there, True, True]
    # Their corruptions.
    monkeypatch.setattr(evaluate, "KINDS", ("brightness", "contrast"))
    given = ("reproduce", "table3", "--quick", "--data", cifar, "--results", results, "--device", "cpu")
    assert run(monkeypatch, *given, "-o", tmp_path / "table3.md", "-o", tmp_path / "table3.png") == 0
    assert "published, 100" not in (tmp_path / "table3.md").read_text()
    assert "whose weights are in bf16" in (tmp_path / "table3.md").read_text()
    cell = json.loads(next((results / "table3-quick").glob("*.json")).read_text())
    assert list(cell["kinds"]) == ["brightness", "contrast"]
    assert len(cell["mean"]) == 5
    test = first_of_test(load_splits(cifar), Table2.quick_test_images).test
    shutil.rmtree(results / "table3-quick-official", ignore_errors=True)
    assert run(monkeypatch, *given, "--official", tmp_path) == 2  # not answered with the cells that were made here
    assert "brightness.npy does not exist" in capsys.readouterr().err
    for path in (results / "table3-quick").glob("*.json"):  # one evaluator did for all three
        model, own = load_trained(results / "models" / f"{path.stem}.safetensors")
        alone = Evaluator(own, model, torch.device("cpu")).accuracy(test.images, test.labels)
        assert json.loads(path.read_text())["accuracy"] == pytest.approx(alone, abs=0.011)


def test_a_damaged_cell_is_refused(monkeypatch, tmp_path, capsys):
    path = cells.cell_path(tmp_path, "table2", RECIPE)
    path.parent.mkdir()
    path.write_text(json.dumps({"recipe": RECIPE.to_dict(), "title": "no figure"}))
    for read in (status, lambda results: cells.missing([RECIPE], results, "table2")):
        with pytest.raises(InputError, match="damaged"):
            read(tmp_path)
    whole = {"title": "a", "accuracy": 0.5, "hardware": "b", "day": "c"}
    sound = replace(RECIPE, seed=5)
    cells.write(cells.cell_path(tmp_path, "table2", sound), {"recipe": sound.to_dict(), **whole})
    assert run(monkeypatch, "reproduce", "status", "--results", tmp_path) == 2  # the others are listed all the same
    said = capsys.readouterr()
    assert sound.key in said.out
    assert f"{RECIPE.key}.json is no cell of ours or is damaged" in said.err
    path.write_text(json.dumps({"recipe": replace(RECIPE, seed=1).to_dict(), **whole}))
    with pytest.raises(InputError, match="not the one it is named by"):
        cells.read(path)


def test_what_a_death_left_of_a_finished_cell_is_tidied(tmp_path):
    one = replace(RECIPE, epochs=1)
    assert fill([one], splits(), tmp_path, "table2", Running(device="cpu")) == "finished"
    work = cells.work_folder(tmp_path, one)
    work.mkdir(parents=True)
    (work / "log.jsonl").write_text("{}")  # killed while it was removed
    assert fill([one], splits(), tmp_path, "table2", Running(device="cpu")) == "finished"
    assert not work.exists()


def test_directories_on_the_way_are_made(monkeypatch, tmp_path, cifar):
    monkeypatch.chdir(tmp_path)
    given = ("--data", cifar, *SMALL, "--epochs", 1, "--warmup", 0, "--share", 0.2)
    assert run(monkeypatch, "train", *given, "-o", "runs/deep/one") == 0
    assert (tmp_path / "runs" / "deep" / "one" / "model.safetensors").is_file()


@pytest.mark.parametrize("command", ["train", "table2", "table3", "depth"])
def test_what_cannot_be_written_is_said_before_the_data_is_read(monkeypatch, capsys, tmp_path, command):
    def read(_):
        raise AssertionError("the data was read first")

    monkeypatch.setattr("oversmooth_papers.cli.train.load", read)
    monkeypatch.setattr("oversmooth_papers.cli.tables.load", read)
    (tmp_path / "file").touch()
    given = ["train", "-o"] if command == "train" else ["reproduce", command, "--results"]
    said = refusal(monkeypatch, capsys, *given, tmp_path / "file" / "in")
    assert "is a file, not a directory; choose another place" in said


def test_what_is_refused_leaves_no_directory(monkeypatch, capsys, tmp_path, cifar):
    given = ("reproduce", "table2", "--quick", "--data", cifar, "--results", tmp_path / "a" / "b", "--device", "cpu")
    assert run(monkeypatch, *given) == 2
    assert "less than one batch" in capsys.readouterr().err
    given = ("reproduce", "depth", "--quick", "--share", -1, "--results", tmp_path / "a")
    assert "share is -1" in refusal(monkeypatch, capsys, *given)
    assert not list(tmp_path.iterdir())


def test_what_is_recommended_is_not_refused(monkeypatch, capsys, tmp_path):
    """The quick table has another share than the paper's columns."""
    given = ("reproduce", "table2", "--quick", "--results", tmp_path, "--cells")
    said = refusal(monkeypatch, capsys, *given, "10%", "--data", tmp_path)  # before the data is looked for
    (example,) = re.findall(r"such as (\S+)$", said)
    every = Table2(seeds=1, quick=True).recipes()
    assert len(cells.chosen(every, [example])) == 1


def test_cells_are_chosen_by_words():
    every = Table2().recipes()
    assert len(every) == 27
    assert len({one.key for one in every}) == 27
    assert {(r.variant, r.share) for r in cells.chosen(every, ["plain:10%", "50%"])} == {
        ("plain", 0.1), ("plain", 0.5), ("smooth", 0.5), ("sharpen", 0.5),
    }  # fmt: skip
    with pytest.raises(InputError, match="no cell is called '20%'"):
        cells.chosen(every, ["20%"])


def test_published_figures_stand_beside_ours():
    table, column = Table2(), replace(recipe.PAPER, share=0.1)
    kept = {replace(column, seed=seed): {"accuracy": accuracy} for seed, accuracy in enumerate((0.32, 0.33, 0.34))}
    text = table_text.markdown(*table.rows(kept), table.notes())
    assert "33.00 ± 1.00 (3)" in text
    assert "32.47 ± 0.9" in text
    assert "published" in text
    assert table.chart(kept) is not None
    table, kept = Table3(share=0.1), {column: {"accuracy": 0.5, "mean": [0.4, 0.3, 0.2, 0.1, 0.05]}}
    text = table_text.markdown(*table.rows(kept), table.notes())
    assert "ours, 10 % of the data" in text
    assert "published, 100 % of the data" in text
    assert table.chart(kept) is not None
    assert (0, *SEVERITIES) == INTENSITIES
    with pytest.raises(InputError, match=r"no mean of each of 5 intensities"):
        table.rows({column: {"accuracy": 0.5}})


@nightly
def test_several_runs_at_once(tmp_path, cifar):
    base = replace(recipe.QUICK, share=1.0, epochs=1, batch=20, shape=Shape(patch=8, width=16, depth=1, heads=2))
    jobs = [Job(base, tmp_path / "good"), Job(replace(base, batch=5000), tmp_path / "bad")]
    kept = []
    outcomes = run_many(jobs, str(cifar), loop.RunSettings(minutes=5, device="cpu"), at_once=2, on_finished=kept.append)
    said = {outcome.job.folder.name: outcome.message for outcome in outcomes}
    assert said["good"] == "finished"
    assert kept == jobs[:1]
    assert "code 2" in said["bad"]
    assert "less than one batch" in said["bad"]
    late = run_many([Job(base, tmp_path / "late")], str(cifar), loop.RunSettings(minutes=0), at_once=1)
    assert late[0].message == "not begun, as time is up"


@nightly
def test_cells_filled_at_once_are_those_filled_one_by_one(tmp_path, cifar):
    base = replace(recipe.QUICK, share=1.0, epochs=1, batch=20, shape=Shape(patch=8, width=16, depth=1, heads=2))
    both = load_splits(cifar)
    fitted = [replace(base, variant=variant).fitted(both.train) for variant in ("plain", "sharpen")]
    given = dict(data=str(cifar), device="cpu")
    assert fill(fitted, both, tmp_path / "at-once", "table2", Running(at_once=2, minutes=0, **given)) == "out of time"
    assert fill(fitted, both, tmp_path / "at-once", "table2", Running(at_once=2, **given)) == "finished"
    assert fill(fitted[1:], both, tmp_path / "alone", "table2", Running(**given)) == "finished"
    one, other = (cells.read(cells.cell_path(tmp_path / where, "table2", fitted[1])) for where in ("at-once", "alone"))
    assert one["accuracy"] == other["accuracy"]
    # Kept with its weights folded, and rounded after that; how good that file is stands in the cell.
    path = cells.model_path(tmp_path / "at-once", fitted[1])
    model, trained_by = load_trained(path)
    assert steering_of(model) is None
    assert trained_by.methods()
    evaluator = Evaluator(trained_by, model, torch.device("cpu"))
    assert one["rounded"]["accuracy"] == evaluator.accuracy(both.test.images, both.test.labels)
    assert one["checkpoint_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert one["data_sha256"] == other["data_sha256"]


@nightly
def test_runs_at_once_that_fail_say_which_and_why(tmp_path, cifar):
    both = load_splits(cifar)
    broken = [replace(recipe.QUICK, batch=5000, variant=variant).fitted(both.train) for variant in ("plain", "sharpen")]
    with pytest.raises(InputError, match=r"2 of 2 runs failed; .* less than one batch of 5000"):
        fill(broken, both, tmp_path / "broken", "table2", Running(at_once=2, data=str(cifar), device="cpu"))


def test_test_images_are_those_of_the_recipe():
    with pytest.raises(InputError, match="recipe is for cifar100"):
        train(replace(RECIPE, data="cifar100"), splits())
    assert blobs(3, 0).name == "blobs"
