"""The command line as a user meets it: what it prints, writes and refuses."""

import errno
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.markup import escape

from oversmooth import cli, files
from oversmooth.report import simulation

app_module = importlib.import_module("oversmooth.cli.app")  # the package has the application under that name

SMALL = ["simulate", "--layers", "8", "--tokens", "6", "--width", "4"]
SIGNATURE = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF", ".html": b"<!DOCTYPE html>", ".json": b"{"}


def run(monkeypatch, *arguments):
    """The exit code of the console script with these arguments."""
    monkeypatch.setattr(sys, "argv", ["oversmooth", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code or 0


def test_the_default_shows_the_four_cases_side_by_side(monkeypatch, capsys):
    assert run(monkeypatch, "simulate") == 0
    text = capsys.readouterr().out
    for name in ("smoothing", "sharpening", "flip", "no-residual"):
        assert name in text
    assert text.count("yes") == 4
    assert "rank collapse" in text


@pytest.mark.parametrize("ending", simulation.CHART_ENDINGS)
def test_every_ending_writes_its_format(monkeypatch, capsys, tmp_path, ending):
    path = tmp_path / f"chart{ending}"
    assert run(monkeypatch, *SMALL, "-o", path) == 0
    assert path.read_bytes().lstrip().startswith(SIGNATURE[ending])
    assert os.listdir(tmp_path) == [path.name]
    if ending == ".html":
        page = path.read_text()
        assert not re.search(r"<(script[^>]+src|link[^>]+href)=.https?:", page)  # nothing to fetch
    if ending == ".json":
        case = json.loads(path.read_text())["cases"][0]
        assert case["predicted"] == ["smooth"]
        assert len(case["depth"]) == len(case["log_hfc_lfc"]) == 9


def test_figure_4_says_what_the_sign_of_gamma_does(monkeypatch, capsys):
    assert run(monkeypatch, "simulate", "--preset", "figure4", "--layers", "60", "--draws", "3") == 0
    text = capsys.readouterr().out
    assert text.count("3 of 3") == 4
    assert "exactly no effect" in text


def test_own_settings(monkeypatch, capsys, tmp_path):
    arguments = ["--eigenvalues", "-0.9", "-0.1", "--heads", "2", "--causal", "--neutreno", "0.4", "--seed", "5"]
    assert run(monkeypatch, *SMALL, *arguments, "-o", tmp_path / "x.json") == 0
    settings = json.loads((tmp_path / "x.json").read_text())["cases"][0]["settings"]
    assert settings["eigenvalues"] == [-0.9, -0.1]
    assert (settings["causal"], settings["heads"], settings["neutreno"]) == (True, 2, 0.4)
    assert run(monkeypatch, *SMALL, "--no-residual", "--norm", "post", "--gamma", "-1") == 0
    assert "your case" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--preset", "nonsense"], "no preset 'nonsense'"),
        (["--eigenvalues", "1", "0"], "from 1.0 to 0.0"),
        (["--heads", "3"], "width 4 cannot be split among 3 heads"),
        (["--tokens", "1"], "tokens is 1"),
        (["-o", "chart.bmp"], "'.bmp'"),
        (["-o", "folder.png"], "is a directory"),
        (["--layers", "many"], "many"),
        (["--seed", "99999999999999999999999"], "seed is 9999"),
        (["--tokens", "10000000"], "10000000 tokens need"),
        (["--eigenvalues", "1e200", "1e201"], "1e+200"),
        (["-o", "."], "is a directory"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(monkeypatch, capsys, tmp_path, arguments, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    assert run(monkeypatch, *SMALL, *arguments) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert os.listdir(tmp_path) == ["folder.png"]


def test_no_permission(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere, so it has to be told
    assert run(monkeypatch, *SMALL, "-o", tmp_path / "x.png") == 2
    assert "no permission" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing_and_keeps_what_was_there(monkeypatch, capsys, tmp_path):
    path = tmp_path / "chart.json"
    path.write_text("kept")

    def full(self, *_, **__):
        Path(self).touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    assert run(monkeypatch, *SMALL, "-o", path) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert path.read_bytes() == b"kept"
    assert os.listdir(tmp_path) == ["chart.json"]


def test_an_existing_file_is_replaced_whole(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail_half_way():
        with files.whole_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    with files.whole_file(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o666 & ~files._umask()
    assert os.listdir(tmp_path) == ["x.txt"]


def test_ctrl_c_stops_a_long_run_cleanly(tmp_path):
    # Whoever starts the tests in the background has them, and what they start, ignore Ctrl-C.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from oversmooth.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", "--layers", "10000000", "-o", tmp_path / "x.png"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            time.sleep(8)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert os.listdir(tmp_path) == []


def test_version_and_help(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("oversmooth 0.")
    assert run(monkeypatch) == 0
    assert "simulate" in capsys.readouterr().out
    assert run(monkeypatch, "simulate", "--help") == 0
    assert "--eigenvalues" in capsys.readouterr().out


def wait_for(wanted, buffer):
    until = time.monotonic() + 60
    while wanted not in buffer.getvalue():
        assert time.monotonic() < until, buffer.getvalue()
        time.sleep(0.01)


def test_without_a_terminal_progress_is_told_in_lines(monkeypatch):
    buffer = io.StringIO()
    monkeypatch.setattr(app_module, "err", Console(file=buffer, width=40))
    monkeypatch.setattr(app_module, "SECONDS_BETWEEN_LINES", 0.01)
    with app_module.progress_bar("inputs") as bars:
        task = bars.add_task(escape("a [model] with a name longer than a line"), total=None)
        wait_for("a [model] with a name longer than a line, 0:00 so far\n", buffer)
        bars.update(task, completed=3, total=1200)
        wait_for("longer than a line, 3 of 1,200 inputs, 0:0", buffer)
        bars.update(task, completed=1200)
    before = buffer.getvalue()
    assert not before.endswith("\n\n")
    with app_module.status("reading [data]"):
        wait_for("reading [data], 0:0", buffer)
    after = buffer.getvalue()
    time.sleep(0.1)
    assert buffer.getvalue() == after  # nothing speaks once it is over


def test_on_a_terminal_there_is_a_bar_and_no_line(monkeypatch):
    buffer = io.StringIO()
    monkeypatch.setattr(app_module, "err", Console(file=buffer, width=120, force_terminal=True))
    monkeypatch.setattr(app_module, "SECONDS_BETWEEN_LINES", 0.01)
    with app_module.progress_bar("inputs") as bars:
        bars.add_task("a model", total=10)
        time.sleep(0.1)
    assert "so far, left" in buffer.getvalue()
    assert "0 of 10 inputs" not in buffer.getvalue()
