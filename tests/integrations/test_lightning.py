"""The real Lightning: loggers get every look at its own step, and the training is as without."""

import functools
import warnings

import pytest
import torch
from support import watched
from support.nightly import nightly
from torch import nn

import oversmooth
from oversmooth.integrations import LightningSmoothing
from oversmooth.monitor.warning import MonitorWarning

L = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(L.LightningModule):
    def __init__(self, make=watched.Known):
        super().__init__()
        self.model, self.losses, self.logs = make(), [], True

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        if self.logs:
            self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, *_):
        self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Numbers(L.pytorch.loggers.logger.Logger):
    """A logger that remembers."""

    name, version = "numbers", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))

    def log_hyperparams(self, *_, **__):
        pass


def loader():
    x = torch.randn(32, 5, 16, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.arange(32) % 4), 4, shuffle=True)


def fitted(folder, callback=None, resume=None, prepare=None, make=watched.Known, **settings):
    """(the trainer, the module, its logger). prepare: makes what is fitted of the module."""
    watched.seed()
    module, logger = Module(make), Numbers()
    trainer = L.Trainer(
        max_steps=8, accelerator="cpu", logger=logger, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=4,
        callbacks=[] if callback is None else [callback], **settings,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module if prepare is None else prepare(module), loader(), ckpt_path=resume)
    return trainer, module, logger


MORE = ({"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"})


@pytest.mark.parametrize("passing", [False, True])
@pytest.mark.parametrize("settings", [{}, *MORE])
def test_bit_for_bit_and_every_look_is_logged_at_its_step(passing, settings, tmp_path):
    _, plain, logger = fitted(tmp_path / "a", **settings)
    callback = LightningSmoothing(every=3, use_training_batch=passing)
    trainer, seen, seen_logger = fitted(tmp_path / "b", callback, **settings)
    assert watched.same(plain, seen)
    assert callback.monitor.failures == []

    def own(one):
        return [(step, row["loss"]) for step, row in one.rows if "loss" in row]

    assert own(seen_logger) == own(logger)
    looked = [step for step, row in seen_logger.rows if "oversmooth/cos/layer_02" in row]
    assert looked == callback.history.steps == [1, 3, 6]
    assert float(trainer.callback_metrics["oversmooth/last/cos"]) == pytest.approx(callback.history.curve("cos")[-1])
    assert not any(m._forward_hooks for m in seen.modules())


def is_as_without(plain, seen, callback, depths):
    """Weights and losses, and every look has all depths."""
    assert watched.same(plain, seen)
    assert len(seen.losses) == 8
    assert seen.losses == plain.losses
    assert callback.monitor.failures == []
    assert callback.history.steps == [1, 3, 6]
    assert all(len(row["cos"]) == depths and None not in row["cos"] for row in callback.history.rows)


def compiled_whole(module):
    torch._dynamo.reset()
    module.logs = False  # Lightning's log() is nothing that this dynamo can compile
    return torch.compile(module, backend="aot_eager")


def compiled_inside(module):
    torch._dynamo.reset()
    module.model.compile(backend="aot_eager")
    return module


@nightly
@pytest.mark.parametrize(
    ("prepare", "passing"), [(compiled_whole, False), (compiled_whole, True), (compiled_inside, False)]
)
def test_a_compiled_fit_is_bit_for_bit_the_same_and_every_layer_reports(prepare, passing, tmp_path):
    from torch._dynamo.utils import counters

    counts = []
    fits = []
    callback = LightningSmoothing(every=3, use_training_batch=passing)
    for name, given in (("a", None), ("b", callback)):
        counters.clear()
        fits.append(fitted(tmp_path / name, given, prepare=prepare))
        counts.append((counters["stats"]["unique_graphs"], dict(counters["graph_break"]), dict(counters["recompiles"])))
    plain, seen = (module for _, module, _ in fits)
    assert counts[0][0] >= 1, "nothing was compiled"
    assert counts[0] == counts[1]
    is_as_without(plain, seen, callback, depths=3)


def test_the_passing_batch_of_a_module_that_is_compiled_inside_is_not_watched_and_it_is_said():
    callback = LightningSmoothing(every=3, use_training_batch=True)
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.warns(MonitorWarning, match="smoothing is not monitored: .* make the monitor before torch.compile"):
        callback.setup(trainer, compiled_inside(Module()), "fit")
    assert callback.monitor is None


@pytest.mark.parametrize("passing", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_fit_with_checkpointing_is_bit_for_bit_the_same_and_every_layer_reports(reentrant, passing, tmp_path):
    make = functools.partial(watched.Own, checkpointing=reentrant)
    _, plain, _ = fitted(tmp_path / "a", make=make)
    callback = LightningSmoothing(
        every=3, use_training_batch=passing, blocks="model.layers.*", gradients=1 if passing else 0
    )
    _, seen, _ = fitted(tmp_path / "b", callback, make=make)
    is_as_without(plain, seen, callback, depths=4)
    assert all(None not in row["gradient_norm"] for row in callback.history.rows if passing)


def test_a_fit_that_is_resumed_goes_on_without_double_steps(tmp_path):
    file = tmp_path / "looks.jsonl"
    trainer, _, _ = fitted(tmp_path, LightningSmoothing(every=2, history=file))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    callback = LightningSmoothing(every=2, history=file)
    watched.seed()
    again = L.Trainer(
        max_steps=12, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[callback], default_root_dir=tmp_path,
    )  # fmt: skip
    again.fit(Module(), loader(), ckpt_path=str(tmp_path / "last.ckpt"), weights_only=False)
    assert callback.history.steps == [1, 2, 4, 6, 8, 10, 12]


class TwoOptimisers(Module):
    """Which Lightning counts as two steps a batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
        return {"loss": loss}

    def configure_optimizers(self):
        parameters = list(self.parameters())
        return [torch.optim.SGD(parameters[:4], lr=1e-2), torch.optim.SGD(parameters[4:], lr=1e-2)]


@pytest.mark.parametrize("passing", [False, True])
def test_batches_count_and_not_the_steps_of_each_optimiser(passing, tmp_path):
    watched.seed()
    callback = LightningSmoothing(every=2, use_training_batch=passing)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=Numbers(), default_root_dir=tmp_path, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(TwoOptimisers(), loader())
    assert trainer.global_step == 16
    assert callback.history.steps == [1, 2, 4, 6, 8]
    looks = [step for step, row in trainer.logger.rows if any(key.startswith("oversmooth") for key in row)]
    assert looks == [1, 2, 4, 6, 8]


def test_an_alarm_stops_the_fit(tmp_path):
    callback = LightningSmoothing(every=3, alarms=oversmooth.Alarm("cos", above=-2, then="stop"))
    trainer, _, _ = fitted(tmp_path, callback)
    assert trainer.global_step == 1
