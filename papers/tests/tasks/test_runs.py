"""Whole runs of language, segmentation and ImageNet's form: stopped after every step they go on bit for bit, and two
processes give the gradients of one.
"""

import json
from dataclasses import replace

import pytest
import torch
from support import imagenet_example, language_example, segmentation_example, timm_models, two_processes
from support.nightly import nightly

from oversmooth.steering.saving import read_file
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.saved_model import notes_of
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.registry import load_trained, task_of

needs_timm = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
EVERY_EPOCH = WatchSettings(evaluate=1, monitor=3, save=0)
STEERED = replace(language_example.RECIPE, variant="neutreno:strength=0.4")


def language(recipe):
    return lambda _folder: language_example.task_of(recipe)


def segmentation(recipe):
    return lambda _folder: task_of(recipe, segmentation_example.splits())


def imagenet(workers):
    """Read from its files each time."""

    def task(folder):
        home = folder / "pictures"
        data = imagenet_example.splits(home if home.is_dir() else imagenet_example.write_folders(home))
        return ImagenetTask(imagenet_example.RECIPE, data, workers)

    return task


def lines(path):
    """Of a log, without what a clock says."""
    clock = ("seconds", "images_per_s", "tokens_per_s")
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return [{name: value for name, value in row.items() if name not in clock} for row in rows]


def assert_same(one, other):
    for file in sorted(one.glob("*.safetensors")):
        ours, theirs = read_file(file)[0], read_file(other / file.name)[0]
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), (file, name)
    for name in ("log.jsonl", "smoothing.jsonl"):
        assert lines(one / name) == lines(other / name)


@pytest.mark.parametrize(
    ("whole", "cut", "score"),
    [
        pytest.param(*[language(language_example.RECIPE)] * 2, "test_perplexity", id="causal"),
        pytest.param(*[language(language_example.masked_recipe())] * 2, "test_perplexity", id="masked"),
        pytest.param(*[language(STEERED)] * 2, "test_perplexity", id="steered"),
        pytest.param(*[segmentation(segmentation_example.RECIPE)] * 2, "miou", id="segmentation"),
        pytest.param(
            *[segmentation(replace(segmentation_example.RECIPE, variant="sharpen"))] * 2,
            "miou",
            id="sharpened",
            marks=nightly,
        ),
        pytest.param(imagenet(0), imagenet(2), "accuracy_ema", id="imagenet", marks=needs_timm),
    ],
)
def test_a_run_out_of_time_goes_on_bit_for_bit(tmp_path, whole, cut, score):
    """It stops after every single step, inside epochs too. Of ImageNet the one has no workers, and the other two."""
    result = loop.train(whole(tmp_path), device="cpu", folder=tmp_path / "whole", watch=EVERY_EPOCH)
    assert result.finished
    assert score in result.scores
    assert result.scores == {name: result.epochs[-1][name] for name in result.scores}
    pieces, again = 0, None
    while again is None or not again.finished:
        task, where = cut(tmp_path), tmp_path / "cut"
        again = loop.train(task, device="cpu", folder=where, resume=True, minutes=0, watch=EVERY_EPOCH)
        pieces += 1
    assert pieces == result.steps
    assert again.scores == result.scores
    assert_same(tmp_path / "whole", tmp_path / "cut")
    model, recipe = load_trained(tmp_path / "cut" / loop.MODEL)
    assert recipe == result.recipe
    assert notes_of(tmp_path / "cut" / loop.MODEL)[score] == result.scores[score]
    for (name, ours), theirs in zip(model.named_parameters(), result.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.01, atol=1e-3, msg=name)  # bf16 in the file


_WORK = """
from dataclasses import replace
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.step import Step
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.registry import task_of
from support import imagenet_example, language_example, segmentation_example, timm_models
from support.nightly import NIGHTLY

def tasks():
    for name, recipe in (("causal", language_example.RECIPE), ("masked", language_example.masked_recipe())):
        shape = replace(recipe.shape, dropout=0.0)
        yield name, language_example.task_of(replace(recipe, variant="neutreno:strength=0.4", shape=shape))
    yield "segmentation", task_of(segmentation_example.RECIPE, segmentation_example.splits())
    if timm_models.available():
        pictures = imagenet_example.splits(imagenet_example.write_folders(folder / "pictures"))
        yield "imagenet", ImagenetTask(replace(imagenet_example.RECIPE, drop_path=0.0), pictures, 1)

def work(ranks, name):
    for kind, task in tasks() if NIGHTLY else ():  # their gradients are compared at night
        step = Step(task, task.model(), cpu, ranks)
        kept, update = [], step._update
        def keep(bad):
            kept.append({name: p.grad.clone() for name, p in step.named.items()})
            update(bad)
        step._update = keep
        step.begin_epoch()
        for _ in range(3):
            step.run()
        torch.save(kept, folder / f"{kind}-{name}.pt")
    if ranks.world == 2:
        for which in ("whole", "cut"):
            settings = dict(resume=True, minutes=0) if which == "cut" else {}
            watch = loop.WatchSettings(evaluate=1, monitor=3, save=0)
            while not language_example.train(
                language_example.RECIPE, folder=folder / which, watch=watch, **settings
            ).finished:
                pass
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return two_processes.run(_WORK, lambda: tmp_path_factory.mktemp("two"), "oversmooth_papers.engine.ranks")


@nightly
@pytest.mark.parametrize("kind", ["causal", "masked", "segmentation", pytest.param("imagenet", marks=needs_timm)])
def test_two_processes_give_the_gradients_of_one(both, kind):
    """A masked batch or one of crops has another number of targets in each part, and counts each once."""
    files = (both / f"{kind}-{name}.pt" for name in ("one", "two0", "two1"))
    one, first, second = (torch.load(file, weights_only=True) for file in files)
    for step in range(3):
        for name, gradient in one[step].items():
            torch.testing.assert_close(first[step][name], gradient, rtol=1e-3, atol=1e-5)
            assert torch.equal(first[step][name], second[step][name])


def test_a_run_of_two_that_is_cut_ends_bit_for_bit(both):
    """With dropout, which each process draws for itself."""
    assert_same(both / "whole", both / "cut")
    assert len(lines(both / "whole" / "log.jsonl")) == 3
