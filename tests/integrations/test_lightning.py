"""The real Lightning: loggers get every look at its own step, and the training is as without."""

import warnings

import pytest
import torch
from support import watched
from support.nightly import nightly
from torch import nn

import oversmooth
from oversmooth.integrations import LightningSmoothing

L = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = watched.Known()

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

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


def fitted(folder, callback=None, resume=None, **settings):
    watched.seed()
    module, logger = Module(), Numbers()
    trainer = L.Trainer(
        max_steps=8, accelerator="cpu", logger=logger, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=4,
        callbacks=[] if callback is None else [callback], **settings,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader(), ckpt_path=resume)
    return trainer, module, logger


MORE = ({"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"})


@pytest.mark.parametrize("passing", [False, True])
@pytest.mark.parametrize("settings", [{}, *(pytest.param(one, marks=nightly) for one in MORE)])
def test_bit_for_bit_and_every_look_is_logged_at_its_step(passing, settings, tmp_path):
    _, plain, logger = fitted(tmp_path / "a", **settings)
    callback = LightningSmoothing(every=3, passing=passing)
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


def test_an_alarm_stops_the_fit(tmp_path):
    callback = LightningSmoothing(every=3, alarms=oversmooth.Alarm("cos", above=-2, then="stop"))
    trainer, _, _ = fitted(tmp_path, callback)
    assert trainer.global_step == 1
