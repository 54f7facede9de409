"""A checkpoint on the hub of which only headers and the arrays that are asked for are fetched, by range requests."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.checkpoint import Checkpoint, renamed
from oversmooth.models.hub import check_reachable, fetching
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import parse_json
from oversmooth.safety.libraries import import_library

_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_TYPES |= {"I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8}
_TYPES |= {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_HEADER = 8  # bytes that say how long a file's header is
_MOST = 100_000_000  # bytes of a header, as safetensors has it
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


class NoRangesError(InputError):
    """The checkpoint cannot be read in parts, and must be fetched whole."""


class RemoteCheckpoint(Checkpoint):
    """The names and shapes of the weights of a hub id.

    Raises:
        NoRangesError: it has no safetensors, or its server sends whole files only.
    """

    def __init__(self, name: str) -> None:
        self.what, self.name, self.fetched = name, name, 0
        hub = import_library("huggingface_hub", f"reading {name}")
        with fetching(name):
            self._files = hub.HfFileSystem(endpoint=hub.constants.ENDPOINT, skip_instance_cache=True)
            listed = {PurePosixPath(file["name"]).name: file for file in self._files.ls(name, detail=True)}
        self._sizes = {file: int(entry["size"]) for file, entry in listed.items()}
        if not self._sizes.keys() & {_INDEX, _SINGLE}:
            raise NoRangesError(f"{name} has no safetensors, so it cannot be read in parts; fetch it whole")
        if len(self._range("config.json", 0, 2) if "config.json" in self._sizes else b"{}") != 2:
            raise NoRangesError(f"{name} is on a server that sends whole files only; fetch it whole")
        self.config = self._json("config.json") if "config.json" in self._sizes else {}
        home = self._json(_INDEX).get("weight_map", {}) if _INDEX in self._sizes else {"": _SINGLE}
        self.files = [Path(file) for file in sorted(set(home.values()))]
        self.identity = [(file, str(entry.get("blob_id"))) for file, entry in listed.items()]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: set[str] = set()
        self._places: dict[str, tuple[str, str, int, int]] = {}  # file, type, first byte and the one after the last
        for file in map(str, self.files):
            if file not in self._sizes:
                raise InputError(
                    f"{_INDEX} names {file[:80]}, which {name} does not have; the checkpoint is incomplete"
                )
            self._add(file)
        self.find_packed()

    @property
    def size(self) -> int:
        """Bytes of all weight files."""
        return sum(self._sizes[str(file)] for file in self.files)

    def _add(self, file: str) -> None:
        length = int.from_bytes(self._range(file, 0, _HEADER), "little")
        damaged = f"{file} of {self.name} has a damaged header"
        if not 0 < length <= min(_MOST, self._sizes[file] - _HEADER):
            raise InputError(f"{damaged}; the checkpoint may be incomplete")
        header = parse_json(self._range(file, _HEADER, _HEADER + length), damaged, "the checkpoint may be incomplete")
        for stored, entry in header.items():
            if stored == "__metadata__":
                continue
            try:
                shape, (start, stop) = tuple(map(int, entry["shape"])), map(int, entry["data_offsets"])
                dtype = str(entry["dtype"])
            except (TypeError, KeyError, ValueError) as error:
                raise InputError(f"{damaged}; the checkpoint may be incomplete") from error
            if dtype in _TYPES and stop - start != math.prod(shape) * _TYPES[dtype].itemsize:
                raise InputError(f"{damaged}: {stored[:80]} has {stop - start:,} bytes for the shape {shape}")
            self.shapes[renamed(stored)] = shape
            self.dtypes.add(dtype)
            self._places[renamed(stored)] = (file, dtype, _HEADER + length + start, _HEADER + length + stop)

    def _read(self, name: str, rows: slice | None = None) -> Tensor:
        file, dtype, start, stop = self._places[name]
        shape = list(self.shapes[name])
        if dtype not in _TYPES:
            raise InputError(f"{name} is stored as {dtype}; give a model whose weights are not quantized")
        if rows is not None:
            first, last, _ = rows.indices(shape[0])
            row, shape[0] = (stop - start) // shape[0], last - first
            start, stop = start + first * row, start + last * row
        return torch.frombuffer(bytearray(self._range(file, start, stop)), dtype=_TYPES[dtype]).view(shape)

    def _json(self, file: str) -> dict[str, Any]:
        whole = self._range(file, 0, self._sizes[file])
        found = parse_json(whole, f"{file} of {self.name} is not JSON", "fetch it whole")
        return found if isinstance(found, dict) else {}

    def _range(self, file: str, start: int, stop: int) -> bytes:
        with fetching(self.name), self._files.open(f"{self.name}/{file}", "rb", cache_type="none") as opened:
            opened.seek(start)
            data: bytes = opened.read(stop - start)
        self.fetched += len(data)
        if len(data) != stop - start and start:
            raise InputError(
                f"{file} of {self.name}: the server sent {len(data):,} of {stop - start:,} bytes; run it again"
            )
        return data


def in_parts(name: str) -> RemoteCheckpoint | None:
    """A hub id that can be read in parts, and is worth it; None where it is in the cache, steered, or must be whole."""
    hub = import_library("huggingface_hub", f"reading {name}")
    kept = (_INDEX, _SINGLE, "pytorch_model.bin", "pytorch_model.bin.index.json")
    with fetching(name):  # which no name with brackets, say, can be
        cached = "/" in name and any(isinstance(hub.try_to_load_from_cache(name, file), str) for file in kept)
    if "/" not in name or cached:
        return None
    check_reachable(name, ())
    try:
        remote = RemoteCheckpoint(name)
    except NoRangesError:
        return None
    return None if "oversmooth" in remote.config else remote
