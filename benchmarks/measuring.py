"""What the benchmarks share: the device, the time of a call, rows of a table, and the file of what was found."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
HARDWARE = torch.cuda.get_device_name() if ON_GPU else platform.machine()


def arguments(doc: str | None, quick: str = "") -> argparse.ArgumentParser:
    """A parser that knows --json; and --quick, if it says what that does."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def save(file: Path | None, facts: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def wait() -> None:
    """For the GPU's queue to be empty."""
    if ON_GPU:
        torch.cuda.synchronize()


def once(call: Callable[[], object], repeats: int = 1) -> float:
    """Seconds a call, of so many in a row."""
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - begin) / repeats


def seconds(call: Callable[[], object], rounds: int = 3, repeats: int = 1, warm_up: int = 1) -> float:
    """Seconds a call: the median of some rounds, after some calls to warm up."""
    for _ in range(warm_up):
        call()
    return statistics.median(once(call, repeats) for _ in range(rounds))


def interleaved(work: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, float]:
    """Median milliseconds of each, taken in turns so that a machine that slows down slows all of them."""
    turns = [{name: 1e3 * once(call, repeats) for name, call in work.items()} for _ in range(rounds + 1)]
    return {name: statistics.median(turn[name] for turn in turns[1:]) for name in work}  # the first is to warm up


def memory(counter: str = "VmHWM") -> int:
    """Bytes, by one of Linux's counters of this process; the most it had. What getrusage says may be its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(counter))


class Rows:
    """Rows of work beside what it is compared with, each printed as it comes."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def add(self, work: str, against: str, reach: str, got: str, detail: str) -> None:
        self.rows.append(dict(work=work, against=against, reach=reach, got=got, detail=detail))
        print(f"  {work} | {got} | {detail}", flush=True)

    def end(self, where: str, file: Path | None) -> None:
        """Print all of them as a table, and keep them."""
        from rich.console import Console
        from rich.table import Table

        table = Table("work", "compared with", "reach", "got", "detail", title=where, show_lines=True)
        for entry in self.rows:
            table.add_row(*entry.values())
        Console(width=150).print(table)
        save(file, {"where": where, "rows": self.rows})
