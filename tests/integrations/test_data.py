"""Probes that trainers' callbacks make by themselves, and settings that they refuse when they are made."""

import random

import numpy as np
import pytest
import torch
from support import watched
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

import oversmooth
from oversmooth.integrations.data import probe_of
from oversmooth.monitor import MonitorWarning


class Draws(Dataset):
    """Examples from the generators that everybody shares."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        noise = random.random() + float(np.random.rand())  # noqa: NPY002
        return torch.randn(4, 16) + noise + index


class Collator:
    """One whose generator is made when it is first needed."""

    def __init__(self):
        self.generator = None

    def __call__(self, examples):
        self.generator = self.generator or np.random.default_rng(1)
        return default_collate(examples) + float(self.generator.random())


def test_a_training_draws_the_batches_that_it_would_have_drawn():
    """Loader, collator and the generators that everybody shares stay where they are."""

    def first_batches(probed):
        model = watched.Own()
        watched.seed()
        loader = DataLoader(Draws(), 2, True, collate_fn=Collator(), generator=torch.Generator().manual_seed(3))
        if probed:
            assert probe_of(loader.dataset, loader.collate_fn, model, 4).shape == (4, 4, 16)
        return list(loader)

    for ours, theirs in zip(first_batches(probed=True), first_batches(probed=False), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("data", [None, iter([1])])
def test_data_without_an_order_are_refused(data):
    with pytest.raises(oversmooth.InputError, match=r"no probe can be made of these data \(have no order"):
        probe_of(data, None, watched.Own(), 4)


class Masked(nn.Module):
    def forward(self, x, attention_mask=None):
        return x if attention_mask is None else x * attention_mask[..., None]


def test_a_mask_in_a_batch_stays_where_the_model_takes_it_and_is_named_where_not():
    data = [(torch.randn(3, 2), torch.tensor([1, 1, 0]), 5) for _ in range(4)]
    x, mask = probe_of(data, default_collate, Masked(), 2)
    assert x.shape == (2, 3, 2)
    assert mask.tolist() == [[1, 1, 0]] * 2
    with pytest.warns(MonitorWarning, match="entry 1 of a batch looks like a mask"):
        assert probe_of(data, default_collate, nn.Linear(2, 2), 2).shape == (2, 3, 2)


WRONG = [
    ({"evry": 3}, "has no setting 'evry'; did you mean 'every'?"),
    ({"heads": 0}, "heads is 0; give a whole number, 1 or more"),
    ({"use_training_batch": True, "parts": 1}, "changes by part cannot be had of the training batch"),
    ({"alarms": oversmooth.Alarm("asymmetry", above=1)}, "an alarm is for asymmetry, which is not recorded"),
]


@pytest.mark.parametrize(("settings", "sentence"), WRONG, ids=[str(list(case)) for case, _ in WRONG])
def test_wrong_settings_are_refused_when_the_callback_is_made(settings, sentence):
    pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    from oversmooth.integrations import LightningSmoothing, SmoothingCallback

    for callback in (SmoothingCallback, LightningSmoothing):
        with pytest.raises(oversmooth.InputError) as caught:
            callback(**settings)
        assert sentence in str(caught.value)
