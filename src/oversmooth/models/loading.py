"""From a name or a path to a model that is ready to run: the first loader that accepts it.

A loader is a module with ``LIBRARY`` (which it needs), ``accepts(name)`` and ``load(wanted)``; a new source is one more
of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import torch

from oversmooth.anatomy.steered import steered_as
from oversmooth.models import from_timm, from_training, from_transformers
from oversmooth.models.loaded import Loaded, LoadRequest
from oversmooth.models.sources import check_there
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.extensions import extensions
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import size_of
from oversmooth.steering import saving

# Tried in this order, after loaders of other packages; the last accepts every name.
LOADERS: tuple[ModuleType, ...] = (from_training, from_timm, from_transformers)


def load(
    name: str,
    *,
    random: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    stream: bool = False,
    max_memory: str | int | None = None,
    device_map: str | None = None,
) -> Loaded:
    """Load a model by name or path, in eval mode.

    Args:
        name: a hub id, a timm name, a checkpoint's directory, or a weights file: one with its configuration beside it,
            or one that `oversmooth train` wrote.
        random: whether to initialise the architecture with random weights instead.
        seed: of random weights.
        dtype: a floating type, such as "bfloat16"; None for the checkpoint's, float32 on a CPU.
        device: such as "cuda"; None for the CPU.
        trust_remote_code: run Python files that come with the checkpoint, where its configuration names any.
        stream: leave the weights of its blocks on disk, for `diagnose` to read one block at a time.
        max_memory: of the device, that streaming may take, such as "12GB"; None: what is free.
        device_map: how accelerate distributes a transformers model over GPUs, memory and disk, such as "auto".

    Raises:
        InputError: it does not exist, is damaged, or needs a library that is not installed.
    """
    arguments.path(name, "the model", "give a path, a hub id or a timm name")
    name, seed = os.fspath(name), arguments.seed(seed)
    floating = None if dtype is None else dtype_named(dtype)
    check_there(name)
    if max_memory is not None and not stream:
        raise InputError("max_memory has no effect unless blocks are streamed; add stream=True (--stream)")
    most = None if max_memory is None else size_of(max_memory, "max_memory")
    if device_map is not None:
        check_maps(name, random or stream or device is not None)
    if stream:
        check_device(device or "cpu")
        check_streams(name, random)
    wanted = LoadRequest(name, random, seed, dtype, device, trust_remote_code, stream, most, device_map)
    loaded: Loaded = _loader(name).load(wanted)
    if loaded.on_disk is not None or device_map is not None:
        return loaded
    if random:
        loaded.name = f"{loaded.name} (random)"
    if floating is not None:
        loaded.model = loaded.model.to(floating)
    if device is not None:
        check_device(device)
        loaded.model = loaded.model.to(device)
    loaded.model.eval()
    return loaded


def _loader(name: str) -> ModuleType:
    return next(loader for loader in (*extensions("oversmooth.loaders"), *LOADERS) if loader.accepts(name))


def check_loadable(name: str) -> None:
    """Refuse a name or path that does not exist, or whose library is not installed, without loading it."""
    check_there(name)
    if library := _loader(name).LIBRARY:
        maybe_timm = library == "transformers" and "/" not in name and not Path(name).exists()
        extra = "oversmooth[models], or oversmooth[timm] if it is a timm name" if maybe_timm else ""
        import_library(library, f"loading {name}", extra)


def check_streams(name: str, random: bool = False) -> None:
    """Refuse what cannot be read block by block: random weights, and checkpoints of other libraries."""
    if random:
        raise InputError("random weights cannot be streamed, as they are in no file; save them first")
    if _loader(name) is not from_transformers:
        raise InputError(f"{name} cannot be streamed: only transformers checkpoints can; leave --stream out")


def check_maps(name: str, otherwise: bool) -> None:
    """Refuse a device map where it cannot be used, or where something else says where weights go."""
    if otherwise:
        raise InputError("device_map cannot be combined with device, stream or random; leave those out")
    if _loader(name) is not from_transformers:
        raise InputError(f"{name} cannot be distributed: only transformers models can; leave device_map out")
    import_library("accelerate", "device_map")


def check_device(name: str) -> None:
    """Refuse a device that torch does not know, or that this machine does not have."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError, TypeError, ImportError) as error:
        raise InputError(f"device {name!r} cannot be used ({str(error).splitlines()[0][:120]}); try cpu") from error


def dtype_named(name: str) -> torch.dtype:
    """The floating type of this name, such as "bfloat16"."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"dtype is {name!r}; give a floating type, such as float32 or bfloat16")
    return dtype


def load_steered(path: str | Path, model: torch.nn.Module | None = None) -> torch.nn.Module:
    """Load what `save_steered` or save_pretrained wrote.

    Args:
        path: a file or a directory.
        model: a stock model, changed in place, for a file without a configuration.

    Returns:
        The steered model.

    Raises:
        InputError: there is no steered model, it is damaged, or it belongs to another model.
    """
    path = arguments.path(path, "the path", "give what save_steered wrote")
    if path.suffix == ".safetensors" and (model is not None or not (path.parent / "config.json").is_file()):
        if model is None:
            raise InputError(
                f"{path} has weights but no configuration; pass their stock model: load_steered(path, model)"
            )
        return saving.load_into(model, path)
    loaded = load(str(path)).model
    if steered_as(loaded) is None:
        raise InputError(
            f"{path} is not a steered model: its configuration has no {saving.KEY!r}; load it with its own library"
        )
    return loaded
