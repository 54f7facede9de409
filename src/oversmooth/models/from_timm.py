"""timm models: by name, and from directories that timm wrote."""

from __future__ import annotations

import contextlib
import json
import reprlib
from pathlib import Path

from torch import nn

from oversmooth.anatomy.checkpoint import Checkpoint, read_config
from oversmooth.anatomy.steered import steered_as
from oversmooth.models.building import check_numbers, watched
from oversmooth.models.hub import check_reachable, fetching
from oversmooth.models.loaded import Loaded, LoadRequest, described
from oversmooth.models.remote_code import arrays_only
from oversmooth.models.sources import folder_of, is_timm
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth.safety.model_state import seeded
from oversmooth.steering.saving import read_file, restore_into

LIBRARY = "timm"
# Arguments that make timm load another file.
_LOADING = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")


def accepts(name: str) -> bool:
    path = Path(name)
    return is_timm(folder_of(path)) if path.exists() else is_timm_name(name)


def load(wanted: LoadRequest) -> Loaded:
    name, random, folder = wanted.name, wanted.random, None
    if Path(name).exists():
        folder = folder_of(Path(name))
        name = f"local-dir:{folder}"
    elif not random:
        check_reachable(timm_repository(name), ("config.json", "model.safetensors"))
    timm = import_library("timm", f"loading the timm model {name}")
    hub = name.replace("timm/", "hf-hub:timm/", 1) if name.startswith("timm/") else name
    config = read_config(folder) if folder is not None else {}
    if folder is not None:
        architecture = config["architecture"]
        if not isinstance(architecture, str) or ":" in architecture or not timm.is_model(architecture):
            named = reprlib.repr(architecture)
            raise InputError(f"{folder}: timm does not have the architecture {named}; fix config.json, or upgrade timm")
        check_numbers(config, str(folder))
    with fetching(name), watched(name), arrays_only(), seeded(wanted.seed):
        if random and folder is not None:
            model = timm.create_model(config["architecture"], pretrained=False)
        elif folder is not None and (settings := config.get("oversmooth")):
            (file,) = Checkpoint(folder).files
            made = {key: config[key] for key in ("num_classes", "global_pool") if key in config}
            if isinstance(given := config.get("model_args"), dict):
                made |= {key: value for key, value in given.items() if key not in _LOADING}
            model = timm.create_model(config["architecture"], pretrained=False, **made)
            arrays, _ = read_file(file)
            restore_into(model, settings, arrays, folder)
        else:
            if folder is not None:
                Checkpoint(folder)  # refuses missing or damaged weights, and pickles
            model = timm.create_model(hub, pretrained=not random)
    loaded = described(model, name, folder, None)
    return loaded if folder is None else loaded.of_folder(folder)


def is_timm_name(name: str) -> bool:
    """Whether a name that is not a path is a timm name, as far as is known without a network."""
    if name.startswith(("timm/", "hf_hub:timm/", "hf-hub:timm/")):
        return True
    if "/" in name:
        return False
    with contextlib.suppress(InputError):
        return bool(import_library("timm", "a timm model").is_model(name))
    return False


def timm_repository(name: str) -> str:
    """The hub repository of a timm name; the name itself if timm states none."""
    if "/" in name:
        return name.rpartition(":")[2]
    repository = getattr(import_library("timm", "a timm name").get_pretrained_cfg(name), "hf_hub_id", None)
    return repository if isinstance(repository, str) and repository else name


def save_timm(model: nn.Module, folder: Path) -> None:
    timm = import_library("timm", "saving a timm model")
    if not hasattr(model, "pretrained_cfg"):
        raise InputError(f"{type(model).__name__} has no configuration to save; use save_steered(model, file)")
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    if (steering := steered_as(model)) is not None:
        config = read_config(folder) | {"oversmooth": steering.settings()}
        (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
