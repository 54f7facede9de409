"""What importing costs: the promises about dependencies, each in a fresh interpreter."""

import json

import pytest
from support.interpreters import python

# One interpreter, since importing torch takes its time: what each step may have loaded holds for those before it too.
STEPS = """
import json, sys
def loaded(*names):
    every = "oversmooth" in names
    print(json.dumps([name for name in sys.modules if name in names or every and name.startswith("oversmooth")]))
import oversmooth, oversmooth.metrics, oversmooth.theory
loaded("transformers", "timm", "torchvision", "vl_convert", "typer", "rich", "pandas", "scipy", "oversmooth.theory.toy",
       "oversmooth.report")
import oversmooth.inputs
loaded("PIL", "pyarrow", "transformers", "tokenizers")
oversmooth.diagnose
loaded("oversmooth", "oversmooth_papers")
import oversmooth.monitor, oversmooth.integrations
loaded("transformers", "lightning", "pytorch_lightning", "accelerate", "wandb", "tensorboard", "peft", "vl_convert")
import oversmooth.cli
loaded("transformers", "timm", "torchvision", "vl_convert")
"""


def test_importing_loads_no_more_than_it_needs():
    done = python("-c", STEPS)
    assert not done.returncode, done.stderr
    mathematics, inputs, diagnosing, watching, commands = map(json.loads, done.stdout.splitlines())
    assert mathematics == []  # torch alone
    assert inputs == []  # nothing that reads pictures, tables or text
    # Neither steering nor what loads models, of which a module has no need, and nothing of the papers.
    assert len(diagnosing) <= 120
    assert not [name for name in diagnosing if name.startswith(("oversmooth_papers", "oversmooth.steering"))]
    assert watching == []  # no trainer and no logger
    assert commands == []  # no model library, and no chart library until it draws


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["diagnose", "--help"], ["reproduce", "table2", "-h"]]
)
def test_help_and_version_do_without_torch(arguments):
    code = f"""
import sys
sys.argv = ["oversmooth", *{arguments}]
from oversmooth.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
sys.stderr.write(str(sorted({{"torch", "numpy", "vl_convert"}} & set(sys.modules))))
"""
    done = python("-c", code)
    assert done.stderr.strip() == "[]"


def test_what_is_loaded_when_asked_for_is_listed_before():
    code = "import oversmooth; print(sorted(set(oversmooth.__all__) - set(dir(oversmooth))), hasattr(oversmooth, 'no'))"
    done = python("-c", code)
    assert done.stdout.strip() == "[] False"
    import oversmooth

    for name in oversmooth.__all__:
        assert getattr(oversmooth, name) is not None
