"""Recipes: the paper's, their names, and what they refuse."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from oversmooth.safety.errors import InputError
from oversmooth.steering import NeuTRENO, Spectral
from oversmooth_papers.tables.table2 import Table2
from oversmooth_papers.tasks.images import recipe as recipes
from oversmooth_papers.tasks.images.recipe import PAPER, QUICK, VARIANTS, RandAugment, Recipe, percent, variant_title

ROOT = Path(__file__).parents[4]


def test_the_papers_recipe_is_the_recovered_one():
    shape = PAPER.shape
    assert (shape.image, shape.patch, shape.width, shape.depth, shape.heads) == (32, 2, 192, 12, 3)
    assert (shape.mlp_ratio, shape.qkv_bias, shape.eps, shape.tokens) == (4.0, False, 1e-6, 257)
    assert (PAPER.epochs, PAPER.warmup, PAPER.total_epochs, PAPER.batch) == (300, 5, 305, 96)
    assert (PAPER.lr, PAPER.weight_decay, PAPER.clip, PAPER.smoothing) == (1.25e-4, 0.05, 5.0, 0.1)
    assert (PAPER.mixup, PAPER.cutmix, PAPER.padding, PAPER.flip) == (1.0, 0.8, 4, 0.5)
    assert PAPER.rand_augment == RandAugment(magnitude=9, operations=2, noise=1.0)
    assert PAPER.mean == (0.5071, 0.4867, 0.4408)
    assert PAPER.std == (0.2675, 0.2565, 0.2761)


def test_keys_are_stable_and_differ_with_every_setting():
    assert PAPER.key == "44136fa355b3"  # of nothing that differs: the name of a published cell must never change
    others = [replace(PAPER, seed=1), replace(PAPER, share=0.1), replace(PAPER, variant="smooth"), QUICK]
    others.append(replace(PAPER, shape=replace(PAPER.shape, patch=4)))
    others.append(replace(PAPER, rand_augment=None))
    assert len({PAPER.key, *(r.key for r in others)}) == 7
    for name in ("lr", "clip"):  # in JSON that was written by hand, 2 is 2.0
        assert Recipe.from_dict({name: 2}).key == replace(PAPER, **{name: 2.0}).key == replace(PAPER, **{name: 2}).key
    given = json.loads(replace(PAPER, seed=3).to_json())
    del given["initialisation"]  # a field that an older file lacks
    assert Recipe.from_dict(given) == replace(PAPER, seed=3)


def test_variants_are_methods():
    assert PAPER.methods() == []
    assert replace(PAPER, variant="smooth", seed=2).methods() == [Spectral("smooth", start="cold", seed=2)]
    assert replace(PAPER, variant="sharpen", wiring="code").methods() == [
        Spectral("sharpen", start="cold", wiring="code")
    ]
    assert replace(PAPER, variant="neutreno:strength=0.6 + featscale").methods()[0] == NeuTRENO(0.6)


def test_a_difference_names_the_field_and_both_values():
    other = replace(PAPER, shape=replace(PAPER.shape, patch=4))
    assert PAPER.difference(other) == "shape.patch is 2 there and 4 here"
    assert PAPER.difference(PAPER) is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"speed": 3}', '{"shape": {"patch": 3}}', '{"shape": 4}', '{"epochs": "x"}']
)
def test_files_that_are_no_recipe_are_refused(text):
    with pytest.raises(InputError):
        Recipe.from_json(text, "r.json")


def test_the_papers_recipe_claims_what_the_cells_say_and_what_was_published():
    claimed = [line.split() for line in recipes.__doc__.splitlines() if line.startswith("    ") and "±" in line]
    cells = [json.loads(file.read_text()) for file in (ROOT / "results" / "table2").glob("*.json")]
    expected = []
    for share in (1.0, 0.5, 0.1):
        for variant in VARIANTS:
            of = [c for c in cells if (c["recipe"]["share"], c["recipe"]["variant"]) == (share, variant)]
            of.sort(key=lambda cell: cell["seed"])
            found = [100 * cell["accuracy"] for cell in of]
            line = f"{percent(share)} {variant_title(variant)} "
            if len(of) > 1:
                line += f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f} "
            line += f"{found[0]:.2f} " if len(of) == 1 else "" if of else "not run "
            minutes = sorted({f"{cell['seconds'] / 60:.1f}" for cell in of}, key=float)
            line += ", ".join(str(cell["seed"]) for cell in of) + " " + " to ".join(minutes[:1] + minutes[1:][-1:])
            mean, spread = Table2.published[variant][f"{percent(share)} of the data"]
            expected.append(f"{line} {mean} ± {spread}".split())
    assert claimed == expected
    assert {cell["hardware"] for cell in cells} == {"NVIDIA H200"}
    assert {cell["versions"]["torch"] for cell in cells} == {"2.11.0+cu130"}
