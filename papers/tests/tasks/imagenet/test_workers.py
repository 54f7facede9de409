"""Workers end with their loader, and with a process that leaves it in the middle of an epoch."""

import gc
import subprocess
import sys

import pytest
from support import timm_models
from support.imagenet_example import RECIPE, splits, write_folders
from support.nightly import nightly
from support.places import TEST_FOLDERS

from oversmooth_papers.tasks.imagenet.transforms import training_transform
from oversmooth_papers.tasks.imagenet.workers import ChunkLoader

pytestmark = pytest.mark.skipif(not timm_models.available(), reason="timm is not installed")

KEYS = [((0, place, place % 24),) for place in range(200)]


@pytest.fixture
def pictures(tmp_path):
    return write_folders(tmp_path / "pictures")


def begun(pictures):
    """A loader whose workers have much to do, and the workers."""
    loader = ChunkLoader(splits(pictures).train, training_transform(RECIPE), 2, pinned=False)
    loader.begin(KEYS)
    loader.next()
    return loader, loader._chunks._workers


def test_workers_end_when_the_loader_is_closed(pictures):
    loader, workers = begun(pictures)
    assert all(worker.is_alive() for worker in workers)
    loader.close()
    assert [worker.is_alive() for worker in workers] == [False, False]
    loader.close()
    with pytest.raises(StopIteration):
        loader.next()


def test_workers_end_when_the_loader_is_gone(pictures):
    """In a cycle torch's queues may go before its iterator, which then waits for workers that hear nothing."""
    loader, workers = begun(pictures)
    forced = []
    for worker in workers:
        worker.terminate = lambda end=worker.terminate: forced.append(end())
    loader.itself = loader
    del loader
    gc.collect()
    assert [worker.is_alive() for worker in workers] == [False, False]
    assert not forced


def test_a_loader_without_workers_is_closed_too(pictures):
    loader = ChunkLoader(splits(pictures).train, training_transform(RECIPE), 0, pinned=False)
    loader.begin(KEYS)
    loader.close()
    with pytest.raises(StopIteration):
        loader.next()


_LEAVE = """
import atexit, sys
sys.path[:0] = {tests!r}
from support.imagenet_example import RECIPE, splits
from torch.utils.data import dataloader
from oversmooth_papers.tasks.imagenet.transforms import training_transform
from oversmooth_papers.tasks.imagenet.workers import ChunkLoader

def wait(worker):
    if worker.is_alive():
        print("nobody told a worker to end")
    worker.join(5)

class Iterator(dataloader._MultiProcessingDataLoaderIter):
    # As torch does for pinned memory, until 2.12 or so.
    def __init__(self, loader):
        super().__init__(loader)
        for worker in self._workers:
            atexit.register(wait, worker)

dataloader._MultiProcessingDataLoaderIter = Iterator
loader = ChunkLoader(splits({data!r}).train, training_transform(RECIPE), 4, pinned=False)
loader.itself = loader
loader.begin([((0, place, place % 24),) for place in range(2000)])
loader.next()
{ends}
"""


@pytest.mark.parametrize(
    ("ends", "code"), [("print('leaves')", 0), pytest.param("print('leaves'); raise SystemExit(3)", 3, marks=nightly)]
)
def test_a_process_that_leaves_within_an_epoch_ends_by_itself(pictures, ends, code):
    program = _LEAVE.format(tests=TEST_FOLDERS, data=str(pictures), ends=ends)
    left = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (left.returncode, left.stdout.split("\n")) == (code, ["leaves", ""]), left.stderr
