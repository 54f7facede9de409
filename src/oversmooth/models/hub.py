"""Hub names: whether they can be reached, what their repositories contain, and why a download failed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from oversmooth.anatomy.checkpoint import read_config
from oversmooth.inputs.preprocessing import FILES
from oversmooth.models.sources import check_there
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library


def fetch(name: str) -> Path:
    """The directory of a hub id's weights, from the cache or downloaded; no model is built from them."""
    check_there(name)
    hub = import_library("huggingface_hub", f"fetching {name}")
    check_reachable(name)
    with fetching(name):
        listed = ["*.safetensors", "*.safetensors.index.json", "config.json"]
        folder = Path(hub.snapshot_download(name, allow_patterns=listed))
        if not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(name, allow_patterns=["pytorch_model*.bin*", "config.json"]))
    return folder


def cached(name: str, file: str) -> Path | None:
    """A file of a hub id in the cache, fetched if necessary; None if it does not exist or there is no network."""
    hub = import_library("huggingface_hub", f"fetching {name}")
    with contextlib.suppress(Exception):
        kept = hub.try_to_load_from_cache(name, file)
        return Path(kept if isinstance(kept, str) else hub.hf_hub_download(name, file))
    return None


def fetched_config(name: str) -> dict[str, Any]:
    """The configuration of a hub id; empty if it cannot be fetched, which loading reports later."""
    file = cached(name, "config.json")
    with contextlib.suppress(InputError):
        return read_config(file.parent) if file is not None else {}
    return {}


def processor_folder(name: str) -> Path | None:
    """The cached directory with a hub id's preprocessing, fetched if necessary; None if there is none."""
    found = [file.parent for file in (cached(name, file) for file in FILES) if file is not None]
    return found[-1] if found else None


def check_reachable(name: str, files: tuple[str, ...] = ("config.json",)) -> None:
    """Refuse a hub id that cannot be reached: without a network the libraries retry for long. files: any of which, in
    the cache, makes it available without one.
    """
    hub = import_library("huggingface_hub", f"fetching {name}")
    with contextlib.suppress(Exception):
        if any(isinstance(hub.try_to_load_from_cache(name, file), str) for file in files):
            return
    if getattr(hub.constants, "HF_HUB_OFFLINE", False):
        where = f"{name!r} is neither a path nor in the hub's cache, and HF_HUB_OFFLINE is set"
        raise InputError(f"{where}; unset it, or give the directory of a downloaded checkpoint")
    with fetching(name):
        socket.getaddrinfo(urlparse(hub.constants.ENDPOINT).hostname, 443)


@contextlib.contextmanager
def fetching(name: str) -> Iterator[None]:
    """Turn any exception inside into one sentence: the hub and the libraries raise many types."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(_not_fetched(name, error)) from error


def _not_fetched(name: str, error: Exception) -> str:
    first, path = reason(error), name.removeprefix("local-dir:")
    if "trust_remote_code" in str(error):
        return (
            f"{name} comes with its own code, which oversmooth does not run; if you trust it, give "
            "--trust-remote-code, or load it yourself and call oversmooth.diagnose(model, inputs)"
        )
    if isinstance(error, ImportError):
        # One that has another version than a model's own code was written for raises the same.
        why = reason(error, 200)
        return f"{path} needs a library that is missing, or another version of one ({why}); install what it names"
    if Path(path).exists():
        return f"{path} could not be loaded ({first}); check its files"
    return (
        f"{name!r} is not a path and could not be fetched from the hub ({type(error).__name__}: {first}); "
        "check the spelling, or, without a network, give the directory of a downloaded checkpoint"
    )
