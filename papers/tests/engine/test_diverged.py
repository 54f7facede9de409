"""Training on the wall det Θ = 0, and steps that are not finite: a run goes through, goes back, or says why it ends."""

import json
import math

import pytest
import torch
from support.oracles import normal
from support.runs import EVERY_EPOCH, QUIET
from support.train_example import RECIPE, plain, splits, train

from oversmooth.steering import reparametrized, steering_of, verify
from oversmooth_papers.engine import failure
from oversmooth_papers.engine import loop as parts
from oversmooth_papers.engine.loop import WatchSettings


def test_the_general_form_says_so_before_V_is_singular(monkeypatch):
    """Inside a graph nothing can be asked: the weights become NaN, which the step sees; outside, a sentence."""
    recipe = plain(variant="spectral:mode=sharpen,form=general", epochs=2)
    spoiled = []

    class Spoiled(parts.Step):
        def run(self):
            if self.done == 7:
                layer = steering_of(self.model).reparametrized[1]
                with torch.no_grad():
                    layer.theta[:, -1] = layer.theta[:, 0] * (1 + 1e-7)
                spoiled.append(self.done)
            super().run()

    monkeypatch.setattr(parts, "Step", Spoiled)
    with pytest.raises(failure.Diverged, match=r"step 8: layer 1 \(.*\): V is nearly singular"):
        train(recipe, splits(), watch=QUIET)
    # As a graph would do it: unasked.
    monkeypatch.setattr(reparametrized, "values_unreadable", lambda: len(spoiled) == 2)
    with pytest.raises(failure.Diverged, match=r"step 8 .*the loss is nan"):
        train(recipe, splits(), watch=QUIET)


@pytest.mark.parametrize("variant", ["sharpen", "smooth"])
def test_training_goes_through_the_wall(variant, monkeypatch):
    """Θ is put on it, and beside it, before every step: the run ends well, and its H has the promised spectrum."""

    class Walled(parts.Step):
        def run(self):
            for layer in steering_of(self.model).reparametrized:
                with torch.no_grad():
                    theta = layer.theta
                    distance = (0.0, 1e-9, -1e-7, 1e-5)[self.done % 4]
                    mixed = theta[:, :-1] @ normal(theta.shape[1] - 1, seed=self.done).to(theta)
                    theta[:, -1] = mixed / mixed.norm() + distance * theta[:, -1]
                    if self.done % 7 == 0:
                        theta[:, 3] = theta[:, 1]
            super().run()

    monkeypatch.setattr(parts, "Step", Walled)
    result = train(RECIPE.changed(dict(variant=variant)), splits(), watch=QUIET)
    assert result.finished
    assert not result.retries
    assert all(math.isfinite(row["loss"]) for row in result.epochs)
    checked = verify(result.model)
    assert all(abs(check.condition - 1) < 1e-5 for check in checked.layers)


class Fails(parts.Step):
    """Its step is not finite at these numbers of calls, as a rare event would be."""

    at: tuple[int, ...] = ()
    calls = 0

    def loss(self, *args):
        found = super().loss(*args)
        type(self).calls += 1
        return found * math.nan if type(self).calls in self.at else found


@pytest.fixture
def failing(monkeypatch):
    def set_up(*at):
        step = type("FailsThere", (Fails,), {"at": at})
        monkeypatch.setattr(parts, "Step", step)

    return set_up


@pytest.mark.parametrize("folder", [True, False])
def test_a_step_that_is_not_finite_sends_the_run_back(folder, failing, tmp_path):
    failing(13)
    where = tmp_path if folder else None
    result = train(RECIPE, splits(), folder=where, watch=EVERY_EPOCH, on_nan="retry")
    assert result.finished
    (retry,) = result.retries
    assert (retry["retry"], retry["failed_at_step"], retry["back_to_step"]) == (1, 13, 12)
    assert "not finite" in retry["said"] or "nan" in retry["said"]
    assert [row["epoch"] for row in result.epochs] == [1, 2, 3, 4]
    assert [row["step"] for row in result.smoothing] == [1, 3, 6, 9, 12, 15, 18, 20]
    if not folder:  # it went on with other draws
        failing()
        untouched = train(RECIPE, splits(), watch=QUIET)
        losses = [[row["loss"] for row in run.epochs] for run in (result, untouched)]
        assert losses[0][:2] == losses[1][:2]
        assert losses[0][2:] != losses[1][2:]
    else:
        written = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [line.get("epoch") for line in written] == [1, 2, None, 3, 4]
        assert written[2] == retry
        again = train(RECIPE, splits(), folder=tmp_path, resume=True)  # over: read from its files
        assert again.retries == result.retries
        assert again.epochs == result.epochs


def test_three_times_and_no_more(failing, tmp_path):
    failing(*range(8, 1000))
    with pytest.raises(failure.Diverged, match="3 times it went back to a checkpoint, with other draws, in vain"):
        train(RECIPE, splits(), folder=tmp_path, watch=WatchSettings(monitor=0, save=0), on_nan="retry")
    failing()
    rest = train(RECIPE, splits(), folder=tmp_path, resume=True, on_nan="retry")
    assert rest.finished
    assert len(rest.retries) == 3


def test_stop_is_the_default(failing):
    failing(8)
    with pytest.raises(failure.Diverged, match="step 8"):
        train(RECIPE, splits(), watch=QUIET)
