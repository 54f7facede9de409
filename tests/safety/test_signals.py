"""Signals that come at a bad moment: held back for its length, neither lost nor taken for something else."""

import os
import random
import signal
import threading
import time

import pytest
import torch
from safetensors.torch import save_file

from oversmooth.safety.signals import delay_signals
from oversmooth.steering.saving import read_file


def test_a_signal_waits_for_the_end_of_the_block():
    reached = []

    def work():
        with delay_signals():
            with delay_signals():
                signal.raise_signal(signal.SIGINT)
                reached.append("inside")
            reached.append("between")
        reached.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["inside", "between"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_signals_stay_ignored_and_other_threads_are_let_be():
    usual, handlers = signal.signal(signal.SIGINT, signal.SIG_IGN), []
    with delay_signals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, usual)

    def look():
        with delay_signals():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [usual]


def test_a_file_that_is_whole_is_never_called_damaged(tmp_path):
    path = tmp_path / "many.safetensors"
    save_file({f"{i:04}": torch.full((2,), float(i)) for i in range(400)}, path)
    read_file(path)
    begin = time.perf_counter()
    read_file(path)
    span, draw, stopped = time.perf_counter() - begin, random.Random(0), 0
    for _ in range(40):
        timer = threading.Timer(draw.uniform(0, span), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            arrays, _ = read_file(path)
            assert len(arrays) == 400
            timer.join()
            time.sleep(0.001)
        except KeyboardInterrupt:
            stopped += 1
    assert stopped == 40  # none was lost
