"""Writes docs/steering-table.md: every method on every family, as the checks find it. Some minutes on two cores.

PYTHONPATH=tests python -m support.conformance_table
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable

from support import timm_models
from support.conformance import CHECKS, check_compile, check_inductor, check_refused, outcome
from support.conformance_ddp import between_processes
from support.conformance_methods import METHODS, REASONS, refused
from support.families import FAMILIES
from support.places import ROOT

TABLE = ROOT / "docs" / "steering-table.md"
EVERYWHERE = ("Spectral: sharpen", "NeuTRENO")
"""Compiled on all families; the other methods on COMPILED alone."""
COMPILED = ("BERT", "Llama", "torch encoder (Pre-LN, batch first)")
PROCESSES = ("BERT", "Llama", "timm ViT", "torch encoder (Pre-LN)")
"""Two processes: all methods on the first, EVERYWHERE's on the others."""
INDUCTOR = "BERT"
_HEAD = f"""\
# Steering: every method on every family

Made by `make conformance` from the checks in `tests/support/conformance.py`, on a small
random model of each family with two inputs, the second one padded where a family takes padding. A cell says **yes**
where all of them hold, **no** with the number of the reason where the method is refused before anything is changed, and
else which check fails.

* **zero**: with strength 0, fixed or learned, the same bits come out, in eval and in train mode, and the same random
  numbers follow (for methods with a strength).
* **formula**: every output is the written formula in float64, with attention and the d by d products as explicit
  matrices, all layers and heads; queries, keys and biases are untouched, eigenvalues are those that were promised.
* **gradients**: `gradcheck` in float64, for what enters the first block and everything that is learned.
* **bf16**: near float32, finite, of the right type; weights stay orthonormal under autocast.
* **checkpointing**: gradients of recomputed blocks are those of kept ones, with two passes in flight and dropout;
  **reentrant** checkpointing gives the same gradients or is refused with what to do.
* **saved**: a file, and a directory for transformers, give the same bits back; a file that is cut off is refused.
* **unsteer**: keys, their order, values, parameters, hooks, classes and configuration are as before; of a copy too, and
  after steering that failed.
* **fold**: a stock model that gives the same output and loads as one, or a sentence why weights alone cannot.
* **optimiser**: as many parameters as the formula says, and each gets a gradient.
* **threads**: two passes at once give each its own result.
* **compile**: one graph, where the stock model is one, with the outputs and gradients of eager; every family with
  {EVERYWHERE[0]} and {EVERYWHERE[1]}, every method on {", ".join(COMPILED[:-1])} and {COMPILED[-1]};
  to machine code, by inductor, on {INDUCTOR}.
* **processes**: two with half of the inputs each give the gradients of one: every method on {PROCESSES[0]},
  {EVERYWHERE[0]} and {EVERYWHERE[1]} on {", ".join(PROCESSES[1:-1])} and {PROCESSES[-1]}.

"""


def expected(name: str, method: str) -> str:
    """The cell of a method that does what it should."""
    why = refused(name, method)
    return "yes" if why is None else f"no ({list(REASONS).index(why) + 1})"


def row(name: str, cells: dict[str, str]) -> str:
    return f"| {name} | " + " | ".join(cells[method] for method in METHODS) + " |"


def head() -> str:
    return "| family | " + " | ".join(METHODS) + " |"


def reasons() -> list[str]:
    return [f"{number}. {why[0].upper()}{why[1:]}." for number, why in enumerate(REASONS, 1)]


def text(cells: dict[str, dict[str, str]]) -> str:
    table = [head(), "|---" * (len(METHODS) + 1) + "|", *(row(name, cells[name]) for name in FAMILIES)]
    return _HEAD + "\n".join(table) + "\n\n## Why a method is refused\n\n" + "\n".join(reasons()) + "\n"


# Running them

Failures = list[tuple[str, str, str, str]]
"""Family, method, check, and what is wrong."""


def _family(name: str) -> Failures:
    failures = []
    for method in METHODS:
        checks = CHECKS if refused(name, method) is None else {"refused": check_refused}
        for check, function in checks.items():
            error = outcome(function, name, method)
            if error is not None:
                failures.append((name, method, check, _said(error)))
    return failures


def _compiled(name: str) -> Failures:
    methods = METHODS if name in COMPILED else EVERYWHERE
    found = [(m, outcome(check_compile, name, m)) for m in methods if refused(name, m) is None]
    failures = [(name, method, "compile", _said(error)) for method, error in found if error is not None]
    if name == INDUCTOR:
        found = [(m, outcome(check_inductor, name, m)) for m in EVERYWHERE]
        failures += [(name, method, "inductor", _said(error)) for method, error in found if error is not None]
    return failures


def _processes(name: str) -> Failures:
    methods = [m for m in (METHODS if name == PROCESSES[0] else EVERYWHERE) if refused(name, m) is None]
    return [(name, method, "processes", why) for method, why in between_processes(name, methods).items()]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


_WORK: dict[str, Callable[[str], Failures]] = {"checks": _family, "compile": _compiled, "processes": _processes}


def _do(job: tuple[str, str]) -> tuple[tuple[str, str], Failures]:
    import transformers

    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    return job, _WORK[job[0]](job[1])


def run(workers: int = 2) -> dict[str, dict[str, str]]:
    """All cells; what fails is printed."""
    jobs = [("processes", name) for name in PROCESSES]
    jobs += [(kind, name) for name in FAMILIES for kind in ("checks", "compile")]
    cells = {name: {method: expected(name, method) for method in METHODS} for name in FAMILIES}
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for done, ((kind, family), failures) in enumerate(pool.imap_unordered(_do, jobs), 1):
            for name, method, check, why in failures:
                print(f"\n{name}, {method}: {check}: {why}")
                cells[name][method] = "fails: " + check
            print(f"\r{done} of {len(jobs)}, {time.monotonic() - begun:.0f} s: {family}, {kind}".ljust(79), end="")
            sys.stdout.flush()
    print()
    return cells


if __name__ == "__main__":
    if not timm_models.available():
        sys.exit("timm is not here, and the table has its models: install it first")
    os.environ["OMP_NUM_THREADS"] = "1"  # one process a core
    found = run()
    TABLE.write_text(text(found), encoding="utf-8")
    print(f"wrote {TABLE}")
    sys.exit(any(cell.startswith("fails") for cells in found.values() for cell in cells.values()))
