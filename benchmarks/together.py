"""What several runs on one device reach together: images per second of one to so many processes at once.

python benchmarks/together.py [--most 4] [--seconds 5] [--json FILE]

Each process has the step of benchmarks/train.py: on a GPU ViT-Ti, compiled, in one CUDA graph. All are built first;
then one of them runs, then two, and so on, for as many seconds each, while the others wait.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from train import endless, our_step, settings, wait

_AT_ONCE = 20  # steps between looks at the clock
_LONGEST = 600  # seconds for the slowest to be built


def work(number: int, most: int, seconds: float, barrier: Barrier, answers: Any) -> None:
    """One process: builds its step, and runs it whenever it is among those whose turn it is."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)
    recipe = settings(device)
    step = endless(our_step(recipe, device))
    few = _AT_ONCE if device.type == "cuda" else 1
    for together in range(1, most + 1):
        for _ in range(few):
            step()
        wait()
        barrier.wait(_LONGEST)
        if number < together:
            begin, steps = time.perf_counter(), 0
            while time.perf_counter() - begin < seconds:
                for _ in range(few):
                    step()
                wait()
                steps += few
            answers.put((together, recipe.batch * steps / (time.perf_counter() - begin)))
        barrier.wait(_LONGEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(options.most), context.Queue()
    processes = [
        context.Process(target=work, args=(number, options.most, options.seconds, barrier, answers), daemon=True)
        for number in range(options.most)
    ]
    for process in processes:
        process.start()
    expected = options.most * (options.most + 1) // 2
    rows = [answers.get(timeout=2 * _LONGEST) for _ in range(expected)]
    for process in processes:
        process.join()
    speeds = {together: sum(speed for at, speed in rows if at == together) for together in range(1, options.most + 1)}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{'at once':>8s} {'images/s':>10s} {'of one':>7s}   ({device})")
    for together, speed in speeds.items():
        print(f"{together:8d} {speed:10,.0f} {speed / speeds[1]:7.2f}")
    if options.json:
        facts = {
            "device": device,
            "torch": torch.__version__,
            "images per second": {str(at): round(speed, 1) for at, speed in speeds.items()},
            "ratios": {str(at): round(speed / speeds[1], 4) for at, speed in speeds.items()},
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
