"""Weights stored in fewer bits, and what they stand for in float32, one array at a time.

8-bit floats and whole numbers with a scale per tensor, row, group or block; compressed-tensors' packed whole numbers;
bitsandbytes' 8 and 4 bits.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from oversmooth.anatomy.layer import Weights
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library

_SCALES = ("_scale_inv", "_scale")  # of transformers' FP8 and of compressed-tensors; both multiply
_TYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
_PACKED, _STATE = ".weight_packed", ".quant_state.bitsandbytes__"
_UNREAD = ("gptq", "awq")
_REMEDY = "give the model that it was made from"


def check_format(what: str, config: dict[str, Any], names: Iterable[str]) -> None:
    """Refuse formats that are not read."""
    method = _settings(config).get("quant_method")
    if method in _UNREAD or any(name.endswith(".qweight") for name in names):
        raise InputError(f"{what} is quantised by GPTQ or AWQ, whose weights are not read; {_REMEDY}")


class QuantisedWeights(Weights, ABC):
    """Named arrays, some of which may be stored in fewer bits: they are read as what they stand for."""

    config: dict[str, Any]
    """As in config.json; empty where there is none."""
    packed: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """The shapes of weights whose arrays have other names and shapes."""

    @abstractmethod
    def _read(self, name: str, rows: slice | None = None) -> Tensor:
        """One array as it is stored, or some of its rows."""

    def find_packed(self) -> None:
        """Add packed weights to the shapes, under their own names."""
        found: dict[str, tuple[int, ...]] = {}
        for name, shape in self.shapes.items():
            if name.endswith(_PACKED):
                rows, words = shape
                found[name.removesuffix("_packed")] = rows, words * 32 // self._bits(name)
            elif _STATE in name:
                found[name.partition(_STATE)[0]] = tuple(_state(self._read(name))["shape"])
        self.packed = found
        self.shapes |= found

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """One array, or some of its rows; what was stored in fewer bits in float32."""
        if name in self.packed:
            value = self._unpacked(name, self.packed[name])
            return value if rows is None else value[rows]
        value = self._read(name, rows)
        if value.dtype not in _TYPES:
            return value
        of_rows = f"{name.removesuffix('weight')}SCB"  # bitsandbytes: the largest of each row
        if of_rows in self.shapes:
            scale = self._read(of_rows).float()[:, None] / 127
            return value.float() * (scale if rows is None else scale[rows])
        scale_name = next((name + ending for ending in _SCALES if name + ending in self.shapes), None)
        if scale_name is None:
            return value
        shape, whole, value = self.shapes[name], rows or slice(None), value.float()
        if (zero := f"{name}_zero_point") in self.shapes:
            value -= self._spread(zero, self._read(zero), shape)[whole]
        return value * self._spread(scale_name, self._read(scale_name), shape)[whole]

    def _unpacked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if (state := next((one for one in self.shapes if one.startswith(f"{name}{_STATE}")), None)) is not None:
            return self._four_bits(name, _state(self._read(state))).view(shape)
        bits = self._bits(f"{name}_packed")
        value = _whole_numbers(self._read(f"{name}_packed"), bits).float()
        if (zero := f"{name}_zero_point") in self.shapes:  # packed along the rows
            zeros = _whole_numbers(self._read(zero).mT.contiguous(), bits).mT[: shape[0]]
            value -= self._spread(zero, zeros, shape)
        scale = f"{name}_scale"
        return value * self._spread(scale, self._read(scale), shape)

    def _spread(self, name: str, scale: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Scales or zeros in float32 for every entry of a weight of this shape, ``(rows, columns)``."""
        scale = scale.float()
        if scale.numel() == 1:
            return scale.reshape(1, 1).expand(shape)
        scale = scale[:, None] if scale.ndim == 1 else scale
        if (order := f"{name.rpartition('.')[0]}.weight_g_idx") in self.shapes:  # the group of each column
            return scale[:, self._read(order).long()]
        blocks = _block_size(self.config)
        for axis, (size, count) in enumerate(zip(shape, scale.shape, strict=True)):
            block = size if count == 1 else 1 if count == size else blocks[axis]
            if -(-size // block) != count:
                raise InputError(
                    f"{name} has shape {tuple(scale.shape)}, which blocks of {block} do not explain for a weight of "
                    f"shape {shape}; fix weight_block_size in its configuration"
                )
            scale = scale.repeat_interleave(block, axis).narrow(axis, 0, size)
        return scale

    def _four_bits(self, name: str, state: dict[str, Any]) -> Tensor:
        """The entries of bitsandbytes' 4 bits: a table by their code, times the largest of their block."""
        largest = self._read(f"{name}.absmax")
        if "nested_blocksize" in state:
            table, of_blocks = self._read(f"{name}.nested_quant_map"), self._read(f"{name}.nested_absmax")
            size = int(state["nested_blocksize"])
            largest = table[largest.int()] * of_blocks.repeat_interleave(size)[: len(largest)] + state["nested_offset"]
        packed, table = self._read(name).flatten(), self._read(f"{name}.quant_map")
        codes = torch.stack([packed >> 4, packed & 15], -1).flatten().int()
        return table[codes].float() * largest.float().repeat_interleave(state["blocksize"])[: len(codes)]

    def _bits(self, name: str) -> int:
        known: set[Any] = {one.get("num_bits") for one in _groups(self.config)}
        shape = f"{name.removesuffix('_packed')}_shape"
        if len(known) > 1 and shape in self.shapes:  # the weight's size tells
            columns, words = int(self._read(shape).flatten()[-1]), self.shapes[name][1]
            known = {bits for bits in known if isinstance(bits, int) and -(-columns * bits // 32) == words}
        if len(known) != 1 or not known <= {2, 4, 8}:
            listed = " or ".join(map(str, known)) or "unknown"
            raise InputError(f"{name} is packed in {listed} bits, and 2, 4 and 8 are read; {_REMEDY}")
        return int(known.pop())


def of_module(module: torch.nn.Module, value: Tensor) -> Tensor:
    """What a weight stands for, where it is one of bitsandbytes; any other as it is."""
    if (state := getattr(value, "quant_state", None)) is not None:
        library = import_library("bitsandbytes", "a model in 4 bits")
        found: Tensor = library.functional.dequantize_4bit(value.data, state)
        return found
    scale = getattr(value, "SCB", None)
    scale = getattr(getattr(module, "state", None), "SCB", None) if scale is None else scale
    if scale is None or value.dtype != torch.int8:  # biases have the module's scale beside them too
        return value
    return value.data.float() * scale.float()[:, None] / 127


def _whole_numbers(packed: Tensor, bits: int) -> Tensor:
    """The entries of rows that are packed into 32 bits each, the lowest bits first, half of them below zero."""
    if packed.dtype != torch.int32:
        raise InputError(f"its weights are packed as {packed.dtype}, which is not read; {_REMEDY}")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    return ((packed[..., None] >> shifts) & (2**bits - 1)).flatten(-2) - 2 ** (bits - 1)


def _state(stored: Tensor) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(bytes(stored.tolist()))
        return found | {"shape": [int(size) for size in found["shape"]], "blocksize": int(found["blocksize"])}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("the description of its 4-bit weights is damaged; fetch it again") from error


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    settings = config.get("quantization_config")
    return settings if isinstance(settings, dict) else {}


def _groups(config: dict[str, Any]) -> list[dict[str, Any]]:
    """What compressed-tensors says of the weights, group by group."""
    groups = _settings(config).get("config_groups")
    found = [one.get("weights") for one in groups.values()] if isinstance(groups, dict) else []
    return [one for one in found if isinstance(one, dict)]


def _block_size(config: dict[str, Any]) -> list[int]:
    """Rows and columns of a block, as one of the two libraries writes it; 128 if neither does."""
    groups = _groups(config)
    said = [_settings(config).get("weight_block_size"), *(one.get("block_structure") for one in groups)]
    said += [[1, one.get("group_size")] for one in groups]
    whole = (s for s in said if isinstance(s, (list, tuple)) and len(s) == 2)
    return next((list(s) for s in whole if all(type(n) is int and n > 0 for n in s)), [128, 128])
