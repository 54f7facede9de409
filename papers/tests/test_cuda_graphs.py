"""What capturing a graph does around CUDA's own part, which a GPU's checks look at."""

import gc
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from oversmooth_papers import cuda_graphs


class Circle:
    def __init__(self):
        self.itself = self


@pytest.fixture
def without_a_gpu(monkeypatch):
    """Captures as a GPU would: a function runs, and what is replayed runs it again."""
    stream = SimpleNamespace(wait_stream=lambda _: None)
    made = []

    @contextmanager
    def graph(_):
        made.append({"collects": gc.isenabled(), "left": garbage() is not None})
        yield

    garbage = weakref.ref(Circle())
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return made


@pytest.mark.parametrize("on", [True, False])
def test_nothing_is_collected_during_a_capture(without_a_gpu, on):
    """A graph that dies then would end the capture; what is dead already goes before."""
    was_on = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        cuda_graphs.captured(lambda: None)
        assert gc.isenabled() == on
    finally:
        (gc.enable if was_on else gc.disable)()
    assert without_a_gpu == [{"collects": False, "left": False}]


@pytest.mark.usefixtures("without_a_gpu")
def test_collection_goes_on_after_a_capture_that_fails():
    calls = []

    def function():
        calls.append(len(calls))
        if len(calls) == 4:
            raise RuntimeError("operation not permitted")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="not permitted"):
        cuda_graphs.captured(function)
    assert gc.isenabled()
