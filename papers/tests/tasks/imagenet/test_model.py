"""Stochastic depth and the average of the weights, against loops by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support import timm_models
from support.imagenet_example import RECIPE, SHAPE, splits, step_of, write_folders

from oversmooth_papers.tasks.imagenet.task import ImagenetTask, model_of, plain_model_of
from oversmooth_papers.tasks.images.vit import ViT

CPU = torch.device("cpu")
needs_timm = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")


def both(drop_path):
    torch.manual_seed(0)
    plain = ViT(SHAPE)
    torch.manual_seed(0)
    return plain, plain_model_of(replace(RECIPE, drop_path=drop_path))


def test_weights_and_their_names_are_the_plain_ones_and_evaluation_is_its():
    plain, dropping = both(0.5)
    assert list(plain.state_dict()) == list(dropping.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, dropping.state_dict()[name]), name
    x = torch.randn(3, 3, 16, 16)
    assert torch.equal(plain.eval()(x), dropping.eval()(x))
    assert torch.equal(both(0.0)[1](x), plain(x))


@needs_timm
def test_rates_grow_evenly_as_in_timm():
    timm = timm_models.timm()
    theirs = timm.create_model("deit_tiny_patch16_224", drop_path_rate=0.1, embed_dim=12, depth=12)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in theirs.blocks]
    ours = plain_model_of(replace(RECIPE, shape=replace(SHAPE, depth=12), drop_path=0.1))
    assert [block.drop for block in ours.blocks] == pytest.approx(rates)


def test_what_is_left_out_is_left_out_for_whole_images_and_makes_no_difference_on_average():
    block = both(0.4)[1].blocks[-1]
    assert block.drop == pytest.approx(0.4)
    added = torch.tensor([1.0, -4.0]).expand(4000, 5, 2)
    torch.manual_seed(1)
    thinned = block._thinned(added)
    ratio = thinned / added
    assert torch.equal(ratio, ratio[:, :1, :1].expand_as(ratio))
    assert ratio.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert float(ratio.mean()) == pytest.approx(1, abs=5 * (0.4 / 0.6 / 4000) ** 0.5)


def test_a_block_in_training_is_the_formula():
    block = both(0.4)[1].blocks[-1].train()
    x = torch.randn(6, 17, 16)
    torch.manual_seed(2)
    out = block(x)
    torch.manual_seed(2)
    first, second = ((torch.empty(6, 1, 1).bernoulli_(0.6) / 0.6) for _ in range(2))
    middle = x + first * block.attn(block.norm1(x))
    expected = middle + second * block.mlp(block.norm2(middle))
    torch.testing.assert_close(out, expected)


@needs_timm
@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6", "sharpen"])
def test_steps_and_averages_are_those_of_a_loop_by_hand(tmp_path, variant):
    """Soft cross-entropy, AdamW by its formula with decay on matrices alone, then the average."""
    recipe = replace(RECIPE, variant=variant, drop_path=0.0, ema=0.8, warmup=0, weight_decay=0.3)
    data = splits(write_folders(tmp_path / "pictures"))
    model, other = model_of(recipe), model_of(recipe)
    step = step_of(recipe, model, data, CPU)
    step.begin_epoch()
    weights = {name: p for name, p in other.named_parameters() if p.requires_grad}
    average = {name: p.detach().clone() for name, p in weights.items()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in weights.items()}
    for number in range(1, 4):
        step.run()
        images, targets = (x.clone() for x in step.batch())
        loss = -(targets * other(images).log_softmax(1)).sum(1).mean()
        torch.testing.assert_close(F.cross_entropy(other(images), targets), loss)
        grads = torch.autograd.grad(loss, list(weights.values()))
        rate = 1e-5 + (0.1 * 8 / 1024 - 1e-5) * 1.0
        with torch.no_grad():
            for (name, p), grad in zip(weights.items(), grads, strict=True):
                if p.ndim > 1 and name not in ("pos_embed", "cls_token"):
                    p *= 1 - rate * 0.3
                first, second = moments[name]
                first.mul_(0.9).add_(0.1 * grad)
                second.mul_(0.999).add_(0.001 * grad**2)
                p -= rate * (first / (1 - 0.9**number)) / ((second / (1 - 0.999**number)).sqrt() + 1e-8)
                average[name] = 0.8 * average[name] + 0.2 * p
    for name, p in model.named_parameters():
        if p.requires_grad:
            torch.testing.assert_close(p, weights[name], rtol=1e-3, atol=2e-5, msg=name)
            torch.testing.assert_close(step.task.average[name], average[name], rtol=1e-3, atol=2e-5, msg=name)


@needs_timm
@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6", "sharpen"])
def test_accuracies_are_of_the_weights_and_of_their_average(tmp_path, variant):
    recipe = replace(RECIPE, variant=variant)
    data = splits(write_folders(tmp_path / "pictures"))
    task, model, averaged = ImagenetTask(recipe, data, 0), model_of(recipe), model_of(replace(recipe, seed=4))
    task.beside(averaged)
    with torch.no_grad():
        model.head.bias += torch.tensor([0.0, 9.0, 0.0])  # always the second of three classes
        task.average["head.bias"] += torch.tensor([0.0, 0.0, 0.01])
        averaged.head.bias += torch.tensor([0.0, 0.0, 0.01])
    model.train()
    scores = task.evaluation(model, CPU).scores(final=True)
    assert model.training
    assert scores["accuracy"] == pytest.approx(1 / 3)
    alone = ImagenetTask(recipe, data, 0).evaluation(averaged, CPU).scores(final=True)
    assert set(alone) == {"accuracy"}
    assert scores["accuracy_ema"] == alone["accuracy"]
