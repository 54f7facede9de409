"""Steered models in other people's training loops: transformers' Trainer, and two processes."""

import pytest
import torch
from support import conformance_ddp
from support.nightly import nightly
from torch.utils.data import Dataset

from oversmooth import fold, load_steered
from oversmooth.steering import FeatScale, NeuTRENO, Spectral, steer, steering_of, verify

FAMILY = "torch encoder (Pre-LN, batch first)"  # needs no other library, which takes its time to be imported twice


class Sentences(Dataset):
    def __init__(self):
        self.ids = torch.randint(5, 60, (16, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": int(self.ids[i, 0] > 30)}


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize(
    "method", [[Spectral("sharpen", check_passes=True), NeuTRENO(0.4, learned=True)], [FeatScale()]], ids=str
)
def test_transformers_trainer(method, tmp_path):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=64)
    model = BertForSequenceClassification(BertConfig(**sizes))
    steer(model, method)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "runs"),
        per_device_train_batch_size=8,
        max_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2
    assert losses[0] != losses[1]
    if steering_of(model).reparametrized:
        assert all(check.coupling < 1e-5 for check in verify(model).layers)
    ids = Sentences().ids[:3]
    with torch.no_grad():
        expected = model.eval()(ids).logits
        for folder in (tmp_path / "saved", tmp_path / "runs" / "checkpoint-2"):
            if folder.name == "saved":
                model.save_pretrained(folder)
            loaded = load_steered(folder)
            assert torch.equal(loaded.eval()(ids).logits, expected)
            assert steering_of(loaded).methods == method
        if isinstance(method[0], Spectral) and len(method) == 1:
            torch.testing.assert_close(fold(model)(ids).logits, expected)


PROCESSES = ("Spectral: sharpen", "NeuTRENO", "FeatScale", "NeuTRENO: learned by head", "ValueResidual")


@nightly
def test_two_processes():
    """In one go, for two interpreters take their time to start."""
    assert conformance_ddp.between_processes(FAMILY, list(PROCESSES)) == {}
