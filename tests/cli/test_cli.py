"""The command line as a user meets it: what it prints, writes and refuses."""

import importlib
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support.commands import refusal, run
from support.report_example import example

from oversmooth import cli
from oversmooth.cli.streams import Terminal, standard_streams
from oversmooth.report import simulation
from oversmooth.safety import foreign
from oversmooth.theory import toy as cases

OF_PAPERS = pytest.mark.skipif(importlib.util.find_spec("oversmooth_papers") is None, reason="needs the papers")
app_module = importlib.import_module("oversmooth.cli.app")  # the package has the application under that name

SMALL = ["simulate", "--layers", "8", "--tokens", "6", "--width", "4"]
SIGNATURE = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF", ".html": b"<!doctype html>", ".json": b"{"}


def test_the_default_shows_the_four_cases_side_by_side(monkeypatch, capsys):
    assert run(monkeypatch, "simulate") == 0
    text = capsys.readouterr().out
    for name in ("smoothing", "sharpening", "flip", "no-residual"):
        assert name in text
    assert text.count("yes") == 4
    assert "rank collapse" in text


@pytest.mark.parametrize("ending", simulation.ENDINGS)
def test_every_ending_writes_its_format(monkeypatch, tmp_path, ending):
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


def test_repeated_blocks(monkeypatch, capsys, tmp_path):
    target = tmp_path / "blocks.svg"
    assert run(monkeypatch, "simulate", "--preset", "blocks", "--layers", "40", "--output", str(target)) == 0
    assert "rotation block" in capsys.readouterr().out
    assert "the sink block, repeated" in target.read_text(encoding="utf-8")
    for wrong, said in ((["--tokens", "8"], "alone"), (["--layers", "4"], "16 to"), (["-o", "x.html"], ".json")):
        assert run(monkeypatch, "simulate", "--preset", "sink", *wrong) == 2
        assert said in capsys.readouterr().err


def test_figure_4_says_what_the_sign_of_gamma_does(monkeypatch, capsys):
    assert run(monkeypatch, "simulate", "--preset", "figure4", "--layers", "60", "--draws", "3") == 0
    text = capsys.readouterr().out
    assert text.count("3 of 3") == 4
    assert "has no effect" in text


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
        (["--preset", "nonsense"], "unknown preset 'nonsense'"),
        (["--eigenvalues", "1", "0"], "from 1.0 to 0.0"),
        (["--heads", "3"], "width 4 cannot be split among 3 heads"),
        (["--tokens", "1"], "tokens is 1"),
        (["-o", "chart.bmp"], "'.bmp'"),
        (["-o", "folder.png"], "is a directory"),
        (["--layers", "many"], "many"),
        (["--seed", "99999999999999999999999"], "seed is 9999"),
        (["--width", "0"], "width is 0"),
        (["--heads", "0"], "heads is 0"),
        (["--layers", "0"], "layers is 0"),
        (["--draws", "0"], "draws is 0"),
        (["--layers", "1000000000"], "layers is 1,000,000,000; give 100,000,000 or less"),
        (["--width", "1000000"], "width is 1,000,000; give 8,192 or less"),
        (["--width", "8000", "--draws", "100000"], "GiB"),
        (["--gamma", "nan"], "--gamma is nan; give a finite number"),
        (["--eigenvalues", "0", "nan"], "--eigenvalues is nan"),
        (["--preset", "[/b]"], "unknown preset '[/b]'"),
        (["--preset", "\x1b[31mred"], "unknown preset '\\x1b[31mred'"),
        (["--preset", "\u202egpj"], "unknown preset '\\u202egpj'"),
        (["--preset", "x" * 5000], "unknown preset"),
        (["--[/red]"], "--help lists"),
        (["-o", ""], "-o is empty"),
        (["--output="], "--output is empty"),
        (["-o", "x" * 300 + ".png"], "File name too long"),
        (["--tokens", "10000000"], "10000000 tokens need"),
        (["--eigenvalues", "1e200", "1e201"], "1e+200"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(monkeypatch, capsys, tmp_path, arguments, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    assert named in refusal(monkeypatch, capsys, *SMALL, *arguments)
    assert os.listdir(tmp_path) == ["folder.png"]


def test_no_permission(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere, so it has to be told
    assert "no permission" in refusal(monkeypatch, capsys, *SMALL, "-o", tmp_path / "x.png")


def test_version_and_help(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("oversmooth 0.")
    assert run(monkeypatch) == 0
    assert "simulate" in capsys.readouterr().out
    assert run(monkeypatch, "simulate", "--help") == 0
    assert "--eigenvalues" in capsys.readouterr().out


def wait_for(wanted, buffer):
    """wanted: a regular expression, since a busy machine says later how long it took."""
    until = time.monotonic() + 300
    while not re.search(wanted, buffer.getvalue()):
        assert time.monotonic() < until, buffer.getvalue()
        time.sleep(0.01)


def test_without_a_terminal_progress_is_told_in_lines(monkeypatch):
    buffer = io.StringIO()
    monkeypatch.setattr(app_module, "err", Terminal(file=buffer, width=40))
    monkeypatch.setattr(app_module, "SECONDS_BETWEEN_LINES", 0.01)
    with app_module.progress_bar("inputs") as bars:
        task = bars.add_task("a [model] with a name longer than a line", total=None)
        wait_for(r"a \[model\] with a name longer than a line, 0:\d\d so far\n", buffer)
        bars.update(task, completed=3, total=1200)
        wait_for(r"longer than a line, 3 of 1,200 inputs, \d+:\d\d", buffer)
        bars.update(task, completed=1200)
    before = buffer.getvalue()
    assert not before.endswith("\n\n")
    with app_module.status("reading [data]"):
        wait_for(r"reading \[data\], \d+:\d\d", buffer)
    after = buffer.getvalue()
    time.sleep(0.1)
    assert buffer.getvalue() == after  # nothing speaks once it is over


def test_on_a_terminal_there_is_a_bar_and_no_line(monkeypatch):
    buffer = io.StringIO()
    monkeypatch.setattr(app_module, "err", Terminal(file=buffer, width=120, force_terminal=True))
    monkeypatch.setattr(app_module, "SECONDS_BETWEEN_LINES", 0.01)
    with app_module.progress_bar("inputs") as bars:
        bars.add_task("a model", total=10)
        time.sleep(0.1)
    assert "so far, left" in buffer.getvalue()
    assert "0 of 10 inputs" not in buffer.getvalue()


NASTY = "\x1b]0;owned\x07[/b][red]\x9b2J\u202egpj.\x7f"


def hostile(folder):
    """A saved diagnosis whose every text was written by someone who means no good."""
    found = example(NASTY, layers=3, heads=2, head_dim=4)
    for layer in found.layers:
        layer.name = NASTY
        for change in layer.changes:
            change.part = NASTY
    found.remarks = [NASTY]
    found.provenance |= {"data": NASTY, "counting_rule": NASTY}
    found.save(folder / "hostile.json")
    return folder / "hostile.json"


@pytest.mark.parametrize(
    "command",
    [
        ["diagnose"],
        ["spectrum"],
        pytest.param(["reproduce", "fig5"], marks=OF_PAPERS),
        pytest.param(["reproduce", "table1"], marks=OF_PAPERS),
    ],
)
def test_text_of_others_is_shown_and_never_obeyed(monkeypatch, capsys, tmp_path, command):
    path = hostile(tmp_path)
    assert path.read_text().isprintable()  # cat shows it as well
    made = ["-o", tmp_path / "t.md"] if command[-1] == "table1" else []
    assert run(monkeypatch, *command, path, *made) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert "\\x1b]0;owned" in shown
    assert "[/b][red]" in shown.replace("\n", "") or "fig5" in command
    if made:
        assert (tmp_path / "t.md").read_text().replace("\n", "").isprintable()


def test_a_terminal_gets_our_colours_and_not_theirs(monkeypatch):
    buffer = io.StringIO()
    console = Terminal(file=buffer, width=120, force_terminal=True, color_system="standard")
    console.print(f"ours {NASTY}", style="red")
    assert buffer.getvalue() == f"\x1b[31mours {foreign.visible(NASTY)}\x1b[0m\n"
    monkeypatch.setattr(app_module, "err", console)
    with app_module.status(NASTY), app_module.progress_bar(NASTY) as bars:
        bars.add_task(NASTY, total=None)
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue())  # styles and moves of the bar
    assert not re.search("[\x1b\x07\x9b\x7f\u202e]", written)


def test_what_libraries_print_is_cleaned_too(capsys):
    with standard_streams():
        print(f"a warning about {NASTY}", file=sys.stderr)
        sys.stdout.writelines([NASTY, "\n"])
        sys.stderr.write("\r50 %")
        with Terminal(stderr=True, force_terminal=True).status("a bar"):
            print(f"meanwhile {NASTY}", file=sys.stderr)
    captured = capsys.readouterr()
    assert f"a warning about {foreign.visible(NASTY)}\n" in captured.err
    assert "\r50 %" in captured.err
    assert f"meanwhile {foreign.visible(NASTY)}" in captured.err
    assert captured.out == foreign.visible(NASTY) + "\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_output_is_utf_8_wherever_it_goes(monkeypatch, encoding):
    for arguments, code in ((SMALL, 0), (["simulate", "--help"], 0), ([*SMALL, "--preset", "smö → \udcff"], 2)):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        assert run(monkeypatch, *arguments) == code
        said = b"".join(stream.buffer.getvalue() for stream in streams).decode()
        if arguments == SMALL:
            assert "σ₂/σ₁" in said


def in_a_process(*arguments, code="", **settings):
    """The command line in a process of its own, in which Ctrl-C is what it is on a terminal."""
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    start += code + "\nfrom oversmooth.__main__ import main; main()"
    return subprocess.Popen([sys.executable, "-c", start, *map(str, arguments)], **settings)


def test_a_reader_that_goes_away_stops_nothing():
    with in_a_process("--help", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that Linux has")
def test_standard_output_on_a_full_disk():
    with open("/dev/full", "w") as full, in_a_process("--help", stdout=full, stderr=subprocess.PIPE) as process:
        said = process.stderr.read().decode()
    assert process.returncode == 2
    assert "No space left on device" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_libraries_are_imported(number):
    stop = f"""
import os, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Stop())"""
    with in_a_process("simulate", code=stop, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.read()
    assert process.returncode == 128 + number
    assert re.fullmatch(r"oversmooth: stopped by (Ctrl-C|SIGTERM); nothing was left half-written\n", said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_work_is_a_sentence_and_its_exit_code(monkeypatch, capsys, tmp_path, number):
    monkeypatch.setattr(cases.ToyModel, "run", lambda *_: signal.raise_signal(number))
    assert run(monkeypatch, *SMALL, "-o", tmp_path / "x.json") == 128 + number
    assert "stopped by" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "library"),
    [
        (["diagnose", "folder.parquet", "--data", "data.parquet"], "transformers"),
        (["diagnose", "VIT", "--data", "data.parquet"], "pyarrow.parquet"),
        (["diagnose", "VIT", "--data", "data.png"], "PIL.Image"),
    ],
)
def test_a_missing_library_is_noticed_before_the_work(monkeypatch, capsys, tmp_path, arguments, library):
    from oversmooth.demo import vits

    monkeypatch.chdir(tmp_path)
    for name in ("data.parquet", "data.png"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(cli.diagnose, "show", lambda _: pytest.fail("the work was begun"))
    monkeypatch.setitem(sys.modules, library, None)
    before = sorted(os.listdir(tmp_path))
    assert run(monkeypatch, *(str(vits.file_of("plain")) if a == "VIT" else a for a in arguments)) == 2
    assert "which is not installed; install oversmooth[models]" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before
