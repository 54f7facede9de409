"""A language run: its batches, a plain loop beside it, and its file."""

import json
from dataclasses import replace

import pytest
import torch
from support import language_example as example
from support.language_example import RECIPE, counting, step_of, task_of, train

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine import checkpoint, loop
from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.engine.recipe import read_recipe
from oversmooth_papers.tasks.language.model import LanguageModel
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
    def first_loss(**changes):
        step = step_of(replace(RECIPE, lr=1e-9), **changes)
        step.begin_epoch()
        torch.manual_seed(int(torch.randint(100, ())))  # whatever the caller draws
        step.run()
        return float(step.losses[0])

    assert first_loss() == first_loss()
    one = step_of(replace(RECIPE, lr=1e-9))
    one.begin_epoch()
    one.attempt = 1
    one.run()
    assert float(one.losses[0]) != first_loss()


def test_it_learns_and_its_file_tells_all(tmp_path):
    recipe = replace(RECIPE, epochs=12, shape=replace(RECIPE.shape, dropout=0.0))
    task = task_of(recipe, counting(3000))
    result = loop.train(task, device="cpu", folder=tmp_path, watch=WatchSettings(monitor=0))
    assert result.scores["test_perplexity"] < 8  # chance is 256, letters alone 26, the rule 1.6
    assert result.epochs[0]["loss"] > result.epochs[-1]["loss"]
    model, kept = load_trained(tmp_path / loop.MODEL)
    assert kept == recipe
    assert read_recipe(json.loads(json.dumps(recipe.to_dict()))) == recipe
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
        train_images(PICTURES, splits(), device="cpu", folder=tmp_path, resume=True)


def test_bad_text_is_refused():
    with pytest.raises(InputError, match="windows are less than one batch of 8"):
        example.Step(task_of(RECIPE, counting(260)), task_of(RECIPE).model(), CPU)
    with pytest.raises(InputError, match="the recipe is for other with 256 tokens and the text is counting"):
        task_of(replace(RECIPE, data="other"))
    for changes, words in (
        (dict(epochs=0), "epochs is 0"),
        (dict(masked=1.0), "masked is 1"),
        (dict(tokenizer="bpe", vocabulary=9), "at least 300"),
        (dict(tokenizer="letters"), "tokenizer is 'letters'"),
        (dict(variant="softly"), "variant is 'softly'; give plain"),
        (dict(lr=0.0), "lr is 0"),
    ):
        with pytest.raises(InputError, match=words):
            replace(RECIPE, **changes)
