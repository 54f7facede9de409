"""On a GPU: batches from workers beside the graph, stochastic depth and averages within it."""

from dataclasses import replace

import pytest
import torch
from support import timm_models
from support.imagenet_example import RECIPE, splits, step_of, train, write_folders

from oversmooth_papers.engine.loop import WatchSettings
from oversmooth_papers.tasks.imagenet.task import model_of

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.skipif(not timm_models.available(), reason="timm is not installed"),
]


@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6"])
def test_a_step_reads_the_batch_that_was_drawn_and_moves_the_average(tmp_path, variant):
    device = torch.device("cuda", torch.cuda.current_device())
    recipe = replace(RECIPE, variant=variant, drop_path=0.0, ema=0.8, warmup=0, precision="float32")
    data = splits(write_folders(tmp_path / "pictures"))
    model = model_of(recipe).to(device)
    step = step_of(recipe, model, data, device, workers=2)
    step.begin_epoch()
    for number in range(step.steps):
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        average = {name: value.clone() for name, value in step.task.average.items()}
        step.run()
        images, targets = (part.clone() for part in step.batch())
        with torch.no_grad():
            expected = {name: 0.8 * average[name] + 0.2 * p for name, p in model.named_parameters()}
            logits = torch.func.functional_call(model, weights, (images,))
            loss = torch.nn.functional.cross_entropy(logits, targets)
        torch.testing.assert_close(step.losses[number], loss, rtol=1e-2, atol=1e-3)
        for name, value in expected.items():
            torch.testing.assert_close(step.task.average[name], value, msg=name)


def test_stopped_after_every_step_it_sees_the_batches_of_a_run_that_was_not(tmp_path):
    data = splits(write_folders(tmp_path / "pictures"))
    watch = WatchSettings(evaluate=1, monitor=0, save=0)
    whole = train(RECIPE, data, 2, device="cuda", folder=tmp_path / "whole", watch=watch)
    result = None
    while result is None or not result.finished:
        result = train(RECIPE, data, 1, device="cuda", folder=tmp_path / "cut", resume=True, minutes=0, watch=watch)
    for ours, theirs in zip(whole.epochs, result.epochs, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)
