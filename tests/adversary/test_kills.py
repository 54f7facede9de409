"""A sample of kills.py: a command that is stopped while it writes, by every signal, and then again."""

import os
import signal
import subprocess
import sys

import pytest
from adversary import kills
from support.nightly import nightly

from oversmooth import cli

SIMULATE = ["simulate", "--layers", "8", "--tokens", "6", "--width", "4", "-o"]
MEANWHILE = """
from pathlib import Path
from oversmooth.safety import files
write = Path.write_text
def stop(self, *given, **named):
    write(self, "half")
    os.kill(os.getpid(), number)
    return write(self, *given, **named)
Path.write_text = stop
"""


# A process a signal, each with what one of them imported.
EACH = """
import os, sys
import oversmooth.cli
from oversmooth.__main__ import main
for number in {numbers}:
    if not (child := os.fork()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(f"{folder}/{{number}}.err", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = ["oversmooth", *sys.argv[1:], f"{folder}/{{number}}/x.json"]
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    sys.exit()
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder, and the exit codes by signal."""
    folder = tmp_path_factory.mktemp("stopped")
    for number in kills.SIGNALS:
        (folder / str(int(number))).mkdir()
    start, _ = kills.START.split("\n")
    each = EACH.format(numbers=list(map(int, kills.SIGNALS)), folder=folder)
    code = "\n".join([start, each, MEANWHILE, "main()"])
    done = subprocess.run([sys.executable, "-c", code, *SIMULATE], stdout=subprocess.PIPE, text=True, check=True)
    return folder, dict(zip(kills.SIGNALS, map(int, done.stdout.split()), strict=True))


@nightly
@pytest.mark.parametrize("number", kills.SIGNALS)
def test_stopped_in_the_middle_of_a_write_and_again(monkeypatch, stopped, number):
    folder, codes = stopped
    place, said = folder / str(int(number)), (folder / f"{int(number)}.err").read_text()
    left = os.listdir(place)
    if number == signal.SIGKILL:
        assert codes[number] == -signal.SIGKILL
        assert len(left) == 1
    else:
        assert codes[number] == 128 + number
        assert said.startswith("oversmooth: stopped by ")
        assert len(said.splitlines()) == 1
        assert left == []
    monkeypatch.setattr(sys, "argv", ["oversmooth", *SIMULATE, str(place / "x.json")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert os.listdir(place) == ["x.json"]
