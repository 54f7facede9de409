"""Cells of a table as jobs on this machine are those that the table's own process makes."""

import json
import os
import signal
import threading
import time

import pytest
import torch
from support.commands import make_cifar, refusal, run
from support.interpreters import import_path
from support.launched_example import SlowRun
from support.runs import QUIET, assert_same_models
from support.train_example import RECIPE, splits, train

from oversmooth.launching import Cell, JobSettings, launch
from oversmooth_papers.engine import checkpoint, lock
from oversmooth_papers.engine.loop import MODEL

GIVEN = ("reproduce", "table2", "--quick", "--device", "cpu")
LOCAL = JobSettings("local")


@pytest.fixture(autouse=True)
def _jobs_find_these_modules(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", import_path())
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))


def test_a_table_by_jobs_is_the_table(tmp_path, monkeypatch, capsys):
    data = make_cifar(tmp_path / "cifar-100-binary", 1200, 60)
    given = (*GIVEN, "--cells", "plain", "--data", data)
    assert run(monkeypatch, *given, "--results", tmp_path / "plain") == 0
    assert run(monkeypatch, *given, "--results", tmp_path / "jobs", "--launcher", "local", "--at-once", 2) == 0
    assert "finished" in capsys.readouterr().err
    assert_same_models(tmp_path / "plain" / "models", tmp_path / "jobs" / "models")
    cells = [json.loads(path.read_text()) for path in sorted((tmp_path / "jobs" / "table2-quick").iterdir())]
    assert [cell["at_once"] for cell in cells] == [2]
    assert not (tmp_path / "jobs" / "jobs").exists()
    assert run(monkeypatch, "reproduce", "status", "--results", tmp_path / "jobs") == 0
    assert "sent as jobs" not in capsys.readouterr().out


def test_a_run_whose_job_is_warned_goes_on_bit_for_bit(tmp_path):
    train(RECIPE, splits(), folder=tmp_path / "whole", watch=QUIET)
    folder = tmp_path / "run"

    def warn():
        while checkpoint.newest(folder) is None:
            time.sleep(0.1)
        os.kill(json.loads((folder / lock.NAME).read_text())["pid"], signal.SIGUSR2)

    threading.Thread(target=warn, daemon=True).start()
    said = []
    assert launch([Cell("run", folder / MODEL, SlowRun(folder, 0.25))], tmp_path / "jobs", LOCAL, said.append) == {}
    assert sum("sent" in line for line in said) == 1
    assert len((folder / "machines.jsonl").read_text().splitlines()) == 2
    assert_same_models(folder, tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--slurm", "partition=gpu"), "without --launcher slurm"),
        (("--launcher", "local", "--minutes", 5), "--minutes ends runs of this process"),
        (("--launcher", "slurm", "--slurm", "output=x"), "'output', which cannot be set"),
    ],
)
def test_options_that_do_not_go_together_are_refused(monkeypatch, capsys, tmp_path, options, sentence):
    assert sentence in refusal(monkeypatch, capsys, *GIVEN, "--results", tmp_path, *options)
