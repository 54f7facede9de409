"""Are the tests strong? Small random errors are planted in the library one by one; tests that stay green missed one.

    python benchmarks/mutants.py [--count 100] [--seed 0] [--rooms metrics,theory,trace,steering] [--json FILE]

An error swaps an operator, a comparison, ``and`` and ``or``, a minimum and a maximum, or changes a number. Each is
tried against the tests of its room, in a copy of the source. A survivor is equivalent, or wants a test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
NAMES = {"amax": "amin", "amin": "amax", "maximum": "minimum", "minimum": "maximum", "any": "all", "all": "any"}


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
    """Puts the error in place of the n-th node that takes one."""

    def __init__(self, nth: int) -> None:
        self.nth, self.seen, self.line, self.what = nth, 0, 0, ""

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return node  # wording
        new = mutated(node)
        if new is not None:
            if self.seen == self.nth:
                self.seen += 1
                self.line, self.what = node.lineno, f"{ast.unparse(node)[:60]} → {ast.unparse(new)[:60]}"  # type: ignore[attr-defined]
                return new
            self.seen += 1
        return self.generic_visit(node)


def candidates(room: str) -> Iterator[tuple[Path, int]]:
    for path in sorted((ROOT / "src/oversmooth" / room).rglob("*.py")):
        if path.name in ("__init__.py", "_hessenberg_kernel.py"):
            continue
        counter = Plant(-1)
        counter.visit(ast.parse(path.read_text()))
        yield from ((path, nth) for nth in range(counter.seen))


def run_tests(source: Path, room: str, limit: float) -> tuple[str, float]:
    """ "killed", "timeout" or "survived", and the seconds."""
    environment = {**os.environ, "PYTHONPATH": f"{source}:{ROOT / 'papers/src'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-p", "no:cacheprovider", f"tests/{room}"]
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return "timeout", time.monotonic() - start
    return "killed" if done.returncode else "survived", time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", default="metrics,theory,trace,steering")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rooms = options.rooms.split(",")
    draw, rows = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "src"
        shutil.copytree(ROOT / "src", source)
        limits = {}
        for room in rooms:
            outcome, took = run_tests(source, room, 3600)
            if outcome != "survived":
                sys.exit(f"tests/{room} fails before any error is planted")
            limits[room] = 60 + 4 * took
        every = [(room, path, nth) for room in rooms for path, nth in candidates(room)]
        for room, path, nth in draw.sample(every, options.count):
            plant = Plant(nth)
            tree = plant.visit(ast.parse(path.read_text()))
            target = source / path.relative_to(ROOT / "src")
            target.write_text(ast.unparse(ast.fix_missing_locations(tree)))
            outcome, took = run_tests(source, room, limits[room])
            shutil.copy(path, target)
            where = f"{path.relative_to(ROOT / 'src/oversmooth')}:{plant.line}"
            rows.append({"where": where, "error": plant.what, "outcome": outcome, "seconds": round(took, 1)})
            print(f"{len(rows)}/{options.count} {outcome}: {where}: {plant.what}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    table = Table(
        "where", "error", title=f"{sum(row['outcome'] == 'survived' for row in rows)} of {len(rows)} survived"
    )
    for row in rows:
        if row["outcome"] == "survived":
            table.add_row(row["where"], row["error"])
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
