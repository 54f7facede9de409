"""Attributes that are hard to ask for their type do not stop a look, and no type is kept alive by one."""

import gc
import weakref

import pytest
from torch import nn

from oversmooth.observe.untouched import untouched


class Unhashable(type):
    def __eq__(cls, other):
        return cls is other

    __hash__ = None


class WithUnhashableType(metaclass=Unhashable):
    pass


class WithoutType:
    @property
    def __class__(self):
        raise AttributeError("no class")


@pytest.mark.parametrize("odd", [WithUnhashableType, WithoutType])
def test_an_attribute_without_a_type_to_remember(odd):
    model = nn.Linear(2, 2)
    model.odd, model.count = odd(), 3
    with untouched(model):
        assert not model.training
        model.count = 4
    assert model.training
    assert model.count == 3


def test_classes_of_attributes_are_let_go():
    model = nn.Linear(2, 2)
    kept = []
    for number in range(1100):  # more than are remembered
        model.odd = type(f"Odd{number}", (), {})()
        kept.append(weakref.ref(type(model.odd)))
        with untouched(model):
            pass
    del model
    gc.collect()
    assert kept[0]() is None
