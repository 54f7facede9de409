"""Two hundred diagnoses in one process: what stays behind. `python tests/adversary/soak.py` prints the course.

After a warm-up, in which libraries fill their caches, resident memory may not grow by more than 0.1 % a run, and
threads, hooks and open files may not become more.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import oversmooth
from oversmooth.models.vit import ViT

WARM_UP, MOST_A_RUN = 20, 1e-3
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class State:
    """What a process holds."""

    memory: int
    """Resident, in bytes."""
    threads: int
    files: int
    hooks: int
    """Of the model, and functions put in the place of its modules' own."""


def small_vit(seed: int = 0) -> ViT:
    torch.manual_seed(seed)
    return ViT(image=16, patch=4, channels=3, classes=10, width=16, depth=2, heads=2).eval()


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def state(model: nn.Module) -> State:
    gc.collect()
    hooks = sum(len(getattr(m, name)) for m in model.modules() for name in _HOOKS)
    hooks += sum("forward" in vars(m) for m in model.modules())
    own = Path("/proc/self")
    memory = int((own / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return State(memory, threading.active_count(), len(os.listdir(own / "fd")), hooks)


def soak(runs: int, **settings: Any) -> list[State]:
    """The state after each of so many diagnoses of one model."""
    model, images, found = small_vit(), batch(), []
    for _ in range(runs):
        oversmooth.diagnose(model, images, **settings)
        found.append(state(model))
    return found


def growth(states: list[State]) -> float:
    """Of resident memory a run, as a share of what it is: the slope of a line through all runs."""
    values = [one.memory for one in states]
    return statistics.linear_regression(range(len(values)), values).slope / statistics.mean(values)


def numbers(job: tuple[nn.Module, torch.Tensor], **settings: Any) -> dict[str, Any]:
    """What a diagnosis measures, without when."""
    found = oversmooth.diagnose(*job, name="m", **settings).to_dict()
    found["provenance"] = {k: v for k, v in found["provenance"].items() if k not in ("created", "seconds")}
    return found


def in_threads(jobs: list[tuple[nn.Module, torch.Tensor]], **settings: Any) -> list[dict[str, Any]]:
    """Each diagnosis in a thread of its own, all begun together."""
    together = threading.Barrier(len(jobs))

    def work(job: tuple[nn.Module, torch.Tensor]) -> dict[str, Any]:
        together.wait()
        return numbers(job, **settings)

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(work, jobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    states = soak(runs)
    print("run  memory, MiB  threads  open files  hooks")
    for place, one in enumerate(states, 1):
        if place in (1, 2, 5) or place % 10 == 0:
            print(f"{place:3d}  {one.memory / 2**20:11.2f}  {one.threads:7d}  {one.files:10d}  {one.hooks:5d}")
    later = states[WARM_UP:]
    rate, first, last = growth(later), later[0], later[-1]
    print(f"after {WARM_UP} runs: {100 * rate:+.4f} % a run (at most {100 * MOST_A_RUN:g} %)")
    model, other = small_vit(0), small_vit(1)
    jobs = [(model, batch(0)), (other, batch(1)), (model, batch(2))]
    alone = [numbers(job) for job in jobs]
    same = in_threads(jobs) == alone and state(model).hooks == 0
    found = "the same numbers as one by one" if same else "OTHER NUMBERS"
    print(f"three diagnoses in three threads, two of them of one model: {found}")
    grown = (last.threads, last.files, last.hooks) > (first.threads, first.files, first.hooks)
    sys.exit(not same or grown or rate > MOST_A_RUN)


if __name__ == "__main__":
    main()
