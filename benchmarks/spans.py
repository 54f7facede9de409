"""What predicts the effect of leaving a span of blocks out, and of running it twice: eleven models of seven families.

python benchmarks/spans.py --measure results/spans.json    measure what the file lacks, model by model
python benchmarks/spans.py results/spans.json              compare predictors

Needs OVERSMOOTH_DATA with imagenet-val-1k, cifar-100 and the weights of the gallery, and the gallery's packages.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scipy.stats
import torch

import oversmooth
from oversmooth.demo import gallery, vits
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.models import load
from oversmooth.safety.files import data_folder

ROOT = Path(__file__).parents[1]
INPUTS, BATCH, TOKENS, LONGEST = 16, 8, 64, 4
CIFAR = {"44136fa355b3": "ViT-Ti", "fa1e4b4ff5f3": "ViT-Ti⁺", "72b50af0c06f": "ViT-Ti⁻"}
Source = Callable[[], tuple[Any, Any]]


def models() -> dict[str, tuple[str, Source]]:
    """By title: the family, and what makes the model and its inputs."""

    def text(key: str) -> tuple[Any, Any]:
        loaded, _ = gallery.entries()[key].make()
        return loaded, loaded.inputs(count=INPUTS, length=TOKENS, batch=BATCH)

    def images(loaded: Any, data: Path | str) -> tuple[Any, Any]:
        inputs = loaded.inputs(data, count=INPUTS, batch=BATCH)
        return loaded, [Batch(batch.inputs) for batch in inputs]  # without labels: KL has less noise

    def stories() -> tuple[Any, Any]:
        """Its own stories: other prose costs it 5.7 nats a token."""
        loaded = load(str(data_folder("stories15m")))
        torch.manual_seed(0)
        begin = torch.full((INPUTS, 1), loaded.tokenizer.bos_token_id)
        ids = loaded.model.generate(begin, do_sample=True, min_new_tokens=TOKENS, max_new_tokens=TOKENS, top_k=0)
        return loaded, [{"input_ids": part} for part in ids.split(BATCH)]

    def cifar(name: str) -> tuple[Any, Any]:
        return images(load(str(ROOT / "results" / "models" / f"{name}.safetensors")), str(data_folder("cifar-100")))

    known: dict[str, tuple[str, Source]] = {
        "DeiT-Tiny": ("DeiT", lambda: images(load(str(data_folder("deit-tiny"))), str(data_folder("imagenet-val-1k")))),
        "MiniLM": ("MiniLM", lambda: text("minilm")),
        "MPNet": ("MPNet", lambda: text("mpnet")),
        "stories15m": ("stories15m", stories),
        "chemistry ALBERT": ("ALBERT", lambda: gallery.entries()["chemistry-albert"].make()),
    }
    for variant, title in vits.NAMES.items():
        known[f"Fashion {title}"] = ("Fashion", lambda v=variant: images(load(str(vits.file_of(v))), str(vits.IMAGES)))
    for file, title in CIFAR.items():
        known[f"CIFAR {title}"] = ("CIFAR", lambda f=file: cifar(f))
    return known


def measure(file: Path) -> None:
    """Measure what the file lacks, and write it after every model."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for title, (family, make) in models().items():
        if title in kept:
            continue
        started = time.perf_counter()
        loaded, inputs = make()
        held = inputs.kept() if isinstance(inputs, Inputs) else inputs
        found = oversmooth.spans(loaded, held, longest=LONGEST, memory=file.parent / ".spans").to_dict()["spans"]
        kept[title] = {"family": family, "seconds": round(time.perf_counter() - started), **found}
        file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{title}: {kept[title]['effect']}, {kept[title]['seconds']} s")


def candidates(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Per span, from the unchanged pass: baselines, what its parts changed, and six ways to combine its influences."""
    single = [row for row in rows if row["first"] == row["last"]]
    found = []
    for row in rows:
        inside = [block["influence"] for block in single[row["first"] - 1 : row["last"]]]
        grown = sum(change["log_hfc"] for block in single[row["last"] :] for change in block["changes"])
        ways = {"ends": row["influence"], "sum": sum(inside), "largest": max(inside)}
        ways |= {f"{name} × √growth": value * math.exp(grown / 2) for name, value in ways.items()}
        parts = sum(abs(change["log_hfc"]) + abs(change["log_lfc"]) for change in row["changes"])
        found.append({"length": len(inside), "angle": row["angle"], "parts": parts, **ways})
    return found


def scores(rows: list[dict[str, Any]], way: str) -> dict[str, float]:
    """By predictor: Spearman's correlation with the measured effect within each length, averaged over lengths."""
    found, by_length = candidates(rows), range(1, LONGEST + 1)
    return {
        name: statistics.mean(
            scipy.stats.spearmanr(*zip(*pairs(rows, found, way, name, length), strict=True)).statistic
            for length in by_length
        )
        for name in found[0]
        if name != "length"
    }


def pairs(
    rows: list[dict[str, Any]], found: list[dict[str, float]], way: str, name: str, length: int
) -> list[tuple[float, float]]:
    """Of spans of one length: predicted and measured."""
    return [(one[name], row[way]) for row, one in zip(rows, found, strict=True) if one["length"] == length]


def interval(differences: list[float]) -> str:
    """The mean with a 95% interval that resamples families."""
    draw = random.Random(0)
    means = sorted(statistics.mean(draw.choices(differences, k=len(differences))) for _ in range(20_000))
    return f"{statistics.mean(differences):+.3f} [{means[500]:+.3f}, {means[-501]:+.3f}]"


def compare(file: Path) -> None:
    """Tables of docs/spans.md."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    decided = {title: one for title, one in kept.items() if one["family"] != "ALBERT"}  # shared: equal within a length
    for way in ("drop", "repeat"):
        of_model = {title: scores(one["spans"], way) for title, one in decided.items()}
        names = list(next(iter(of_model.values())))
        families: dict[str, dict[str, float]] = {}
        for family in dict.fromkeys(one["family"] for one in decided.values()):
            members = [of_model[title] for title, one in decided.items() if one["family"] == family]
            families[family] = {name: statistics.mean(member[name] for member in members) for name in names}
        print(f"\n| {way} | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
        for title, row in {**of_model, **{f"family {name}": row for name, row in families.items()}}.items():
            print(f"| {title} | {' | '.join(f'{row[name]:.2f}' for name in names)} |")
        print(f"| mean of families | {' | '.join(f'{mean(families, name):.3f}' for name in names)} |")
        against = {name: interval([row[name] - row["ends"] for row in families.values()]) for name in names}
        print(f"| minus block influence | {' | '.join(against.values())} |")
        chosen = {held: best(families, names[2:], held) for held in families}
        left = [families[held][name] - families[held]["ends"] for held, name in chosen.items()]
        print(f"\nchosen on the other families: {interval(left)}; {chosen}")
    for title, one in kept.items():
        found = candidates(one["spans"])
        shown = [
            f"{scipy.stats.spearmanr([f[name] for f in found], [row[way] for row in one['spans']]).statistic:.2f}"
            for way in ("drop", "repeat")
            for name in ("length", "angle", "ends", {"drop": "sum", "repeat": "largest"}[way] + " × √growth")
        ]
        print(f"| {title} | {' | '.join(shown)} |")


def mean(families: dict[str, dict[str, float]], name: str, without: str = "") -> float:
    return statistics.mean(row[name] for family, row in families.items() if family != without)


def best(families: dict[str, dict[str, float]], names: list[str], held: str) -> str:
    """The predictor that is best on the other families."""
    return max(names, key=lambda name: mean(families, name, without=held))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    if options.measure:
        measure(options.file)
    compare(options.file)
