"""A run that takes over what another one built gives what it gives alone, bit for bit."""

from dataclasses import replace

import pytest
import torch
from support import language_example, segmentation_example
from support.nightly import nightly, some
from support.train_example import RECIPE, splits

from oversmooth.steering import steering_of
from oversmooth_papers.engine.loop import Reuse, WatchSettings, train
from oversmooth_papers.tasks.images.build import load_vit
from oversmooth_papers.tasks.images.task import ImagesTask
from oversmooth_papers.tasks.language.task import LanguageTask
from oversmooth_papers.tasks.segmentation.task import SegmentationTask

CASES = {
    "images": (ImagesTask, RECIPE, splits),
    "images, NeuTRENO": (ImagesTask, replace(RECIPE, variant="neutreno:strength=0.4"), splits),
    "images, FeatScale": (ImagesTask, replace(RECIPE, variant="featscale"), splits),
    "language": (LanguageTask, language_example.RECIPE, language_example.counting),
    "segmentation": (SegmentationTask, segmentation_example.RECIPE, segmentation_example.splits),
}


def weights(result):
    return {name: value.clone() for name, value in result.model.state_dict().items()}


def outcome(result):
    losses = [row["loss"] for row in result.epochs]
    return losses, result.scores, [{k: v for k, v in row.items() if k != "seconds"} for row in result.smoothing]


@pytest.mark.parametrize("name", some(CASES, 2))
def test_a_second_seed_is_what_it_is_alone(name):
    task, recipe, data = CASES[name]
    data, recipe = data(), replace(recipe, epochs=2)
    settings = {"device": "cpu", "watch": WatchSettings(monitor=3)}
    reuse, seeds = Reuse(), (0, 5, 0)
    together = []
    for seed in seeds:
        result = train(task(replace(recipe, seed=seed), data), reuse=reuse, **settings)
        together.append((weights(result), outcome(result)))
    assert reuse.reused == 2
    alone = {}
    for seed in set(seeds):
        result = train(task(replace(recipe, seed=seed), data), **settings)
        alone[seed] = (weights(result), outcome(result))
    for seed, (arrays, figures) in zip(seeds, together, strict=True):
        assert figures == alone[seed][1]
        assert all(torch.equal(arrays[key], value) for key, value in alone[seed][0].items())
    assert any(not torch.equal(alone[0][0][key], alone[5][0][key]) for key in alone[0][0])


STRENGTHS = {
    "NeuTRENO": [f"neutreno:strength={s}" for s in (0.4, 1.5, 0.05)],
    "two methods": [f"neutreno:strength={s} + featscale" for s in (0.6, 0.2)],
    "both with a strength": [
        f"centred:strength={a} + valueresidual:strength={b}" for a, b in ((0.3, 0.5), (0.3, 0.1), (0.7, 0.2))
    ],
}


@pytest.mark.parametrize("name", some(STRENGTHS, 2))
def test_another_strength_is_what_it_is_alone(name, tmp_path):
    """Figures, weights and the file that is written, which says the strength."""
    data, reuse = splits(), Reuse()
    for number, variant in enumerate(STRENGTHS[name]):
        task = ImagesTask(replace(RECIPE, variant=variant, epochs=2, seed=number), data)
        both = []
        for kind, taken in (("shared", reuse), ("alone", None)):
            folder = tmp_path / f"{kind} {number}"
            result = train(task, device="cpu", folder=folder, watch=WatchSettings(monitor=3), reuse=taken)
            both.append((weights(result), outcome(result)))
        (arrays, figures), (own, same) = both
        assert figures == same
        assert all(torch.equal(arrays[key], value) for key, value in own.items())
        written, _ = load_vit(tmp_path / f"shared {number}" / "model.safetensors")
        assert steering_of(written).methods == task.recipe.methods()
    assert reuse.reused == len(STRENGTHS[name]) - 1


def test_what_differs_in_more_is_built_anew():
    data, reuse = splits(), Reuse()
    changed = [
        RECIPE,
        replace(RECIPE, lr=1e-3),
        replace(RECIPE, variant="neutreno:strength=0.4"),
        replace(RECIPE, variant="neutreno:strength=0"),  # nothing is computed there
        replace(RECIPE, variant="neutreno:strength=0.5"),
        replace(RECIPE, variant="neutreno:strength=0.5,learned"),
        replace(RECIPE, variant="neutreno:strength=0.4,learned"),
        replace(RECIPE, variant="valueresidual:strength=0.4"),
        replace(RECIPE, variant="sharpen"),
        replace(RECIPE, variant="sharpen", seed=1),  # its start is drawn with the seed, and is one of its settings
    ]
    for recipe in changed:
        train(ImagesTask(replace(recipe, epochs=1), data), device="cpu", reuse=reuse)
    train(ImagesTask(replace(changed[-1], epochs=1), splits()), device="cpu", reuse=reuse)  # other data
    assert reuse.reused == 0


def test_after_a_run_that_diverged_and_with_a_checkpoint(tmp_path):
    """The next run begins afresh, or where its own checkpoint is."""
    data, reuse = splits(), Reuse()
    whole = weights(train(ImagesTask(RECIPE, data), device="cpu"))
    train(ImagesTask(replace(RECIPE, seed=1), data), device="cpu", folder=tmp_path / "other", minutes=0, reuse=reuse)
    train(ImagesTask(RECIPE, data), device="cpu", folder=tmp_path / "own", minutes=0)
    result = train(ImagesTask(RECIPE, data), device="cpu", folder=tmp_path / "own", resume=True, reuse=reuse)
    assert reuse.reused == 1
    assert all(torch.equal(value, whole[name]) for name, value in result.model.state_dict().items())


@nightly
@pytest.mark.filterwarnings("ignore")  # of torch, about gradients it looks for itself
@pytest.mark.parametrize("variants", [("plain", "plain"), ("neutreno:strength=0.4", "neutreno:strength=0.9")])
def test_nothing_is_compiled_again(variants):
    from torch._dynamo.utils import counters

    data, reuse = splits(), Reuse()
    recipes = [replace(RECIPE, variant=variant, seed=seed, epochs=1) for seed, variant in enumerate(variants)]
    task = [ImagesTask(recipe, data) for recipe in recipes]
    train(task[0], device="cpu", compiled=True, reuse=reuse)
    before = dict(counters["stats"])
    assert before["unique_graphs"] > 0
    train(task[1], device="cpu", compiled=True, reuse=reuse)
    assert dict(counters["stats"]) == before
