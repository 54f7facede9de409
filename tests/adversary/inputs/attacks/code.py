"""Inputs that carry code: pickles, and Python files that a configuration names. None may run, whatever is answered."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.case import Case, Place, prepared
from adversary.inputs.kit import CIFAR

YES = b"y\n" * 50


class _Bomb:
    """Unpickled, it writes the marker: by the shell, or by functions that are harmless in other company."""

    def __init__(self, marker: str, how: str) -> None:
        self.marker, self.how = marker, how

    def __reduce__(self) -> tuple[Any, ...]:
        ways = {"system": (os.system, f"touch '{self.marker}'"), "eval": (eval, f"open({self.marker!r}, 'w')")}
        call, *arguments = ways.get(self.how, (open, self.marker, "w"))
        return call, tuple(arguments)


BOMBS = ("system", "open", "eval")


def _torch_zip(bomb: _Bomb) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(bomb, protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return held.getvalue()


def _torch_old(bomb: _Bomb) -> bytes:
    return b"".join(pickle.dumps(each, protocol=2) for each in (0x1950A86A20F9469CFC6C, 1001, bomb))


def _npz(bomb: _Bomb) -> bytes:
    import numpy as np

    held = io.BytesIO()
    box = np.empty(1, dtype=object)
    box[0] = bomb
    np.savez(held, images=box, input_ids=box, labels=box)
    return held.getvalue()


PICKLES: dict[str, Callable[[_Bomb], bytes]] = {
    "plain": lambda bomb: pickle.dumps({"state_dict": bomb, b"data": [], b"fine_labels": []}),
    "protocol 0": lambda bomb: pickle.dumps(bomb, protocol=0),
    "torch's zip": _torch_zip,
    "torch of old": _torch_old,
}
Spoil = Callable[[Place, bytes], Any]


def _weights(name: str, index: str = "") -> tuple[Spoil, tuple[str, ...]]:
    """A pickle as the weights of a folder."""

    def spoil(place: Place, content: bytes) -> None:
        (place / "vit/model.safetensors").unlink()
        place.write(f"vit/{name}", content)
        if index:
            place.write(f"vit/{index}", json.dumps({"weight_map": {"x": name}}))

    return spoil, ("diagnose", "vit", "--inputs", "2")


def _named(name: str, *line: str) -> tuple[Spoil, tuple[str, ...]]:
    """A pickle given by its own name."""
    return lambda place, content: place.write(name, content), line


def _cifar(*files: str) -> tuple[Spoil, tuple[str, ...]]:
    line = ("train", "--data", "cifar", "-o", "out", "--device", "cpu", "--minutes", "0")
    return lambda place, content: [place.write(f"cifar/{file}", content) for file in files], line


PLACES: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "pytorch_model.bin": _weights("pytorch_model.bin"),
    "a sharded bin": _weights("pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"),
    "model.safetensors": _weights("model.safetensors"),
    "a bin by name": _named("model.bin", "diagnose", "model.bin"),
    "a bin's spectrum": _named("model.bin", "spectrum", "model.bin", "--heads", "2"),
    "a pt's spectrum": _named("model.pt", "spectrum", "model.pt", "--heads", "2"),
    "a pth's spectrum": _named("model.pth", "spectrum", "model.pth"),
    "a ckpt": _named("model.ckpt", "spectrum", "model.ckpt"),
    "a pickle": _named("model.pkl", "spectrum", "model.pkl"),
    "safetensors by name": _named("model.safetensors", "spectrum", "model.safetensors", "--heads", "2"),
    "a saved diagnosis": _named("d.json", "diagnose", "d.json"),
    "a recipe": _named("r.json", "train", "--recipe", "r.json", "-o", "out"),
    "text": _named("x.txt", "diagnose", "vit", "--data", "x.txt"),
    "npz": _named("x.npz", "diagnose", "vit", "--data", "x.npz"),
    "parquet": _named("x.parquet", "diagnose", "vit", "--data", "x.parquet"),
    "a checkpoint": _named("stopped/checkpoint.safetensors", "train", "--resume", "-o", "stopped", "--data", CIFAR),
    "a trained model": _named("stopped/model.safetensors", "diagnose", "stopped"),
    "cifar100 in Python": _cifar("train", "test", "meta"),
    "cifar10 in Python": _cifar(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
}
BESIDE = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin", "tf_model.h5")


def cases() -> Iterator[Case]:
    for where, (spoil, line) in PLACES.items():
        for how, dump in PICKLES.items():
            every = how == "plain" and where in ("pytorch_model.bin", "a bin's spectrum")
            for bomb in BOMBS if every else BOMBS[:1]:
                yield _case(f"pickle as {where}, {how}, {bomb}", ("vit", "stopped"), line, spoil, dump, bomb)
    for name in BESIDE:
        spoil, line = _named(f"vit/{name}", "diagnose", "vit", "--inputs", "2", "--no-spectra")
        yield _case(f"pickle beside: {name}", ("vit",), line, spoil, PICKLES["plain"], "system", "fine")
    for model in ("vit", "gpt"):
        for bomb in BOMBS:
            spoil, line = _named("x.npz", "diagnose", model, "--data", "x.npz")
            yield _case(f"npz of objects for {model}, {bomb}", (model,), line, spoil, _npz, bomb)
    for label, (model, *_) in MAPS.items():
        for command, line in LINES.items():
            build = prepared((model,), [part.format(model) for part in line], functools.partial(_hostile, label=label))
            refused = label in NEEDS_ITS_CODE and command != "spectrum"
            yield Case(f"code/{command}, auto_map: {label}", build, "refused" if refused else "either", stdin=YES)


def _case(
    label: str, needed: tuple[str, ...], line: tuple[str, ...], spoil: Spoil, dump: Callable[[_Bomb], bytes],
    bomb: str, expected: Any = "refused",
) -> Case:  # fmt: skip
    build = prepared(needed, line, lambda place: spoil(place, dump(_Bomb(str(place.marker), bomb))))
    return Case(f"code/{label}", build, expected, stdin=YES)


def _hostile(place: Place, label: str) -> None:
    """A configuration that names a Python file, and that file wherever it may be looked for."""
    model, file, fields = MAPS[label]
    for where in ("hostile.py", "configuration_hostile.py", "custom_generate/generate.py", "../hostile.py"):
        place.write(f"{model}/{where}", PYTHON.format(marker=str(place.marker)))
    place.edit_json(f"{model}/{file}", lambda found: {**found, **fields})


LINES = {
    "diagnose": ("diagnose", "{}", "--inputs", "2", "--no-spectra"),
    "diagnose a twin": ("diagnose", "{}", "--inputs", "2", "--no-spectra", "--random-init"),
    "spectrum": ("spectrum", "{}"),
    "steer": ("steer", "{}", "-m", "neutreno", "-o", "out"),
    "table1": ("reproduce", "table1", "{}", "--inputs", "2"),
}
PYTHON = """open({marker!r}, "w").write("ran")
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
class Config(PretrainedConfig):
    model_type = "hostile"
class Model(PreTrainedModel):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
class Processor:
    pass
"""
MAPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "config": ("vit", "config.json", {"auto_map": {"AutoConfig": "hostile.Config"}}),
    "config of an unknown family": (
        "vit", "config.json", {"model_type": "hostile", "auto_map": {"AutoConfig": "hostile.Config"}}
    ),
    "model": (
        "vit", "config.json",
        {
            "model_type": "hostile", "architectures": ["Model"],
            "auto_map": {
                "AutoConfig": "hostile.Config", "AutoModel": "hostile.Model",
                "AutoModelForImageClassification": "hostile.Model",
            },
        },
    ),
    "model of a known family": (
        "vit", "config.json",
        {"auto_map": {"AutoModel": "hostile.Model", "AutoModelForImageClassification": "hostile.Model"}},
    ),
    "model of an unknown class": (
        "vit", "config.json", {"architectures": ["Model"], "auto_map": {"AutoModel": "hostile.Model"}}
    ),
    "causal model": ("gpt", "config.json", {"auto_map": {"AutoModelForCausalLM": "hostile.Model"}}),
    "tokenizer": ("gpt", "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["hostile.Tokenizer", None]}}),
    "tokenizer of an unknown class": (
        "gpt", "tokenizer_config.json",
        {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": ["hostile.Tokenizer", "hostile.Tokenizer"]}},
    ),
    "tokenizer in the config": ("gpt", "config.json", {"auto_map": {"AutoTokenizer": ["hostile.Tokenizer", None]}}),
    "image processor": ("vit", "preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "hostile.Processor"}}),
    "feature extractor": (
        "vit", "preprocessor_config.json",
        {"image_processor_type": "Processor", "auto_map": {"AutoFeatureExtractor": "hostile.Processor"}},
    ),
    "another repository": (
        "vit", "config.json", {"model_type": "hostile", "auto_map": {"AutoConfig": "a/b--hostile.Config"}}
    ),
    "a path out": ("vit", "config.json", {"model_type": "hostile", "auto_map": {"AutoConfig": "../hostile.Config"}}),
    "a map of another kind": ("vit", "config.json", {"auto_map": ["hostile.Config"]}),
    "custom pipelines": (
        "vit", "config.json", {"custom_pipelines": {"x": {"impl": "hostile.Model", "pt": ["AutoModel"]}}}
    ),
    "custom generation": ("gpt", "generation_config.json", {"custom_generate": "hostile"}),
    "kernels": ("vit", "config.json", {"_attn_implementation": "a/b", "attn_implementation": "a/b"}),
    "a template": ("gpt", "tokenizer_config.json", {
        "chat_template": "{{ cycler.__init__.__globals__.os.system('touch CODE-RAN') }}"
    }),
    "timm's": (
        "vit", "config.json",
        {"architecture": "hostile", "pretrained_cfg": {"hf_hub_id": "a/b", "custom_load": "hostile"}},
    ),
}  # fmt: skip
NEEDS_ITS_CODE = {"config of an unknown family", "model", "another repository", "a path out"}
