"""Does compiled code compute what the model does? A steered ViT in bfloat16, compiled in processes with empty caches.

python benchmarks/compiled.py [--variant orthogonalupdate] [--depth 3] [--processes 5] [--json FILE]

Each process compiles anew, so that the compiler tunes anew. A row says how far its logits are from the model's own, how
far two of its calls are from each other, and of how many images the logits are more than 5 % off. No time is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measuring import DEVICE, HARDWARE, arguments, save
from torch import Tensor

BATCH = 250
CACHES = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).double().norm() / theirs.double().norm())


def measure(variant: str, depth: int, device: torch.device) -> dict[str, Any]:
    from oversmooth_papers.compiling import compiled
    from oversmooth_papers.tasks.images.build import model_of
    from oversmooth_papers.tasks.images.recipe import PAPER

    generator = torch.Generator(device).manual_seed(0)
    model = model_of(replace(PAPER, variant=variant, shape=replace(PAPER.shape, depth=depth))).to(device).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # all drawn, so that every part acts
            parameter.add_(torch.randn(parameter.shape, generator=generator, device=device), alpha=0.05)
    x = torch.randn(BATCH, 3, 32, 32, generator=generator, device=device)
    fast = compiled(model)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        eager, first, again = (one(x).float() for one in (model, fast, fast))
    rows = (first - eager).norm(dim=1) / eager.norm(dim=1).mean()
    return {
        "from_eager": distance(first, eager),
        "between_calls": distance(again, first),
        "images_off": int((rows > 0.05).sum()),
        "images": BATCH,
    }


def in_a_process(variant: str, depth: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder) / name) for name in CACHES}
        command = [sys.executable, __file__, "--one", "--variant", variant, "--depth", str(depth)]
        done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--variant", default="orthogonalupdate", help="as the recipe of training names it")
    parser.add_argument("--depth", type=int, default=3, help="blocks")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--one", action="store_true", help="measure in this process, and print one row")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.variant, given.depth, DEVICE)))
        return
    rows = []
    for process in range(given.processes):
        rows.append(in_a_process(given.variant, given.depth))
        row = rows[-1]
        print(
            f"process {process + 1}: {100 * row['from_eager']:.2f} % from the model's own logits, "
            f"{100 * row['between_calls']:.2f} % between two calls, {row['images_off']} of {row['images']} images off",
            flush=True,
        )
    where = {"device": HARDWARE, "torch": torch.__version__}
    save(given.json, {**where, "variant": given.variant, "depth": given.depth, "rows": rows})


if __name__ == "__main__":
    main()
