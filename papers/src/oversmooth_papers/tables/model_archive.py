"""Trained models as one archive for a release, and from one: safetensors files, none compressed, with checksums.

    oversmooth reproduce models --pack models.zip
    oversmooth reproduce models --from models.zip

Nothing of an archive is trusted: files are called by the key of their recipe and go to results/models, whatever the
archive calls them; each is checked against its checksum and its recipe before it gets that name.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_folder, check_plain, check_writable, parse_json, whole_file
from oversmooth_papers.engine.saved_model import recipe_of
from oversmooth_papers.tables.provenance import file_hash

MANIFEST = "checksums.json"
_NAME = re.compile(r"[0-9a-f]{12}\.safetensors")
_LARGEST = 2**32  # bytes of one model
_LARGEST_MANIFEST = 2**22
_PIECE = 2**22
_REMEDY = "give an archive that oversmooth reproduce models --pack wrote"


def pack(results: Path, archive: Path) -> list[str]:
    """All models of a results directory in one file; the titles of what is in it."""
    check_writable(archive, (".zip",))
    files = sorted(path for path in (results / "models").glob("*.safetensors") if _NAME.fullmatch(path.name))
    titles, sums = [], {}
    for path in files:
        recipe = recipe_of(path)
        if recipe is None or recipe.key != path.stem:
            raise InputError(f"{path} is not the model it is named by; remove it, or train it again")
        titles.append(recipe.title)
        sums[path.name] = file_hash(path)
    if not files:
        raise InputError(f"{results / 'models'} has no models; oversmooth reproduce table2 makes some")
    with whole_file(archive) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as opened:
        opened.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(sums, indent=1))
        for path in files:
            # All of one day, so that equal models make equal archives, and whatever day a file says it is of.
            with path.open("rb") as model, opened.open(zipfile.ZipInfo(path.name), "w", force_zip64=True) as packed:
                shutil.copyfileobj(model, packed, _PIECE)
    return titles


def unpack(archive: Path, results: Path, on_message: Callable[[str], None] = lambda _line: None) -> list[str]:
    """The models of an archive into results/models; the titles of those that were not there yet."""
    check_plain(archive, _REMEDY)
    check_folder(results / "models")
    titles = []
    try:
        with zipfile.ZipFile(archive) as opened:
            for name, digest in _sums(opened, archive).items():
                target = results / "models" / name
                if target.is_file() and file_hash(target) == digest:
                    continue
                if target.exists():
                    raise InputError(f"{target} is there already and differs; move it away to take the archive's")
                titles.append(_take(opened, archive, name, digest, target))
                on_message(titles[-1])
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{archive} cannot be read ({reason(error)}); {_REMEDY}") from error
    return titles


def _sums(opened: zipfile.ZipFile, archive: Path) -> dict[str, str]:
    names = opened.namelist()
    if len(names) != len(set(names)):
        raise InputError(f"{archive} has two files of one name; {_REMEDY}")
    if MANIFEST not in names or opened.getinfo(MANIFEST).file_size > _LARGEST_MANIFEST:
        raise InputError(f"{archive} has no {MANIFEST}; {_REMEDY}")
    sums = parse_json(opened.read(MANIFEST), f"{archive}: {MANIFEST} is no JSON", _REMEDY)
    if not isinstance(sums, dict) or not sums or not all(isinstance(value, str) for value in sums.values()):
        raise InputError(f"{archive}: {MANIFEST} names no checksums; {_REMEDY}")
    if wrong := {*sums, *names} - {MANIFEST} - {*sums}.intersection(names):
        raise InputError(f"{archive}: {sorted(wrong)[0]!r} is not both in it and in {MANIFEST}; {_REMEDY}")
    for name in sums:
        info = opened.getinfo(name)
        if not _NAME.fullmatch(name):
            raise InputError(f"{archive}: {name!r} is no name of a model; {_REMEDY}")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > _LARGEST:
            raise InputError(f"{archive}: {name} is compressed, or larger than any model; {_REMEDY}")
    return sums


def _take(opened: zipfile.ZipFile, archive: Path, name: str, digest: str, target: Path) -> str:
    """One model; its title. It has its name once it is known to be what it says."""
    with whole_file(target) as temporary:
        own = hashlib.sha256()
        with opened.open(name) as packed, temporary.open("wb") as file:
            while piece := packed.read(_PIECE):
                own.update(piece)
                file.write(piece)
        if own.hexdigest() != digest:
            raise InputError(f"{archive}: {name} does not have its checksum; fetch the archive again")
        recipe = recipe_of(temporary)
        if recipe is None or f"{recipe.key}.safetensors" != name:
            raise InputError(f"{archive}: {name} is not the model it is named by; {_REMEDY}")
        return recipe.title
