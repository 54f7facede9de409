"""Copies of a steered model are steered models of their own: averages of weights, teachers, models read back."""

import copy
import pickle

import pytest
import torch
from support.blocks import own_block
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from oversmooth import InputError, fold, steer
from oversmooth.steering import NeuTRENO, Spectral, ValueResidual, steering_of, verify
from oversmooth.steering.forward_state import ForwardStates

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(own_block(16, together=False) for _ in range(3))
        self.reentrant = None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}
METHODS = [NeuTRENO(0.6), ValueResidual(0.5), Spectral("sharpen", bounded=True)]
# torch pickles no parametrized modules
WAYS = [(method, how) for method in METHODS for how in COPIES if how == "deepcopy" or not isinstance(method, Spectral)]


@pytest.mark.parametrize(("method", "how"), WAYS, ids=str)
def test_all_hooks_of_a_copy_know_the_same_passes(method, how):
    model = COPIES[how](steer(Model(), method))
    hooks = [
        hook
        for module in model.modules()
        for kind in (module._forward_hooks, module._forward_pre_hooks)
        for hook in kind.values()
    ]
    owners = [getattr(hook, "__self__", None) for hook in hooks]
    passes = [owner for owner in owners if isinstance(owner, ForwardStates)]
    passes += [owner.states for owner in owners if hasattr(owner, "states")]
    assert len(passes) >= 8
    assert {id(one) for one in passes} == {id(steering_of(model).states)}
    with torch.no_grad():
        model(X)
    assert steering_of(model).states.current() is None  # the pass has ended


def test_a_copy_folds_the_weights_that_it_has_after_a_step():
    """Against a new model with the same state."""
    method = Spectral("sharpen", bounded=True)
    model = copy.deepcopy(steer(Model(), method))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model(X).square().mean().backward()
    optimiser.step()
    other = steer(Model(), method)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = other(X)
        assert [layer.margin for layer in verify(model).layers] == [layer.margin for layer in verify(other).layers]
        torch.testing.assert_close(fold(model)(X), expected, rtol=0, atol=1e-6)


def test_the_average_of_a_steered_models_weights_is_folded_as_it_runs():
    model = steer(Model(), Spectral("smooth"))
    average = AveragedModel(model)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        average.update_parameters(model)
        average(X)
    with torch.no_grad():
        expected = average.module(X)
        torch.testing.assert_close(fold(average.module)(X), expected, rtol=0, atol=1e-6)


def gradients(model):
    model.zero_grad()
    losses = [model(x).square().mean() for x in (X, X.flip(0) + 1)]
    sum(losses).backward()  # both passes are in flight before the first is recomputed
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("method", "how"), WAYS, ids=str)
def test_recomputed_blocks_of_a_copy(method, how):
    model = COPIES[how](steer(Model(), method))
    expected = gradients(model)
    model.reentrant = False
    for ours, theirs in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    if not isinstance(method, Spectral):
        model.reentrant = True
        x = X.clone().requires_grad_()
        with pytest.raises(InputError, match="run the whole model"):
            model(x).sum().backward()
        with pytest.raises(InputError, match="run the whole model"):
            model.layers[1](X)
