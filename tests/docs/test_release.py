"""The wheel in clean environments: without extras, and with those that commands name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.nightly import nightly
from support.places import ROOT

pytestmark = [nightly, pytest.mark.xdist_group("wheel")]
_SENTENCES = {
    ("diagnose", "bert-base-uncased"): "needs transformers, which is not installed; install oversmooth[models]",
    ("diagnose", "timm/vit_tiny_patch16_224"): "needs timm, which is not installed; install oversmooth[timm]",
    ("demo", "-o", "demo.html"): "needs transformers, which is not installed; install oversmooth[models]",
    ("train", "--task", "imagenet", "--quick", "-o", "run"): "is not installed; install oversmooth-papers[imagenet]",
}
"""What commands say where the core alone is installed."""
_README = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from support.documents import run_python
run_python(pathlib.Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], check=True)
    (made,) = folder.glob("*.whl")
    assert made.stat().st_size < 8_000_000
    return made


def _installed(folder: Path, *wanted: str) -> Path:
    """The programs of an environment with these and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), *wanted], check=True)
    return folder / "bin"


def test_without_extras(wheel: Path, tmp_path: Path) -> None:
    bin = _installed(tmp_path / "venv", str(wheel))

    def oversmooth(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(bin / "oversmooth"), *arguments], cwd=tmp_path, capture_output=True, text=True)

    assert oversmooth("--version").stdout.startswith("oversmooth ")
    assert oversmooth("doctor").returncode == 0
    assert oversmooth("simulate", "--layers", "4").returncode == 0
    assert oversmooth("gallery", "vit-plain", "-o", "gallery").returncode == 0
    for arguments, sentence in _SENTENCES.items():
        done = oversmooth(*arguments)
        assert done.returncode == 2
        assert sentence in " ".join(done.stderr.split())


def test_readme_runs_with_what_it_says(wheel: Path, tmp_path: Path) -> None:
    bin = _installed(tmp_path / "venv", f"{wheel}[models]", "accelerate")
    done = subprocess.run(
        [str(bin / "python"), "-c", _README, str(ROOT / "tests"), str(ROOT / "README.md")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
