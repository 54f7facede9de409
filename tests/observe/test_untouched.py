"""Attributes that are hard to ask for their type do not stop a look, and no type is kept alive by one."""

import gc
import weakref

import pytest
from torch import nn

from oversmooth.observe.untouched import in_eval_mode, untouched


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


def test_a_module_that_answers_for_its_own_train_flag_is_asked():
    """Its flag is a property, which tells a module that torch does not know of."""

    class Hides(nn.Module):
        def __init__(self):
            super().__init__()
            object.__setattr__(self, "hidden", nn.Dropout(0.5))
            self.training = True

        @property
        def training(self):
            return self.hidden.training

        @training.setter
        def training(self, flag):
            if "hidden" in self.__dict__:
                self.hidden.train(flag)

    model = Hides()
    model.__dict__["training"] = True
    with in_eval_mode(model):
        assert not model.hidden.training
        assert model.__dict__["training"]
    assert model.hidden.training
    with untouched(model):
        assert not model.hidden.training
    assert model.hidden.training


def test_flags_of_usual_modules_are_put_back_each():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)))
    model[1][0].eval()
    flags = [module.training for module in model.modules()]
    with untouched(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == flags
