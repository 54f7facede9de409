"""Commands stopped at random moments, and then again: `python tests/adversary/kills.py` prints what became of them.

Every command runs undisturbed first. Then it is sent SIGINT, SIGTERM or SIGKILL at a moment drawn from its whole
course, in a fresh directory, and run again there. It holds when the first run says one sentence and leaves with the
signal's exit code, and the second gives the undisturbed result and the files of the undisturbed run, and no others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does, where it is run by itself
from support import commands
from support.places import ROOT

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
# Whoever starts this in the background has it, and what it starts, ignore Ctrl-C.
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
START += "from oversmooth.__main__ import main; print('begun', flush=True); main()"
MAY_BE_PREEMPTED = 75
"""The exit code of a run that was asked to make room and goes on when it is started again."""


@dataclass(frozen=True)
class Command:
    """arguments: with GIVEN for the directory of models and data; result: what must be the same, from its directory."""

    name: str
    arguments: tuple[str, ...]
    result: Callable[[Path], Any]


def run(command: Command, given: Path, folder: Path, stop: tuple[int, float] | None = None) -> tuple[int, str, float]:
    """Exit code, standard error and seconds."""
    arguments = [word.replace("GIVEN", str(given)) for word in command.arguments]
    settings = {
        **os.environ,
        "OVERSMOOTH_CACHE": str(folder.parent / f"{folder.name}-cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", "papers/src")),
    }
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        cwd=folder,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before that it is Python that starts, which has nothing to tidy
        if stop is not None:
            try:
                process.wait(stop[1])
            except subprocess.TimeoutExpired:
                process.send_signal(stop[0])
        said = process.communicate()[1]
    return process.returncode, said, time.monotonic() - began


def there(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def judge(command: Command, given: Path, home: Path, number: int, moment: float, expected: Any, usual: set[str]) -> str:
    """ "" where it held, "+" where it held and the signal came too late to stop anything, or what was wrong."""
    folder = Path(tempfile.mkdtemp(dir=home))
    code, said, _ = run(command, given, folder, (number, moment))
    if code in (0, -number, 128 + number) and there(folder) == usual and command.result(folder) == expected:
        return "+"  # it came as the interpreter was about to end, or later
    if number == signal.SIGKILL:
        if code not in (0, -signal.SIGKILL):
            return f"left with {code}: {said[-200:]}"
    elif code:
        if code not in (128 + number, MAY_BE_PREEMPTED):
            return f"left with {code}: {said[-200:]}"
        if "Traceback" in said:
            return f"traceback: {said[-300:]}"
        if left := [name for name in there(folder) if ".oversmooth" in name]:
            return f"left {left[0]} behind"
    code, said, _ = run(command, given, folder)
    if code:
        return f"again: left with {code}: {said[-300:]}"
    if there(folder) != usual:
        return f"again: other files, {sorted(there(folder) ^ usual)[:3]}"
    if command.result(folder) != expected:
        return "again: another result"
    shutil.rmtree(folder)
    return ""


def tried(command: Command, given: Path, home: Path, tries: int, draw: random.Random) -> list[str]:
    """Prints a line a signal: how often it stopped the command, and how often all came to the same; what was wrong."""
    folder = Path(tempfile.mkdtemp(dir=home))
    code, said, seconds = run(command, given, folder)
    if code:
        raise SystemExit(f"{command.name} fails undisturbed: {said[-500:]}")
    expected, usual, every = command.result(folder), there(folder), []
    for number in SIGNALS:
        moments = [draw.uniform(0, seconds) for _ in range(tries)]
        found = [judge(command, given, home, number, moment, expected, usual) for moment in moments]
        wrong = [
            f"after {moment:.2f} of {seconds:.2f} s: {what}"
            for moment, what in zip(moments, found, strict=True)
            if what not in ("", "+")
        ]
        stopped, name = tries - found.count("+"), signal.Signals(number).name
        print(f"{command.name:12} {name:8} {tries:5} {stopped:8} {tries - len(wrong):12}", *wrong, flush=True)
        every += wrong
    return every


# What must be the same: everything but times and dates.


def saved(folder: Path) -> Any:
    found = json.loads((folder / "d.json").read_text())
    for name in ("created", "seconds"):
        found.get("provenance", {}).pop(name, None)
    return found


def checkpoint(folder: Path) -> Any:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (folder / "made").iterdir()}


def pages(folder: Path) -> Any:
    timeless = r"20\d\d-\d\d-\d\d(T[0-9:+]+)?|\"seconds\":[0-9.]+|<[^>]*>[0-9.]+</[^>]*>"
    return {p.name: re.sub(timeless, "", p.read_text()) for p in folder.glob("*.html")}


def trained(folder: Path) -> Any:
    """The arrays of a trained model, which come after the metadata."""
    data = (folder / "run" / "model.safetensors").read_bytes()
    return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little") :]).hexdigest()


def cells(folder: Path) -> Any:
    found = [json.loads(path.read_text()) for path in sorted((folder / "results").rglob("*.json"))]
    return [(cell["title"], cell["accuracy"]) for cell in found if "title" in cell]


SMALL = "--no-augment --patch 8 --depth 2 --width 16 --heads 2 --batch 10 --device cpu --epochs 1 --warmup 1 --lr 0.01"
COMMANDS = [
    Command("diagnose", ("diagnose", "GIVEN/vit", "--inputs", "2", "--json", "d.json", "--html", "d.html"), saved),
    Command("spectrum", ("spectrum", "GIVEN/vit", "--json", "d.json", "-o", "d.svg"), saved),
    Command("steer", ("steer", "GIVEN/vit", "-m", "spectral:mode=sharpen", "-o", "made"), checkpoint),
    Command("fold", ("fold", "GIVEN/steered", "-o", "made"), checkpoint),
    Command("simulate", ("simulate", "--layers", "2000", "-o", "d.json"), saved),
    Command("train", ("train", "--data", "GIVEN/cifar-100-binary", "-o", "run", "--resume", *SMALL.split()), trained),
    Command(
        "table2",
        ("reproduce", "table2", "--quick", "--cells", "plain", "--data", "GIVEN/cifar-100-binary", "--device", "cpu"),
        cells,
    ),
    Command("demo", ("demo", "-o", "demo.html"), pages),
]


def make_given(folder: Path) -> None:
    """A small vision checkpoint, plain and steered, and a small data set."""
    commands.make_vit(folder / "vit")
    code, said, _ = run(Command("", ("steer", "GIVEN/vit", "-m", "spectral", "-o", "steered"), there), folder, folder)
    if code:
        raise SystemExit(said)
    commands.make_cifar(folder / "cifar-100-binary", train=1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", help=", ".join(one.name for one in COMMANDS))
    parser.add_argument("--tries", type=int, default=4, help="of each command and signal")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chosen = [one for one in COMMANDS if one.name in (asked.commands or [one.name for one in COMMANDS])]
    with tempfile.TemporaryDirectory(prefix="oversmooth-kills-") as home:
        given = Path(home) / "given"
        given.mkdir()
        make_given(given)
        print("command      signal   tries  stopped  again, same")
        draw = random.Random(asked.seed)
        wrong = [tried(command, given, Path(home), asked.tries, draw) for command in chosen]
    sys.exit(any(wrong))


if __name__ == "__main__":
    main()
