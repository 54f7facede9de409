"""The real transformers.Trainer: keys reach TensorBoard, W&B and log_history, and the training is as without."""

import functools
import glob
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from support.browser import until
from support.nightly import nightly

import oversmooth
from oversmooth.integrations import SmoothingCallback
from oversmooth.monitor import History, MonitorWarning

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
TIMES = ("runtime", "per_second", "total_flos")


def model():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertForSequenceClassification(config)


def data():
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "input_ids": torch.randint(1, 50, (8,), generator=generator),
            "attention_mask": torch.ones(8, dtype=torch.long),
            "labels": index % 2,
        }
        for index in range(32)
    ]


def trained(folder, callback=None, resume=None, **settings):
    settings = {"save_strategy": "no", "max_steps": 8, "report_to": "none", **settings}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        logging_steps=4,
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    callbacks = [] if callback is None else [callback]
    trainer = transformers.Trainer(model=model(), args=arguments, train_dataset=data(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer):
    """What the trainer logs of itself, without times."""
    rows = [{k: v for k, v in row.items() if not k.startswith("oversmooth") and not k.endswith(TIMES)}
            for row in trainer.state.log_history]  # fmt: skip
    return [row for row in rows if "loss" in row or "train_loss" in row]


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


SETTINGS = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2, "max_steps": 4},
    "checkpointing": {"gradient_checkpointing": True},
    "bf16": {"bf16": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
}


@functools.cache
def without(setting):
    """The training that nobody watches, once for both ways of watching."""
    with tempfile.TemporaryDirectory() as folder:
        return trained(folder, **SETTINGS[setting])


@pytest.mark.parametrize(
    "setting", [pytest.param(name, marks=nightly) if name == "compiled" else name for name in SETTINGS]
)
@pytest.mark.parametrize("passing", [False, True])
def test_bit_for_bit_and_the_reported_loss_is_the_same(setting, passing, tmp_path):
    settings, plain = SETTINGS[setting], without(setting)
    callback = SmoothingCallback(every=2, use_training_batch=passing, spectra=2)
    seen = trained(tmp_path / "b", callback, **settings)
    assert losses(seen) == losses(plain)
    assert torch.equal(weights(seen), weights(plain))
    assert callback.monitor.failures == []
    steps = [1, 2, 4] if setting == "accumulation" else [1, 2, 4, 6, 8]
    assert callback.history.steps == steps == History.load(tmp_path / "b").steps
    logged = [row for row in seen.state.log_history if "oversmooth/cos/layer_03" in row]
    assert [row["step"] for row in logged] == steps
    hooks = [[len(m._forward_hooks) for m in one.model.modules()] for one in (plain, seen)]
    assert hooks[0] == hooks[1]  # Trainer's own may be there


def test_the_console_has_one_line_a_snapshot(tmp_path, capsys):
    seen = trained(tmp_path, SmoothingCallback(every=4, alarms=[oversmooth.Alarm("cos", above=-1.0)]))
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "oversmooth" in line]
    assert len(lines) == 3
    for line, step in zip(lines, (1, 4, 8), strict=True):
        assert line.startswith(f"oversmooth, step {step}: HFC/LFC ")
        assert len(line) < 80
    assert "'loss'" in printed  # the trainer's own lines stay
    assert {type(c).__name__ for c in seen.callback_handler.callbacks} >= {"PrinterCallback", "SmoothingCallback"}


def test_keys_reach_tensorboard_and_weights_and_biases(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    seen = trained(tmp_path / "run", SmoothingCallback(every=4), report_to=["tensorboard", "wandb"])
    import wandb

    wandb.finish()
    board = accumulator.EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    scalars = {one.step: one.value for one in board.Scalars("train/oversmooth/cos/layer_03")}
    history = {
        row["step"]: row["oversmooth/cos/layer_03"] for row in seen.state.log_history if "oversmooth/last/cos" in row
    }
    assert scalars == pytest.approx(history, rel=1e-6)
    assert sorted(history) == [1, 4, 8]
    assert len(board.Scalars("train/loss")) == 2
    (file,) = {Path(name).resolve() for name in glob.glob(str(tmp_path / "wandb/offline*/*.wandb"))}
    until(lambda: file.read_bytes().count(b"oversmooth/cos/layer_03") >= 3, "W&B's service to write")


def test_a_training_that_is_resumed_goes_on_without_double_steps(tmp_path):
    trained(tmp_path, SmoothingCallback(every=2), save_strategy="steps", save_steps=4, save_total_limit=2)
    assert History.load(tmp_path).steps == [1, 2, 4, 6, 8]
    callback = SmoothingCallback(every=2)
    again = trained(tmp_path, callback, resume=str(tmp_path / "checkpoint-4"), save_strategy="no")
    assert History.load(tmp_path).steps == [1, 2, 4, 6, 8] == callback.history.steps
    logged = [row["step"] for row in again.state.log_history if "oversmooth/last/cos" in row]
    assert logged == [1, 2, 4, 6, 8]


def test_an_alarm_stops_the_training_in_the_trainers_own_way(tmp_path):
    alarm = oversmooth.Alarm("cos", above=-2, then="stop")
    with pytest.warns(MonitorWarning, match="training is asked to stop"):
        seen = trained(tmp_path, SmoothingCallback(every=3, alarms=alarm))
    assert seen.state.global_step == 1


def test_a_model_that_the_trainer_makes_when_it_begins_is_watched(tmp_path):
    callback = SmoothingCallback(every=2, use_training_batch=True)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=4, use_cpu=True, disable_tqdm=True,
        report_to="none", save_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(model_init=model, args=arguments, train_dataset=data(), callbacks=[callback])
    trainer.train()
    assert callback.history.steps == [1, 2, 4]
    assert callback.monitor.failures == []


def test_data_without_an_order_get_a_sentence_and_the_training_goes_on(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from data()

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, use_cpu=True, disable_tqdm=True, report_to="none", save_strategy="no"
    )
    trainer = transformers.Trainer(
        model=model(), args=arguments, train_dataset=Stream(), callbacks=[SmoothingCallback(every=1)]
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    assert any("no probe can be made of these data" in str(w.message) for w in caught)
    assert trainer.state.global_step == 2


def test_a_history_that_cannot_be_written_is_kept_in_memory(tmp_path):
    (tmp_path / "file").write_text("")
    callback = SmoothingCallback(every=1, history=tmp_path / "file" / "looks.jsonl")
    with pytest.warns(MonitorWarning, match="snapshots are kept in memory alone"):
        trained(tmp_path, callback, max_steps=2)
    assert callback.history.steps == [1, 2]
