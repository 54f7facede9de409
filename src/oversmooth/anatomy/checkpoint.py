"""A checkpoint on disk as a source of weights: safetensors, single or sharded, or torch files without running code.

Only what is asked for is loaded, one array at a time.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oversmooth.anatomy.live import Source, config_parts
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_plain, read_json
from oversmooth.safety.signals import delay_signals

_TORCH_ENDINGS = (".bin", ".pt", ".pth", ".ckpt")
_LONGEST_NAME = 1000
_SINGLE = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "steered.safetensors")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json", "steered.safetensors.index.json")


class Checkpoint(Source):
    """Names and shapes of the weights in a directory or a file."""

    def __init__(self, path: str | Path) -> None:
        self.path = arguments.path(path, "the model", "give a checkpoint's directory or file")
        if not self.path.exists():
            raise InputError(f"{path} does not exist; give a checkpoint's directory or file")
        self.what = str(self.path)
        if not self.path.is_dir():
            check_plain(self.path, "give a checkpoint's directory or file")
        self.folder = self.path if self.path.is_dir() else self.path.parent
        self.config = read_config(self.folder)
        self.files = self._weight_files()
        for file in self.files:
            check_plain(file, "give a checkpoint's directory or file")
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: set[str] = set()
        self._home: dict[str, tuple[Path, str]] = {}  # the file, and the name there
        self._state: dict[Path, dict[str, Tensor]] = {}  # torch files, mapped into memory
        self._open: tuple[Path, Any] | None = None  # the one safetensors file that is open
        for file in self.files:
            for name, shape in self._names(file):
                if len(name) > _LONGEST_NAME:
                    raise InputError(f"{file} has a weight whose name is {len(name):,} letters long; fetch it again")
                today = renamed(name)
                self.shapes[today] = shape
                self._home[today] = (file, name)
        self.find_packed()

    def _weight_files(self) -> list[Path]:
        if self.path.is_file():
            if self.path.name.endswith(".index.json"):
                return _shards(self.path)
            if self.path.suffix != ".safetensors" and self.path.suffix not in _TORCH_ENDINGS:
                raise InputError(
                    f"{self.path} ends in {self.path.suffix or 'nothing'!r}; "
                    f"give a .safetensors file, one of {', '.join(_TORCH_ENDINGS)}, or a directory"
                )
            return [self.path]
        for name in (*_INDEX, *_SINGLE):
            if (file := self.path / name).is_file():
                return _shards(file) if name in _INDEX else [file]
        files = sorted(self.path.glob("*.safetensors"))
        if len(files) == 1:
            return files
        have = f"{len(files)} .safetensors files without an index" if files else "no weights"
        raise InputError(f"{self.path} has {have}; it needs one of {', '.join((*_INDEX[:1], *_SINGLE))}")

    def _names(self, file: Path) -> list[tuple[str, tuple[int, ...]]]:
        if file.suffix == ".safetensors":
            opened = self._safe(file)
            names = []
            for name in opened.keys():  # noqa: SIM118 (not a dictionary)
                part = opened.get_slice(name)
                self.dtypes.add(part.get_dtype())
                names.append((name, tuple(part.get_shape())))
            return names
        state = self._torch(file)
        self.dtypes |= {str(value.dtype).removeprefix("torch.") for value in state.values()}
        return [(name, tuple(value.shape)) for name, value in state.items()]

    def _safe(self, file: Path) -> Any:
        if self._open is None or self._open[0] != file:
            try:
                with delay_signals():
                    self._open = (file, safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise InputError(
                    f"{file} cannot be read ({reason(error)}); fetch it again: it may be cut off"
                ) from error
        return self._open[1]

    def _torch(self, file: Path) -> dict[str, Tensor]:
        if file not in self._state:
            try:
                zipped = _is_zip(file)
                with delay_signals():
                    loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
            except InputError:
                raise
            except pickle.UnpicklingError as error:
                raise InputError(
                    f"{file} holds more than arrays, and code in it would run on loading; it is refused: save its "
                    "state_dict as safetensors"
                ) from error
            except Exception as error:  # damaged files make torch's reader raise errors of any kind
                raise InputError(f"{file} cannot be read ({reason(error)}); fetch it again") from error
            self._state[file] = _tensors(loaded, file)
        return self._state[file]

    def _read(self, name: str, rows: slice | None = None) -> Tensor:
        file, stored = self._home[name]
        if file.suffix != ".safetensors":
            value = self._torch(file)[stored]
            return value if rows is None else value[rows]
        try:
            part = self._safe(file).get_slice(stored)
            with delay_signals():
                return part[...] if rows is None else part[rows]
        except Exception as error:  # dtypes that this torch does not have, among others
            raise InputError(f"{name} in {file} cannot be read ({reason(error)}); fetch it again") from error

    def stored(self) -> Iterator[tuple[str, Any]]:
        """Every array under its name in the files, read when it is indexed, from any thread."""
        for file in self.files:
            if file.suffix == ".safetensors":
                with delay_signals():
                    opened: Any = safe_open(file, framework="pt")
                    arrays = [(name, opened.get_slice(name)) for name in opened.keys()]  # noqa: SIM118
                yield from arrays
            else:
                yield from self._torch(file).items()

    def setting(self, module: str, name: str) -> Any:
        own, rest = config_parts(self.config, module)
        # A tower whose configuration has a model_type has its other settings, too.
        part = next((part for part in own if isinstance(part.get("model_type"), str)), rest[0])
        return part.get(name)


def renamed(name: str) -> str:
    """The name that modules use: the first BERTs, and ESM to this day, are stored under TensorFlow's names."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json; empty where there is none."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    config = read_json(path, "fix or remove it")
    return config if isinstance(config, dict) else {}


def _shards(index: Path) -> list[Path]:
    content = read_json(index, "fetch it again")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) and name for name in weight_map.values()):
        raise InputError(f"{index} is not an index of shards: it has no weight_map of file names; fetch it again")
    files = []
    for name in sorted(set(weight_map.values())):
        # A name must not lead out of the checkpoint's folder.
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{index} names {name!r}, outside its folder, and that is not read; fetch it again")
        file = index.parent / name
        if not file.is_file():
            raise InputError(f"{index.name} names {name}, which is not in {index.parent}; fetch it")
        if file.suffix != ".safetensors" and file.suffix not in _TORCH_ENDINGS:
            raise InputError(f"{index} names {name!r}, which is no weights file by its ending; fetch it again")
        files.append(file)
    return files


def _is_zip(file: Path) -> bool:
    """Whether it has the format that torch has written since 1.6, the only one that can be mapped.

    torch does not compress: a file that unpacks to more than its own size is refused as a bomb.
    """
    size = check_plain(file, "give a weights file")
    with file.open("rb") as stream:
        if stream.read(2) != b"PK":
            return False
    with zipfile.ZipFile(file) as members:
        unpacked = sum(member.file_size for member in members.infolist())
    if unpacked > size:
        raise InputError(f"{file} has {size:,} bytes and unpacks to {unpacked:,}; fetch it again: torch packs nothing")
    return True


def _tensors(loaded: Any, file: Path) -> dict[str, Tensor]:
    """The arrays, from one or two levels down (state_dict, model) where a training loop put them there."""
    for key in ("state_dict", "model", "model_state_dict") * 2:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]  # a step or a learning rate beside it may be an array too
    named = loaded if isinstance(loaded, dict) else {}
    arrays = {str(name): value for name, value in named.items() if isinstance(value, Tensor)}
    if not arrays:
        raise InputError(f"{file} holds no named arrays; give a state_dict")
    _check_stored(arrays, file)
    return arrays


def _check_stored(arrays: dict[str, Tensor], file: Path) -> None:
    """Refuse arrays whose entries are not all in the file: strides of zero make any size of four bytes."""
    for name, value in arrays.items():
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise InputError(f"{file}: {name} is not stored as plain numbers; save its state_dict as safetensors")
        stored = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > stored:
            raise InputError(
                f"{file}: {name} claims the shape {tuple(value.shape)} and has {stored:,} bytes; fetch it again"
            )
