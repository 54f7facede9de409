"""A checkpoint of random weights in a Llama's shape, written one block at a time, however large it is.

python benchmarks/checkpoint.py FOLDER [--blocks 34 --width 2560 --heads 20 --shared 4 --inner 6912]
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

BYTES_AT_ONCE = 2**24


def write(folder: Path, blocks: int, width: int, heads: int, shared: int, inner: int) -> int:
    """Write it to a folder, one block a file, in bfloat16, and return its size in bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from oversmooth.models.on_disk import on_meta

    sizes = dict(hidden_size=width, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=shared)
    config = LlamaConfig(num_hidden_layers=blocks, vocab_size=32_000, **sizes, dtype="bfloat16")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    shapes = {name: tuple(p.shape) for name, p in on_meta(lambda: LlamaForCausalLM(config)).named_parameters()}
    homes = {name: f"{name.split('.')[2]:0>5}" if ".layers." in name else "rest" for name in shapes}
    source, size = torch.Generator().manual_seed(0), 0
    for home in dict.fromkeys(homes.values()):
        weights = {name: _random(shape, source) for name, shape in shapes.items() if homes[name] == home}
        save_file(weights, folder / f"model-{home}.safetensors", {"format": "pt"})
        size += sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {}, "weight_map": {name: f"model-{home}.safetensors" for name, home in homes.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return size


def _random(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return (torch.randn(shape, generator=source) / math.sqrt(shape[-1])).bfloat16()


def drop_from_cache(folder: Path) -> None:
    """Have the next reading come from the disk, where the system allows it."""
    os.sync()
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_once(folder: Path) -> None:
    """Read every file from its beginning to its end."""
    buffer = bytearray(BYTES_AT_ONCE)
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, value in (("blocks", 34), ("width", 2560), ("heads", 20), ("shared", 4), ("inner", 6912)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = vars(parser.parse_args())
    print(f"{write(given.pop('folder'), **given) / 1e9:.1f} GB")
