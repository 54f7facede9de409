"""The real accelerate: looks go through its trackers, and the training is as without."""

import pytest
import torch
from support import watched
from torch import nn

import oversmooth
from oversmooth.integrations import tracker

accelerate = pytest.importorskip("accelerate")


class Numbers(accelerate.tracking.GeneralTracker):
    name, requires_logging_directory, tracker = "numbers", False, None

    def __init__(self):
        super().__init__()
        self.rows = []

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **_):
        self.rows.append((step, values))


def trained(watch, passing=False):
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()  # where a training was stopped, it would go on counting
    watched.seed()
    numbers = Numbers()
    accelerator = accelerate.Accelerator(
        cpu=True, log_with=numbers, gradient_accumulation_steps=2, mixed_precision="bf16"
    )
    accelerator.init_trackers("run")
    model = watched.Known()
    monitor = None
    ways = {"probe": watched.probe(), "every": 2} if not passing else {"use_training_batch": True, "every": 2}
    if watch and passing:
        monitor = oversmooth.Monitor(model, sinks=tracker(accelerator), **ways)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    if watch and not passing:
        monitor = oversmooth.Monitor(model, sinks=tracker(accelerator), **ways)
    losses = []
    for _ in range(8):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(torch.randn(4, 5, 16)), torch.randint(4, (4,)))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if monitor is not None and accelerator.sync_gradients:
                monitor.step()
    return losses, accelerator.unwrap_model(model), monitor, numbers


@pytest.mark.parametrize("passing", [False, True])
def test_bit_for_bit_through_accelerates_trackers(passing):
    losses, plain, _, _ = trained(watch=False)
    seen_losses, seen, monitor, numbers = trained(watch=True, passing=passing)
    assert seen_losses == losses
    assert watched.same(plain, seen)
    assert monitor.failures == []
    assert [step for step, _ in numbers.rows] == [1, 2, 4]
    assert numbers.rows[-1][1]["oversmooth/last/cos"] == monitor.history.curve("cos")[-1]


def test_what_is_no_accelerator_is_refused():
    with pytest.raises(oversmooth.InputError, match="the accelerator is None; give accelerate's Accelerator"):
        tracker(None)
