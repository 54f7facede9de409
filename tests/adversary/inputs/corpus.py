"""Bad input, case by case: ``python -m adversary.inputs.corpus`` runs all of it and prints what held.

The cases come from `attacks`: one module a class of attack, each with ``cases()``, here and in the tests of the papers.
The table has a line a case: its exit code, its sentence, and the verdict.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import os
import pkgutil
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from adversary.inputs import worker
from adversary.inputs.case import Case, Outcome, Place, judge

COLUMNS = ("case", "exit code", "seconds", "MB", "verdict", "sentence", "command")


@dataclass
class Row:
    """A case and what came of it."""

    case: Case
    outcome: Outcome
    wrong: list[str]

    def line(self) -> str:
        o = self.outcome
        code = "" if o.code is None else str(o.code)
        command = "" if self.case.api else shlex.join(["oversmooth", *o.arguments])
        verdict = "held" if not self.wrong else f"FAILED: {'; '.join(self.wrong)}"
        cells = (self.case.name, code, f"{o.seconds:.2f}", f"{o.memory / 1e6:.0f}", verdict, o.sentence, command)
        return "\t".join(_plain(cell) for cell in cells)


def _plain(text: str, most: int = 600) -> str:
    """On one line and harmless, as a table needs it."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= most else f"{shown[:most]}… ({len(shown)} letters)"


ALIKE = {"api": 3, "configs": 2, "runs": 2, "diagnoses": 2}
"""Of classes that put every value into every field, every so many."""


def every_case(alike: bool = False) -> list[Case]:
    """alike: those too that differ little from others."""
    from adversary.inputs import attacks

    found = []
    for name in sorted(module.name for module in pkgutil.iter_modules(attacks.__path__)):
        attack = importlib.import_module(f"{attacks.__name__}.{name}")
        for number, case in enumerate(attack.cases() if hasattr(attack, "cases") else ()):
            if alike or number % ALIKE.get(case.group, 1) == 0:
                found.append(case)
    twice = [name for name, times in Counter(case.name for case in found).items() if times > 1]
    assert not twice, f"two cases of one name: {twice[:5]}"
    return found


def sample(cases: Sequence[Case], most: int, seed: int = 0) -> list[Case]:
    """The same cases every time, of every class: few of a class with few."""
    draw = random.Random(seed)
    quick = [case for case in cases if case.process == "forked" and not case.slow]
    by_group = [
        sorted(group, key=lambda _: draw.random()) for group in _grouped(quick, lambda case: case.group).values()
    ]
    by_turns = itertools.chain.from_iterable(itertools.zip_longest(*by_group))
    return list(itertools.islice((case for case in by_turns if case is not None), most))


def _grouped(items: Iterable[Any], group: Callable[[Any], str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(group(item), []).append(item)
    return found


_given: dict[str, Any] = {}


def run(cases: Sequence[Case], folder: Path, kit: Path, jobs: int = 1, keep: bool = False) -> list[Row]:
    """Each case in a folder of its own, in several processes. Call `worker.prepare` first."""
    rows, began = [], time.monotonic()
    given = dict(cases=cases, folder=folder, kit=kit, keep=keep)  # cases hold functions: a fork has them, a pickle not
    forks = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, forks, initializer=_given.update, initargs=(given,)) as pool:
        for done, (case, found) in enumerate(zip(cases, pool.map(_one, range(len(cases))), strict=True), 1):
            rows.append(Row(case, *found))
            if done % 100 == 0:
                left = (time.monotonic() - began) / done * (len(cases) - done) / 60
                print(f"{done:,} of {len(cases):,} cases, about {left:.0f} min left", file=sys.stderr, flush=True)
    return rows


def _one(number: int) -> tuple[Outcome, list[str]]:
    case, place = _given["cases"][number], Place(_given["folder"] / str(number), _given["kit"])
    place.folder.mkdir()
    outcome = worker.run(case, place)
    wrong = judge(case, outcome, place)
    if wrong:
        print(f"{case.name}: {_plain('; '.join(wrong))}", file=sys.stderr, flush=True)
    if not _given["keep"]:
        worker.swept(place.folder)
    return outcome, wrong


def summary(rows: Sequence[Row]) -> str:
    """How many held, by class."""
    lines = [f"{'class':<16}{'cases':>7}{'held':>7}{'failed':>8}"]
    for name, some in {**_grouped(rows, attrgetter("case.group")), "all": list(rows)}.items():
        failed = sum(bool(row.wrong) for row in some)
        lines.append(f"{name:<16}{len(some):>7}{len(some) - failed:>7}{failed:>8}")
    kinds = Counter(re.split(r"[:\d]", wrong)[0].strip() for row in rows for wrong in row.wrong)
    lines += [f"  {times} × {kind}" for kind, times in kinds.most_common()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this regular expression")
    parser.add_argument("--sample", type=int, help="so many cases, always the same")
    parser.add_argument("--alike", action="store_true", help="also cases that differ little from others")
    parser.add_argument("--table", type=Path, help="file for the table, tab-separated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; by default one a core")
    parser.add_argument("--keep", type=Path, help="keep the cases' folders here")
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="oversmooth-adversary-"))
    folder.mkdir(exist_ok=True)
    try:
        kit = worker.prepare(folder)
        cases = [case for case in every_case(given.alike) if re.search(given.only, case.name)]
        if given.sample is not None:
            cases = sample(cases, given.sample)
        if given.list:
            print(*(case.name for case in cases), sep="\n")
            return 0
        print(f"{time.monotonic() - began:.0f} s to prepare {len(cases)} cases", flush=True)
        rows = run(cases, folder, kit, given.jobs, keep=given.keep is not None)
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if given.table is not None:
        given.table.write_text("\n".join(["\t".join(COLUMNS), *(row.line() for row in rows)]) + "\n", encoding="utf-8")
    print(summary(rows))
    print(f"{time.monotonic() - began:.0f} s")
    return int(any(row.wrong for row in rows))


if __name__ == "__main__":
    sys.exit(main())
