"""How fast the language task trains: our step beside the same model in a plain loop, eager and compiled, in one run.

python benchmarks/language.py [--json FILE] [--quick]

On a GPU: Nguyen et al.'s model (16 blocks of width 128, Post-LN, 33,278 words), 96 windows of 256 tokens, bf16
autocast, dropout 0.1. Ours: tokens on the GPU, compiled with its loss, one CUDA graph. Plain: the same module, batches
from a DataLoader with pinned memory, torch.optim.AdamW as it comes, clipping, a scheduler. Compiled: the same loop with
torch.compile and fused AdamW, without a CUDA graph. Both fetch from the DataLoader, in the process that trains, within
what is timed. Without a GPU: a small model in float32, where the ratios say
little. Tokens are random; which they are does not matter to any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from measuring import DEVICE, HARDWARE, ON_GPU, arguments, save, seconds
from torch import nn

from oversmooth_papers.engine.loop import float32_products
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.language.data import Text
from oversmooth_papers.tasks.language.recipe import WIKITEXT2, Recipe, Shape
from oversmooth_papers.tasks.language.task import LanguageTask, model_of
from oversmooth_papers.tasks.language.tokens import Tokenizer

REACH = {"eager": 4.0, "compiled": 1.3}
"""How many times as fast as each of the plain loops ours is to be."""


def settings(device: torch.device) -> Recipe:
    shape = replace(WIKITEXT2.shape, dropout=0.1)
    if device.type == "cpu":
        shape = Shape(vocabulary=500, length=32, width=32, depth=2, heads=2, hidden=64)
    return replace(WIKITEXT2, data="noise", shape=shape, batch=96 if device.type == "cuda" else 8)


def text(recipe: Recipe) -> Text:
    size = recipe.shape.vocabulary
    tokens = torch.randint(size, (400 * recipe.batch * recipe.shape.length // 4,), dtype=torch.int32)
    words = {str(number): number for number in range(size)}
    return Text(tokens, tokens[:1000], tokens[:1000], Tokenizer("word", False, words), "noise")


def ours(recipe: Recipe, data: Text, device: torch.device) -> Callable[[], None]:
    step = Step(LanguageTask(recipe, data), model_of(recipe).to(device), device)
    step.begin_epoch()

    def run() -> None:
        step.done = min(step.done, 1)  # a CPU's learning rates would run out
        step.run()

    return run


def plain(recipe: Recipe, data: Text, device: torch.device, *, compiled: bool) -> Callable[[], None]:
    """A loop as one writes it: loader, autocast, clipping, scheduler, optimiser."""
    model: nn.Module = model_of(recipe).to(device)
    length, on_gpu = recipe.shape.length, device.type == "cuda"
    rows = data.train[: len(data.train) // (length + 1) * (length + 1)].view(-1, length + 1).long()
    loader = torch.utils.data.DataLoader(rows, recipe.batch, shuffle=True, drop_last=True, pin_memory=on_gpu)  # type: ignore[arg-type, var-annotated]
    fused = dict(fused=True) if compiled and on_gpu else {}
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, **fused)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 100_000)
    forward = torch.compile(model) if compiled else model

    def batches():  # type: ignore[no-untyped-def]
        while True:
            yield from loader

    source = batches()

    def run() -> None:
        batch = next(source).to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = forward(batch[:, :-1], batch[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip or float("inf"))
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()

    return run


def main() -> None:
    options = arguments(__doc__, quick="fewer repeats").parse_args()
    recipe = settings(DEVICE)
    data = text(recipe)
    rounds = dict(rounds=5, repeats=40 if ON_GPU and not options.quick else 10, warm_up=5)
    times = {}
    with float32_products(DEVICE):
        times["ours"] = 1e3 * seconds(ours(recipe, data, DEVICE), **rounds)
        for name, compiled in (("eager", False), ("compiled", True)):
            times[name] = 1e3 * seconds(plain(recipe, data, DEVICE, compiled=compiled), **rounds)
    per_step = recipe.batch * recipe.shape.length
    for name, value in times.items():
        print(f"{name:10} {value:9.2f} ms a step, {per_step / value * 1e3:12,.0f} tokens/s")
    ratios = {name: times[name] / times["ours"] for name in REACH}
    for name, ratio in ratios.items():
        print(f"ours over {name}: {ratio:.2f} (to reach: {REACH[name]})")
    facts = {"hardware": HARDWARE, "torch": torch.__version__, "milliseconds": times, "ratios": ratios}
    save(options.json, facts)


if __name__ == "__main__":
    main()
