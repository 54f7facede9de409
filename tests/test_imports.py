"""What importing costs: the promises about dependencies, each in a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = ["transformers", "timm", "torchvision", "vl_convert", "typer", "rich", "pandas", "scipy"]
HEAVY += ["oversmooth.theory.toy", "oversmooth.report"]


def test_the_mathematics_imports_torch_alone():
    code = (
        f"import oversmooth, oversmooth.metrics, oversmooth.theory, sys; print(sorted(set({HEAVY}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_watching_imports_no_trainer_and_no_logger():
    libraries = {
        "transformers",
        "lightning",
        "pytorch_lightning",
        "accelerate",
        "wandb",
        "tensorboard",
        "peft",
        "vl_convert",
    }
    code = f"import oversmooth.monitor, oversmooth.integrations, sys; print(sorted({libraries} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_imports_no_model_library_and_no_chart_library_until_it_draws():
    libraries = {"transformers", "timm", "torchvision", "vl_convert"}
    code = f"import oversmooth.cli, sys; print(sorted({libraries} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_what_is_loaded_when_asked_for_is_listed_before():
    code = "import oversmooth; print(sorted(set(oversmooth.__all__) - set(dir(oversmooth))), hasattr(oversmooth, 'no'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
    import oversmooth

    for name in oversmooth.__all__:
        assert getattr(oversmooth, name) is not None


def test_diagnosing_a_module_loads_no_more_than_it_needs():
    """Neither steering nor what loads models, of which a module has no need, and nothing of the papers."""
    code = "import oversmooth, sys; oversmooth.diagnose; print(*[m for m in sys.modules if m.startswith('oversmooth')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(loaded) <= 110
    assert not [name for name in loaded if name.startswith(("oversmooth_papers", "oversmooth.steering"))]
