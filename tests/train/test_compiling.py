"""Compiled code that finds other gradients, or other ones in every call, is not trained with."""

from dataclasses import replace

import pytest
import torch
from support.train_example import RECIPE, blobs, splits, step_of
from torch import nn

from oversmooth.train import compiling
from oversmooth.train.engine import loop
from oversmooth.train.tasks.images import task
from oversmooth.train.tasks.images.build import model_of
from oversmooth.train.tasks.images.task import ImagesTask

CPU = torch.device("cpu")
WATCH = loop.WatchSettings(evaluate=0, monitor=0, save=0)


class Wrong(nn.Module):
    """A model whose answers are changed by `how`, which is told how often it was called."""

    def __init__(self, model, how):
        super().__init__()
        self.model, self.how, self.calls = [model], how, 0

    def forward(self, x):
        self.calls += 1
        return self.how(self.model[0](x), self.calls)


def a_third(logits, _call):
    """Of the batch reads what was there before."""
    return torch.cat([logits[: len(logits) // 3].detach().flip(0), logits[len(logits) // 3 :]])


def other_every_time(logits, call):
    return logits * (1 + 0.05 * call)


@pytest.fixture(autouse=True)
def _augmentation_is_not_compiled(monkeypatch):
    """Which takes a minute."""
    monkeypatch.setattr(task, "compiled_code", lambda function: function)


def stepped(monkeypatch, how, recipe=RECIPE):
    monkeypatch.setattr(compiling, "compiled", lambda model: Wrong(model, how))
    return step_of(recipe, model_of(recipe), blobs(40, 0), CPU, compiled=True)


@pytest.mark.parametrize(("how", "said"), [(a_third, "from the model's own"), (other_every_time, "two calls")])
def test_code_that_is_wrong_is_not_used(monkeypatch, how, said):
    step = stepped(monkeypatch, how)
    assert said in step.remark
    assert "issues/190517" in step.remark
    assert not step.compiled
    plain = step_of(RECIPE, model_of(RECIPE), blobs(40, 0), CPU, compiled=False)
    for one in (step, plain):
        one.begin_epoch()
        one.run()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(step.model.state_dict()[name], value), name


def test_a_run_says_so_and_notes_it(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "compiled", lambda model: Wrong(model, a_third))
    told = []
    settings = dict(device="cpu", folder=tmp_path / "run", watch=WATCH, compiled=True, on_message=told.append)
    result = loop.train(ImagesTask(RECIPE, splits()), **settings)
    assert [line for line in told if "compiled code does not find this model's gradients" in line]
    assert [row["compiled"] for row in result.machines] == [False]
    eager = loop.train(ImagesTask(RECIPE, splits()), device="cpu", watch=WATCH)
    for name, value in eager.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], value), name


def test_the_models_own_gradients_pass(monkeypatch):
    step = stepped(monkeypatch, lambda logits, _call: logits)
    assert step.remark is None
    assert step.compiled
    assert isinstance(step._forward, Wrong)


@pytest.mark.parametrize(("off", "half", "passes"), [(0.1, True, True), (0.1, False, False), (0.3, True, False)])
def test_rounding_passes_in_half_precision_alone(monkeypatch, off, half, passes):
    model, gradient = nn.Identity(), torch.tensor([3.0, 4.0])
    monkeypatch.setattr(compiling, "compiled", lambda _model: "compiled")
    found = {model: gradient, "compiled": gradient + 5 * off * torch.tensor([0.6, -0.8])}
    forward, remark = compiling.checked(model, found.__getitem__, half=half, draws=False)
    assert (forward, remark is None) == (("compiled", True) if passes else (model, False))
    assert passes or f"{100 * off:.1f} % from the model's own" in remark


def test_a_model_that_draws_is_asked_twice_with_the_same_numbers_and_not_held_against_itself(monkeypatch):
    found = iter([torch.ones(3), torch.ones(3)])
    monkeypatch.setattr(compiling, "compiled", lambda model: model)
    assert compiling.checked(nn.Identity(), lambda _forward: next(found), half=False, draws=True)[1] is None
    assert next(found, None) is None
    found = iter([torch.ones(3), 2 * torch.ones(3)])
    assert "100.0 % apart" in compiling.checked(nn.Identity(), lambda _forward: next(found), half=False, draws=True)[1]


@pytest.mark.parametrize("numbers", [(torch.nan, torch.nan, torch.nan), (0.0, 0.0, 0.0), (torch.inf, torch.inf, 1.0)])
def test_what_is_not_finite_in_both_or_nothing_at_all_is_not_the_compilers(monkeypatch, numbers):
    """The last: not finite compiled, finite as it is."""
    found = iter([torch.full((2,), number) for number in numbers])
    monkeypatch.setattr(compiling, "compiled", lambda model: model)
    remark = compiling.checked(nn.Identity(), lambda _forward: next(found), half=True, draws=False)[1]
    assert (remark is None) == (numbers[2] != 1.0)
    assert remark is None or "infinitely far" in remark


def test_too_little_memory_to_compare_is_no_reason_against(monkeypatch):
    model = nn.Identity()

    def gradients(forward):
        if forward is model:
            raise torch.OutOfMemoryError
        return torch.ones(2)

    monkeypatch.setattr(compiling, "compiled", lambda _model: "compiled")
    assert compiling.checked(model, gradients, half=True, draws=False) == ("compiled", None)


@pytest.mark.filterwarnings("ignore")  # of torch, about functions it makes itself
@pytest.mark.parametrize("variant", ["plain", "sharpen", "orthogonalupdate"])
def test_really_compiled_code_passes(monkeypatch, variant):
    monkeypatch.setattr(compiling, "compiled", lambda run: torch.compile(run, backend="aot_eager", dynamic=False))
    recipe = replace(RECIPE, variant=variant)
    step = step_of(recipe, model_of(recipe), blobs(40, 0), CPU, compiled=True)
    assert step.remark is None
