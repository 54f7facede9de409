"""A Ctrl-C at any moment of steering leaves the model as it was, or steered whole."""

import os
import random
import signal
import threading
import time

import pytest
import torch
from torch import nn

from oversmooth.steering import FeatScale, LayerNormScaling, NeuTRENO, Spectral, fold, steer, steering_of, unsteer

METHODS = ([Spectral("sharpen"), NeuTRENO(0.3)], [LayerNormScaling(), FeatScale(0.1, 0.2)])


def model():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()


def seconds(work):
    """That it takes once what it needs was imported: else most interruptions would come after it."""
    work()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def interrupted(wait, work):
    timer = threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        work()
        timer.join()
        time.sleep(0.001)
    except KeyboardInterrupt:
        pass


@pytest.mark.parametrize("methods", METHODS, ids=str)
def test_at_any_moment(methods):
    stock, x = model(), torch.randn(2, 5, 16)
    names, classes = list(stock.state_dict()), [type(m) for m in stock.modules()]
    with torch.no_grad():
        before, steered = stock(x), steer(model(), methods)(x)
    span, draw = seconds(lambda: unsteer(steer(model(), methods))), random.Random(0)
    ended = {"stock": 0, "steered": 0}
    for attempt in range(24):
        one = stock if attempt % 2 else model()
        interrupted(draw.uniform(0, span), lambda one=one: unsteer(steer(one, methods)))
        state = "stock" if steering_of(one) is None else "steered"
        ended[state] += 1
        with torch.no_grad():
            torch.testing.assert_close(one(x), before if state == "stock" else steered)
        if state == "steered":
            unsteer(one)
        assert list(one.state_dict()) == names
        assert [type(m) for m in one.modules()] == classes
    assert ended["stock"]


def test_folding_is_done_or_not():
    draw, ended = random.Random(1), set()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = steer(model(), Spectral("sharpen"))(x)
    span = seconds(lambda: fold(steer(model(), Spectral("sharpen"))))
    # The last comes when folding is over, however busy the machine is.
    for wait in (*(draw.uniform(0, span) for _ in range(11)), 5 * span + 1):
        one = steer(model(), Spectral("sharpen"))
        interrupted(wait, lambda one=one: fold(one))
        with torch.no_grad():
            torch.testing.assert_close(one(x), expected, rtol=1e-4, atol=1e-5)
        ended.add(steering_of(one) is None)
    assert True in ended
