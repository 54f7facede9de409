"""transformers models: by hub id, and from directories."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from oversmooth.anatomy import locate
from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.models.building import check_numbers, watched
from oversmooth.models.hub import cached, check_reachable, fetch, fetched_config, fetching, processor_folder
from oversmooth.models.loaded import Loaded, LoadRequest, described
from oversmooth.models.on_disk import OnDisk, on_meta
from oversmooth.models.remote_code import arrays_only, check_asks_for_none, class_of, code_run
from oversmooth.models.sources import folder_of
from oversmooth.safety.errors import InputError, reason, refusal
from oversmooth.safety.libraries import import_library, unusable
from oversmooth.safety.model_state import seeded
from oversmooth.steering.apply import MARKER
from oversmooth.steering.saving import STEERED, WEIGHTS, steered_class

LIBRARY = "transformers"
_TEXTS = (".json", ".txt", ".model", ".jinja", ".jsonl")
_MOST_TEXT = 2**28
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def accepts(_name: str) -> bool:
    """Any name that no other loader accepts: only transformers knows whether it exists."""
    return True


def load(wanted: LoadRequest) -> Loaded:
    name = wanted.name
    if Path(name).exists():
        folder = folder_of(Path(name))
        return from_transformers(str(folder), folder, wanted).of_folder(folder)
    try:
        return from_transformers(name, None, wanted)
    except InputError as error:
        if "/" not in name and (without := refusal(import_library, "timm", "a timm name")):  # it may be one of timm's
            raise InputError(f"{error}; {without}") from error
        raise


def from_transformers(name: str, folder: Path | None, wanted: LoadRequest) -> Loaded:
    random, dtype, trust = wanted.random, wanted.dtype, wanted.trust_remote_code
    transformers = import_library("transformers", f"loading {name}")
    with quiet(transformers), arrays_only():
        if folder is None:
            check_reachable(name)
        else:
            _check_texts(folder)
        stated = read_config(folder) if folder is not None else fetched_config(name)
        check_numbers(stated, name)
        if not trust:
            check_asks_for_none(stated, name)
        with fetching(name):
            # Explicit: without it transformers asks on standard input whether to run code.
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust)
        # Again, because the hub may have a newer version.
        read = config.to_dict() | {"attn_implementation": getattr(config, "_attn_implementation", None)}
        check_numbers(read, name)
        if not trust:
            check_asks_for_none(read, name)
        if folder is not None and not random:
            Checkpoint(folder)  # refuses missing or damaged weights, and pickles
        try:
            cls = class_of(transformers, config, trust)
        except (ImportError, RuntimeError) as error:  # classes are imported lazily
            raise unusable("transformers", f"loading {name}", error) from error
        settings = getattr(config, "oversmooth", None)  # of a steered model
        load = cls
        if settings and not random:
            load = steered_class(cls, settings)
            if (weights := _steered_weights(name, folder)) is not None:
                config.transformers_weights = weights  # the name that from_pretrained looks for
        remarks, on_disk = code_run(name, config) if trust else [], None
        missing: list[str] = []
        if dtype is None and wanted.device in (None, "cpu") and not wanted.device_map:
            # Half precision is slow or unsupported on a CPU, and float32 holds it exactly.
            dtype = "float32"
        with fetching(name):
            if random:
                make = partial(cls.from_config, trust_remote_code=trust) if hasattr(cls, "from_config") else cls
                with watched(name), seeded(wanted.seed):
                    model = make(config)
            elif wanted.stream:
                on_disk = _on_disk(cls, config, fetch(name) if folder is None else folder, dtype, wanted)
                model = on_disk.model
            else:
                how = dict(config=config, dtype=dtype or "auto", trust_remote_code=trust, **wanted.mapping)
                with contextlib.nullcontext() if wanted.device_map else watched(name):
                    model, info = load.from_pretrained(name, output_loading_info=True, **how)
                missing = sorted(set(info.get("missing_keys", ())) - {MARKER})
                if load is not cls:
                    model.__class__ = cls
                    getattr(model, MARKER).zero_()  # not in files of earlier versions
                    if hasattr(model.config, "transformers_weights"):
                        del model.config.transformers_weights  # what is saved may have the usual name
                inside = tuple(f"{layer.block}." for layer in locate(model))
                if lost := [key for key in missing if key.startswith(inside)]:
                    raise InputError(
                        f"{name} lacks {len(lost)} weights of its blocks (first: {lost[0]}); fetch it again"
                    )
                if missing:
                    drawn = f"{len(missing)} weights are not in the checkpoint and were initialised at random"
                    remarks.append(f"{drawn}: {', '.join(missing[:3])}")
        tokenizer, without = None, ""
        if getattr(model, "main_input_name", "") == "input_ids":
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=trust)
            except BaseException as error:  # some checkpoints come without one; `Loaded.inputs` reports that
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # as Rust has it
                    raise
                without = _why_no_tokenizer(error)
    vision = getattr(model, "main_input_name", "") == "pixel_values"
    processor_files = processor_folder(name) if folder is None and vision else folder
    loaded = described(model, name, processor_files, tokenizer)
    loaded.processor = None if folder is not None else processor_files
    loaded.no_tokenizer, loaded.on_disk = without, on_disk
    loaded.untrained = tuple(missing)
    loaded.remarks += remarks
    return loaded


def _on_disk(cls: Any, config: Any, folder: Path, dtype: str | None, wanted: LoadRequest) -> OnDisk:
    """The model, with its blocks left in its files."""
    for why, is_so in (
        ("it has an encoder and a decoder", getattr(config, "is_encoder_decoder", False)),
        ("its weights are quantised", getattr(config, "quantization_config", None)),
        ("it is steered; fold it first", getattr(config, "oversmooth", None)),
    ):
        if is_so:
            raise InputError(f"{wanted.name} cannot be streamed: {why}; leave --stream out on a machine that holds it")
    checkpoint = Checkpoint(folder)
    stored = {_TYPES.get(one) for one in checkpoint.dtypes} - {None}
    own: Any = config.dtype or (stored.pop() if len(stored) == 1 else torch.float32)
    floating: torch.dtype = getattr(torch, dtype) if dtype else own
    make = partial(cls.from_config, trust_remote_code=wanted.trust_remote_code) if hasattr(cls, "from_config") else None
    with seeded(wanted.seed):
        model = on_meta(lambda: (make or cls._from_config)(config, dtype=floating))
    return OnDisk(model, checkpoint, torch.device(wanted.device or "cpu"), floating, wanted.max_memory)


def _why_no_tokenizer(error: BaseException) -> str:
    if lacking := refusal(
        import_library, "tokenizers", "reading it"
    ):  # without it transformers fails in arbitrary ways
        return lacking
    return reason(error) if "trust_remote_code" not in str(error) else "it needs code of its own, which is not run"


def _check_texts(folder: Path) -> None:
    """Refuse oversized text files beside the weights, before libraries read them whole."""
    for file in folder.iterdir():
        if file.suffix in _TEXTS and file.is_file() and (size := file.stat().st_size) > _MOST_TEXT:
            limit = f"over the limit of {_MOST_TEXT:,}"
            raise InputError(f"{file} has {size:,} bytes, {limit}; fetch it again, or remove it")


def _steered_weights(name: str, folder: Path | None) -> str | None:
    """The file with a steered model's weights, if it is not the one that transformers looks for."""
    if folder is not None:
        # save_pretrained into the same directory since, as a Trainer does it, leaves newer ones under the usual name.
        newer = not Checkpoint(folder).files[0].name.startswith(STEERED)
        return None if newer else next(file for file in WEIGHTS if (folder / file).is_file())
    return next((file for file in WEIGHTS if cached(name, file) is not None), None)


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence the library's progress bars and advice; notes hold what matters."""
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
