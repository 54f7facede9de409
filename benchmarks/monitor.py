"""What watching costs: a training step with the monitor beside one without, in one run; and the peak of memory.

python benchmarks/monitor.py [--json FILE] [--rows minilm,bert,vit] [--quick]

On a GPU: BERT-base's size, batch 32 × 128, bf16 autocast, forward, backward and AdamW, eager and compiled; and ViT-Ti
with batch 96. Without one: MiniLM's size in float32, on as many threads as torch has. Steps with and without the
monitor take turns, so that what else the machine does hits both. A ratio is of every so many steps with their one
look: what an idle step costs, the median over pairs, plus a look's share of so many steps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import oversmooth

SIZES = {
    "minilm": dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    "bert": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
}
BATCH, TOKENS, PROBE = 32, 128, 8
EVERY = {"minilm": 100, "bert": 100, "vit": 50}


def make(row: str, device: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], Any]:
    """(the model, its loss on a batch, a probe)."""
    torch.manual_seed(0)
    if row == "vit":
        from oversmooth.train.tasks.images.settings import Shape
        from oversmooth.train.tasks.images.vit import ViT

        model: nn.Module = ViT(Shape() if device == "cuda" else Shape(patch=4)).to(device)
        size, batch = model.shape.image, 96 if device == "cuda" else 16
        images, labels = torch.randn(batch, 3, size, size, device=device), torch.randint(100, (batch,), device=device)
        return model, lambda m: nn.functional.cross_entropy(m(images), labels), images[:PROBE].clone()
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES[row])).to(device)
    ids = torch.randint(1000, 30000, (BATCH, TOKENS), device=device)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.arange(BATCH, device=device) % 2,
    }
    return model, lambda m: m(**inputs).loss, {name: value[:PROBE].clone() for name, value in inputs.items()}


class Training:
    """Steps of one model, with or without a monitor."""

    def __init__(self, row: str, device: str, compiled: bool, **watch: Any) -> None:
        self.model, self.loss, probe = make(row, device)
        self.device, self.monitor = device, None
        if watch:
            ways = {} if watch.get("passing") else {"probe": probe}
            self.monitor = oversmooth.Monitor(self.model, every=10**9, **ways, **watch)
            self.monitor.steps = 1  # the first step would be a look
            if self.monitor.gauge is not None:
                self.monitor.gauge.arm(False)
        self.run = torch.compile(self.model) if compiled else self.model
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda")

    def step(self) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.loss(self.run)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.monitor is not None:
            self.monitor.step()

    def look(self) -> None:
        assert self.monitor is not None
        self.monitor.look()


def seconds(work: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measured(row: str, device: str, compiled: bool, rounds: int) -> list[dict[str, Any]]:
    plain = Training(row, device, compiled)
    ways = {
        "probe, tokens": dict(steering=False),
        "probe, tokens and spectra per head": dict(steering=False, spectra=1),
        "passing batch, tokens": dict(steering=False, passing=True),
    }
    watched = {name: Training(row, device, compiled, **settings) for name, settings in ways.items()}
    for training in (plain, *watched.values()):
        for _ in range(3 if device == "cuda" else 1):
            training.step()
    times: dict[str, list[float]] = {name: [] for name in ("without", *ways)}
    looks: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        times["without"].append(seconds(plain.step, device))
        for name, training in watched.items():
            times[name].append(seconds(training.step, device))
            if training.monitor is not None and training.monitor.gauge is None:
                looks[name].append(seconds(training.look, device))
            elif training.monitor is not None and training.monitor.gauge is not None:
                training.monitor.gauge.arm(True)
                due = seconds(training.step, device) + seconds(training.look, device)
                looks[name].append(due - times[name][-1])
                training.monitor.gauge.arm(False)
    step = statistics.median(times["without"])
    rows = []
    for name in ways:
        every = EVERY[row] * (10 if "spectra" in name else 1)
        look, idle = statistics.median(looks[name]), statistics.median(times[name])
        assert watched[name].monitor is not None
        assert not watched[name].monitor.failures, watched[name].monitor.failures
        pairs = [b / a for a, b in zip(times["without"], times[name], strict=True)]
        rows.append(
            {
                "model": row,
                "compiled": compiled,
                "seen": name,
                "every": every,
                "look_in_steps": round(look / step, 3),
                "idle_step_ratio": round(statistics.median(pairs), 4),
                "ratio_of_looks_alone": round(1 + max(0.0, look) / (every * step), 4),
                "ratio": round(statistics.median(pairs) + max(0.0, look) / (every * step), 4),
                "step_ms": round(1000 * step, 1),
                "idle_step_ms": round(1000 * idle, 1),
                "look_ms": round(1000 * look, 1),
            }
        )
    return rows


def _peak(row: str, device: str, watch: dict[str, Any], answer: Any) -> None:
    training = Training(row, device, False, **watch)
    for _ in range(2):
        training.step()
        if training.monitor is not None:
            training.look()
    peak = (
        torch.cuda.max_memory_allocated()
        if device == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    answer.put(peak)


def peak(row: str, device: str, **watch: Any) -> int:
    """Bytes, of a process of its own."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_peak, args=(row, device, watch, answer))
    process.start()
    size = int(answer.get())
    process.join()
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", default="")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = options.rows.split(",") if options.rows else ["bert", "vit"] if device == "cuda" else ["minilm"]
    rounds = 3 if options.quick else 50 if device == "cuda" else 8
    found = []
    for row in rows:
        for compiled in (False, True) if device == "cuda" else (False,):
            found += measured(row, device, compiled, rounds)
    without = {row: peak(row, device) for row in rows}
    memory = {row: round(peak(row, device, steering=False) / without[row], 4) for row in rows}
    machine = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    result = {
        "device": machine,
        "torch": torch.__version__,
        "oversmooth": oversmooth.__version__,
        "rounds": rounds,
        "rows": found,
        "peak_memory_ratio": memory,
    }
    for entry in found:
        print(
            f"{entry['model']:<8} {'compiled' if entry['compiled'] else 'eager':<9} {entry['seen']:<36} every "
            f"{entry['every']:>5}: {entry['ratio']:.4f} (looks alone {entry['ratio_of_looks_alone']:.4f}; a look is "
            f"{entry['look_in_steps']:.2f} steps)"
        )
    print(f"peak memory: {memory}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
