"""Batches: by place and epoch alone, from any step on, with any workers and processes; order and Mixup are timm's.

Stochastic depth and the average of the weights, against loops by hand.
"""

# ruff: noqa: NPY002 (timm draws from the global state of numpy)

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import timm_models
from support.imagenet_example import RECIPE, SHAPE, splits, step_of, write_folders

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.imagenet.data import Splits, Transformed
from oversmooth_papers.tasks.imagenet.task import ImagenetTask, model_of, plain_model_of
from oversmooth_papers.tasks.images.vit import ViT

pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
CPU, STEP = torch.device("cpu"), torch.zeros(1, dtype=torch.int64)


@pytest.fixture
def data(tmp_path):
    return splits(write_folders(tmp_path / "pictures"))


def drawn(recipe, data, ranks=None, workers=0, start=0, epoch=1):
    """The batches of an epoch of three steps from a step on; the generator is where it would be there."""
    feed = ImagenetTask(recipe, data, workers).feed(CPU, ranks or Ranks(), compiled=False)
    feed.reorder(torch.Generator().manual_seed(epoch))
    if start:
        feed.seek(start)
    batches = []
    for step in range(start, 3):
        feed.draw(torch.Generator().manual_seed(step))
        batches.append(tuple(part.clone() for part in feed.batch(STEP)))
    return batches


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("workers", "start"), [(1, 0), (2, 0), (0, 2), (2, 1)])
def test_neither_workers_nor_where_it_goes_on_change_a_batch(data, workers, start, monkeypatch):
    whole = drawn(RECIPE, data)
    seen, image = [], Transformed.__getitem__
    monkeypatch.setattr(Transformed, "__getitem__", lambda self, place: seen.append(place) or image(self, place))
    assert_equal(drawn(RECIPE, data, workers=workers, start=start), whole[start:])
    assert seen == ([] if workers else list(range(8 * start, 24)))  # nothing before the start is decoded


def test_an_image_that_is_repeated_is_augmented_anew_and_so_is_an_epoch(data):
    recipe = replace(RECIPE, mixup=0.0, cutmix=0.0)
    images, targets = drawn(recipe, data)[0]
    assert torch.equal(targets[:1].expand(3, -1), targets[:3])
    images = torch.cat([images, drawn(recipe, data, epoch=2)[0][0]])
    assert not any(torch.equal(images[a], images[b]) for a in range(16) for b in range(a))


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_processes_have_the_parts_of_the_batch_that_one_has(data, parts):
    recipe = replace(RECIPE, mix_parts=parts)
    whole = drawn(recipe, data)
    for rank, world in [(0, 2), (1, 2), (0, 4), (3, 4)]:
        places = Ranks(rank, world).places(8)
        own = [tuple(part[places] for part in batch) for batch in whole]
        assert_equal(drawn(recipe, data, Ranks(rank, world)), own)


def test_blank_batches_and_the_probe_have_the_form_of_a_batch(data):
    task, model = ImagenetTask(RECIPE, data, 0), model_of(RECIPE)
    for blank, real in zip(task.blank(8, CPU), drawn(RECIPE, data)[0], strict=True):
        assert (blank.shape, blank.dtype) == (real.shape, real.dtype)
    probe = task.probe(model, CPU)
    assert probe.inputs[0].shape == (8, 3, 16, 16)
    assert list(probe.blocks) == list(model.blocks)
    assert task.facts() == {"test_images": 12, "train_images": 24}


def test_data_of_another_recipe_are_refused(data):
    with pytest.raises(InputError, match="the recipe is for other and the data are pictures"):
        ImagenetTask(replace(RECIPE, data="other"), data)
    assert replace(RECIPE, data="other").fitted(data) == RECIPE


def feed_of(recipe, count):
    timm_models.timm()
    many = Splits([("", 0)] * count, [("", 0)], ("a", "b", "c"), "pictures")
    return ImagenetTask(recipe, many, 0).feed(CPU, Ranks(), compiled=False)


@pytest.mark.parametrize(("count", "repeats"), [(24, 3), (24, 1), (1000, 3)])
def test_an_epoch_has_the_images_of_timms_sampler(count, repeats):
    feed = feed_of(replace(RECIPE, repeats=repeats), count)
    from timm.data.distributed_sampler import RepeatAugSampler

    feed.reorder(torch.Generator().manual_seed(1))
    theirs = RepeatAugSampler(range(count), num_replicas=1, rank=0, num_repeats=repeats, selected_round=0)
    theirs.set_epoch(feed.seed)
    assert feed.order.tolist() == list(theirs)


def mixed(recipe, images, labels, seed):
    """Images and targets after the feed's Mixup."""
    feed = feed_of(recipe, 32)
    feed.images = images.clone()
    feed.mix(labels, seed)
    return feed.images, feed.targets


@pytest.mark.parametrize("seed", range(4))
def test_mixing_is_timms_under_the_same_numpy_seed(seed):
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(3, (8,))
    ours, targets = mixed(replace(RECIPE, mix_parts=1), images, labels, seed)
    from timm.data import Mixup

    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5, label_smoothing=0.1, num_classes=3)
    np.random.seed([seed, 0, 0])
    assert_equal([(ours, targets)], [mixup(images.clone(), labels)])


def test_parts_are_mixed_by_draws_of_their_own():
    recipe = replace(RECIPE, batch=16, mix_parts=4, cutmix=0.0, smoothing=0.0)
    labels = torch.tensor([0] * 8 + [1] * 8)  # partners have other classes: targets are λ
    _, targets = mixed(recipe, torch.randn(16, 3, 4, 4), labels, 3)
    assert len({round(float(value), 6) for value in targets[:8, 0]}) == 4


def test_without_mixing_targets_are_smoothed_classes():
    recipe = replace(RECIPE, mixup=0.0, cutmix=0.0, smoothing=0.3, batch=3)
    images, labels = torch.randn(3, 3, 4, 4), torch.tensor([2, 0, 1])
    ours, targets = mixed(recipe, images, labels, 0)
    torch.testing.assert_close(targets, 0.7 * torch.eye(3)[labels] + 0.1)
    assert torch.equal(ours, images)


# The model


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


def test_rates_grow_evenly_as_in_timm():
    timm = timm_models.timm()
    theirs = timm.create_model("deit_tiny_patch16_224", drop_path_rate=0.1, embed_dim=12, depth=12)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in theirs.blocks]
    ours = plain_model_of(replace(RECIPE, shape=replace(SHAPE, depth=12), drop_path=0.1))
    assert [block.drop for block in ours.blocks] == pytest.approx(rates)


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


@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6", "sharpen"])
def test_steps_and_averages_are_those_of_a_loop_by_hand(data, variant):
    """Soft cross-entropy, AdamW by its formula with decay on matrices alone, then the average."""
    recipe = replace(RECIPE, variant=variant, drop_path=0.0, ema=0.8, warmup=0, weight_decay=0.3)
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


@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6", "sharpen"])
def test_accuracies_are_of_the_weights_and_of_their_average(data, variant):
    recipe = replace(RECIPE, variant=variant)
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
