"""Blocks by their names alone, for models whose attention nobody knows: anything that maps (batch, n, d) to (batch, n,
d)."""

from __future__ import annotations

import re

from torch import nn

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError


def named_blocks(model: nn.Module, pattern: str) -> list[str]:
    """The names of the modules that a pattern such as ``"layers.*"`` means, in which * stands for anything between two
    dots ("" is the model itself), in the order in which they stand; of a module that has several names, the first.
    """
    if not isinstance(pattern, str):
        raise InputError(f"blocks is {arguments.shown(pattern)}; give the names of modules, such as 'layers.*'")
    wanted = re.compile("[^.]*".join(re.escape(part) for part in pattern.split("*")))
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[nn.Module, str] = {}
    for name, module in modules.items():
        if wanted.fullmatch(name) and bool(name) == bool(pattern):
            found.setdefault(module, name)
    if not found:
        every = list(modules)
        lists = dict.fromkeys(re.sub(r"\.\d+(\..*)?$", ".*", name) for name in every if re.search(r"\.\d+", name))
        remedy = f"choose such as {', '.join(map(repr, list(lists)[:3]))}" if lists else "name a module of the model"
        raise InputError(f"no module of this {type(model).__name__} is called {pattern!r}; {remedy}")
    return list(found.values())


def repeated_blocks(model: nn.Module) -> list[str]:
    """The names of the modules of the largest list of like modules, by their weights; empty where there is none."""
    best: tuple[int, list[str]] = (0, [])
    for name, module in model.named_modules():
        children = list(module.children())
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(children) < 2:
            continue
        if len({type(child) for child in children}) > 1:
            continue
        size = sum(p.numel() for p in module.parameters())
        if size > best[0]:
            prefix = f"{name}." if name else ""
            best = (size, [f"{prefix}{child}" for child, _ in module.named_children()])
    return best[1]
