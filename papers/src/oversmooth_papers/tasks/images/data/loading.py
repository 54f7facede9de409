"""Which files a name or a folder stands for, the reader for them, and a cache of decoded images."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import cache_folder, whole_file
from oversmooth.safety.libraries import import_library
from oversmooth.safety.signals import held_back
from oversmooth.safety.typed import typed
from oversmooth_papers.tasks.images.data import readers
from oversmooth_papers.tasks.images.data.images import KNOWN, Images, Known, Splits, known

Split = Literal["train", "test"]
SYSTEM = Path("/usr/share/datasets")
"""Where Debian puts data sets."""
_LAYOUTS = "train-*.parquet, CIFAR's python or binary version (train, train.bin), train-images-idx3-ubyte[.gz]"
_VERSION = 1  # of what is kept: raise it when the readers come to give something else


def load_splits(what: str | Path) -> Splits:
    """Both splits, by name or from their folder."""
    return Splits(load(what, "train"), load(what, "test"))


def load(what: str | Path, split: Split = "train", *, coarse: bool = False, cache: bool = True) -> Images:
    """The images of a data set, by name or from the folder that holds it.

    A name (cifar100, cifar10, fashion-mnist, mnist) is looked for in OVERSMOOTH_DATA and the system's data sets (there
    under its usual folder name, in ``data/`` or not, or the folder itself), and then fetched from the hub. Write
    ./cifar100 for a folder of that name. ``coarse`` takes CIFAR-100's 20 classes. ``cache`` keeps decoded images in the
    user's cache directory.
    """
    if split not in ("train", "test"):
        raise InputError(f"there is no split {split!r}; choose train or test")
    named = known(what) if isinstance(what, str) else None
    home = Path(what) if named is None else _home(named, split)
    if not home.is_dir():
        raise InputError(f"{what} is no folder and no known data set; give a folder, or one of {', '.join(KNOWN)}")
    # A folder of its usual name holds a known set.
    called = home.resolve().name
    usual = next((entry for entry in KNOWN.values() if called in entry.folders), None)
    kind = named or known(called) or usual
    make = _reader(home, split, kind.name if kind else called, coarse, cache)
    if make is None:
        raise InputError(_why_none(home, split))
    images = make()
    if coarse and images.name != "cifar100":
        raise InputError(f"{home} holds {images.name}, which has no coarse labels; leave coarse out")
    if expected := named or KNOWN.get(images.name):
        expected.check(images, str(home), coarse=coarse)
    return images


def _reader(
    home: Path, split: Split, name: str = "", coarse: bool = False, cache: bool = False
) -> Callable[[], Images] | None:
    """What reads the split from this folder; None where it is in no known layout."""
    if files := readers.parquet_files(home, split):
        decoded = partial(readers.read_parquet, files, name, coarse=coarse)
        return partial(_remembered, files, f"{name} coarse {coarse}", decoded) if cache else decoded
    if files := readers.cifar_files(home, split, ""):
        return partial(readers.read_pickles, files, coarse=coarse)
    if files := readers.cifar_files(home, split, ".bin"):
        return partial(readers.read_binary, files, coarse=coarse)
    if files := readers.idx_files(home, split):
        return partial(readers.read_idx, files, name)
    return None


def _why_none(home: Path, split: Split) -> str:
    other: Split = "test" if split == "train" else "train"
    if _reader(home, other):
        return f"{home} has the {other} split and not the {split} split; fetch that too"
    packed = sorted(home.glob("*.tar.gz"))
    hint = f"unpack {packed[0].name} first" if packed else f"looked for {_LAYOUTS}"
    return f"{home} holds no data set in a known layout; {hint}"


def _home(named: Known, split: Split) -> Path:
    """The folder that holds a known set: here, or the hub's copy, from its cache or over the network."""
    given = os.environ.get("OVERSMOOTH_DATA")
    roots = [*([Path(given)] if given else []), SYSTEM]
    places = [root / inside / name for root in roots for inside in ("data", "") for name in named.folders]
    # The folder itself last, as it may hold another set, and never the system's, which holds many.
    for place in (*places, *roots[:-1]):
        if place.is_dir() and _reader(place, split):
            return place
    looked = " and ".join(map(str, roots))
    hub = import_library("huggingface_hub", f"fetching {named.name}, which is not in {looked},")
    try:
        snapshot = hub.snapshot_download(named.hub, repo_type="dataset", allow_patterns=[f"*{split}-*.parquet"])
    except Exception as error:  # every network library under it has its own
        raise InputError(
            f"{named.name} is not in {looked} and cannot be fetched from the hub ({reason(error)}); "
            f"set OVERSMOOTH_DATA to a folder that holds {named.folders[0]}"
        ) from error
    return Path(snapshot)


def _remembered(files: Sequence[Path], question: str, make: Callable[[], Images]) -> Images:
    """What ``make`` gives, kept under a name that changes when the files or the question do.

    CIFAR-100 takes 6 s to decode and no time to map. What cannot be kept or read back is made: never a reason to stop.
    """
    facts = [(str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    key = hashlib.sha256(json.dumps([_VERSION, question, facts]).encode()).hexdigest()[:24]
    path = cache_folder() / f"images-{key}.safetensors"
    # Any of these means a file that is not there, not whole, or not ours.
    with contextlib.suppress(OSError, SafetensorError, InputError, KeyError, ValueError, TypeError, RecursionError):
        with held_back(), safe_open(path, "pt") as opened:
            notes = opened.metadata()
            pixels, labels = opened.get_tensor("images"), opened.get_tensor("labels")
        return Images(pixels, labels, typed(list[str], json.loads(notes["classes"])), notes["name"])
    images = make()
    with contextlib.suppress(OSError, InputError), whole_file(path) as temporary:
        notes = {"name": images.name, "classes": json.dumps(images.classes)}
        save_file({"images": images.images, "labels": images.labels}, temporary, notes)
    return images
