"""A sample of kills.py: a command that is stopped while it writes, by every signal, and then again."""

import os
import signal
import subprocess
import sys

import pytest
from adversary import kills

from oversmooth import cli

MEANWHILE = """
import os, signal
from pathlib import Path
from oversmooth.safety import files
write = Path.write_text
def stop(self, *given, **named):
    write(self, "half")
    os.kill(os.getpid(), {number})
    return write(self, *given, **named)
Path.write_text = stop
"""


@pytest.mark.parametrize("number", kills.SIGNALS)
def test_stopped_in_the_middle_of_a_write_and_again(monkeypatch, tmp_path, number):
    arguments = ["simulate", "--layers", "8", "--tokens", "6", "--width", "4", "-o", str(tmp_path / "x.json")]
    first, last = kills.START.split("\n")
    code = f"{first}\n{MEANWHILE.format(number=int(number))}\n{last}"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    left = os.listdir(tmp_path)
    if number == signal.SIGKILL:
        assert done.returncode == -signal.SIGKILL
        assert len(left) == 1
    else:
        assert done.returncode == 128 + number
        assert done.stderr.startswith("oversmooth: stopped by ")
        assert len(done.stderr.splitlines()) == 1
        assert left == []
    monkeypatch.setattr(sys, "argv", ["oversmooth", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert os.listdir(tmp_path) == ["x.json"]
