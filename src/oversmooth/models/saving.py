"""Save a loaded model as a directory that can be loaded again."""

from __future__ import annotations

import shutil
from pathlib import Path

from oversmooth.anatomy.steered import steered_as
from oversmooth.inputs.preprocessing import FILES
from oversmooth.models.from_timm import save_timm
from oversmooth.models.from_transformers import quiet
from oversmooth.models.loaded import Loaded
from oversmooth.safety.files import whole_folder
from oversmooth.safety.libraries import import_library
from oversmooth.steering.saving import rename_weights

_CODE = (".py", ".pyc", ".pyd", ".so", ".pkl", ".pickle", ".joblib")
_MOST_BESIDE = 2**30  # bytes: larger files are data or weights
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")


def save(loaded: Loaded, path: Path) -> None:
    """Write a directory that `load` reads, whole or not at all: weights, configuration, and files beside them.

    Args:
        loaded: the result of `load`.
        path: a new directory.

    Raises:
        InputError: it cannot be written, or the model has no configuration.
    """
    beside = _beside(loaded.folder) if loaded.folder is not None else []
    with whole_folder(path) as temporary:
        write = getattr(loaded.model, "save_pretrained", None)
        if loaded.write is not None:
            loaded.write(loaded.model, temporary / "model.safetensors")
        elif write is not None:
            with quiet(import_library("transformers", "saving")):
                write(temporary)
                if loaded.folder is None and loaded.tokenizer is not None:
                    loaded.tokenizer.save_pretrained(temporary)
        else:
            save_timm(loaded.model, temporary)
        if loaded.write is None and steered_as(loaded.model) is not None:
            rename_weights(temporary)
        processor = [] if loaded.processor is None else [loaded.processor / name for name in FILES]
        for file in (*filter(Path.is_file, processor), *beside):
            if not (temporary / file.name).exists():
                shutil.copyfile(file, temporary / file.name)


def _beside(folder: Path) -> list[Path]:
    """Files to copy with a checkpoint: neither weights, code nor large files, and only those inside it.

    A link may lead to any file that the user can read. The hub's cache consists of links, from snapshots to blobs of
    the same repository.
    """
    home = folder.resolve()
    inside = [home, *([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])]
    return [
        file
        for file in sorted(folder.iterdir())
        if file.suffix not in (*_WEIGHTS, *_CODE)
        and not file.name.endswith(".index.json")
        and file.is_file()
        and file.stat().st_size <= _MOST_BESIDE
        and any(file.resolve().is_relative_to(parent) for parent in inside)
    ]
