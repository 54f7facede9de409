"""Probes that trainers' callbacks make by themselves, and settings that they refuse when they are made."""

import functools
import random

import numpy as np
import pytest
import torch
from support import watched
from torch import nn
from torch.utils.data import Dataset, default_collate

import oversmooth
from oversmooth.integrations.guessing import probe_of
from oversmooth.monitor import MonitorWarning


class Draws(Dataset):
    """Examples from generators of its own, one of them inside a transform."""

    class Transform:
        def __init__(self):
            self.python, self.torch = random.Random(0), torch.Generator().manual_seed(0)

    def __init__(self):
        self.numpy, self.transforms = np.random.default_rng(0), [self.Transform()]

    def __len__(self):
        return 8

    def __getitem__(self, index):
        one = self.transforms[0]
        noise = self.numpy.standard_normal((4, 16)) + one.python.random()
        return torch.tensor(noise, dtype=torch.float32) + torch.rand(4, 1, generator=one.torch)


class Collator:
    """One whose generator is made when it is first needed."""

    def __init__(self):
        self.generator = None

    def __call__(self, examples):
        self.generator = self.generator or np.random.default_rng(1)
        return default_collate(examples) + float(self.generator.random())


def test_generators_of_data_and_collator_stay_where_they_are():
    looked, plain = (Draws(), Collator()), (Draws(), Collator())
    assert probe_of(*looked, watched.Own(), 4).shape == (4, 4, 16)
    for _ in range(2):
        batches = [collate([data[0], data[1]]) for data, collate in (looked, plain)]
        assert torch.equal(*batches)


class Deep(Dataset):
    """Generators as far down as real data have them: transforms in a list in an object, closures, partials, slots."""

    class Slotted:
        __slots__ = ("generator",)

        def __init__(self, seed):
            self.generator = random.Random(seed)

        def draw(self):
            return self.generator.random()

    class Compose:
        def __init__(self, *transforms):
            self.transforms = list(transforms)

    def __init__(self):
        hidden = random.Random(2)
        self.inner = torch.utils.data.Subset([0] * 8, range(8))
        self.inner.transform = self.Compose(
            self.Slotted(1).draw, lambda: hidden.random(), functools.partial(self.Slotted.draw, self.Slotted(3))
        )

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([one() for one in self.inner.transform.transforms])


def test_generators_are_found_however_deep_they_lie():
    looked, plain = Deep(), Deep()
    assert probe_of(looked, default_collate, watched.Own(), 4).shape == (4, 3)
    assert torch.equal(looked[0], plain[0])


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
    ({"spectra": None}, "spectra is None; give a whole number"),
    ({"spectra": 0.5}, "spectra is 0.5; give a whole number"),
    ({"alarms": None}, "alarms is None; give oversmooth.Alarm"),
    ({"tokens": None}, "tokens is None; give names of metrics"),
    ({"together": "yes"}, "together is 'yes'; give True or False"),
    ({"heads": 0}, "heads is 0; give a whole number, 1 or more"),
    ({"blocks": 3}, "blocks is 3; give part of the names"),
    ({"passing": True, "parts": 1}, "parts cannot be seen in the passing batch"),
    ({"history": 3}, "history is a number; give the path"),
    ({"alarms": oversmooth.Alarm("asymmetry", above=1)}, "an alarm is for asymmetry, which is not watched"),
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
