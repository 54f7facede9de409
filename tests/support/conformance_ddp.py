"""Two processes with half of the inputs each give the gradients of one process with all of them.

``between_processes(family, methods)`` starts them; run as a script this file is one of the two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.places import TESTS

WORLD = 2


def _path() -> str:
    return os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])


def between_processes(name: str, methods: list[str]) -> dict[str, str]:
    """What is wrong, by method; empty where nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": _path()}
        command = [sys.executable, "-m", "support.conformance_ddp", folder, name, *methods]
        workers = [
            subprocess.Popen([*command[:4], str(rank), *command[4:]], env=env, stderr=subprocess.PIPE, text=True)
            for rank in range(WORLD)
        ]
        said = [worker.communicate(timeout=900)[1] for worker in workers]
        for worker, text in zip(workers, said, strict=True):
            assert worker.returncode == 0, text[-2000:]
        return json.loads((Path(folder) / "wrong.json").read_text())


def _work(folder: str, rank: int, name: str, methods: list[str]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    wrong = {}
    for method in methods:
        try:
            _check(name, method, rank)
        except Exception as error:
            wrong[method] = f"{type(error).__name__}: {error}"
    every: list[Any] = [None] * WORLD
    dist.all_gather_object(every, wrong)
    if rank == 0:
        Path(folder, "wrong.json").write_text(json.dumps({**every[1], **every[0]}))
    dist.barrier()
    dist.destroy_process_group()


def _check(name: str, method: str, rank: int) -> None:
    """Twice, since torch says only then that a parameter got no gradient; every parameter of the model has one."""
    import torch
    from support.conformance_methods import gradients, make, same_gradients, steered
    from support.families import FAMILIES
    from torch.nn.parallel import DistributedDataParallel

    family = FAMILIES[name]
    plain = make(name)
    _loss(plain, family, None).backward()
    idle = [key for key, p in plain.named_parameters() if p.grad is None]  # never used, steered or not
    model = steered(name, method)
    for key in idle:
        model.get_parameter(key).requires_grad_(False)
    _loss(model, family, None).backward()
    expected = gradients(model)
    model.zero_grad()
    # Begun apart: wrapping gives all processes the parameters of the first.
    if rank:
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
    wrapped = DistributedDataParallel(model)
    for _ in range(2):
        wrapped.zero_grad()
        _loss(wrapped, family, rank).backward()
    same_gradients(gradients(model), expected, 1e-5)


def _loss(model: Any, family: Any, part: int | None) -> Any:
    """Of one input, or the mean over both; every output has a say."""
    from support.families import tensors
    from torch import Tensor

    given = family.inputs()
    if part is not None:
        axis = 0 if family.batch_first else 1
        one = {"": given} if isinstance(given, Tensor) else given
        one = {k: v.narrow(axis if v.is_floating_point() else 0, part, 1) for k, v in one.items()}
        given = one[""] if isinstance(given, Tensor) else one
    out = model(given) if isinstance(given, Tensor) else model(**given)
    mask = family.mask()
    total = 0.0
    for one in tensors(out):
        if one.ndim > 2 and not family.batch_first:
            one = one.transpose(0, 1)
        if one.ndim > 2 and mask is not None:
            one = one * (mask if part is None else mask[part : part + 1])[..., None]
        total = total + one.square().flatten(1).sum(1).mean()
    return total


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    _work(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
