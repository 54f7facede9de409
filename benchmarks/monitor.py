"""What watching costs: training with the monitor over the same training without, in one run; and the peak of memory.

python benchmarks/monitor.py [--json FILE] [--rows vit,bert,minilm] [--passing | --compiled] [--quick]

* vit: ViT-Ti in `oversmooth_papers`, a look every 50 steps. On a GPU as the paper has it (patch 2, batch 96, bf16, one
  CUDA graph); on a CPU with patch 4 and batch 16, in float32.
* bert: BERT-base's size (12 × 768) fine-tuned by the real transformers.Trainer, batch 32 × 128, bf16, with
  `SmoothingCallback(every=100)`: tokens alone, and with spectra of every head each 1,000 steps. On a GPU alone.
* minilm: the same with MiniLM's size (6 × 384), on 2 CPU cores, in float32.

Both trainings are in memory at once and take turns of a few steps (one on a CPU; on a GPU ten of ours and two of
Trainer's, which the host's jitter reaches), so that a machine that slows down slows both. Hundreds of steps would take
an hour on a CPU: what a turn takes without the monitor, with it but no look due, and with a look due is measured
instead, each over the turn without that came just before it, and the ratio is ((every − 1) · not due + due) /
(every · without), from medians. Peaks are of processes of their own: of the device's memory on a GPU, of the whole
process on a CPU.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from measuring import DEVICE as HERE
from measuring import HARDWARE, ON_GPU, arguments, memory, save, wait

import oversmooth
from oversmooth_papers.engine.loop import Run
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.result import RunSettings, WatchSettings
from oversmooth_papers.tasks.images.data import Images, Splits
from oversmooth_papers.tasks.images.recipe import PAPER, Shape
from oversmooth_papers.tasks.images.task import ImagesTask

SIZES = {
    "minilm": dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    "bert": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
}
FULL, SMALL = (32, 128), (4, 32)
"""Batch and tokens of a fine-tuning, and of a check that it runs."""
EVERY = {"vit": 50, "bert": 100, "minilm": 100}
SPECTRA_EVERY = 1000
DEVICE = {"vit": "any", "bert": "cuda", "minilm": "cpu"}
REACH = {
    ("vit", "tokens"): 1.01,
    ("bert", "tokens"): 1.01,
    ("bert", "spectra"): 1.02,
    ("minilm", "tokens"): 1.02,
    ("minilm", "spectra"): 1.02,
}
REACH_MEMORY = 1.02
NOT_DUE, DUE, WITH_SPECTRA = "not due", "due", "due, with spectra"


@dataclass
class Turns:
    """Seconds of turns, each beside those of the turn without the monitor that came before it."""

    steps: int
    """Of one turn."""
    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By kind: (with the monitor, without)."""

    def add(self, kind: str, watched: float, plain: float) -> None:
        self.pairs.setdefault(kind, []).append((watched, plain))

    def ratio(self, kind: str) -> float:
        return statistics.median(watched / plain for watched, plain in self.pairs[kind])

    def look(self, kind: str) -> float:
        """What a look of this kind adds to a turn, in steps without the monitor; none where noise hides it."""
        return max(0.0, self.ratio(kind) - self.ratio(NOT_DUE)) * self.steps

    @property
    def step(self) -> float:
        """Seconds of a step without the monitor."""
        return statistics.median(plain for pairs in self.pairs.values() for _, plain in pairs) / self.steps


def settings(device: str) -> Any:
    if device == "cuda":
        return replace(PAPER, data="noise")
    return replace(PAPER, data="noise", shape=Shape(patch=4), batch=16)


def our_run(monitored: bool, device: torch.device) -> Run:
    """ViT-Ti as `oversmooth_papers` runs it, on random images, without a folder."""
    recipe = settings(device.type)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (60 * recipe.batch, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(100, (len(pixels),), generator=generator)
    images = Images(pixels, labels, [str(label) for label in range(100)], "noise").to(device)
    watch = WatchSettings(monitor=EVERY["vit"] if monitored else 0, evaluate=0, save=float("inf"))
    run = Run(ImagesTask(recipe, Splits(images, images)), device, Ranks(), RunSettings(watch=watch))
    run.step.begin_epoch()
    return run


def steps_of(run: Run, count: int, *, due: bool) -> float:
    """Seconds of so many steps of our trainer, a look due at the last of them or at none."""
    wait()
    begin = time.perf_counter()
    for left in range(count, 0, -1):
        run.step.done = EVERY["vit"] - (1 if due and left == 1 else 2)  # the step to come is one more
        run.next_step()
    wait()
    return time.perf_counter() - begin


def measured_ours(device: torch.device, rounds: int) -> Turns:
    turns = Turns(steps=10 if device.type == "cuda" else 1)
    plain, watched = our_run(False, device), our_run(True, device)
    for run in (plain, watched, plain, watched):  # to warm up
        steps_of(run, turns.steps, due=True)
    for _ in range(rounds):
        for kind in (NOT_DUE, DUE):
            before = steps_of(plain, turns.steps, due=False)
            turns.add(kind, steps_of(watched, turns.steps, due=kind == DUE), before)
    assert len(watched.logs.smoothing.rows) == rounds + 2
    return turns


def fine_tuning(
    row: str, steps: int, output: Path, callbacks: Sequence[Any], *, size: tuple[int, int], compiled: bool
) -> Any:
    """The real Trainer with a BERT of the row's size and random tokens."""
    import transformers

    torch.manual_seed(0)
    transformers.utils.logging.set_verbosity_error()
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES[row]))
    batch, tokens = size
    ids = torch.randint(1000, 30000, (8 * batch, tokens))
    data = [
        {"input_ids": line, "attention_mask": torch.ones_like(line), "labels": place % 2}
        for place, line in enumerate(ids)
    ]
    on_gpu = DEVICE[row] == "cuda"
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(output), max_steps=steps, per_device_train_batch_size=batch, bf16=on_gpu, use_cpu=not on_gpu,
            torch_compile=compiled, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
        ),
        train_dataset=data,
        callbacks=list(callbacks),
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def smoothing(every: int, spectra: int, passing: bool) -> Any:
    from oversmooth.integrations import SmoothingCallback

    return SmoothingCallback(every=every, spectra=spectra, use_training_batch=passing)


def measured_trainer(row: str, rounds: int, *, size: tuple[int, int], passing: bool, compiled: bool) -> Turns:
    """A look is due in every second turn, at its last step, and every second look has spectra."""
    import transformers

    turns = Turns(steps=2 if DEVICE[row] == "cuda" else 1)
    may_run, seconds = (threading.Semaphore(1), threading.Semaphore(0)), ([], [])  # type: ignore[var-annotated]
    watching = smoothing(2 * turns.steps, 2, passing)
    kinds: list[str] = []

    class Turn(transformers.TrainerCallback):
        """Stands after the smoothing callback: a turn ends when that is done."""

        def __init__(self, runner: int) -> None:
            self.runner, self.began = runner, 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            may_run[self.runner].acquire()
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if state.global_step % turns.steps:
                return
            wait()
            seconds[self.runner].append(time.perf_counter() - self.began)
            if self.runner:
                kinds.append(kind_of(watching.history.rows, state.global_step))
            may_run[1 - self.runner].release()
            may_run[self.runner].acquire()
            self.began = time.perf_counter()

    def train(runner: int) -> None:
        try:
            trainers[runner].train()
        finally:
            may_run[1 - runner].release(1_000_000)  # the other has all turns that are left

    with tempfile.TemporaryDirectory() as folder:
        steps = (4 * rounds + 2) * turns.steps
        trainers = [
            fine_tuning(row, steps, Path(folder) / name, callbacks, size=size, compiled=compiled)
            for name, callbacks in (("plain", [Turn(0)]), ("watched", [watching, Turn(1)]))
        ]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(train, (0, 1)))
    assert watching.monitor is not None
    assert not watching.monitor.failures, watching.monitor.failures
    for plain, watched, kind in list(zip(*seconds, kinds, strict=True))[2:]:  # the first two are to warm up
        turns.add(kind, watched, plain)
    return turns


def kind_of(rows: list[dict[str, Any]], step: int) -> str:
    if not rows or rows[-1]["step"] != step:
        return NOT_DUE
    return WITH_SPECTRA if "negative_share" in rows[-1] else DUE


def entries(row: str, turns: Turns, held: float) -> list[dict[str, Any]]:
    every, idle, look = EVERY[row], turns.ratio(NOT_DUE), turns.look(DUE)
    ways = {"tokens": look / every}
    if WITH_SPECTRA in turns.pairs:
        more = max(0.0, turns.look(WITH_SPECTRA) - look)
        ways["spectra"] = look / every + more / SPECTRA_EVERY
    return [
        {
            "row": row,
            "seen": seen,
            "every": every,
            **({"spectra_every": SPECTRA_EVERY} if seen == "spectra" else {}),
            "reach": REACH[row, seen],
            "ratio": round(idle + looks, 4),
            "ratio_not_due": round(idle, 4),
            "ratio_of_looks_alone": round(1 + looks, 4),
            "look_in_steps": round(turns.look(DUE if seen == "tokens" else WITH_SPECTRA), 3),
            "step_ms": round(1000 * turns.step, 2),
            "turns": {kind: len(pairs) for kind, pairs in turns.pairs.items()},
            "peak_memory_ratio": held,
        }
        for seen, looks in ways.items()
    ]


def _peak(row: str, monitored: bool, size: tuple[int, int], passing: bool, compiled: bool, answer: Any) -> None:
    on_gpu = ON_GPU and DEVICE[row] != "cpu"
    if row == "vit":
        run = our_run(monitored, HERE)
        for _ in range(3):
            steps_of(run, 1, due=True)
    else:
        if not on_gpu:
            torch.set_num_threads(min(2, torch.get_num_threads()))
        with tempfile.TemporaryDirectory() as folder:
            callbacks = [smoothing(1, 1, passing)] if monitored else []
            fine_tuning(row, 3, Path(folder), callbacks, size=size, compiled=compiled).train()
    answer.put(torch.cuda.max_memory_allocated() if on_gpu else memory())


def peak(row: str, monitored: bool, size: tuple[int, int], passing: bool, compiled: bool) -> int:
    """Bytes, of a process of its own."""
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    process = context.Process(target=_peak, args=(row, monitored, size, passing, compiled, answer))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the process that measures the memory of {row} failed")
    return int(answer.get())


def main() -> None:
    parser = arguments(__doc__, quick="few turns of small batches: a check that it runs")
    parser.add_argument("--rows", default="vit,bert,minilm")
    parser.add_argument("--passing", action="store_true", help="the passing batch in place of a probe, in Trainer")
    parser.add_argument("--compiled", action="store_true", help="Trainer with torch_compile=True")
    options = parser.parse_args()
    if options.passing and options.compiled:
        # Both models are of one class: code that was compiled for the one without hooks would serve the other.
        parser.error("--passing and --compiled cannot be timed in one process; choose one of them")
    rows = options.rows.split(",")
    size = SMALL if options.quick else FULL
    if unknown := [row for row in rows if row not in EVERY]:
        parser.error(f"there is no row {unknown[0]!r}; choose among {', '.join(EVERY)}")
    result: dict[str, Any] = {
        "device": HARDWARE if ON_GPU else f"{HARDWARE}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "oversmooth": oversmooth.__version__,
        "from": "the passing batch" if options.passing else "a probe of 8 inputs",
        "compiled": options.compiled,
        "quick": options.quick,
        "batch_and_tokens": size,
        "rows": [],
        "not_run": {},
    }
    for row in rows:
        if DEVICE[row] == "cuda" and not ON_GPU:
            result["not_run"][row] = "there is no GPU"
            print(f"{row}: not run, there is no GPU")
            continue
        on_device = ON_GPU and DEVICE[row] != "cpu"
        peaks = [peak(row, monitored, size, options.passing, options.compiled) for monitored in (False, True)]
        if row == "vit":
            rounds = 2 if options.quick else 60 if on_device else 16
            torch.set_float32_matmul_precision("high")
            turns = measured_ours(HERE, rounds)
        else:
            if not on_device:
                torch.set_num_threads(min(2, torch.get_num_threads()))
            rounds = 1 if options.quick else 40 if on_device else 4
            turns = measured_trainer(row, rounds, size=size, passing=options.passing, compiled=options.compiled)
        result["rows"] += entries(row, turns, round(peaks[1] / peaks[0], 4))
        for entry in [entry for entry in result["rows"] if entry["row"] == row]:
            spectra = f", spectra every {SPECTRA_EVERY:,}" if entry["seen"] == "spectra" else ""
            missed = "" if entry["ratio"] <= entry["reach"] else "  MISSED"
            full = "" if entry["peak_memory_ratio"] <= REACH_MEMORY else "  MISSED"
            print(
                f"{row:7} tokens every {entry['every']}{spectra}: {entry['ratio']:.4f} of the time without (reach "
                f"{entry['reach']:g}){missed}; not due {entry['ratio_not_due']:.4f}, looks alone "
                f"{entry['ratio_of_looks_alone']:.4f}, a look is {entry['look_in_steps']:.2f} steps; peak memory "
                f"{entry['peak_memory_ratio']:.4f} (reach {REACH_MEMORY:g}){full}",
                flush=True,
            )
        save(options.json, result)


if __name__ == "__main__":
    main()
