"""What several runs on one device reach together: images per second of processes at once, and of seeds in one program.

python benchmarks/together.py [--most 4] [--seconds 5] [--json FILE]

Each process has the step of benchmarks/train.py: on a GPU ViT-Ti, compiled, in one CUDA graph. All are built first;
then one of them runs, then two, and so on, for as many seconds each, while the others wait. On a GPU start NVIDIA's MPS
before it (nvidia-cuda-mps-control -d), or processes take turns. Last, alone: one program that trains as many seeds,
weights stacked and the model mapped over them (torch.func), compiled and in one CUDA graph too, on batches that lie on
the device already.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
import torch.nn.functional as F
from measuring import DEVICE, HARDWARE, ON_GPU, arguments, save, wait
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from train import endless, our_step, settings

from oversmooth_papers.compiling import compiled
from oversmooth_papers.cuda_graphs import captured
from oversmooth_papers.tasks.images.build import model_of
from oversmooth_papers.tasks.images.recipe import Recipe

_AT_ONCE = 20  # steps between looks at the clock
_ATTENTIONS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
_LONGEST = 600 * len(_ATTENTIONS)  # seconds for the slowest to be built, whose attention is tried one by one


def first_stacked(recipe: Recipe, seeds: int, device: torch.device) -> tuple[Callable[[], None], str]:
    """The step of `stacked` with the first attention that compiles when mapped, and which that is.

    cuDNN's, which our own step has, does not in torch 2.11.
    """
    for attention in _ATTENTIONS:
        try:
            return stacked(recipe, seeds, device, attention), attention.name
        except Exception as error:  # whatever a compiler says
            print(f"{seeds} seeds in one program with {attention.name}: {type(error).__name__}: {error}"[:2000])
            torch.compiler.reset()
    raise SystemExit("no attention compiles when mapped over seeds")


def stacked(recipe: Recipe, seeds: int, device: torch.device, attention: SDPBackend) -> Callable[[], None]:
    """One step of so many seeds: their losses are added, and no weight of one is in the loss of another."""
    models = [model_of(replace(recipe, seed=seed)).to(device) for seed in range(seeds)]
    weights, _ = stack_module_state(models)
    on_gpu = device.type == "cuda"
    rate = torch.tensor(recipe.lr, device=device)
    optimiser = torch.optim.AdamW(
        weights.values(), lr=rate, weight_decay=recipe.weight_decay, fused=on_gpu or None, capturable=on_gpu
    )
    shape = recipe.shape
    images = torch.randn(seeds, recipe.batch, shape.channels, shape.image, shape.image, device=device)
    labels = torch.randint(shape.classes, (seeds, recipe.batch), device=device)

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.autocasts(device.type)):
            logits = functional_call(models[0], own, (x,))
        return F.cross_entropy(logits, y, label_smoothing=recipe.smoothing)

    losses = vmap(loss)
    forward = compiled(losses) if on_gpu else losses

    def step() -> None:
        with sdpa_kernel(attention):
            loss = forward(weights, images, labels).sum()
        loss.backward()
        clip_each(list(weights.values()), recipe.clip or float("inf"))
        optimiser.step()
        optimiser.zero_grad()

    if on_gpu:
        return captured(step)
    step()
    return step


def clip_each(weights: list[nn.Parameter], most: float) -> None:
    """`clip_grad_norm_` of every seed by itself."""
    gradients = [weight.grad.flatten(1) for weight in weights if weight.grad is not None]
    norms = torch.stack([one.square().sum(1) for one in gradients]).sum(0).sqrt()
    factors = (most / (norms + 1e-6)).clamp(max=1.0)
    for one in gradients:
        one.mul_(factors[:, None])


def speed(step: Callable[[], None], seconds: float, few: int) -> float:
    """Steps per second."""
    for _ in range(few):
        step()
    wait()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(few):
            step()
        wait()
        steps += few
    return steps / (time.perf_counter() - begin)


def work(number: int, most: int, seconds: float, barrier: Barrier, answers: Any) -> None:
    """One process: builds its step, and runs it whenever it is among those whose turn it is.

    The last one's is that of all seeds in one program; its turn comes after all others'.
    """
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)
    recipe = settings(DEVICE)
    stacks = number == most
    attention = ""
    if stacks:
        step, attention = first_stacked(recipe, most, DEVICE)
    else:
        step = endless(our_step(recipe, DEVICE))
    few = _AT_ONCE if ON_GPU else 1
    for together in range(1, most + 2):
        barrier.wait(_LONGEST)
        if stacks if together > most else number < together:
            seeds = most if stacks else 1
            answers.put((together, seeds * recipe.batch * speed(step, seconds, few), attention))
        barrier.wait(_LONGEST)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(options.most + 1), context.Queue()
    processes = [
        context.Process(target=work, args=(number, options.most, options.seconds, barrier, answers), daemon=True)
        for number in range(options.most + 1)
    ]
    for process in processes:
        process.start()
    expected = options.most * (options.most + 1) // 2 + 1
    rows: list[tuple[int, float, str]] = []
    while len(rows) < expected:
        try:
            rows.append(answers.get(timeout=1))
        except queue.Empty:
            if any(process.exitcode for process in processes):
                raise SystemExit("a process ended early; its error stands above") from None
    for process in processes:
        process.join()
    speeds = {together: sum(each for at, each, _ in rows if at == together) for together in range(1, options.most + 1)}
    one_program, attention = next((each, attention) for _, each, attention in rows if attention)
    print(f"{'at once':>8s} {'images/s':>10s} {'of one':>7s}   ({HARDWARE})")
    for together, each in speeds.items():
        print(f"{together:8d} {each:10,.0f} {each / speeds[1]:7.2f}")
    of_one = one_program / speeds[1]
    print(f"{options.most} seeds in one program: {one_program:,.0f} images/s, {of_one:.2f} of one run ({attention})")
    facts = {
        "device": HARDWARE,
        "torch": torch.__version__,
        "images per second": {str(at): round(each, 1) for at, each in speeds.items()},
        "ratios": {str(at): round(each / speeds[1], 4) for at, each in speeds.items()},
        "seeds in one program": {
            "seeds": options.most,
            "attention": attention,
            "images per second": round(one_program, 1),
            "ratio": round(of_one, 4),
        },
    }
    save(options.json, facts)


if __name__ == "__main__":
    main()
