"""The trained models of a results directory: found by what they were trained by, and as one archive for a release.

    oversmooth reproduce table1 --trained --data IMAGES      table 2's models; likewise fig2, fig3 and fig5
    oversmooth reproduce models --pack models.zip            all models: safetensors, none compressed, with checksums
    oversmooth reproduce models --from models.zip

Nothing of an archive is trusted: files are called by the key of their recipe and go to results/models, whatever the
archive calls them; each is checked against its checksum and its recipe before it gets that name.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_folder, check_plain, check_writable, parse_json, whole_file
from oversmooth.safety.typed import typed
from oversmooth_papers.engine.saved_model import recipe_of
from oversmooth_papers.tables.provenance import file_hash
from oversmooth_papers.tables.table2 import column
from oversmooth_papers.tasks.images.recipe import percent

MANIFEST = "checksums.json"
_NAME = re.compile(r"[0-9a-f]{12}\.safetensors")
_LARGEST = 2**32  # bytes of one model
_LARGEST_MANIFEST = 2**22
_PIECE = 2**22
_REMEDY = "give an archive that oversmooth reproduce models --pack wrote"


def find(results: Path, share: float, seed: int | None = None) -> list[Path]:
    """The models of one column of table 2, each variant at least once; of one seed, or of all that are there."""
    there = [(path, recipe_of(path)) for path in sorted((results / "models").glob("*"))]
    models = []
    for wanted in column(share):
        own = {
            recipe.seed: path
            for path, recipe in there
            if recipe is not None and recipe == replace(wanted, seed=recipe.seed) and seed in (None, recipe.seed)
        }
        if not own:
            title = wanted.label if seed is None else replace(wanted, seed=seed).title
            words = ["--cells", percent(share).replace(" ", ""), *(["--seeds", str(seed + 1)] if seed else [])]
            made = f"make it with oversmooth reproduce table2 {' '.join(words)} --results {results}"
            release = "take a release's with oversmooth reproduce models --from FILE"
            raise InputError(f"there is no model {title}; {made}, or {release}")
        models += [own[number] for number in sorted(own)]
    return models


def pack(results: Path, archive: Path) -> list[str]:
    """All models of a results directory in one file; the titles of what is in it."""
    check_writable(archive, (".zip",))
    files = sorted(path for path in (results / "models").glob("*.safetensors") if _NAME.fullmatch(path.name))
    if not files:
        raise InputError(f"{results / 'models'} has no models; oversmooth reproduce table2 makes some")
    titles = [
        _title(path, path.name, f"{path} is not the model it is named by; remove it, or train it again")
        for path in files
    ]
    with whole_file(archive) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as opened:
        sums = {path.name: file_hash(path) for path in files}
        opened.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(sums, indent=1))
        for path in files:
            # All of one day, so that equal models make equal archives, and whatever day a file says it is of.
            with path.open("rb") as model, opened.open(zipfile.ZipInfo(path.name), "w", force_zip64=True) as packed:
                shutil.copyfileobj(model, packed, _PIECE)
    return titles


def unpack(archive: Path, results: Path) -> list[str]:
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
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{archive} cannot be read ({reason(error)}); {_REMEDY}") from error
    return titles


def _sums(opened: zipfile.ZipFile, archive: Path) -> dict[str, str]:
    if MANIFEST not in opened.namelist() or opened.getinfo(MANIFEST).file_size > _LARGEST_MANIFEST:
        raise InputError(f"{archive} has no {MANIFEST}; {_REMEDY}")
    sums: dict[str, str] = typed(dict[str, str], parse_json(opened.read(MANIFEST), f"{MANIFEST} is no JSON", _REMEDY))
    if sorted(opened.namelist()) != sorted([MANIFEST, *sums]):
        raise InputError(f"{archive} holds other files than its {MANIFEST} names; {_REMEDY}")
    for info in map(opened.getinfo, sums):
        stored = info.compress_type == zipfile.ZIP_STORED and info.file_size <= _LARGEST
        if not _NAME.fullmatch(info.filename) or not stored:
            why = "is no name of a model, is compressed, or is larger than any model"
            raise InputError(f"{archive}: {info.filename!r} {why}; {_REMEDY}")
    return sums


def _take(opened: zipfile.ZipFile, archive: Path, name: str, digest: str, target: Path) -> str:
    """One model; its title. It has its name once it is known to be what it says."""
    with whole_file(target) as temporary:
        with opened.open(name) as packed, temporary.open("wb") as file:
            shutil.copyfileobj(packed, file, _PIECE)
        if file_hash(temporary) != digest:
            raise InputError(f"{archive}: {name} does not have its checksum; fetch the archive again")
        return _title(temporary, name, f"{archive}: {name} is not the model it is named by; {_REMEDY}")


def _title(path: Path, name: str, refusal: str) -> str:
    """Of the model in a file that is to have this name."""
    recipe = recipe_of(path)
    if recipe is None or f"{recipe.key}.safetensors" != name:
        raise InputError(refusal)
    return recipe.title
