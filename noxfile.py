"""The package in environments other than .venv: each session makes its own and installs what it names.

    nox -l                                                    # what there is
    nox -s lint core-3.11                                     # checks; the core without any extra
    nox -s "tests-3.12(torch='lowest', transformers='newest')"

lowest: pyproject's lower bound; tested: the version of constraints.txt; newest: the newest that pyproject allows.
All else comes from constraints.txt.
"""

import re
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "core-3.11"]

PYTHONS = ["3.11", "3.12", "3.13"]
VERSIONS = ["lowest", "tested", "newest"]
PROJECT = nox.project.load_toml("pyproject.toml")["project"]
WANTED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["models"]]
# What another version of these may want in versions of its own.
COMPANIONS = {
    "torch": ["setuptools", "sympy", "networkx"],  # torch 2.11 wants setuptools < 82
    "transformers": ["tokenizers", "huggingface_hub", "hf-xet"],
}
# Tests that do with the core, pytest and hypothesis. The others compare with scipy, or run models of the extras.
CORE_TESTS = [
    *(f"tests/metrics/test_{name}.py" for name in ("angle", "average", "energy", "frequency", "summary")),
    *(f"tests/theory/test_{name}.py" for name in ("arguments", "dominance", "operators", "spectrum", "weights")),
    "tests/report/test_figures.py",
    "tests/report/test_terminal.py",
    "tests/theory/test_toy.py",
    "tests/cli/test_cli.py",
    "tests/test_imports.py",
]
CORE_SMOKE = """
import torch, oversmooth
from importlib.util import find_spec
extras = [name for name in ("transformers", "timm", "PIL", "pyarrow", "pandas", "scipy") if find_spec(name)]
assert not extras, f"this is to be the core alone, and there are {extras}"
x = torch.randn(4, 8, 16)
assert torch.isfinite(oversmooth.metrics.summary(x).log_hfc_lfc).all()
A, W = torch.randn(1, 8, 8).softmax(-1), torch.eye(16)[None]
assert oversmooth.theory.dominance(A, W, W).verdict == "smooth"
assert oversmooth.theory.dominance(A, W, -0.5 * W).verdict == "rough"
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
print(*oversmooth.diagnose(model, x).verdict, sep="\\n")
"""


def constraints(session: nox.Session, **chosen: str) -> list[str]:
    """The options for pip by which constraints.txt holds, but for these libraries and their companions."""
    free = {name for name, version in chosen.items() if version != "tested"}
    free |= {other for name in free for other in COMPANIONS[name]}
    lines = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line.partition("==")[0] not in free]
    for name, version in chosen.items():
        if version == "lowest":
            lines.append(f"{name}=={_lower_bound(name)}.*")
    file = Path(session.create_tmp()) / "constraints.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--constraint", str(file.resolve())]


def _lower_bound(name: str) -> str:
    (bound,) = (found[1] for one in WANTED if (found := re.match(rf"{name}>=([\d.]+)", one)))
    return bound


def _test(session: nox.Session, *arguments: str) -> None:
    workers = [] if any(word.startswith("-n") for word in session.posargs) else ["-n", "auto"]
    session.run(
        "python", "-m", "pytest", "-q", "--dist", "loadgroup", *workers, *arguments, env={"OMP_NUM_THREADS": "1"}
    )


@nox.session(python=PYTHONS)
@nox.parametrize("transformers", VERSIONS)
@nox.parametrize("torch", VERSIONS)
def tests(session: nox.Session, torch: str, transformers: str) -> None:
    """The tests of both distributions with every extra but timm; words after -- go to pytest."""
    session.install(
        ".[test,check]", "./papers[models,glue]", *constraints(session, torch=torch, transformers=transformers)
    )
    session.run("oversmooth", "--version")
    _test(session, *session.posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("torch", VERSIONS)
def core(session: nox.Session, torch: str) -> None:
    """Without any extra: import, help, metrics, theory, a diagnosis of torch's encoder, the tests that can run."""
    pinned = constraints(session, torch=torch)
    session.install(".", *pinned)
    session.run("oversmooth", "--version")
    session.run("oversmooth", "--help", silent=True)
    session.run("oversmooth", "simulate", "--layers", "8", silent=True)
    session.run("python", "-c", CORE_SMOKE)
    session.install("pytest", "pytest-xdist", "hypothesis", *pinned)
    _test(session, *(session.posargs or CORE_TESTS))


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    """What `make check` does; mypy reads the types of pillow."""
    session.install("-e", ".[check,models]", "-e", "papers[models,glue]", *constraints(session))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-logo")


@nox.session(python="3.11")
def audit(session: nox.Session) -> None:
    """Known holes in the versions of constraints.txt, from PyPI's database."""
    session.install("pip-audit", *constraints(session))
    session.run("pip-audit", "-r", "constraints.txt", "--no-deps", "--disable-pip")
