"""How fast training is: our step beside timm's eager one, steered beside plain, and what the rest costs, in one run.

python benchmarks/train.py [--json FILE] [--quick] [--only step compiled graphed steered augmentation ...]
python benchmarks/train.py --profile          # where the time of our step goes, kernel by kernel

On a GPU: ViT-Ti, patch 2, batch 96, bf16 autocast, our step with augmentation, compiled and in one CUDA graph; timm's
model eager, compiled with fused AdamW, and compiled with mode="reduce-overhead", where forward and backward are CUDA
graphs; all on synthetic batches that lie on the GPU already. Without a GPU: a small model with patch 4, batch 8, in
float32; the ratios then say little about GPUs. Images are random; their bytes do not matter to any of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from measuring import DEVICE, HARDWARE, ON_GPU, arguments, interleaved, once, save, wait
from torch import nn

from oversmooth_papers.cuda_graphs import captured
from oversmooth_papers.engine.smoothing import SmoothingProbe
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tables.forms import CASES
from oversmooth_papers.tasks.images.build import model_of
from oversmooth_papers.tasks.images.corruptions import KINDS, SEVERITIES, corrupt
from oversmooth_papers.tasks.images.data import Images, Splits
from oversmooth_papers.tasks.images.evaluate import Evaluator
from oversmooth_papers.tasks.images.recipe import PAPER, Recipe, Shape
from oversmooth_papers.tasks.images.task import ImagesTask

PARTS = ("step", "compiled", "graphed", "steered", "forms", "augmentation", "monitoring", "corruptions")
REACH = {
    "step": ("ours with augmentation, images/s, over timm's eager", 2.5, "at least"),
    "compiled": ("ours with augmentation, images/s, over timm's compiled with fused AdamW", 1.2, "at least"),
    "graphed": ("ours with augmentation, images/s, over timm's compiled in CUDA graphs", 1.2, "at least"),
    "smooth": ("ViT-Ti⁺ over plain, speed", 0.9, "at least"),
    "sharpen": ("ViT-Ti⁻ over plain, speed", 0.9, "at least"),
    "augmentation": ("augmentation alone over the step, time", 0.10, "at most"),
    "monitoring": ("one look every 50 steps, share of the time", 0.02, "at most"),
    "corruptions": ("making 15 × 5 corruptions over testing on them, time", 2.0, "at most"),
}


def settings(device: torch.device) -> Recipe:
    if device.type == "cuda":
        return replace(PAPER, data="noise")
    return replace(PAPER, data="noise", shape=Shape(patch=4, width=64, depth=4, heads=2), batch=8)


def pictures(count: int, device: torch.device) -> Images:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(100, (count,), generator=generator)
    return Images(images, labels, [str(i) for i in range(100)], "noise").to(device)


def our_step(recipe: Recipe, device: torch.device) -> Step:
    images = pictures(max(5000, 2 * recipe.batch), device)
    step = Step(ImagesTask(recipe, Splits(images, images)), model_of(recipe).to(device), device)
    step.begin_epoch()
    return step


def endless(step: Step) -> Callable[[], None]:
    """The step as a function; CPU's learning rates would run out."""

    def run() -> None:
        if step.device.type == "cpu":
            step.done = 1
        step.run()

    return run


def timm_step(
    recipe: Recipe, device: torch.device, *, compiled: bool = False, graphed: bool = False
) -> tuple[str, Callable[[], None]]:
    """timm's ViT of the same shape, on one synthetic batch; ours where timm is not installed.

    compiled: with fused AdamW. graphed: compiled so that forward and backward are CUDA graphs.
    """
    compiled = compiled or graphed
    shape = recipe.shape
    try:
        from timm.models.vision_transformer import VisionTransformer

        model: nn.Module = VisionTransformer(
            img_size=shape.image,
            patch_size=shape.patch,
            embed_dim=shape.width,
            depth=shape.depth,
            num_heads=shape.heads,
            num_classes=shape.classes,
            qkv_bias=shape.qkv_bias,
        )
        name = "timm"
    except ImportError:
        model, name = model_of(recipe), "our ViT (timm is not installed)"
    name += ", compiled, fused AdamW" if compiled else ", eager"
    name += ", reduce-overhead" if graphed else ""
    model = model.to(device)
    parameters = list(model.parameters())
    fused = compiled and device.type == "cuda"
    optimiser = torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=fused or None)
    forward = torch.compile(model, mode="reduce-overhead" if graphed else None) if compiled else model
    x = torch.randn(recipe.batch, shape.channels, shape.image, shape.image, device=device)
    labels = torch.randint(shape.classes, (recipe.batch,), device=device)

    def step() -> None:
        optimiser.zero_grad()  # before the graphs write over what the last step left
        if graphed:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(forward(x), labels, label_smoothing=recipe.smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip or float("inf"))
        optimiser.step()

    return name, step


def profile(step: Callable[[], None]) -> None:
    """The kernels of twenty steps, those first that take longest."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for _ in range(5):
        step()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if ON_GPU else [])
    with profiler(activities=activities) as taken:
        for _ in range(20):
            step()
        wait()
    by = "self_cuda_time_total" if ON_GPU else "self_cpu_time_total"
    print(taken.key_averages().table(sort_by=by, row_limit=40, max_name_column_width=90))


def corruptions(recipe: Recipe, device: torch.device, count: int) -> tuple[float, float, dict[str, float]]:
    """Seconds to make all corruptions of so many images, to test on as many, and of each kind."""
    evaluator = Evaluator(recipe, model_of(recipe).to(device), device)
    test = pictures(count, device)
    for kind in KINDS:  # first times load kernels
        corrupt(test.images[:100], kind, 1)
    evaluator.predicted(test.images)
    kinds = {kind: once(lambda k=kind: [corrupt(test.images, k, s) for s in SEVERITIES]) for kind in KINDS}
    testing = once(lambda: [evaluator.predicted(test.images) for _ in range(len(KINDS) * len(SEVERITIES))])
    return sum(kinds.values()), testing, kinds


def main() -> None:
    parser = arguments(__doc__, quick="few repetitions, few images")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--profile", action="store_true", help="where the time of our step goes, and nothing else")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    rounds, repeats = (3, 3) if options.quick else (9, 20 if ON_GPU else 4)
    recipe = settings(DEVICE)
    ratios: dict[str, float] = {}
    facts: dict[str, Any] = {
        "device": HARDWARE,
        "torch": torch.__version__,
        "batch": recipe.batch,
        "turns": rounds,
        "steps a turn": repeats,
        "ratios": ratios,
    }

    def note(name: str, value: Any) -> None:
        facts[name] = value
        print(f"{name}: {value}", flush=True)
        save(options.json, facts)

    if options.profile:
        profile(endless(our_step(recipe, DEVICE)))
        return
    begin = time.perf_counter()
    plain = our_step(recipe, DEVICE)
    note("seconds to compile and capture the plain step", round(time.perf_counter() - begin, 1))
    work: dict[str, Callable[[], Any]] = {"plain": endless(plain)}
    if "step" in options.only:
        other, work["other"] = timm_step(recipe, DEVICE)
        note("compared with", other)
    if "compiled" in options.only and ON_GPU:
        other, work["compiled"] = timm_step(recipe, DEVICE, compiled=True)
        note("and with", other)
    if "graphed" in options.only and ON_GPU:
        other, work["graphed"] = timm_step(recipe, DEVICE, graphed=True)
        note("and in graphs with", other)
    steered = {}
    if "steered" in options.only:
        for variant in ("smooth", "sharpen"):
            steered[variant] = our_step(replace(recipe, variant=variant), DEVICE)
            work[variant] = endless(steered[variant])
    forms = {}
    if "forms" in options.only:
        for name, case in CASES.items():
            if name not in ("plain", "warm"):  # a warm start costs nothing later
                forms[name] = our_step(replace(recipe, **case.changes), DEVICE)
                work[f"form {name}"] = endless(forms[name])
    if "augmentation" in options.only:

        def augmentation() -> None:
            plain.batch()

        replay = captured(augmentation) if ON_GPU else augmentation

        def alone() -> None:
            plain.feed.draw(plain.draws.augment)
            replay()

        work["augmentation"] = alone
    if "monitoring" in options.only:
        monitor = SmoothingProbe(plain.task, plain.model, DEVICE)
        work["monitoring"] = lambda: monitor.snapshot(1)
    milliseconds = interleaved(work, rounds, repeats)
    note("milliseconds", {name: round(value, 4) for name, value in milliseconds.items()})
    speeds = {
        name: round(recipe.batch / value * 1e3, 1)
        for name, value in milliseconds.items()
        if name not in ("augmentation", "monitoring")
    }
    note("images per second", speeds)
    step = milliseconds["plain"]
    if "other" in milliseconds:
        ratios["step"] = milliseconds["other"] / step
    for name in ("compiled", "graphed"):
        if name in milliseconds:
            ratios[name] = milliseconds[name] / step
    for variant in steered:
        ratios[variant] = step / milliseconds[variant]
    if forms:
        note("speed of forms over plain", {name: round(step / milliseconds[f"form {name}"], 4) for name in forms})
    if "augmentation" in milliseconds:
        ratios["augmentation"] = milliseconds["augmentation"] / step
    if "monitoring" in milliseconds:
        ratios["monitoring"] = milliseconds["monitoring"] / (50 * step + milliseconds["monitoring"])
    if "corruptions" in options.only:
        count = 10_000 if ON_GPU and not options.quick else 200
        making, testing, kinds = corruptions(recipe, DEVICE, count)
        note("corruptions, s", {"images": count, "making": making, "testing": testing, **kinds})
        ratios["corruptions"] = making / testing
    note("ratios", {name: round(value, 4) for name, value in ratios.items()})

    print(f"\n{'work':56s} {'measured':>9s}  reach")
    for name, ratio in ratios.items():
        what, reach, word = REACH[name]
        met = ratio >= reach if word == "at least" else ratio <= reach
        print(f"{what:56s} {ratio:9.3f}  {word} {reach:g}{'' if met else '  MISSED'}")


if __name__ == "__main__":
    main()
