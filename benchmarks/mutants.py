"""Are the tests strong? Small random errors are planted in the library one by one; tests that stay green missed one.

    python benchmarks/mutants.py [--count 100] [--seed 0] [--folders metrics,theory,trace,steering] [--json FILE]

An error swaps an operator, a comparison, ``and`` and ``or``, a minimum and a maximum, or changes a number. First the
tests of each folder run once on the code as it is, which shows how long each takes and which functions it calls. Each
error is then tried, in a copy of source and tests, against the quick tests that call its function, quickest first,
until one fails. A survivor is equivalent, or needs a test; "not reached" is one that no quick test calls.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import math
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest
import torch  # noqa: F401  (imported once, before the processes of all runs are forked)
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
ALSO = {"metrics": ["tests/trace/reducers/test_moments.py"]}
"""Tests of a folder's code that stand elsewhere."""
NAMES = {"amax": "amin", "amin": "amax", "maximum": "minimum", "minimum": "maximum", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """One small error: the file, the function it is in ("" at the top level), where, and what changes."""

    path: Path
    function: str
    nth: int
    line: int
    change: str


def mutated(node: ast.AST) -> ast.AST | None:
    """The node with a small error; None where none is known."""
    new = copy.copy(node)
    if isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in OPERATORS:
        new.op = OPERATORS[type(new.op)]()  # type: ignore[assignment]
    elif isinstance(new, ast.Compare) and type(new.ops[0]) in OPERATORS:
        new.ops = [OPERATORS[type(new.ops[0])](), *new.ops[1:]]  # type: ignore[list-item]
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.USub | ast.Not):
        return new.operand
    elif isinstance(new, ast.Attribute) and new.attr in NAMES:
        new.attr = NAMES[new.attr]
    elif isinstance(new, ast.Constant) and type(new.value) in (int, float):
        new.value = 2 * new.value if isinstance(new.value, float) and new.value else new.value + 1  # type: ignore[operator]
    else:
        return None
    return new


class Plant(ast.NodeTransformer):
    """Lists the nodes that take an error, and puts one in place of the n-th."""

    def __init__(self, path: Path, nth: int = -1) -> None:
        self.path, self.nth = path, nth
        self.found: list[Mutant] = []
        self.function = ""

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return node  # wording
        if isinstance(node, ast.arg):
            return node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                node.value = self.visit(node.value)  # type: ignore[assignment]
            return node
        if isinstance(node, ast.FunctionDef) and not self.function:
            self.function, node.returns = node.name, None
            after = self.visit(node)
            self.function = ""
            return after
        if (new := mutated(node)) is not None:
            change = f"{ast.unparse(node)[:60]} → {ast.unparse(new)[:60]}"
            self.found.append(Mutant(self.path, self.function, len(self.found), node.lineno, change))  # type: ignore[attr-defined]
            if len(self.found) == self.nth + 1:
                return new
        return self.generic_visit(node)


def mutants_of(folder: Path) -> Iterator[Mutant]:
    for path in sorted(folder.rglob("*.py")):
        if path.name != "__init__.py":
            plant = Plant(path)
            plant.visit(ast.parse(path.read_text()))
            yield from plant.found


class Recorder:
    """A pytest plugin: how long each test takes and which functions it calls, ``(file, name)`` each."""

    def __init__(self, source: Path) -> None:
        self.source = str(source / "oversmooth")
        self.seconds: dict[str, float] = defaultdict(float)
        self.called: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.codes: set[CodeType] = set()

    def note(self, frame: FrameType, _event: str, _argument: Any) -> None:
        self.codes.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.codes = set()
        threading.settrace(self.note)
        sys.settrace(self.note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            ours = [code for code in self.codes if code.co_filename.startswith(self.source)]
            # A function inside another belongs to the outer one; methods go by their own name.
            names = [(code.co_filename, code.co_qualname.split(".<locals>")[0].split(".")[-1]) for code in ours]
            self.called[item.nodeid].update(names)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Compiled code does not run while calls are recorded: such tests are never quick.
        self.seconds[report.nodeid] += math.inf if report.failed else report.duration


def in_a_fork(work: Callable[[], int], limit: float) -> tuple[int | None, float]:
    """The exit code of work in a process of its own, None where it took longer than the limit; and the seconds."""
    start, child = time.monotonic(), os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    while (took := time.monotonic() - start) < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), took
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, took


def run_tests(source: Path, tests: list[str], *, recorder: Recorder | None = None, keep: Path | None = None) -> int:
    os.chdir(source.parent)
    sys.path[:0] = [str(source), str(source.parent), str(ROOT / "papers/src")]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    code = int(pytest.main([*options, *([] if recorder else ["-x"]), *tests], plugins=[recorder] if recorder else []))
    if recorder and keep:
        keep.write_bytes(pickle.dumps((dict(recorder.seconds), dict(recorder.called))))
    return code


def outcome_of(mutant: Mutant, source: Path, tests: list[str], limit: float) -> tuple[str, float]:
    """ "killed", "timeout", "survived" or "not reached", and the seconds."""
    if not tests:
        return "not reached", 0.0
    text = mutant.path.read_text()
    tree = Plant(mutant.path, mutant.nth).visit(ast.parse(text))
    mutant.path.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    code, took = in_a_fork(lambda: run_tests(source, tests), limit)
    mutant.path.write_text(text)
    return {None: "timeout", 0: "survived"}.get(code, "killed"), took


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folders", default="metrics,theory,trace,steering")
    parser.add_argument("--quick", type=float, default=2.0, help="seconds up to which a test is quick")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one error")
    parser.add_argument("--tests", help="try these tests alone, separated by commas, without the first run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "OVERSMOOTH_QUICK": "1"}
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        source, kept = Path(name) / "src", Path(name) / "recorded"
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, Path(name) / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / part, name)
        seconds: dict[str, float] = {}
        called: dict[str, set[tuple[str, str]]] = {}
        for folder in () if options.tests else options.folders.split(","):
            recorder = Recorder(source)
            first = [f"tests/{folder}", *ALSO.get(folder, [])]
            code, _ = in_a_fork(lambda: run_tests(source, first, recorder=recorder, keep=kept), 3600)  # noqa: B023
            if code not in (0, 1):
                sys.exit(f"tests/{folder} does not run")
            for known, new in zip((seconds, called), pickle.loads(kept.read_bytes()), strict=True):
                known |= new
            failing = [test for test, took in seconds.items() if took == math.inf]
            print(f"tests/{folder}: {len(seconds)} tests known so far, left out: {failing}", flush=True)
        if options.tests and in_a_fork(lambda: run_tests(source, options.tests.split(",")), 3600)[0]:
            sys.exit(f"{options.tests} fail before any error is planted")
        package = source / "oversmooth"
        every = [mutant for folder in options.folders.split(",") for mutant in mutants_of(package / folder)]
        for mutant in random.Random(options.seed).sample(every, min(options.count, len(every))):
            folder, file = mutant.path.relative_to(package).parts[0], str(mutant.path)
            reached = [
                test
                for test, codes in called.items()
                if test.startswith((f"tests/{folder}/", *ALSO.get(folder, [])))
                and seconds[test] <= options.quick
                and any(path == file and mutant.function in ("", function) for path, function in codes)
            ]
            tests = options.tests.split(",") if options.tests else sorted(reached, key=seconds.__getitem__)
            outcome, took = outcome_of(mutant, source, tests, options.limit)
            where = f"{mutant.path.relative_to(package)}:{mutant.line}"
            rows.append({"where": where, "error": mutant.change, "outcome": outcome, "seconds": round(took, 1)})
            print(f"{len(rows)}/{options.count} {outcome}: {where}: {mutant.change}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    counts = Counter(row["outcome"] for row in rows)
    table = Table("where", "error", "outcome", title=", ".join(f"{n} {what}" for what, n in counts.most_common()))
    for row in rows:
        if row["outcome"] != "killed":
            table.add_row(str(row["where"]), str(row["error"]), str(row["outcome"]))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
