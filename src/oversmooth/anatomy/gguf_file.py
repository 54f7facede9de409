"""A GGUF file as a source of weights, through the reader of the gguf library: mapped, and dequantised one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from oversmooth.anatomy.checkpoint import Checkpoint
from oversmooth.anatomy.live import Source
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_plain
from oversmooth.safety.libraries import import_library

# Architectures whose norms the tensors do not show, by their names in transformers.
_AS_TRANSFORMERS = {"command-r": "cohere", "cohere2": "cohere2", "mpt": "mpt", "olmo2": "olmo2"}


class GGUF(Source):
    """Names and shapes of the weights in one file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.what, self.files = str(path), [self.path]
        check_plain(self.path, "give a GGUF file")
        self._library = import_library("gguf", f"reading {path}")
        try:
            reader = self._library.GGUFReader(self.path)
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
            facts = {name: field.contents() for name, field in reader.fields.items()}
        except Exception as error:  # damaged files make the reader raise errors of any kind
            raise InputError(f"{path} cannot be read ({reason(error)}); fetch it again") from error
        if int(facts.get("split.count", 1)) > 1:
            raise InputError(f"{path} is one part of several; join them first (llama-gguf-split --merge)")
        self.shapes = {name: tuple(map(int, one.shape))[::-1] for name, one in self._tensors.items()}
        self.config = self._configuration(facts)

    def _configuration(self, facts: dict[str, Any]) -> dict[str, Any]:
        kind = facts.get("general.architecture")

        def fact(name: str) -> Any:
            return facts.get(f"{kind}.{name}")

        heads, width = fact("attention.head_count"), fact("embedding_length")
        size = fact("attention.value_length")
        if size is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
            size = width // heads
        known = {"num_attention_heads": heads, "head_dim": size, "is_causal": fact("attention.causal") is not False}
        if "blk.0.attn_norm.weight" in self.shapes:
            known["norm_first"] = True
        if kind in _AS_TRANSFORMERS:
            known["model_type"] = _AS_TRANSFORMERS[kind]
        return {name: value for name, value in known.items() if value is not None}

    def _read(self, name: str, rows: slice | None = None) -> Tensor:
        tensor = self._tensors[name]
        data = tensor.data if rows is None else tensor.data[rows]
        try:
            return torch.tensor(numpy.asarray(self._library.dequantize(data, tensor.tensor_type), numpy.float32))
        except (NotImplementedError, ValueError) as error:
            raise InputError(f"{name} in {self.path} cannot be read ({reason(error)}); give another format") from error

    def setting(self, module: str, name: str) -> Any:
        del module
        return self.config.get(name)


def weights_of(path: str | Path) -> Checkpoint | GGUF:
    """The weights at a path, whatever their format."""
    return GGUF(path) if str(path).endswith(".gguf") and Path(path).is_file() else Checkpoint(path)
