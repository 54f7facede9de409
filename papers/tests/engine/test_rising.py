"""Strengths that rise while a model trains: which acts when, whatever stops the run, and beside a loop by hand."""

import re
from dataclasses import replace

import pytest
import torch
from support import language_example, segmentation_example
from support.commands import run
from support.runs import EVERY_EPOCH, assert_same
from support.train_example import RECIPE, blobs, by_hand, plain, splits, step_of, train

from oversmooth.safety.errors import InputError
from oversmooth.steering import NeuTRENO, steering_of
from oversmooth_papers import compiling
from oversmooth_papers.engine import failure
from oversmooth_papers.engine.loop import MODEL
from oversmooth_papers.tasks.glue import recipe as glue
from oversmooth_papers.tasks.imagenet import recipe as imagenet
from oversmooth_papers.tasks.images import recipe as images
from oversmooth_papers.tasks.images.build import load_vit, model_of
from oversmooth_papers.tasks.images.task import ImagesTask
from oversmooth_papers.tasks.language import recipe as language
from oversmooth_papers.tasks.segmentation import recipe as segmentation
from oversmooth_papers.tasks.segmentation.model import model_of as segmenter_of

CPU = torch.device("cpu")
NEUTRENO = replace(RECIPE, variant="neutreno:strength=0.6")
RISING = replace(NEUTRENO, ramp=0.5)
"""20 steps, of which 10 rise."""


def acting(model):
    """Read from the model itself, every part's."""
    return [float(value) for name, value in model.named_buffers() if name.endswith(".strength")]


STEPS = {
    "images": lambda **c: step_of(r := replace(NEUTRENO, **c), model_of(r), blobs(40, 0), CPU),
    "language": lambda **c: language_example.step_of(replace(language_example.RECIPE, **c)),
    "segmentation": lambda **c: segmentation_example.step_of(
        r := replace(segmentation_example.RECIPE, **c), segmenter_of(r), segmentation_example.splits(), CPU
    ),
}


@pytest.mark.parametrize(
    ("task", "share"), [("images", 1e-9), ("images", 0.5), ("images", 1.0), ("language", 0.3), ("segmentation", 0.7)]
)
def test_the_strength_of_every_step_is_on_a_line(task, share):
    step = STEPS[task](variant="neutreno:strength=0.6", ramp=share)
    over = max(1, round(share * step.total))
    parts = 3 if task == "segmentation" else 1  # of 3 and 2 blocks there, of 2 else; the first of each has V⁰ itself
    for done in range(step.total + 1):
        assert acting(step.model) == [0.6 * min(1.0, done / over)] * parts, done
        if done < step.total:
            if done % step.steps == 0:
                step.begin_epoch()
            step.run()
    assert acting(step.model) == [0.6] * parts


def test_each_fixed_strength_has_its_own_end_and_what_is_learned_is_left_alone():
    step = STEPS["images"](variant="centred:strength=0.8 + valueresidual:strength=0.2 + featscale:low=0.1", ramp=0.5)
    step.begin_epoch()
    step.run()
    assert sorted(acting(step.model)) == [0.2 * (1 / 10), 0.8 * (1 / 10), 0.8 * (1 / 10)]
    beside = STEPS["images"](variant="neutreno:strength=0.6 + featscale:low=0.1", ramp=0.5)
    assert acting(beside.model) == [0.0]
    learned = [p for name, p in beside.model.named_parameters() if name.endswith(".s")]
    assert learned
    assert all(torch.equal(p, torch.full_like(p, 0.1)) for p in learned)


@pytest.mark.parametrize(("share", "over"), [(0.0, 0), (0.7, 7), (0.3, 3)])
def test_a_run_is_a_loop_with_a_ramp_written_by_hand(share, over):
    """Bit for bit; without a ramp it is the fixed strength, as it always was."""
    recipe = plain(variant="neutreno:strength=0.6", ramp=share, epochs=1, warmup=0, seed=3)
    result = train(recipe, splits(80))
    assert_same(result.model.state_dict(), by_hand(recipe, blobs(80, 0), 10, over)[0].state_dict())


def test_tests_within_a_run_the_log_and_the_file_say_the_strength_that_acts(tmp_path, monkeypatch):
    tested = []
    evaluation = ImagesTask.evaluation

    def watched(self, model, *given, **more):
        one = evaluation(self, model, *given, **more)
        scores = one.scores
        one.scores = lambda **kind: tested.append(acting(model)) or scores(**kind)
        return one

    monkeypatch.setattr(ImagesTask, "evaluation", watched)
    result = train(RISING, splits(), folder=tmp_path / "run", watch=EVERY_EPOCH)
    assert tested == [[0.3], [0.6], [0.6], [0.6]]
    assert [row["strength_share"] for row in result.epochs] == [0.5, 1.0, 1.0, 1.0]
    model, own = load_vit(tmp_path / "run" / MODEL)
    assert (steering_of(model).methods, own.ramp) == ([NeuTRENO(0.6)], 0.5)
    assert not any("strength_share" in row for row in train(NEUTRENO, splits()).epochs)


@pytest.mark.filterwarnings("ignore")  # of torch, about gradients it looks for itself
def test_compiled_code_follows_without_compiling_again(monkeypatch):
    from torch._dynamo.utils import counters

    def made(code):  # the augmentation has no strength
        return torch.compile(code, backend="eager", dynamic=False) if isinstance(code, torch.nn.Module) else code

    monkeypatch.setattr(compiling, "compiled", made)
    both = [step_of(RISING, model_of(RISING), blobs(40, 0), CPU, compiled=compiled) for compiled in (False, True)]
    for step in both:
        step.begin_epoch()
        step.run()
    before = counters["stats"]["unique_graphs"]
    assert before > 0
    for _ in range(1, both[0].steps):
        for step in both:
            step.run()
    assert counters["stats"]["unique_graphs"] == before
    assert acting(both[1].model) == [0.3]
    eager, compiled = (step.model.state_dict() for step in both)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-5)


def test_a_failed_step_is_looked_at_with_the_strength_that_it_met():
    step = STEPS["images"](ramp=1.0)
    step.begin_epoch()
    mark = (0, step.draws.augment.get_state())
    for done in range(3):
        if done == 2:
            with torch.no_grad():
                step.model.head.bias[0] = torch.nan
        step.run()
    assert acting(step.model) == [0.6 * (3 / 20)]
    said = failure.not_finite(step, mark, "the beginning")
    assert "step 3 " in str(said)
    assert acting(step.model) == [0.6 * (2 / 20)]


KEYS = {
    "884b48d23fc0": glue.Recipe(),
    "053e5975ab1b": imagenet.PAPER,
    "44136fa355b3": images.PAPER,
    "5e63af44486c": images.QUICK,
    "acac6e576845": language.WIKITEXT2,
    "b5bc23bf5594": segmentation.QUICK,
}
"""Of the recipes as they were before there was a ramp."""


def test_a_ramp_of_0_renames_no_cell():
    for key, recipe in KEYS.items():
        assert recipe.key == replace(recipe, ramp=0.0).key == key
        steered = replace(recipe, variant="neutreno:strength=0.6")
        rising = replace(steered, ramp=0.5)
        assert rising.key not in (key, steered.key)
        assert "ramp 0.5" in rising.label
        assert type(rising).from_json(rising.to_json()) == rising


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("recipe", [glue.Recipe, imagenet.Recipe, images.Recipe, language.Recipe, segmentation.Recipe])
def test_a_share_that_is_none_is_refused(recipe, value):
    with pytest.raises(InputError, match=rf"^ramp is {value:g}; give at (least 0|most 1)"):
        recipe(variant="neutreno:strength=0.6", ramp=value)


@pytest.mark.parametrize(
    "variant",
    ["plain", "smooth", "sharpen", "featscale", "layernormscaling", "neutreno:strength=0", "neutreno:learned"],
)
def test_a_variant_without_a_strength_to_raise_is_refused(variant):
    with pytest.raises(
        InputError, match=rf"ramp is 0\.3 and the variant '{variant}' has no strength to raise"
    ) as error:
        replace(RECIPE, variant=variant, ramp=0.3)
    assert "give one that has, such as 'neutreno:strength=0.6', or leave the ramp out" in str(error.value)


@pytest.mark.parametrize("task", ["images", "language", "segmentation", "imagenet"])
def test_as_an_option(monkeypatch, capsys, tmp_path, task):
    given = ("train", "--task", task, "--quick", "--device", "cpu", "-o", tmp_path / "run")
    assert run(monkeypatch, *given, "--ramp", 0.3) == 2
    assert "ramp is 0.3 and the variant 'plain'" in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
