"""Perplexity against a loop over single predictions, and the rule of masking."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.language_example import RECIPE, masked_recipe, task_of

from oversmooth_papers.tasks.language import task as language_task
from oversmooth_papers.tasks.language.model import hide
from oversmooth_papers.tasks.language.task import Perplexity, model_of

CPU = torch.device("cpu")


@torch.no_grad()
def one_by_one(model, tokens, length, stride):
    """Every token from the window that counts it, each in a pass of its own."""
    losses, predictions = [], len(tokens) - 1
    for target in range(1, predictions + 1):
        if target <= min(length, predictions):
            first = 0
        else:
            end = min(length, predictions)
            while end < target:
                end += stride
            first = min(end, predictions) - length
        logits = model(tokens[None, first:target].long())[0, -1].double()
        losses.append(-float(torch.log_softmax(logits, -1)[tokens[target]]))
    return math.exp(sum(losses) / len(losses))


@given(length=st.integers(2, 7), count=st.integers(2, 30), data=st.data())
@settings(max_examples=25)
def test_perplexity_is_that_of_single_predictions(length, count, data):
    stride = data.draw(st.integers(1, length))
    recipe = replace(RECIPE, shape=replace(RECIPE.shape, length=length))
    model = model_of(recipe).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(4)  # so that predictions differ
    tokens = torch.randint(97, 123, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.int32)
    expected = one_by_one(model, tokens, length, stride)
    assert Perplexity(recipe, model, CPU, None).causal(tokens, stride) == pytest.approx(expected, rel=1e-5)


def test_batches_change_nothing(monkeypatch):
    task = task_of(RECIPE)
    model = task.model()
    whole = task.evaluation(model, CPU).scores(final=True)
    monkeypatch.setitem(language_task._TOKENS_AT_ONCE, "cpu", 25)
    few = task.evaluation(model, CPU).scores(final=True)
    assert few == pytest.approx(whole, rel=1e-6)
    assert set(whole) == {
        "valid_perplexity",
        "test_perplexity",
        "valid_perplexity_sliding",
        "test_perplexity_sliding",
    }
    assert set(task.evaluation(model, CPU).scores(final=False)) == {"valid_perplexity"}
    assert model.training


@pytest.mark.parametrize("recipe", [RECIPE, masked_recipe()], ids=["causal", "masked"])
def test_a_text_that_has_no_test_is_not_tested(recipe):
    task = task_of(recipe)
    alone = task_of(recipe, replace(task.given, test=None))
    model = task.model()
    whole, own = (one.evaluation(model, CPU).scores(final=True) for one in (task, alone))
    assert own == {name: score for name, score in whole.items() if name.startswith("valid")}
    assert own != whole
    assert "test_tokens" not in alone.facts()
    assert "on test" not in recipe.describe(own)


def test_masking_is_berts_rule():
    ids = torch.arange(20_000).view(4, -1) % 90 + 10
    generator = torch.Generator().manual_seed(3)
    kinds, fillers = torch.rand((2, *ids.shape), generator=generator)
    seen, targets = hide(ids, kinds, fillers, 0.15, 256, 257)
    wanted = targets != -100
    assert torch.equal(targets[wanted], ids[wanted])
    assert torch.equal(seen[~wanted], ids[~wanted])
    share = wanted.float().mean()
    assert abs(float(share) - 0.15) < 0.01
    masked = (seen[wanted] == 256).float().mean()
    same = (seen[wanted] == ids[wanted]).float().mean()
    assert abs(float(masked) - 0.8) < 0.03
    assert abs(float(same) - 0.1) < 0.03


def test_a_masked_model_is_scored_on_what_is_hidden():
    recipe = masked_recipe()
    task = task_of(recipe)
    model = task.model().eval()
    scores = task.evaluation(model, CPU).scores(final=True)
    rows = task.given.valid[:96].view(-1, 12).long()
    kinds, fillers = torch.rand((2, *rows.shape), generator=torch.Generator().manual_seed(language_task._MASKS))
    losses = []
    with torch.no_grad():
        for i in range(rows.shape[0]):
            row = rows[i].clone()
            for j in range(12):
                kind = float(kinds[i, j])
                if kind < 0.15 * 0.8:
                    row[j] = 256
                elif kind < 0.15 * 0.9:
                    row[j] = int(float(fillers[i, j]) * 257)
            logits = model(row[None])[0].double().log_softmax(-1)
            losses += [-float(logits[j, rows[i, j]]) for j in range(12) if float(kinds[i, j]) < 0.15]
    assert scores["valid_perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
