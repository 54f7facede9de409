"""Which files a name or a folder stands for, and the reader for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth_papers.tasks.images.data import binary, idx, parquet, pickles
from oversmooth_papers.tasks.images.data.cache import remembered
from oversmooth_papers.tasks.images.data.images import Images
from oversmooth_papers.tasks.images.data.known import KNOWN, Known, known
from oversmooth_papers.tasks.images.data.parquet import OnRows

Split = Literal["train", "test"]
SYSTEM = Path("/usr/share/datasets")
"""Where Debian puts data sets."""
_LAYOUTS = "train-*.parquet, CIFAR's python or binary version (train, train.bin), train-images-idx3-ubyte[.gz]"


def load(
    what: str | Path,
    split: Split = "train",
    *,
    folder: Path | str | None = None,
    coarse: bool = False,
    cache: bool = True,
    progress: OnRows | None = None,
) -> Images:
    """The images of a data set, by name or from the folder that holds it.

    A name (cifar100, cifar10, fashion-mnist, mnist) is looked for in ``folder``, else in OVERSMOOTH_DATA and the
    system's data sets (there under its usual folder name, in ``data/`` or not, or the folder itself), and then fetched
    from the hub. Write ./cifar100 for a folder of that name. ``coarse`` takes CIFAR-100's 20 classes. ``cache`` keeps
    decoded images in the user's cache directory; ``progress`` is called with the images read and the total.
    """
    if split not in ("train", "test"):
        raise InputError(f"there is no split {split!r}; choose train or test")
    named = known(what) if isinstance(what, str) else None
    if named is None:
        if folder is not None:
            raise InputError(f"{what} is no known data set to look for in {folder}; choose one of {', '.join(KNOWN)}")
        home = Path(what)
        if not home.is_dir():
            names = ", ".join(KNOWN)
            raise InputError(f"{what} is no folder and no known data set; give a folder, or one of {names}")
        _check_there(home, split)
    else:
        home = _home(named, split, folder) or _fetched(named, split, folder)
    images = _read(home, split, named, coarse, cache, progress)
    if coarse and images.name != "cifar100":
        raise InputError(f"{home} holds {images.name}, which has no coarse labels; leave coarse out")
    expected = named or KNOWN.get(images.name)
    if expected is not None:
        expected.check(images, str(home), coarse=coarse)
    return images


def _read(home: Path, split: Split, named: Known | None, coarse: bool, cache: bool, progress: OnRows | None) -> Images:
    name = named.name if named else _called(home)
    if files := parquet.files(home, split):

        def make() -> Images:
            return parquet.read(files, name, coarse=coarse, progress=progress)

        return remembered(files, f"{name} coarse {coarse}", make) if cache else make()
    if files := pickles.files(home, split):
        return pickles.read(files, coarse=coarse)
    if files := binary.files(home, split):
        return binary.read(files, coarse=coarse)
    return idx.read(idx.files(home, split), name)


def _called(home: Path) -> str:
    """The known set that a folder of this name comes with, or its name."""
    name = home.resolve().name
    for entry in KNOWN.values():
        if name in entry.folders or known(name) is entry:
            return entry.name
    return name


def _has(home: Path, split: Split) -> bool:
    return any(layout.files(home, split) for layout in (parquet, pickles, binary, idx))


def _check_there(home: Path, split: Split) -> None:
    if _has(home, split):
        return
    other: Split = "test" if split == "train" else "train"
    if _has(home, other):
        raise InputError(f"{home} has the {other} split and not the {split} split; fetch that too")
    packed = sorted(home.glob("*.tar.gz"))
    hint = f"unpack {packed[0].name} first" if packed else f"looked for {_LAYOUTS}"
    raise InputError(f"{home} holds no data set in a known layout; {hint}")


def _home(named: Known, split: Split, folder: Path | str | None) -> Path | None:
    return next((home for home in _candidates(named, folder) if home.is_dir() and _has(home, split)), None)


def _roots(folder: Path | str | None) -> list[Path]:
    if folder is not None:
        if not Path(folder).is_dir():
            raise InputError(f"there is no folder {folder} to look for data in; name one that is there")
        return [Path(folder)]
    given = os.environ.get("OVERSMOOTH_DATA")
    return [*([Path(given)] if given else []), SYSTEM]


def _candidates(named: Known, folder: Path | str | None) -> Iterator[Path]:
    roots = _roots(folder)
    for root in roots:
        for inside in ("data", ""):
            yield from (root / inside / name for name in named.folders)
    # The folder itself last, as it may hold another set, and never the system's, which holds many.
    yield from (root for root in roots if root != SYSTEM)


def _fetched(named: Known, split: Split, folder: Path | str | None) -> Path:
    """The hub's copy of the split, from its cache or over the network."""
    looked = " and ".join(str(root) for root in _roots(folder))
    hub = import_library("huggingface_hub", f"fetching {named.name}, which is not in {looked},")
    try:
        snapshot = hub.snapshot_download(named.hub, repo_type="dataset", allow_patterns=[f"*{split}-*.parquet"])
    except Exception as error:  # every network library under it has its own
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise InputError(
            f"{named.name} is not in {looked} and cannot be fetched from the hub ({reason}); "
            f"set OVERSMOOTH_DATA to a folder that holds {named.folders[0]}"
        ) from error
    if not _has(Path(snapshot), split):
        raise InputError(f"the hub's {named.hub} has no {split} parquet files; name a folder that holds {named.name}")
    return Path(snapshot)
