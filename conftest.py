"""Settings for all tests: the same examples every time."""

import gc
import os
import random
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from support import commands, places
from support.nightly import NIGHTLY, QUICK

REPEATABLE = not os.environ.get("OVERSMOOTH_ANY_EXAMPLES")
settings.register_profile(
    "oversmooth",
    derandomize=REPEATABLE,
    deadline=None,
    max_examples=100 if NIGHTLY else 3 if QUICK else 10,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("oversmooth")
if REPEATABLE:  # Hypothesis mixes in constants of the modules loaded so far: examples would depend on the tests before
    providers._get_local_constants = lambda: providers._local_constants

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2") if hasattr(signal, name)]

with warnings.catch_warnings(action="ignore"):
    # On a CPU without bfloat16 the first such product turns oneDNN off for good, and other bits come out of all others
    # from then on. So that no test depends on those before, it happens here.
    torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16))


@pytest.fixture(autouse=True)
def _as_if_alone():
    """Random numbers begin anew, and so does the compiler, which gives up on code that it compiled too often. Ctrl-C
    interrupts. What a test sets of signals and threads ends with it.
    """
    threads, handlers = torch.get_num_threads(), {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (timm draws from it)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


BY_MODULE = ("test_realdata.py", "test_trained_figures.py", "test_page.py", "test_demo.py")
BY_FAMILY = ("test_families.py", "test_models_table.py", "test_conformance.py")


def pytest_configure(config):
    config.option.loadscopereorder = False  # the order is ours
    config.pluginmanager.register(Groups())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What tests share is made once: those of one family, and those of a module with a fixture of its own, run in one
    process. What takes longest is begun first, so that no process is left alone with it in the end.
    """
    for item in items:
        if item.path.name in BY_FAMILY and "name" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.callspec.params["name"]))
        elif item.path.name in BY_MODULE or (item.get_closest_marker("xdist_group") is None and _shares(item)):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.name}"))
    items.sort(key=lambda item: _ORDER.get(item.path.name, len(LONGEST)))


def pytest_collection_finish():
    """What libraries and tests are made of stays until the end: collecting garbage need not look through it."""
    gc.collect()
    gc.freeze()


# What has long tests among few others, the longest first.
LONGEST = (
    "test_kills.py", "test_realdata.py", "test_corpus.py", "test_commands.py", "test_train_commands.py",
    "test_statements.py", "test_training.py", "test_libraries.py", "test_ranks.py", "test_loop.py", "test_demo.py",
    "test_tables.py", "test_trained_figures.py", "test_average.py", "test_page.py", "test_together.py", "test_soak.py",
    "test_toy.py", "test_simulate.py", "test_hard_cases.py", "test_dominance.py", "test_stack.py", "test_operators.py",
)  # fmt: skip
_ORDER = {name: index for index, name in enumerate(LONGEST)}


def _shares(item):
    """Whether it uses what is made once for its module."""
    fixtures = getattr(item, "_fixtureinfo", None)
    return fixtures is not None and any(
        fixture.scope == "module"
        for fixtures_of_name in fixtures.name2fixturedefs.values()
        for fixture in fixtures_of_name
    )


class Groups:
    """What pytest-xdist 3.8 does not on pytest 9.2 (its issue 1386): it tells groups by the end of a test's name."""

    @staticmethod
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(config, items):
        if not getattr(config.option, "loadgroup", False):
            return
        for item in items:
            if not hasattr(item, "_id"):  # before pytest 9.2
                return
            marker = item.get_closest_marker("xdist_group")
            if marker is not None and not item.nodeid.endswith(end := f"@{marker.args[0]}"):
                item._id = type(item._id).parse(item.nodeid + end)


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
    return places.installed
