"""Rooms import those below them, and the contracts of pyproject.toml notice where they do not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="the layers are checked by import-linter, of the extra `check`")

ROOT = Path(__file__).parents[1]
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
ROOMS, TRAINING, CIRCLES = (
    "Rooms import those below them",
    "Training: the engine knows no task",
    "No circles in any room",
)


def contracts(src, folder):
    """Every contract, in words, and whether it is kept in the package that lies in this src."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--config", ROOT / "pyproject.toml", "--no-cache", "--no-logo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(src), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    found = {
        name: line.split(name, 1)[1]
        for line in done.stdout.splitlines()
        for name in (ROOMS, TRAINING, CIRCLES)
        if line.startswith(name) and ("KEPT" in line or "BROKEN" in line)
    }
    assert len(found) == 3, done.stdout + done.stderr
    kept = {name: "KEPT" in verdict for name, verdict in found.items()}
    assert (done.returncode == 0) == all(kept.values())
    return kept, done.stdout


def test_the_package_keeps_its_layers(tmp_path):
    kept, said = contracts(ROOT / "src", tmp_path)
    assert all(kept.values()), said


PLANTED = {
    "theory imports diagnosis": (
        {"theory/spectrum.py": "from oversmooth.diagnosis import result"},
        ROOMS,
        "oversmooth.theory.spectrum -> oversmooth.diagnosis.result",
    ),
    "a lazy import points up": (
        {"metrics/rank.py": "def late():\n    import oversmooth.report.page"},
        ROOMS,
        "oversmooth.metrics.rank -> oversmooth.report.page",
    ),
    "the engine imports a task": (
        {"train/engine/step.py": "import oversmooth.train.tasks.images.vit"},
        TRAINING,
        "oversmooth.train.engine.step -> oversmooth.train.tasks.images.vit",
    ),
    "two files of a room import each other": (
        {
            "metrics/angle.py": "import oversmooth.metrics.energy",
            "metrics/energy.py": "import oversmooth.metrics.angle",
        },
        CIRCLES,
        "oversmooth.metrics",
    ),
}


@pytest.mark.parametrize(("lines", "broken", "named"), PLANTED.values(), ids=PLANTED)
def test_an_import_that_is_forbidden_is_noticed(lines, broken, named, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(ROOT / "src", src, ignore=lambda folder, names: [n for n in names if not _is_code(folder, n)])
    for file, line in lines.items():
        with (src / "oversmooth" / file).open("a", encoding="utf-8") as code:
            code.write(f"\n{line}\n")
    kept, said = contracts(src, tmp_path)
    assert not kept[broken], said
    assert named in said


def _is_code(folder, name):
    return name.endswith(".py") or (Path(folder, name).is_dir() and name != "__pycache__")
