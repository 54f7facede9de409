"""Code that a checkpoint contains or names: detected, and run only on request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oversmooth.safety.errors import InputError


def class_of(transformers: Any, config: Any, trust: bool) -> Any:
    """The transformers class that a configuration names; else the one the library chooses."""
    architectures = getattr(config, "architectures", None)
    named = architectures[0] if isinstance(architectures, (list, tuple)) and architectures else ""
    named = named if isinstance(named, str) and named.isidentifier() else ""
    cls = getattr(transformers, named, None) if named else None
    if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
        return cls
    for auto, where in (own_code(config) if trust else {}).items():
        if auto.startswith("AutoModel") and where.endswith(f".{named}") and hasattr(transformers, auto):
            return getattr(transformers, auto)
    return transformers.AutoModel


def own_code(config: Any) -> dict[str, str]:
    """The classes that a checkpoint contains, and the files they are in."""
    auto_map = getattr(config, "auto_map", None)
    return {k: v for k, v in auto_map.items() if isinstance(v, str)} if isinstance(auto_map, dict) else {}


def code_run(name: str, config: Any) -> list[str]:
    files = sorted({where.rpartition(".")[0] + ".py" for where in own_code(config).values()})
    return [f"ran code that comes with {name} (--trust-remote-code): {', '.join(files)}"] if files else []


def check_asks_for_none(config: dict[str, Any], name: str) -> None:
    """Refuse a configuration that makes some versions of transformers run code without asking: attention named by a
    repository, or trust that it grants itself.
    """
    for key, value in _entries(config):
        if ("implementation" in key and "/" in str(value)) or (key == "trust_remote_code" and value):
            raise InputError(
                f"{name}: {key} in its configuration would run code from a repository; remove it from config.json, or, "
                "if you trust it, give --trust-remote-code"
            )


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield str(key), value
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from _entries(part)


@contextmanager
def arrays_only() -> Iterator[None]:
    """Use torch's restricted loader for everything read inside, even if a library requests the other one."""
    force, other = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before = {name: os.environ.pop(name, None) for name in (force, other)}
    os.environ[force] = "1"
    try:
        yield
    finally:
        del os.environ[force]
        os.environ.update({name: value for name, value in before.items() if value is not None})
