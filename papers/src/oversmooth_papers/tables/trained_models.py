"""The trained models of a results directory: found by what they were trained by, and as one archive for a release.

    oversmooth reproduce table1 --trained --data IMAGES      table 2's models; likewise fig2, fig3 and fig5
    oversmooth reproduce models --pack models.zip            all models: safetensors, none compressed
    oversmooth reproduce models --from models.zip

Nothing of an archive is trusted: files go to results/models and are called by the key of their recipe, which each is
checked against before it gets that name.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.files import check_folder, check_plain, check_writable, whole_file
from oversmooth_papers.engine.saved_model import recipe_of
from oversmooth_papers.tables.provenance import file_hash
from oversmooth_papers.tables.table2 import column
from oversmooth_papers.tasks.images.recipe import percent

_NAME = re.compile(r"[0-9a-f]{12}\.safetensors")
_CHECKSUMS = "checksums.json"  # in archives of earlier versions; a zip checks each file itself
_LARGEST = 2**32  # bytes of one model
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
    wrong = "is not the model it is named by; remove it, or train it again"
    titles = [_title(path, path.name, f"{path} {wrong}") for path in files]
    with whole_file(archive) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as opened:
        for path in files:
            # All of one day, so that equal models make equal archives, and whatever day a file says it is of.
            with path.open("rb") as model, opened.open(zipfile.ZipInfo(path.name), "w", force_zip64=True) as packed:
                shutil.copyfileobj(model, packed, _PIECE)
    return titles


def unpack(archive: Path, results: Path) -> list[str]:
    """The models of an archive into results/models; the titles of those that were not there yet."""
    check_plain(archive, _REMEDY)
    check_folder(results / "models")
    try:
        with zipfile.ZipFile(archive) as opened:
            files = [info for info in opened.infolist() if info.filename != _CHECKSUMS]
            for info in files:
                stored = info.compress_type == zipfile.ZIP_STORED and info.file_size <= _LARGEST
                if not _NAME.fullmatch(info.filename) or not stored:
                    why = "is no name of a model, is compressed, or is larger than any model"
                    raise InputError(f"{archive}: {info.filename!r} {why}; {_REMEDY}")
            titles = [_take(opened, archive, info.filename, results / "models" / info.filename) for info in files]
    except InputError:
        raise
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{archive} cannot be read ({reason(error)}); {_REMEDY}") from error
    return [title for title in titles if title]


def _take(opened: zipfile.ZipFile, archive: Path, name: str, target: Path) -> str:
    """One model, which has its name once it is known to be what it says; its title, or none if it was there."""
    there = file_hash(target) if target.is_file() else ""
    with whole_file(target) as temporary:
        with opened.open(name) as packed, temporary.open("wb") as file:
            shutil.copyfileobj(packed, file, _PIECE)
        if there not in ("", file_hash(temporary)):
            raise InputError(f"{target} is there already and differs; move it away to take the archive's")
        title = _title(temporary, name, f"{archive}: {name} is not the model it is named by; {_REMEDY}")
    return "" if there else title


def _title(path: Path, name: str, refusal: str) -> str:
    """Of the model in a file that is to have this name."""
    recipe = recipe_of(path)
    if recipe is None or f"{recipe.key}.safetensors" != name:
        raise InputError(refusal)
    return recipe.title
