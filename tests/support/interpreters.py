"""Python processes of their own."""

import os
import subprocess
import sys


def import_path(*first) -> str:
    """For PYTHONPATH: these folders, then those of this process without timm's, whose torchvision may not load."""
    return os.pathsep.join(map(str, (*first, *(one for one in sys.path if one and not one.endswith("timm")))))


def python(*words, cwd=None, **environment) -> subprocess.CompletedProcess[str]:
    """What an interpreter said and left, with these variables of the environment beside its own."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        encoding="utf-8",
        timeout=900,
        check=False,
    )
