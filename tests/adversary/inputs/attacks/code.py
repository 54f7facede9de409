"""Inputs that carry code: pickles, and Python files that a configuration names. None may run, whatever is answered."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from adversary.inputs.case import Case, Place
from adversary.inputs.kit import CIFAR

YES = b"y\n" * 50


class _Bomb:
    """Unpickled, it writes the marker."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch '{self.marker}'",))


class _Opener(_Bomb):
    """The same by a function that is harmless in other company."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.marker, "w"))


class _Evaluator(_Bomb):
    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, (f"open({self.marker!r}, 'w')",))


BOMBS = {"system": _Bomb, "open": _Opener, "eval": _Evaluator}


def _plain(place: Place, bomb: type[_Bomb]) -> bytes:
    return pickle.dumps({"state_dict": bomb(str(place.marker)), b"data": [], b"fine_labels": []})


def _protocol0(place: Place, bomb: type[_Bomb]) -> bytes:
    return pickle.dumps(bomb(str(place.marker)), protocol=0)


def _torch_zip(place: Place, bomb: type[_Bomb]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(bomb(str(place.marker)), protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return held.getvalue()


def _torch_old(place: Place, bomb: type[_Bomb]) -> bytes:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    return magic + pickle.dumps(1001, protocol=2) + pickle.dumps(bomb(str(place.marker)), protocol=2)


def _npz(place: Place, bomb: type[_Bomb]) -> bytes:
    import numpy as np

    held = io.BytesIO()
    box = np.empty(1, dtype=object)
    box[0] = bomb(str(place.marker))
    np.savez(held, images=box, input_ids=box, labels=box)
    return held.getvalue()


PICKLES = {"plain": _plain, "protocol 0": _protocol0, "torch's zip": _torch_zip, "torch of old": _torch_old}


def _model_file(name: str, others: tuple[str, ...] = ()) -> Callable[[Place, bytes], list[str]]:
    """A pickle as the weights of a folder."""

    def build(place: Place, content: bytes) -> list[str]:
        place.copy("vit")
        (place / "vit/model.safetensors").unlink()
        place.write(f"vit/{name}", content)
        for other in others:
            place.write(f"vit/{other}", json.dumps({"weight_map": {"x": name}}))
        return ["diagnose", "vit", "--inputs", "2"]

    return build


def _named(name: str, *command: str) -> Callable[[Place, bytes], list[str]]:
    """A pickle given by its own name."""

    def build(place: Place, content: bytes) -> list[str]:
        place.copy("vit", "stopped")
        place.write(name, content)
        return list(command)

    return build


def _beside(name: str) -> Callable[[Place, bytes], list[str]]:
    """A pickle beside good weights: nobody should open it."""

    def build(place: Place, content: bytes) -> list[str]:
        place.copy("vit")
        place.write(f"vit/{name}", content)
        return ["diagnose", "vit", "--inputs", "2", "--no-spectra"]

    return build


def _cifar_python(*files: str) -> Callable[[Place, bytes], list[str]]:
    def build(place: Place, content: bytes) -> list[str]:
        for file in files:
            place.write(f"cifar/{file}", content)
        return ["train", "--data", "cifar", "-o", "out", "--device", "cpu", "--minutes", "0"]

    return build


PLACES: dict[str, Callable[[Place, bytes], list[str]]] = {
    "pytorch_model.bin": _model_file("pytorch_model.bin"),
    "a sharded bin": _model_file("pytorch_model-00001-of-00001.bin", ("pytorch_model.bin.index.json",)),
    "model.safetensors": _model_file("model.safetensors"),
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
    "cifar100 in Python": _cifar_python("train", "test", "meta"),
    "cifar10 in Python": _cifar_python(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
}
BESIDE = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin", "tf_model.h5")


def cases() -> Iterator[Case]:
    for where, make in PLACES.items():
        for how, dump in PICKLES.items():
            for bomb, kind in BOMBS.items():
                if bomb != "system" and (how != "plain" or where not in ("pytorch_model.bin", "a bin's spectrum")):
                    continue
                yield Case(f"code/pickle as {where}, {how}, {bomb}", _pickled(make, dump, kind), "refused", stdin=YES)
    for name in BESIDE:
        yield Case(f"code/pickle beside: {name}", _pickled(_beside(name), _plain, _Bomb), "fine", stdin=YES)
    for model in ("vit", "gpt"):
        for bomb, kind in BOMBS.items():
            make = _named("x.npz", "diagnose", model, "--data", "x.npz")
            yield Case(f"code/npz of objects for {model}, {bomb}", _pickled(_with(model, make), _npz, kind), stdin=YES)
    yield from _python_files()


def _with(model: str, make: Callable[[Place, bytes], list[str]]) -> Callable[[Place, bytes], list[str]]:
    def build(place: Place, content: bytes) -> list[str]:
        if model != "vit":
            place.copy(model)
        return make(place, content)

    return build


def _pickled(make: Any, dump: Any, bomb: Any) -> Callable[[Place], list[str]]:
    return lambda place: make(place, dump(place, bomb))


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


def _python_files() -> Iterator[Case]:
    lines = {
        "diagnose": ("diagnose", "{}", "--inputs", "2", "--no-spectra"),
        "diagnose a twin": ("diagnose", "{}", "--inputs", "2", "--no-spectra", "--twin"),
        "spectrum": ("spectrum", "{}"),
        "steer": ("steer", "{}", "-m", "neutreno", "-o", "out"),
        "table1": ("reproduce", "table1", "{}", "--inputs", "2"),
    }
    for label, (model, file, fields) in MAPS.items():
        for command, line in lines.items():

            def build(
                place: Place, model: Any = model, file: Any = file, fields: Any = fields, line: Any = line
            ) -> Any:
                place.copy(model)
                for where in (f"{model}/hostile.py", f"{model}/configuration_hostile.py", "hostile.py"):
                    place.write(where, PYTHON.format(marker=str(place.marker)))
                place.write(f"{model}/custom_generate/generate.py", PYTHON.format(marker=str(place.marker)))
                target = place / f"{model}/{file}"
                found = json.loads(target.read_text()) if target.exists() else {}
                target.write_text(json.dumps({**found, **fields}))
                return [part.format(model) for part in line]

            refused = label in NEEDS_ITS_CODE and command != "spectrum"
            yield Case(f"code/{command}, auto_map: {label}", build, "refused" if refused else "either", stdin=YES)
