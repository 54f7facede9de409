"""A language run: its batches, a plain loop beside it, its file; perplexity against single predictions; masking."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import language_example as example
from support.language_example import RECIPE, counting, masked_recipe, step_of, task_of, train
from support.runs import QUIET, train_task

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import checkpoint, loop
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import read_recipe
from oversmooth_papers.tasks.language import task as language_task
from oversmooth_papers.tasks.language.model import LanguageModel, hide
from oversmooth_papers.tasks.language.task import Perplexity, model_of
from oversmooth_papers.tasks.registry import load_trained

CPU = torch.device("cpu")


def test_an_epoch_takes_every_window_once_at_one_offset():
    feed = task_of(RECIPE).feed(CPU, Ranks(), compiled=False)
    text, length = counting().train, 12
    generator = torch.Generator().manual_seed(4)
    offsets = set()
    for _ in range(3):
        feed.reorder(generator)
        starts = []
        for step in range(feed.examples // RECIPE.batch):
            ids, targets = feed.batch(torch.tensor([step]))
            for row, wanted in zip(ids, targets, strict=True):
                first = int(feed.offset) + length * int(feed.order[len(starts)])
                assert torch.equal(row, text[first : first + length].long())
                assert torch.equal(wanted, text[first + 1 : first + length + 1].long())
                starts.append(first)
        assert len(set(starts)) == len(starts)
        assert {start % length for start in starts} == {int(feed.offset)}
        offsets.add(int(feed.offset))
    assert len(offsets) > 1


def test_three_steps_are_those_of_a_plain_loop():
    recipe = replace(RECIPE, shape=replace(RECIPE.shape, dropout=0.0), clip=0.25)
    step = step_of(recipe)
    step.begin_epoch()
    batches = []
    for number in range(3):
        batches.append(step.feed.batch(torch.tensor([number])))
        step.run()
    torch.manual_seed(recipe.seed)
    model = LanguageModel(recipe.shape)
    optimiser = torch.optim.Adam(model.parameters(), lr=1.0)  # without decay, AdamW is Adam
    for number, (ids, targets) in enumerate(batches):
        optimiser.param_groups[0]["lr"] = recipe.lr * number / 4
        loss = -model(ids).log_softmax(-1).gather(-1, targets[..., None]).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimiser.step()
        assert float(step.losses[number]) == pytest.approx(float(loss.detach()), abs=1e-5)
    torch.testing.assert_close(step.model.state_dict(), model.state_dict(), rtol=0, atol=1e-5)


def test_dropout_is_decided_by_seed_step_and_process():
    def first_loss(attempt):
        step = step_of(replace(RECIPE, lr=1e-9))
        step.begin_epoch()
        step.draws.attempt = attempt
        torch.manual_seed(int(torch.randint(100, ())))  # whatever the caller draws
        step.run()
        return float(step.losses[0])

    assert first_loss(0) == first_loss(0) != first_loss(1)


def test_it_learns_and_its_file_tells_all(tmp_path):
    recipe = replace(RECIPE, epochs=8, lr=6e-3, shape=replace(RECIPE.shape, dropout=0.0))
    task = task_of(recipe, counting(3000))
    result = train_task(task, folder=tmp_path, watch=QUIET)
    assert result.scores["test_perplexity"] < 8  # chance is 256, letters alone 26, the rule 1.6
    assert result.epochs[0]["loss"] > result.epochs[-1]["loss"]
    model, kept = load_trained(tmp_path / loop.MODEL)
    assert kept == recipe
    assert isinstance(model, LanguageModel)
    assert "test" in recipe.describe(result.scores)


def test_keys_are_apart_from_those_of_images():
    from oversmooth_papers.tasks.images.recipe import Recipe as Images

    assert type(RECIPE)().key != Images().key
    assert RECIPE.key != replace(RECIPE, seed=1).key
    with pytest.raises(InputError, match="for the task 'language', not images"):
        Images.from_dict(RECIPE.to_dict())
    with pytest.raises(InputError, match="task 'paint'"):
        read_recipe({"task": "paint"})


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    from support.train_example import RECIPE as PICTURES
    from support.train_example import splits
    from support.train_example import train as train_images

    train(RECIPE, folder=tmp_path, minutes=0)
    assert checkpoint.recipe_of(tmp_path) == RECIPE
    with pytest.raises(InputError, match="is of another recipe: task is 'language' there"):
        train_images(PICTURES, splits(), folder=tmp_path, resume=True)


def test_bad_text_is_refused():
    with pytest.raises(InputError, match="examples are less than one batch of 8"):
        example.Step(task_of(RECIPE, counting(260)), task_of(RECIPE).model(), CPU)
    with pytest.raises(InputError, match="the recipe is for other and the data are counting"):
        task_of(replace(RECIPE, data="other"))


# Perplexity and masking


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
    assert set(whole) == {f"{name}_perplexity{how}" for name in ("valid", "test") for how in ("", "_sliding")}
    assert set(task.evaluation(model, CPU).scores(final=False)) == {"valid_perplexity"}
    assert model.training


@pytest.mark.parametrize("recipe", [RECIPE, masked_recipe()], ids=["causal", "masked"])
def test_a_text_that_has_no_test_is_not_tested(recipe):
    task = task_of(recipe)
    alone = task_of(recipe, replace(task.dataset, test=None))
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
    assert float(wanted.float().mean()) == pytest.approx(0.15, abs=0.01)
    assert float((seen[wanted] == 256).float().mean()) == pytest.approx(0.8, abs=0.03)
    assert float((seen[wanted] == ids[wanted]).float().mean()) == pytest.approx(0.1, abs=0.03)


def test_a_masked_model_is_scored_on_what_is_hidden():
    recipe = masked_recipe()
    task = task_of(recipe)
    model = task.model().eval()
    scores = task.evaluation(model, CPU).scores(final=True)
    rows = task.dataset.valid[:96].view(-1, 12).long()
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
