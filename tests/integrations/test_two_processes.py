"""Trainer and Lightning in two real processes: both look, log and stop together, before and after a restart."""

import json

import pytest
from support.interpreters import python
from support.nightly import nightly
from support.places import TESTS

pytestmark = nightly

BEFORE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import oversmooth
from support import watched
folder, rank = {folder!r}, int(os.environ["RANK"])

def say(**found):
    with open(f"{{folder}}/{{rank}}.jsonl", "a") as file:
        file.write(json.dumps(found) + "\\n")

def fingerprint(model):
    return float(sum(p.detach().double().square().sum() for p in model.parameters()))
"""
TRAINER = """
import transformers
from oversmooth.integrations import SmoothingCallback
transformers.utils.logging.set_verbosity_error()

def trained(name, callback, resume=None):
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32))
    generator = torch.Generator().manual_seed(1)
    data = [{"input_ids": torch.randint(1, 50, (8,), generator=generator), "labels": i % 2} for i in range(64)]
    arguments = transformers.TrainingArguments(
        f"{folder}/{name}", max_steps=8, per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True,
        report_to="none", save_strategy="steps", save_steps=4, ddp_timeout=60, ddp_backend="gloo")
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=data, callbacks=[] if callback is None else [callback])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    steps = [] if callback is None else callback.history.steps
    failures = [] if callback is None else callback.monitor.failures
    say(name=name, end=trainer.state.global_step, weights=fingerprint(model), steps=steps, failures=failures,
        cos=callback.history.curve("cos") if steps else None)

def stop(then):
    return oversmooth.Alarm("cos", above=-2, depth=-1, then=then)

trained("plain", None)
trained("probe", SmoothingCallback(every=2, spectra=2))
trained("passing", SmoothingCallback(every=2, use_training_batch=True))
trained("resumed", SmoothingCallback(every=2, alarms=stop("warn")))
trained("resumed", SmoothingCallback(every=2, alarms=stop("stop")), f"{folder}/resumed/checkpoint-4")
trained("stopped", SmoothingCallback(every=2, alarms=stop("stop")))
"""
LIGHTNING = """
import datetime, logging
import lightning as L
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from oversmooth.integrations import LightningSmoothing
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = watched.Known()
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch, _):
        return self(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

def trained(name, callback):
    torch.manual_seed(0)
    module, x = Module(), torch.randn(64, 5, 16, generator=torch.Generator().manual_seed(0))
    strategy = DDPStrategy(process_group_backend="gloo", timeout=datetime.timedelta(seconds=60))
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=CSVLogger(f"{folder}/{name}"),
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[] if callback is None else [callback])
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 4))
    steps = [] if callback is None else callback.history.steps
    failures = [] if callback is None else callback.monitor.failures
    say(name=name, end=trainer.global_step, weights=fingerprint(module), steps=steps, failures=failures,
        cos=callback.history.curve("cos") if steps else None)

trained("plain", None)
trained("probe", LightningSmoothing(every=2, spectra=2))
trained("passing", LightningSmoothing(every=2, use_training_batch=True))
trained("stopped", LightningSmoothing(every=2, alarms=oversmooth.Alarm("cos", above=-2, depth=-1, then="stop")))
"""


@pytest.mark.parametrize(("library", "script"), [("transformers", TRAINER), ("lightning", LIGHTNING)])
def test_two_processes_look_and_stop_together(library, script, tmp_path):
    pytest.importorskip(library)
    file = tmp_path / "script.py"
    file.write_text(BEFORE.format(tests=str(TESTS), folder=str(tmp_path)) + script)
    launch = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    done = python(*launch, file, OMP_NUM_THREADS=1, GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (
        [json.loads(line) for line in (tmp_path / f"{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)
    )
    assert [one["end"] for one in first] == [one["end"] for one in second]
    by_name = {one["name"]: one for one in first}
    for one, other in zip(first, second, strict=True):
        assert one["failures"] == other["failures"] == []
        assert one["cos"] == other["cos"]
    for name in ("probe", "passing"):
        assert by_name[name]["weights"] == by_name["plain"]["weights"]
        assert by_name[name]["steps"] == [1, 2, 4, 6, 8]
    assert by_name["stopped"]["end"] == 1
    if library == "transformers":  # it was on before the restart, and goes off when it has come back, which it does not
        assert by_name["resumed"]["end"] == 8
        assert by_name["resumed"]["steps"] == [1, 2, 4, 6, 8]
