"""Batches: by place and epoch alone, from any step on, on any number of workers and processes."""

from dataclasses import replace

import pytest
import torch
from support import timm_models
from support.imagenet_example import RECIPE, splits, step_of, write_folders

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.ranks import Ranks
from oversmooth_papers.tasks.imagenet.data.pictures import Pictures
from oversmooth_papers.tasks.imagenet.model import model_of
from oversmooth_papers.tasks.imagenet.task import ImagenetTask
from oversmooth_papers.tasks.imagenet.workers import chunk_size, worker_count

pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")
CPU, STEP = torch.device("cpu"), torch.zeros(1, dtype=torch.int64)


@pytest.fixture
def data(tmp_path):
    return splits(write_folders(tmp_path / "pictures"))


def drawn(recipe, data, steps, ranks=None, workers=0, start=0):
    """The batches of an epoch from a step on; the generator is where it would be there."""
    feed = ImagenetTask(recipe, data, workers).feed(CPU, ranks or Ranks(), compiled=False)
    feed.reorder(torch.Generator().manual_seed(1))
    feed.seek(start)
    batches = []
    for step in range(start, steps):
        feed.draw(torch.Generator().manual_seed(step))
        batches.append(tuple(part.clone() for part in feed.batch(STEP)))
    return batches


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_nothing(data, workers):
    assert_equal(drawn(RECIPE, data, 3, workers=workers), drawn(RECIPE, data, 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_lies_before_a_step_is_not_decoded(data, workers, monkeypatch):
    whole = drawn(RECIPE, data, 3)
    seen = []
    image = Pictures.image
    monkeypatch.setattr(Pictures, "image", lambda self, index: seen.append(index) or image(self, index))
    assert_equal(drawn(RECIPE, data, 3, start=2, workers=workers), whole[2:])
    assert len(seen) == (8 if workers == 0 else 0)


def test_an_image_that_is_repeated_is_augmented_anew(data):
    recipe = replace(RECIPE, mixup=0.0, cutmix=0.0)
    images, targets = drawn(recipe, data, 1)[0]
    assert torch.equal(targets[0], targets[1])
    assert torch.equal(targets[1], targets[2])
    assert not any(torch.equal(images[a], images[b]) for a in range(8) for b in range(a))


def test_processes_have_the_parts_of_the_batch_that_one_has(data):
    whole = drawn(RECIPE, data, 3)
    for world in (2, 4):
        for rank in range(world):
            places = Ranks(rank, world).places(8)
            own = [tuple(part[places] for part in batch) for batch in whole]
            assert_equal(drawn(RECIPE, data, 3, Ranks(rank, world)), own)


def test_epochs_differ_and_a_step_reads_what_was_drawn(data):
    step = step_of(RECIPE, model_of(RECIPE), data, CPU)
    seen = []
    for _ in range(2):
        step.begin_epoch()
        for _ in range(step.steps):
            step.run()
            seen.append(step.batch()[0].clone())
    assert step.steps == 3
    assert not any(torch.equal(seen[a], seen[b]) for a in range(6) for b in range(a))


def test_a_blank_batch_has_the_form_of_a_batch(data):
    task = ImagenetTask(RECIPE, data, 0)
    for blank, real in zip(task.blank(8, CPU), drawn(RECIPE, data, 1)[0], strict=True):
        assert (blank.shape, blank.dtype) == (real.shape, real.dtype)


def test_smoothing_is_watched_on_test_images_of_all_classes(data):
    model = model_of(RECIPE)
    probe = ImagenetTask(RECIPE, data, 0).probe(model, CPU)
    assert probe.inputs[0].shape == (8, 3, 16, 16)
    assert list(probe.blocks) == list(model.blocks)
    assert ImagenetTask(RECIPE, data).facts() == {"test_images": 12, "train_images": 24}


def test_fewer_images_than_a_batch_are_refused(data):
    with pytest.raises(InputError, match="24 images are less than one batch of 32"):
        step_of(replace(RECIPE, batch=32), model_of(RECIPE), data, CPU)


def test_data_of_another_recipe_are_refused(data):
    with pytest.raises(InputError, match="the recipe is for other with 3 classes and the data are pictures with 3"):
        ImagenetTask(replace(RECIPE, data="other"), data)
    assert replace(RECIPE, data="other").fitted(data) == RECIPE


def test_workers_are_counted(monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_WORKERS", "5")
    assert worker_count(4) == 5
    for bad in ("-1", "many", "100000"):
        monkeypatch.setenv("OVERSMOOTH_WORKERS", bad)
        with pytest.raises(InputError, match=f"OVERSMOOTH_WORKERS is '{bad}' in the environment"):
            worker_count(1)
    monkeypatch.delenv("OVERSMOOTH_WORKERS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: range(16), raising=False)
    assert [worker_count(world) for world in (1, 4, 32)] == [16, 4, 1]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert worker_count(64) == 2


@pytest.mark.parametrize("batch", [1, 8, 97, 256, 1000])
def test_chunks_divide_a_batch(batch):
    assert batch % chunk_size(batch) == 0
    assert 1 <= chunk_size(batch) <= 64
