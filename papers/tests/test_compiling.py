"""Compiled code that computes something else, or something else in every call, is not trained with."""

from dataclasses import replace

import pytest
import torch
from support import language_example as language
from support.nightly import some
from support.runs import assert_same, train_task
from support.train_example import RECIPE, blobs, splits, step_of
from torch import nn

from oversmooth_papers import compiling
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.images.build import model_of
from oversmooth_papers.tasks.images.task import ImagesFeed, ImagesTask

CPU = torch.device("cpu")
WATCH = WatchSettings(evaluate=0, monitor=0, save=0)


class Wrong(nn.Module):
    """A model whose answers are changed by `how`, which is told how often it was called."""

    def __init__(self, model, how):
        super().__init__()
        self.model, self.how, self.calls = [model], how, 0

    def forward(self, *given, **named):
        self.calls += 1
        return self.how(self.model[0](*given, **named), self.calls)


def as_it_is(out, _call):
    return out


def a_third_is_noise(out, call):
    """As large as what it replaces; gradients pass."""
    noise = torch.randn(out[::3].shape, generator=torch.Generator().manual_seed(call))
    return out.float().index_add(0, torch.arange(0, len(out), 3), noise * out.detach().float().std())


def a_third_is_stale(out, _call):
    return torch.cat([out[: len(out) // 3].detach().flip(0), out[len(out) // 3 :]])


def the_next_ones(out, _call):
    return out.roll(1, 0)


def other_every_time(out, call):
    return out * (1 + 0.1 * call)


def too_large(out, _call):
    return 1.3 * out


def a_wrong_gradient(out, _call):
    """Where it passes the logits of one class."""

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(_context, x):
            return x.clone()

        @staticmethod
        def backward(_context, gradient):
            return gradient * torch.where(torch.arange(gradient.shape[-1]) == 0, -1.0, 1.0)

    return Turned.apply(out)


FAULTS = [a_third_is_noise, a_third_is_stale, the_next_ones, other_every_time, a_wrong_gradient]


def compile_to(monkeypatch, how):
    """`compiled` makes what `how` says of models, and leaves functions alone."""
    monkeypatch.setattr(compiling, "compiled", lambda code: Wrong(code, how) if isinstance(code, nn.Module) else code)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    """Which takes a minute; tests say what is made of a model."""
    compile_to(monkeypatch, as_it_is)


def stepped(recipe=RECIPE):
    return step_of(recipe, model_of(recipe), blobs(40, 0), CPU, compiled=True)


@pytest.mark.parametrize("variant", ["plain", "sharpen"])
@pytest.mark.parametrize("how", FAULTS)
def test_code_that_is_wrong_is_not_used(monkeypatch, how, variant):
    compile_to(monkeypatch, how)
    recipe = replace(RECIPE, variant=variant)
    step = stepped(recipe)
    assert len(step.remarks) == 1
    assert "compiled code does not reproduce this model" in step.remarks[0]
    assert not step.compiled
    plain = step_of(recipe, model_of(recipe), blobs(40, 0), CPU, compiled=False)
    for one in (step, plain):
        one.begin_epoch()
        one.run()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(step.model.state_dict()[name], value), name


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("how", [other_every_time, too_large])
def test_nor_in_a_language_model(monkeypatch, how, dropout):
    """One with dropout can be compared with itself alone: what is wrong in every call alike is not seen."""
    compile_to(monkeypatch, how)
    recipe = replace(language.RECIPE, shape=replace(language.RECIPE.shape, dropout=dropout))
    step = language.step_of(recipe, CPU, compiled=True)
    assert bool(step.remarks) == (dropout == 0 or how is other_every_time)


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("half", [True, False])
def test_it_is_found_in_either_precision_and_rounding_is_not(monkeypatch, how, half):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5))
    x, labels = torch.randn(24, 6), torch.arange(24) % 5

    def run(forward, in_half):
        with torch.autocast("cpu", torch.bfloat16, enabled=in_half):
            out = forward(x)
            loss = nn.functional.cross_entropy(out.float(), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return compiling.Numbers([out.detach().float()], list(gradients))

    def rounded_otherwise(out, call):
        return out * (1 + 2**-9 * (-1) ** (torch.arange(out.shape[-1]) + call)) if half else out * (1 + 1e-6)

    compile_to(monkeypatch, how)
    forward, said = compiling.checked(model, run, half=half, draws=False)
    assert forward is model
    assert "does not reproduce" in said
    compile_to(monkeypatch, rounded_otherwise)
    forward, said = compiling.checked(model, run, half=half, draws=False)
    assert said is None
    assert isinstance(forward, Wrong)


def test_a_run_says_so_and_notes_it(monkeypatch, tmp_path):
    compile_to(monkeypatch, a_third_is_noise)
    told = []
    settings = dict(device="cpu", folder=tmp_path / "run", watch=WATCH, compiled=True, on_message=told.append)
    result = train_task(ImagesTask(RECIPE, splits()), **settings)
    assert [line for line in told if "it is trained uncompiled, which is right and slower" in line]
    assert [row["compiled"] for row in result.machines] == [False]
    eager = train_task(ImagesTask(RECIPE, splits()), watch=WATCH)
    assert_same(result.model.state_dict(), eager.model.state_dict())


@pytest.mark.parametrize("recipe", [RECIPE, replace(RECIPE, variant="neutreno:strength=0.6", ramp=0.5)])
def test_the_check_leaves_no_trace(recipe):
    before = torch.get_rng_state()
    compiled = train_task(ImagesTask(recipe, splits()), watch=WATCH, compiled=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any("compiled" in row for row in compiled.machines)
    eager = train_task(ImagesTask(recipe, splits()), watch=WATCH)
    assert_same(compiled.model.state_dict(), eager.model.state_dict())


def test_a_method_whose_strength_rises_is_checked_at_its_full_strength(monkeypatch):
    seen = []

    def watched(model, run, **_settings):
        seen.extend(float(value) for name, value in model.named_buffers() if name.endswith(".strength"))
        return run and model, None

    monkeypatch.setattr(compiling, "checked", watched)
    step = stepped(replace(RECIPE, variant="neutreno:strength=0.6", ramp=0.5))
    assert seen == [pytest.approx(0.6)]
    assert [float(value) for name, value in step.model.named_buffers() if name.endswith(".strength")] == [0.0]


def test_the_batch_of_the_check_is_of_several_examples(monkeypatch):
    batches = []

    def watched(model, run, **_settings):
        batches.append(run(model, False))
        return model, None

    monkeypatch.setattr(compiling, "checked", watched)
    stepped(replace(RECIPE, rand_augment=None, mixup=0.0, cutmix=0.0, flip=0.0, padding=0))
    (out,) = batches[0].outputs
    assert len({tuple(row.tolist()) for row in out}) == len(out)
    step = language.step_of(language.RECIPE, CPU, compiled=True)
    tokens = next(iter(step.batch()))
    assert len({tuple(row.tolist()) for row in tokens}) == len(tokens)
    assert all(float(gradient.norm()) > 0 for found in batches for gradient in found.gradients)


@pytest.mark.parametrize(("rows", "passes"), [(slice(0, 1), True), (slice(0, 3), False), (slice(None), False)])
def test_one_augmented_image_in_twenty_may_differ(monkeypatch, rows, passes):
    def double(images):
        return (2 * images,)

    def other(images):
        out = 2 * images
        out[rows] *= 0.9
        return (out,)

    monkeypatch.setattr(compiling, "compiled", lambda _function: other)
    forward, said = compiling.checked_augmentation(double, torch.ones(40, 3, 4, 4))
    assert (forward is other, said is None) == (passes, passes)


def test_augmentation_is_checked_too(monkeypatch):
    monkeypatch.setattr(compiling, "compiled", lambda function: lambda *given: [0.9 * x for x in function(*given)])
    feed = ImagesTask(RECIPE, splits()).feed(CPU, Ranks(), compiled=True)
    assert "compiled augmentation is wrong" in feed.remark
    assert feed.transform == feed.transformed
    compile_to(monkeypatch, as_it_is)
    assert ImagesTask(RECIPE, splits()).feed(CPU, Ranks(), compiled=True).remark is None
    assert isinstance(feed, ImagesFeed)


def numbers(*values):
    return compiling.Numbers([], [torch.tensor(values)])


def test_what_is_not_finite_in_the_model_itself_is_not_the_compilers(monkeypatch):
    monkeypatch.setattr(compiling, "compiled", lambda _model: "compiled")
    for theirs, ours, passes in ((torch.nan, 1.0, True), (torch.nan, torch.nan, True), (1.0, torch.inf, False)):
        model = nn.Identity()
        run = {model: numbers(theirs, 1.0), "compiled": numbers(ours, 1.0)}
        forward, said = compiling.checked(model, lambda code, _half, run=run: run[code], half=True, draws=False)
        assert (forward, said is None) == (("compiled", True) if passes else (model, False))


def test_too_little_memory_to_compare_is_told(monkeypatch):
    model = nn.Identity()

    def run(forward, _half):
        if forward is model:
            raise torch.OutOfMemoryError
        return numbers(1.0)

    monkeypatch.setattr(compiling, "compiled", lambda _model: "compiled")
    forward, said = compiling.checked(model, run, half=True, draws=False)
    assert forward == "compiled"
    assert "was not checked" in said


@pytest.mark.filterwarnings("ignore")  # of torch, about functions it makes itself
@pytest.mark.parametrize("variant", some(["sharpen", "orthogonalupdate"], 2))
def test_really_compiled_code_passes(monkeypatch, variant):
    def made(code):
        return torch.compile(code, backend="aot_eager", dynamic=False) if isinstance(code, nn.Module) else code

    monkeypatch.setattr(compiling, "compiled", made)
    step = stepped(replace(RECIPE, variant=variant))
    assert not step.remarks
    assert step.compiled
