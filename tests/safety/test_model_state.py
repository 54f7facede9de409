"""What a pass writes is put back."""

import pytest
import torch
from torch import nn

from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_eval_mode, preserve_state, restoring


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
    with preserve_state(model):
        assert not model.hidden.training
    assert model.hidden.training


def test_flags_of_usual_modules_are_put_back_each():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)))
    model[1][0].eval()
    flags = [module.training for module in model.modules()]
    with preserve_state(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == flags


class Remembers(nn.Module):
    """Writes to everything that a forward pass may write to."""

    def __init__(self):
        super().__init__()
        self.trained, self.follows = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.norm, self.words = nn.BatchNorm1d(3), nn.Embedding(4, 3, max_norm=0.1)
        self.register_buffer("links", torch.eye(3).to_sparse())
        self.register_buffer("unknown", torch.full((2,), torch.nan))
        self.seen = 0

    def forward(self, x):
        with torch.no_grad():
            for new, old in zip(self.trained.parameters(), self.follows.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
        self.seen += 1
        return self.norm(self.follows(x)) + self.words(torch.arange(4))


@pytest.mark.parametrize("within", [preserve_state, restoring])
def test_what_a_pass_writes_is_put_back(within):
    torch.manual_seed(0)
    model, x = Remembers(), torch.randn(4, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with within(model):
        model(x)
    after = model.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name].to_dense(), value.to_dense(), rtol=0, atol=0, equal_nan=True)
    assert model.seen == 0


def test_a_pass_between_forward_and_backward_is_in_nobodys_way():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), torch.randn(4, 3, requires_grad=True)
    model.register_buffer("unknown", torch.full((4, 3), torch.nan))
    out = model(x) * model.unknown
    with restoring(model):
        model(x)
    out.sum().backward()
    assert x.grad is not None


def test_what_is_made_in_a_pass_stays_with_what_says_that_it_was():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", None)
            self.state = {"made": False}

        def forward(self, x):
            if not self.state["made"]:
                self.table, self.scale, self.state["made"] = x.mean(), x.std(), True
            return x * self.table * self.scale

    model = Lazy()
    with preserve_state(model):
        model(torch.randn(3))
    assert model(torch.ones(3)).isfinite().all()


def test_a_weight_that_cannot_be_put_back_is_named_unless_something_else_went_wrong():
    def interrupted(*_):
        raise KeyboardInterrupt

    model = Remembers().requires_grad_(True)
    with pytest.raises(InputError, match=r"changed the weight follows\.weight"), preserve_state(model):
        model(torch.randn(4, 3))
    model.register_forward_hook(interrupted)
    with pytest.raises(KeyboardInterrupt), preserve_state(model):
        model(torch.randn(4, 3))
    model._forward_hooks.clear()
    with restoring(model):  # a diagnosis goes on
        model(torch.randn(4, 3))


def test_weights_that_torch_keeps_of_parametrizations_are_computed_anew():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    with nn.utils.parametrize.cached():
        with preserve_state(model), torch.no_grad():
            model(torch.ones(1, 2))
        model(torch.ones(1, 2)).sum().backward()
    assert model.parametrizations.weight.original1.grad is not None
