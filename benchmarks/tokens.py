"""What the numbers of tokens cost beside the model: each reducer at the two sites of a block, over the block itself.

python benchmarks/tokens.py [--json FILE] [--quick]

A block is its matrix products alone: 12 d² multiplications per token, for q, k, v, the output and an MLP four times as
wide. Any real block takes longer, so real ratios are smaller. Each time is the fastest of several; on a CPU it is the
time of the process. "plus" rows add to the moments of the same arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from measuring import DEVICE, HARDWARE, ON_GPU, arguments, save, wait
from torch import Tensor

from oversmooth.trace.reducers.sites import SiteMetrics

SHAPES = {
    "DeiT-Tiny, 64 images": (64, 197, 192),
    "MiniLM, 32 texts": (32, 128, 384),
    "576 wide, 8 texts": (8, 256, 576),
}
REDUCERS = {
    "moments": dict(absolute=False),
    "plus directions": dict(absolute=False, directions=True),
    "plus |cos|": dict(),
    "all": dict(directions=True),
    "all, effective rank of 4 inputs": dict(ranks=4, directions=True),
}
SITES = 2
"""Of a block: after attention and after the MLP."""


def fastest(run: Callable[[], object], times: int) -> float:
    """Seconds."""
    run()
    clock = time.perf_counter if ON_GPU else time.process_time
    found = []
    for _ in range(times):
        begun = clock()
        run()
        wait()
        found.append(clock() - begun)
    return min(found)


def products(x: Tensor) -> Callable[[], Tensor]:
    """The matrix products of a block."""
    d = x.shape[-1]
    widths = [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)]
    weights = [torch.randn(width, device=x.device, dtype=x.dtype) for width in widths]
    wide = torch.randn(*x.shape[:2], 4 * d, device=x.device, dtype=x.dtype)
    return lambda: [(wide if len(weight) > d else x) @ weight for weight in weights][-1]


def measured(shape: tuple[int, ...], times: int) -> dict[str, float]:
    """The ratio of each reducer."""
    x = (torch.randn(shape) * torch.linspace(3, 0.3, shape[-1]) + 0.3).to(DEVICE)
    block = fastest(products(x), times)
    found = {"block, ms": 1e3 * block}
    for name, settings in REDUCERS.items():

        def run(settings: dict[str, int] = settings) -> object:
            numbers = SiteMetrics(**settings)
            for site in range(12 * SITES):  # as a model of 12 blocks has them: one start, the others warm
                numbers.update(site, x)
            return numbers.finish()

        found[name] = fastest(run, max(2, times // 5)) / 12 / block
    return found


def main() -> None:
    given = arguments(__doc__, quick="small arrays, to see that it runs").parse_args()
    shapes = {"quick": (2, 20, 16)} if given.quick else SHAPES
    rows = {name: measured(shape, 3 if given.quick else 15) for name, shape in shapes.items()}
    for name, row in rows.items():
        print(name)
        for what, value in row.items():
            print(f"  {what:34} {value:.2f}" if what.startswith("block") else f"  {what:34} + {100 * value:.0f} %")
    where = {"machine": HARDWARE, "threads": torch.get_num_threads(), "torch": torch.__version__}
    save(given.json, {**where, "rows": rows})


if __name__ == "__main__":
    main()
