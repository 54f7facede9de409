"""The library alone, as `pip install oversmooth` leaves it: in an interpreter that has no oversmooth_papers."""

import json

import pytest
import torch
from safetensors.torch import save_file
from support.interpreters import python
from support.nightly import some

from oversmooth.demo import vits

ALONE = """
import importlib.metadata, sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "oversmooth_papers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
importlib.metadata.entry_points = lambda **_: ()
"""
COMMANDS = "from oversmooth.__main__ import main; main()"
LOADED = """
import oversmooth
from oversmooth.models import load
for path in sys.argv[1:]:
    loaded = load(path)
    diagnosis = oversmooth.diagnose(loaded.model, loaded.inputs(count=1), depth=0, spectra=False, ranks=0)
    print(loaded.name, len(diagnosis.layers) - 1)
"""


def alone(code, *arguments):
    return python("-c", ALONE + code, *arguments)


def test_help_lists_the_commands_of_the_library():
    done = alone(COMMANDS, "--help")
    assert done.returncode == 0, done.stderr
    assert "diagnose" in done.stdout
    assert "reproduce" not in done.stdout


@pytest.mark.parametrize("arguments", [("reproduce", "table2"), ("train", "--data", "x", "--epochs", "1"), ("tune",)])
def test_commands_of_the_papers_name_their_package(arguments):
    done = alone(COMMANDS, *arguments)
    assert done.returncode == 2
    said = f"oversmooth {arguments[0]} is not installed: it comes with oversmooth-papers; pip install oversmooth-papers"
    assert " ".join(done.stderr.split()) == f"oversmooth: {said}"


def test_the_models_of_the_demo_are_loaded_and_diagnosed():
    names = some(vits.NAMES, 3)
    done = alone(LOADED, *map(vits.file_of, names))
    assert done.stdout.split() == [word for variant in names for word in (variant, "12")], done.stderr


def test_models_of_other_tasks_name_the_package_that_loads_them(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(1)}, path, {"recipe": json.dumps({"task": "language"})})
    done = alone(COMMANDS, "diagnose", path)
    assert done.returncode == 2
    assert "was trained for language, which needs oversmooth-papers; pip install oversmooth-papers" in " ".join(
        done.stderr.split()
    )
