"""Every image is tested once, by strengths that never saw it."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tuning_example import classifier, labelled

from oversmooth.safety.errors import InputError
from oversmooth.steering import steer, steering_of, unsteer
from oversmooth_papers.tuning import TuningSettings, baseline, cross_validate, cross_validation, folds_of, tuning_method
from oversmooth_papers.tuning.cross_validation import answers_of, check_classifier

SETTINGS = TuningSettings(folds=3, steps=2, lr=0.05, batch=8)


@given(st.integers(2, 60), st.integers(2, 10), st.integers(0, 5))
def test_folds_are_a_partition_of_near_equal_parts(images, folds, seed):
    if folds > images:
        with pytest.raises(InputError, match=f"{images} images cannot be cut into {folds} folds"):
            folds_of(images, folds, seed)
        return
    parts = folds_of(images, folds, seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(images))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == folds


def test_no_image_is_tested_by_strengths_that_saw_it(monkeypatch):
    model, _ = classifier()
    data = labelled(25)
    seen, tested = [], []
    learn, answers = cross_validation.learn, cross_validation.answers_of

    def learns(model, strengths, data, rows, settings, **more):
        seen.append(set(rows.tolist()))
        return learn(model, strengths, data, rows, settings, **more)

    def answered(model, data, rows=None, **more):
        tested.append(set(rows.tolist()))
        return answers(model, data, rows, **more)

    before = answers_of(model.eval(), data)
    monkeypatch.setattr(cross_validation, "learn", learns)
    monkeypatch.setattr(cross_validation, "answers_of", answered)
    cross_validate(model, tuning_method("neutreno"), data, before, SETTINGS)
    assert len(seen) == len(tested) == 3
    for learned, test in zip(seen, tested, strict=True):
        assert learned.isdisjoint(test)
        assert learned | test == set(range(25))
    assert sorted(row for part in tested for row in part) == list(range(25))


def test_the_outcome_is_that_of_the_folds_done_by_hand():
    model, _ = classifier()
    data, method = labelled(25), tuning_method("featscale")
    model.eval()
    before = baseline(model, data, SETTINGS.batch)
    told = []
    outcome = cross_validate(model, method, data, before, SETTINGS, lambda *given: told.append(given))
    assert steering_of(model) is None
    right, losses = {}, {}
    order = torch.randperm(25, generator=torch.Generator().manual_seed(0))
    for fold, part in enumerate((order[:9], order[9:17], order[17:])):
        others = torch.cat([x.sort().values for i, x in enumerate((order[:9], order[9:17], order[17:])) if i != fold])
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        steer(model, method)
        learned = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.Adam(learned, lr=0.05)
        shuffled = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(1 + fold))]
        for first in (0, 8):
            rows = shuffled[first : first + 8]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            out = model(data.images[part]).log_softmax(-1)
        for row, one in zip(part.tolist(), out, strict=True):
            right[row] = bool(one.argmax() == data.labels[row])
            losses[row] = -one[data.labels[row]].item()
        unsteer(model)
    assert outcome.after.right == [right[row] for row in range(25)]
    assert outcome.after.losses == pytest.approx([losses[row] for row in range(25)], rel=1e-4, abs=1e-5)
    with torch.no_grad():
        assert outcome.before.right == (model(data.images).argmax(1) == data.labels).tolist()
    written = json.loads(json.dumps(outcome.to_dict()))
    assert written["right"]["after"] == "".join(str(int(one)) for one in outcome.after.right)
    assert written["accuracy"]["after"] == sum(outcome.after.right) / 25
    assert written["accuracy"]["gained"] - written["accuracy"]["lost"] == sum(outcome.after.right) - sum(before.right)
    assert all(len(means) == 3 for means in written["strengths"].values())
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1] == (25, 25, "fold 3 of 3, tested")


def test_epochs_count_whole_batches_and_steps_go_before():
    assert TuningSettings(epochs=2, batch=8).steps_on(20) == 4
    assert TuningSettings(epochs=3, batch=32).steps_on(20) == 3
    assert TuningSettings(epochs=3, steps=7).steps_on(20) == 7


@pytest.mark.parametrize(
    "bad",
    [
        dict(folds=1),
        dict(lr=math.nan),
        dict(lr=0.0),
        dict(lr=-1),
        dict(epochs=0),
        dict(steps=0),
        dict(batch=0),
        dict(seed=0.5),
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=rf"{next(iter(bad))} is"):
        TuningSettings(**bad)


def test_a_model_without_scores_of_classes_is_refused():
    model, _ = classifier()
    model.head = torch.nn.Linear(16, 3)
    with pytest.raises(InputError, match=r"blob is no classifier: it gives an array of shape \(1, 3\)"):
        check_classifier(model, labelled(), "blob")
