"""Settings for all tests: the same examples every time."""

import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from support import commands, files_of_packages
from support.nightly import NIGHTLY, QUICK

REPEATABLE = not os.environ.get("OVERSMOOTH_ANY_EXAMPLES")
settings.register_profile(
    "oversmooth",
    derandomize=REPEATABLE,
    deadline=None,
    max_examples=100 if NIGHTLY else 3 if QUICK else 15,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("oversmooth")
if REPEATABLE:  # Hypothesis mixes in constants of the modules loaded so far: examples would depend on the tests before
    providers._get_local_constants = lambda: providers._local_constants

with warnings.catch_warnings(action="ignore"):
    # On a CPU without bfloat16 the first such product turns oneDNN off for good, and other bits come out of all others
    # from then on. So that no test depends on those before, it happens here.
    torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16))


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What tests share is made once: those of one family, and those of some modules, run in one process."""
    by_family = ("test_families.py", "test_models_table.py", "test_conformance.py")
    by_module = ("test_realdata.py", "test_trained_figures.py", "test_page.py", "test_demo.py")
    for item in items:
        if item.path.name in by_module:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
        elif item.path.name in by_family and "name" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.callspec.params["name"]))


@pytest.fixture(scope="session")
def vit(tmp_path_factory):
    """A small vision checkpoint with its preprocessing."""
    return commands.make_vit(tmp_path_factory.mktemp("models") / "tiny-vit")


@pytest.fixture(scope="session")
def gpt(tmp_path_factory):
    """A small language checkpoint with its tokenizer."""
    return commands.make_gpt(tmp_path_factory.mktemp("models") / "tiny-gpt")


@pytest.fixture(scope="session")
def cifar(tmp_path_factory):
    """CIFAR-100's binary layout with few pictures."""
    return commands.make_cifar(tmp_path_factory.mktemp("data") / "cifar-100-binary")


@pytest.fixture(scope="session")
def installed():
    """Finds a file of an installed package, without importing the package."""
    return files_of_packages.installed
