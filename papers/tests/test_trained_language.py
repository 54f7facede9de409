"""Language models that `oversmooth train` wrote, loaded with their tokenizer and diagnosed."""

from dataclasses import replace

import pytest
import torch
from support.language_example import RECIPE, masked_recipe, task_of
from support.oracles import token_metrics
from support.runs import QUIET, train_task

from oversmooth import diagnose
from oversmooth.models import load


@pytest.mark.parametrize("recipe", [replace(RECIPE, epochs=1), masked_recipe(epochs=1)])
def test_a_trained_language_model_is_diagnosed_from_its_file(tmp_path, recipe):
    train_task(task_of(recipe), folder=tmp_path / "run", watch=QUIET)
    loaded = load(str(tmp_path / "run"))
    assert loaded.kind == "text"
    assert loaded.name == recipe.title
    assert len(loaded.tokenizer) == recipe.shape.vocabulary
    (tmp_path / "text.txt").write_text("abcabdabca")
    inputs = loaded.inputs(tmp_path / "text.txt", count=1, length=10)
    first = next(iter(inputs)).inputs["input_ids"][0]
    assert bytes(first.tolist()) == b"abcabdabca"
    diagnosis = diagnose(loaded, inputs, ranks=0)
    assert len(diagnosis.layers) == 3
    with torch.no_grad():
        x = loaded.model.embedding.weight[first] * 4 + loaded.model.positions[:10]
    assert diagnosis.layers[0].tokens["cos"] == pytest.approx(token_metrics(x)["cos"], abs=1e-4)
    random = load(str(tmp_path / "run"), random=True, seed=3).model
    assert not torch.equal(random.embedding.weight, loaded.model.embedding.weight)
