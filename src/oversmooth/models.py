"""Models by name or path, with what they need to be fed: the one place that borrows transformers and timm.

Nothing is loaded but safetensors or, through torch's restricted loader, arrays. Code that comes with a checkpoint is
not run, unless whoever loads it says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import reprlib
import shutil
import socket
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

import torch
from torch import nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.anatomy.live import steering_of
from oversmooth.building import check_numbers, watched
from oversmooth.inputs import Inputs, Preprocessing, image_inputs, text_inputs
from oversmooth.inputs.processor_files import FILES, image_size
from oversmooth.remote_code import arrays_only, check_asks_for_none, class_of, code_run
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import whole_folder
from oversmooth.safety.libraries import borrow, unusable
from oversmooth.steering.apply import MARKER
from oversmooth.steering.saving import STEERED, WEIGHTS, read_file, rename_weights, restore_into, steered_class
from oversmooth.train.saved import load_model, save_model, trained_file

Kind = Literal["vision", "text", "other"]
DEFAULT_COUNT, DEFAULT_LENGTH, DEFAULT_BATCH = 16, 128, 8
_CODE = (".py", ".pyc", ".pyd", ".so", ".pkl", ".pickle", ".joblib")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")
_TEXTS = (".json", ".txt", ".model", ".jinja", ".jsonl")
_MOST_TEXT, _MOST_BESIDE = 2**28, 2**30
DATA_COUNT = 64
"""Inputs of the user's data, if not said otherwise."""
_TIMM_LOADS = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass
class Loaded:
    """A model ready to run."""

    model: nn.Module
    name: str
    kind: Kind
    tokenizer: Any = None
    preprocessing: Preprocessing | None = None
    argument: str = "pixel_values"
    longest: int | None = None
    """Tokens it takes at most; None if it does not say."""
    no_tokenizer: str = ""
    """Why there is no tokenizer, where there should be one."""
    remarks: list[str] = field(default_factory=list)
    folder: Path | None = None
    """Where it was loaded from, if from files of the user's."""
    processor: Path | None = None
    """Where the files of a hub id's processor are, if it has any."""
    recipe: Any = None
    """The `train.recipe.Recipe` it was trained by, if `oversmooth train` wrote it."""

    def inputs(
        self,
        source: Path | None = None,
        *,
        count: int = DEFAULT_COUNT,
        length: int | None = None,
        batch: int = DEFAULT_BATCH,
        lines: bool = False,
    ) -> Inputs:
        """From the user's data, or the package's own prose or pictures."""
        if self.kind == "vision":
            assert self.preprocessing is not None
            return image_inputs(self.preprocessing, source, count=count, batch=batch, argument=self.argument)
        if self.kind == "text" and self.tokenizer is not None:
            if length is not None and self.longest is not None and length > self.longest:
                raise InputError(
                    f"inputs of {length} tokens are longer than the {self.longest} that {self.name} takes; "
                    f"give --length {self.longest} or less"
                )
            length = min(length or DEFAULT_LENGTH, self.longest or sys.maxsize)
            return text_inputs(self.tokenizer, source, count=count, length=length, batch=batch, lines=lines)
        if self.kind == "text":
            why = f" that can be read ({self.no_tokenizer})" if self.no_tokenizer else ""
            raise InputError(
                f"{self.name} has no tokenizer beside its weights{why}; add its tokenizer files, or give inputs"
            )
        raise InputError(
            f"{self.name} takes neither images nor text; call oversmooth.diagnose(model, inputs) with its own"
        )


def load(
    name: str,
    *,
    random: bool = False,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """A hub id, a timm name, a checkpoint's directory, or a weights file: one with its configuration beside it, or
    one that `oversmooth train` wrote.

    random: the same architecture with freshly initialised weights, drawn from seed. trust_remote_code: run Python files
    that come with the checkpoint, where its configuration names any.
    """
    if dtype is not None:
        dtype_named(dtype)
    check_there(name)
    path = Path(name)
    if (trained := trained_file(path)) is not None:
        loaded = _from_training(trained, random, seed)
    elif path.exists():
        folder = _folder(path)
        if _is_timm(folder):
            loaded = _from_timm(f"local-dir:{folder}", folder, random, seed)
        else:
            loaded = _from_transformers(str(folder), folder, random, seed, dtype, device, trust_remote_code)
        loaded.name, loaded.folder = folder.resolve().name, folder
    elif is_timm_name(name):
        if not random:
            _check_reachable(_timm_repository(name), ("config.json", "model.safetensors"))
        loaded = _from_timm(name, None, random, seed)
    else:
        try:
            loaded = _from_transformers(name, None, random, seed, dtype, device, trust_remote_code)
        except InputError as error:
            if "/" not in name and (without := _why_no_timm()):  # it may be one of timm's
                raise InputError(f"{error}; {without}") from error
            raise
    if random:
        loaded.name = f"{loaded.name} (random)"
    if dtype is not None:
        loaded.model = loaded.model.to(dtype_named(dtype))
    if device is not None:
        try:
            loaded.model = loaded.model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device {device!r} cannot be used ({str(error).splitlines()[0]}); try cpu") from error
    loaded.model.eval()
    return loaded


def check_there(name: str) -> None:
    """Refuse what looks like a path and leads nowhere."""
    if not Path(name).exists() and _looks_like_path(name):
        raise InputError(f"{name} does not exist; give a checkpoint's directory or file, a hub id, or a timm name")


def check_loadable(name: str) -> None:
    """Refuse what is not there, or needs a library that is not, without loading it."""
    check_there(name)
    path = Path(name)
    if trained_file(path) is None:
        timm = _is_timm(_folder(path)) if path.exists() else is_timm_name(name)
        borrow("timm" if timm else "transformers", f"loading {name}")


def check_device(name: str) -> None:
    """Refuse a device that torch does not know, or that is not here."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError, TypeError, ImportError) as error:
        raise InputError(f"device {name!r} cannot be used ({str(error).splitlines()[0][:120]}); try cpu") from error


def dtype_named(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if found not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"dtype is {name!r}; give a floating type, such as float32 or bfloat16")
    return found


def save(loaded: Loaded, path: Path) -> None:
    """A directory that `load` reads, whole or not at all: weights, configuration, and what lay beside them."""
    beside = _beside(loaded.folder) if loaded.folder is not None else []
    with whole_folder(path) as temporary:
        write = getattr(loaded.model, "save_pretrained", None)
        if loaded.recipe is not None:
            save_model(loaded.model, loaded.recipe, temporary / "model.safetensors", dtype=torch.float32)
        elif write is not None:
            with _quiet(borrow("transformers", "saving")):
                write(temporary)
                if loaded.folder is None and loaded.tokenizer is not None:
                    loaded.tokenizer.save_pretrained(temporary)
        else:
            _save_timm(loaded.model, temporary)
        if loaded.recipe is None and steering_of(loaded.model) is not None:
            rename_weights(temporary)
        if loaded.processor is not None:
            for file in (loaded.processor / name for name in FILES):
                if file.is_file() and not (temporary / file.name).exists():
                    shutil.copyfile(file, temporary / file.name)
        for file in beside:
            if not (temporary / file.name).exists():
                shutil.copyfile(file, temporary / file.name)


def _beside(folder: Path) -> list[Path]:
    """What goes along with a checkpoint: neither weights nor code, and only what lies in it. A link may lead to
    anything that its owner can read; the hub's cache is made of links, from snapshots to blobs of the same repository.
    """
    home = folder.resolve()
    inside = [home, *([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])]
    found = [
        file
        for file in sorted(folder.iterdir())
        if file.suffix not in (*_WEIGHTS, *_CODE)
        and not file.name.endswith(".index.json")
        and file.is_file()
        and any(file.resolve().is_relative_to(place) for place in inside)
    ]
    for file in found:
        if (size := file.stat().st_size) > _MOST_BESIDE:
            raise InputError(
                f"{file} would be copied along and has {size:,} bytes, over {_MOST_BESIDE:,}; put it elsewhere first"
            )
    return found


def _save_timm(model: nn.Module, folder: Path) -> None:
    timm = borrow("timm", "saving a timm model")
    if not hasattr(model, "pretrained_cfg"):
        raise InputError(f"a {type(model).__name__} has no configuration to go with it; use save_steered(model, file)")
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    if (steering := steering_of(model)) is not None:
        config = read_config(folder) | {"oversmooth": steering.settings()}
        (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def is_timm_name(name: str) -> bool:
    """Whether a name that is no path is timm's, as far as can be told."""
    if name.startswith(("timm/", "hf_hub:timm/", "hf-hub:timm/")):
        return True
    if "/" in name:
        return False
    with contextlib.suppress(InputError):
        return bool(borrow("timm", "a timm model").is_model(name))
    return False


def _timm_repository(name: str) -> str:
    """Where the hub has the weights of a timm name; the name itself where timm does not say."""
    if "/" in name:
        return name.rpartition(":")[2]
    found = getattr(borrow("timm", "a timm name").get_pretrained_cfg(name), "hf_hub_id", None)
    return found if isinstance(found, str) and found else name


def _why_no_timm() -> str:
    try:
        borrow("timm", "a timm name")
    except InputError as error:
        return str(error)
    return ""


def fetch(name: str) -> Path:
    """The weights of a hub id, as files: nothing is built from them. From the cache, where they are there already."""
    check_there(name)
    hub = borrow("huggingface_hub", f"fetching {name}")
    _check_reachable(name)
    try:
        listed = ["*.safetensors", "*.safetensors.index.json", "config.json"]
        folder = Path(hub.snapshot_download(name, allow_patterns=listed))
        if not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(name, allow_patterns=["pytorch_model*.bin*", "config.json"]))
    except Exception as error:  # the hub raises what it likes
        raise InputError(_not_fetched(name, error)) from error
    return folder


def default_inputs(model: nn.Module, tokenizer: Any = None) -> Inputs:
    """The package's own prose or pictures for a live model that says how it wants them."""
    return _described(model, type(model).__name__, None, tokenizer).inputs()


def _folder(path: Path) -> Path:
    if path.is_dir():
        if not (path / "config.json").is_file():
            Checkpoint(path)  # says what is missing, if there are no weights either
            raise InputError(
                f"{path} has weights but no config.json, so there is no telling what to run them in; "
                "use oversmooth spectrum, or oversmooth.diagnose(model) with the live model"
            )
        return path
    folder = path.parent
    if (folder / "config.json").is_file():
        used = Checkpoint(folder).files
        if path.resolve() not in {file.resolve() for file in used} and not path.name.endswith(".index.json"):
            raise InputError(
                f"{path} is not what would be run: {folder} loads {', '.join(file.name for file in used)}; give that, "
                "or put this file into a directory of its own with its config.json"
            )
        return folder
    raise InputError(
        f"{path} has no config.json beside it, so there is no telling what to run it in; "
        "use oversmooth spectrum, or oversmooth.diagnose(model) with the live model"
    )


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or (os.sep != "/" and os.sep in name)
        or bool(re.search(r"\.(safetensors|bin|pt|pth|ckpt|json)$", name))
    )


def _is_timm(folder: Path) -> bool:
    return "architecture" in read_config(folder)


def _from_training(path: Path, random: bool, seed: int) -> Loaded:
    from oversmooth.train.build import model_of

    model, recipe = load_model(path)
    name, steering = recipe.title, steering_of(model)
    if steering is not None and steering.methods != recipe.methods():
        name += ", steered since"
    if random:
        model = model_of(dataclasses.replace(recipe, seed=seed))
    side = (recipe.shape.image, recipe.shape.image)
    preprocessing = Preprocessing(size=side, mean=recipe.mean, std=recipe.std)
    return Loaded(model, name, "vision", preprocessing=preprocessing, argument="images", recipe=recipe)


def _from_timm(name: str, folder: Path | None, random: bool, seed: int) -> Loaded:
    timm = borrow("timm", f"{name} is a timm model and")
    hub = name.replace("timm/", "hf-hub:timm/", 1) if name.startswith("timm/") else name
    config = read_config(folder) if folder is not None else {}
    if folder is not None:
        architecture = config["architecture"]
        if not isinstance(architecture, str) or ":" in architecture or not timm.is_model(architecture):
            raise InputError(
                f"{folder}: its configuration says architecture {reprlib.repr(architecture)}, which timm does not "
                "have; mend it, or take a newer timm"
            )
        check_numbers(config, str(folder))
    try:
        with watched(name), arrays_only():
            if random and folder is not None:
                model = _seeded(seed, lambda: timm.create_model(config["architecture"], pretrained=False))
            elif folder is not None and (settings := config.get("oversmooth")):
                (file,) = Checkpoint(folder).files
                made = {k: config[k] for k in ("num_classes", "global_pool") if k in config} | _model_arguments(config)
                model = timm.create_model(config["architecture"], pretrained=False, **made)
                arrays, _ = read_file(file)
                restore_into(model, settings, arrays, folder)
            else:
                if folder is not None:
                    Checkpoint(folder)  # says what is missing, cut off, or more than arrays
                model = _seeded(seed, lambda: timm.create_model(hub, pretrained=not random))
    except InputError:
        raise
    except Exception as error:  # timm and the hub raise what they like
        raise InputError(_not_fetched(name, error)) from error
    return _described(model, name, folder, None)


def _model_arguments(config: dict[str, Any]) -> dict[str, Any]:
    """What a configuration gives to the model itself: not what would have timm load some other file."""
    given = config.get("model_args")
    given = given if isinstance(given, dict) else {}
    return {key: value for key, value in given.items() if key not in _TIMM_LOADS}


def _from_transformers(
    name: str, folder: Path | None, random: bool, seed: int, dtype: str | None, device: str | None, trust: bool
) -> Loaded:
    transformers = borrow("transformers", f"loading {name}")
    with _quiet(transformers), arrays_only():
        if folder is None:
            _check_reachable(name)
        else:
            _check_texts(folder)
        stated = read_config(folder) if folder is not None else _fetched_config(name)
        check_numbers(stated, name)
        if not trust:
            check_asks_for_none(stated, name)
        try:
            # Said outright: where nothing is said, transformers asks on standard input whether to run code.
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust)
        except Exception as error:
            raise InputError(_not_fetched(name, error)) from error
        # Once more: what the hub gave now may be newer.
        read = config.to_dict() | {"attn_implementation": getattr(config, "_attn_implementation", None)}
        check_numbers(read, name)
        if not trust:
            check_asks_for_none(read, name)
        if folder is not None and not random:
            Checkpoint(folder)  # refuses what is missing, cut off, or more than arrays, in a sentence of its own
        try:
            cls = class_of(transformers, config, trust)
        except (ImportError, RuntimeError) as error:  # classes are imported as they are asked for
            raise unusable("transformers", f"loading {name}", error) from error
        settings = getattr(config, "oversmooth", None)  # of a model that was saved steered
        load = cls
        if settings and not random:
            load = steered_class(cls, settings)
            if (weights := _steered_weights(name, folder)) is not None:
                config.transformers_weights = weights  # how from_pretrained is told another name
        remarks = code_run(name, config) if trust else []
        if dtype is None and device in (None, "cpu"):
            # Half precision on a CPU is slow, or refused; what is stored in it is exact in float32.
            dtype = "float32"
        try:
            if random:
                make = partial(cls.from_config, trust_remote_code=trust) if hasattr(cls, "from_config") else cls
                with watched(name):
                    model = _seeded(seed, lambda: make(config))
            else:
                with watched(name):
                    model, info = load.from_pretrained(
                        name, config=config, dtype=dtype or "auto", output_loading_info=True, trust_remote_code=trust
                    )
                missing = sorted(set(info.get("missing_keys", ())) - {MARKER})
                if load is not cls:
                    model.__class__ = cls
                    getattr(model, MARKER).zero_()  # not in files of earlier versions
                    if hasattr(model.config, "transformers_weights"):
                        del model.config.transformers_weights  # what is saved may have the usual name
                inside = tuple(f"{layer.block}." for layer in locate(model))
                if lost := [key for key in missing if key.startswith(inside)]:
                    raise InputError(f"{name} lacks {len(lost)} weights of its blocks, {lost[0]} first; fetch it again")
                if missing:
                    remarks.append(
                        f"not in the checkpoint, and drawn at random: {len(missing)} of the weights, "
                        f"{', '.join(missing[:3])}"
                    )
        except InputError:
            raise
        except Exception as error:
            raise InputError(_not_fetched(name, error)) from error
        tokenizer, without = None, ""
        if getattr(model, "main_input_name", "") == "input_ids":
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=trust)
            except BaseException as error:  # some checkpoints come without one; who needs it says so
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # as Rust has it
                    raise
                without = reason(error) if "trust_remote_code" not in str(error) else "its own code, which is not run"
    vision = getattr(model, "main_input_name", "") == "pixel_values"
    beside = _processor_folder(name) if folder is None and vision else folder
    loaded = _described(model, name, beside, tokenizer)
    loaded.processor = None if folder is not None else beside
    loaded.no_tokenizer = without
    loaded.remarks += remarks
    return loaded


def _fetched_config(name: str) -> dict[str, Any]:
    """The configuration of a hub id; empty where it cannot be had, and who loads it says why."""
    hub = borrow("huggingface_hub", f"fetching {name}")
    with contextlib.suppress(Exception):
        kept = hub.try_to_load_from_cache(name, "config.json")
        return read_config(Path(kept if isinstance(kept, str) else hub.hf_hub_download(name, "config.json")).parent)
    return {}


def _check_texts(folder: Path) -> None:
    """Refuse, before libraries read them whole, files beside the weights that are larger than any that was meant."""
    for file in folder.iterdir():
        if file.suffix in _TEXTS and file.is_file() and (size := file.stat().st_size) > _MOST_TEXT:
            raise InputError(f"{file} has {size:,} bytes, over {_MOST_TEXT:,}; fetch it again, or remove it")


def _described(model: nn.Module, name: str, folder: Path | None, tokenizer: Any) -> Loaded:
    """What a live model says about the inputs it takes."""
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", None)
    if (timm_settings := _timm_settings(model)) is not None:
        # What lies beside the weights is theirs; a live model of the same architecture may have another's.
        stated = read_config(folder).get("pretrained_cfg") if folder is not None else None
        preprocessing = Preprocessing.from_timm(stated if isinstance(stated, dict) else timm_settings, name)
        remarks = [preprocessing.note] if preprocessing.note else []
        return Loaded(model, name, "vision", preprocessing=preprocessing, argument="x", remarks=remarks)
    if main == "pixel_values":
        part = getattr(config, "vision_config", config)
        size = image_size(name, getattr(part, "image_size", 224))
        if folder is not None:
            preprocessing = Preprocessing.from_folder(folder, image_size=size, name=name)
        else:
            preprocessing = Preprocessing.unstated(name, image_size=size)
        remarks = [preprocessing.note] if preprocessing.note else []
        return Loaded(model, name, "vision", preprocessing=preprocessing, remarks=remarks)
    if main == "input_ids" or tokenizer is not None:
        longest = next((getattr(config, key) for key in _LONGEST if isinstance(getattr(config, key, None), int)), None)
        if longest is not None and getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
            longest -= 2  # its positions start at 2
        return Loaded(model, name, "text", tokenizer=tokenizer, longest=longest)
    return Loaded(model, name, "other")


def _timm_settings(model: nn.Module) -> dict[str, Any] | None:
    """The pretrained_cfg of a timm model (default_cfg, in old versions); None for any other model."""
    for key in ("pretrained_cfg", "default_cfg"):
        found = getattr(model, key, None)
        if dataclasses.is_dataclass(found) and not isinstance(found, type):
            found = dataclasses.asdict(found)
        if isinstance(found, dict) and found:
            return found
    return None


def _steered_weights(name: str, folder: Path | None) -> str | None:
    """The file of a steered model's weights where it is not the one that transformers looks for."""
    if folder is not None:
        # save_pretrained into the same directory since, as a Trainer does it, leaves newer ones under the usual name.
        newer = not Checkpoint(folder).files[0].name.startswith(STEERED)
        return None if newer else next(file for file in WEIGHTS if (folder / file).is_file())
    hub = borrow("huggingface_hub", f"fetching {name}")
    for file in WEIGHTS:
        with contextlib.suppress(Exception):  # it is not there
            kept = hub.try_to_load_from_cache(name, file)
            if isinstance(kept, str) or hub.hf_hub_download(name, file):
                return file
    return None


def _processor_folder(name: str) -> Path | None:
    """Where the cache has what states a hub id's preprocessing, fetched if need be; None where nothing does."""
    hub = borrow("huggingface_hub", f"fetching {name}")
    found = None
    for file in FILES:
        with contextlib.suppress(Exception):  # not in the repository, or not in the cache and no network
            kept = hub.try_to_load_from_cache(name, file)
            found = Path(kept if isinstance(kept, str) else hub.hf_hub_download(name, file)).parent
    return found


def _check_reachable(name: str, files: tuple[str, ...] = ("config.json",)) -> None:
    """Without a network the libraries try again and again before they say so; names in their cache need none."""
    hub = borrow("huggingface_hub", f"fetching {name}")
    with contextlib.suppress(Exception):
        if any(isinstance(hub.try_to_load_from_cache(name, file), str) for file in files):
            return
    if getattr(hub.constants, "HF_HUB_OFFLINE", False):
        raise InputError(
            f"{name!r} is no path here and not in the hub's cache, and HF_HUB_OFFLINE is set; "
            "unset it, or give the directory of a downloaded checkpoint"
        )
    try:
        socket.getaddrinfo(urlparse(hub.constants.ENDPOINT).hostname, 443)
    except OSError as error:
        raise InputError(_not_fetched(name, error)) from error


def _not_fetched(name: str, error: Exception) -> str:
    first = reason(error)
    if "trust_remote_code" in str(error):
        return (
            f"{name} comes with code of its own, which is not run; if you trust it, give --trust-remote-code, or load "
            "it yourself and call oversmooth.diagnose(model, inputs)"
        )
    if Path(name.removeprefix("local-dir:")).exists():
        return f"{name.removeprefix('local-dir:')} could not be loaded ({first}); check its files"
    return (
        f"{name!r} is no path here and could not be fetched by that name ({type(error).__name__}: {first}); "
        "check the spelling, or, without a network, give the directory of a downloaded checkpoint"
    )


def _seeded(seed: int, make: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: nn.Module = make()
        return made


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the library's own progress bars and advice: what matters is said in remarks."""
    tools = transformers.utils.logging
    level = tools.get_verbosity()
    bars = getattr(tools, "is_progress_bar_enabled", lambda: True)()
    tools.set_verbosity(logging.CRITICAL)
    tools.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        tools.set_verbosity(level)
        if bars:
            tools.enable_progress_bar()
