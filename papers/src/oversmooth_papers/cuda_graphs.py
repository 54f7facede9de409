"""A function captured in a CUDA graph: what it launches, launched again at one call's cost."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WARM_UPS = 3  # as compiling, cuBLAS and the optimiser's state need, and one to spare


def captured(function: Callable[[], Any]) -> Callable[[], None]:
    """Runs the function a few times, captures it once, and gives what replays it.

    It reads and writes tensors that live elsewhere and stay in place; the replay keeps them alive with the function.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(side)
    quiet = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if quiet is not None:
        quiet(False)
    graph = torch.cuda.CUDAGraph()
    with _no_collection(), torch.cuda.graph(graph):
        function()

    def replay(_keeps: Callable[[], Any] = function) -> None:
        graph.replay()

    return replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """A graph that garbage collection destroys during a capture ends that capture with an error.

    What replays holds itself in a circle, so the one of a run that is over is still there when the next one captures.
    See https://github.com/pytorch/pytorch/pull/161037.
    """
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
