"""Rooms import those below them, and the contracts of pyproject.toml notice where they do not."""

import os
import shutil
from pathlib import Path

import pytest
from support.interpreters import python

pytest.importorskip("importlinter", reason="the layers are checked by import-linter, of the extra `check`")

ROOT = Path(__file__).parents[1]
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
ROOMS, APART, TRAINING, CIRCLES = (
    "Rooms import those below them",
    "The library does without the papers",
    "Training: the engine knows no task",
    "No circles in any room",
)


def contracts(root, folder):
    """Every contract, in words, and whether it is kept by the two packages below this folder."""
    path = os.pathsep.join((str(root / "src"), str(root / "papers" / "src")))
    given = ("--config", ROOT / "pyproject.toml", "--no-cache", "--no-logo")
    done = python("-c", LINT, *given, cwd=folder, PYTHONPATH=path, COLUMNS=200, NO_COLOR=1)
    found = {
        name: line.split(name, 1)[1]
        for line in done.stdout.splitlines()
        for name in (ROOMS, APART, TRAINING, CIRCLES)
        if line.startswith(name) and ("KEPT" in line or "BROKEN" in line)
    }
    assert len(found) == 4, done.stdout + done.stderr
    kept = {name: "KEPT" in verdict for name, verdict in found.items()}
    assert (done.returncode == 0) == all(kept.values())
    return kept, done.stdout


def test_the_package_keeps_its_layers(tmp_path):
    kept, said = contracts(ROOT, tmp_path)
    assert all(kept.values()), said


PLANTED = {
    "theory imports diagnosis": (
        {"src/oversmooth/theory/spectrum.py": "from oversmooth.diagnosis import result"},
        ROOMS,
        "oversmooth.theory.spectrum -> oversmooth.diagnosis.result",
    ),
    "a lazy import points up": (
        {"src/oversmooth/metrics/rank.py": "def late():\n    import oversmooth.report.page"},
        ROOMS,
        "oversmooth.metrics.rank -> oversmooth.report.page",
    ),
    "the library imports the papers": (
        {"src/oversmooth/demo/vits.py": "def late():\n    import oversmooth_papers.engine.step"},
        APART,
        "oversmooth.demo.vits -> oversmooth_papers.engine.step",
    ),
    "the engine imports a task": (
        {"papers/src/oversmooth_papers/engine/step.py": "import oversmooth_papers.tasks.images.vit"},
        TRAINING,
        "oversmooth_papers.engine.step -> oversmooth_papers.tasks.images.vit",
    ),
    "two files of a room import each other": (
        {
            "src/oversmooth/metrics/angle.py": "import oversmooth.metrics.rank",
            "src/oversmooth/metrics/rank.py": "import oversmooth.metrics.angle",
        },
        CIRCLES,
        "oversmooth.metrics",
    ),
}


@pytest.mark.parametrize(("lines", "broken", "named"), PLANTED.values(), ids=PLANTED)
def test_an_import_that_is_forbidden_is_noticed(lines, broken, named, tmp_path):
    for src in ("src", "papers/src"):
        shutil.copytree(ROOT / src, tmp_path / src, ignore=lambda at, names: [n for n in names if not _is_code(at, n)])
    for file, line in lines.items():
        with (tmp_path / file).open("a", encoding="utf-8") as code:
            code.write(f"\n{line}\n")
    kept, said = contracts(tmp_path, tmp_path)
    assert not kept[broken], said
    assert named in said


def _is_code(folder, name):
    return name.endswith(".py") or (Path(folder, name).is_dir() and name != "__pycache__")
