"""Two processes with half of the inputs each give the gradients of one process with all of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from support import two_processes
from support.conformance_methods import gradients, make, same_gradients, steered
from support.families import FAMILIES, tensors
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

_WORK = """
import json, warnings
from support.conformance_ddp import wrong
def work(ranks, name):
    warnings.simplefilter("ignore")
    if ranks.world > 1:
        (folder / f"{name}.json").write_text(json.dumps(wrong(FAMILY, METHODS, ranks.rank)))
"""


def between_processes(name: str, methods: list[str]) -> dict[str, str]:
    """What is wrong, by method; empty where nothing is."""
    with tempfile.TemporaryDirectory() as home:
        script = f"FAMILY, METHODS = {name!r}, {methods!r}" + _WORK
        folder = two_processes.run(script, lambda: Path(tempfile.mkdtemp(dir=home)))
        first, second = (json.loads((folder / f"two{rank}.json").read_text()) for rank in (0, 1))
        return {**second, **first}


def wrong(name: str, methods: list[str], rank: int) -> dict[str, str]:
    found = {}
    for method in methods:
        try:
            _check(name, method, rank)
        except Exception as error:
            found[method] = f"{type(error).__name__}: {error}"
    return found


def _check(name: str, method: str, rank: int) -> None:
    """Twice, since torch says only then that a parameter got no gradient; every parameter of the model has one."""
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
