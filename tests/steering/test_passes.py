"""Passes through a steered model: recomputed blocks, threads, compilation, memory, and weights that are never stale."""

import copy
import gc
import threading
import warnings
import weakref

import pytest
import torch
from support import conformance
from support.blocks import Block, Stack, moved, own_block
from support.conformance import checkpoint
from support.conformance_methods import all_close, loss, make, outputs, steered
from support.families import FAMILIES, run, tensors
from support.nightly import nightly, some
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

from oversmooth import InputError, fold, steer, unsteer
from oversmooth.steering import FeatScale, NeuTRENO, OrthogonalUpdate, Spectral, ValueResidual, steering_of, verify

TOY = "attention alone (Pre-LN)"


class Segments(nn.Module):
    """Blocks recomputed some at a time, as people write it."""

    def __init__(self, blocks, size):
        super().__init__()
        self.blocks, self.size = blocks, size

    def forward(self, x):
        for i in range(0, len(self.blocks), self.size):
            x = recompute(nn.Sequential(*self.blocks[i : i + self.size]), x, use_reentrant=False)
        return x


def four_blocks(seed=0):
    torch.manual_seed(seed)
    blocks = [copy.deepcopy(block) for _ in range(2) for block in make(TOY).blocks]
    for block in blocks:
        nn.init.normal_(block.attn.to_qkv.weight, std=0.3)
    return nn.ModuleList(blocks)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("method", [NeuTRENO(0.5), ValueResidual(0.3, learned=True), Spectral()], ids=str)
def test_segments_of_several_blocks(method, size):
    """Two passes in flight; also where the first layer's values are made in the segment that wants them."""
    blocks = four_blocks()
    plain, model = Stack(*copy.deepcopy(blocks)), Segments(copy.deepcopy(blocks), size)
    found = []
    for one in (plain, model):
        steer(one, method)
        inputs = [torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(i), requires_grad=True) for i in (1, 2)]
        losses = [one(x).sin().sum() for x in inputs]
        for each in losses:
            each.backward()
        found.append([x.grad for x in inputs] + [p.grad for _, p in sorted(one.named_parameters())])
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["NeuTRENO: learned by head", "ValueResidual", "FeatScale"])
@pytest.mark.parametrize("name", ["ViT", "BERT", TOY])
def test_recomputation_where_only_strengths_are_learned(name, method):
    """A frozen model: what enters its blocks has no graph that could keep the first layer's values."""
    family, found = FAMILIES[name], []
    for again in (False, True):
        model = make(name).requires_grad_(False)
        steer(model, list(conformance.METHODS[method].methods)).train()
        if again:
            checkpoint(model, family)
        torch.manual_seed(1)
        losses = [loss(outputs(model, family)) for _ in range(2)]
        for one in losses:
            one.backward()
        found.append({conformance._unwrapped(key): grad for key, grad in conformance.gradients(model).items()})
    conformance.same_gradients(found[1], found[0])


class Rotated(Block):
    """A block that takes rotations, the same as every other, before its tokens."""

    def forward(self, _rotations, x):
        return super().forward(x)


@pytest.mark.parametrize("method", [NeuTRENO(0.5), OrthogonalUpdate()], ids=str)
def test_blocks_are_known_by_their_tokens_behind_other_arrays(method):
    plain, x = moved(Stack(*(own_block(16) for _ in range(3)))), torch.randn(2, 5, 16)
    model, found = copy.deepcopy(plain), []
    for block in model.blocks:
        block.__class__ = Rotated

    def forward(x):
        for block in model.blocks:
            x = recompute(block, (torch.ones_like(x), torch.zeros_like(x)), x, use_reentrant=False)
        return x

    model.forward = forward
    for one in (plain, model):
        steer(one, method)(x).sin().sum().backward()
        found.append([p.grad for p in one.parameters()])
    all_close(found[1], found[0], 1e-6)


@pytest.mark.parametrize("method", ["NeuTRENO: learned by head", "Spectral: sharpen"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_the_whole_model_recomputed_from_outside(method, reentrant):
    found = []
    for again in (False, True):
        model = steered(TOY, method)
        inputs = [FAMILIES[TOY].inputs().requires_grad_(), (2 * FAMILIES[TOY].inputs()).requires_grad_()]
        outs = [recompute(model, x, use_reentrant=reentrant) if again else model(x) for x in inputs]
        for out in outs:
            out.sin().sum().backward()
        found.append(conformance.gradients(model))
    conformance.same_gradients(found[1], found[0])


def test_backward_in_the_other_order_and_twice():
    family = FAMILIES["BERT"]
    plain, model = steered("BERT", "NeuTRENO"), steered("BERT", "NeuTRENO")
    plain.train()
    model.train()
    checkpoint(model, family)
    expected = []
    for one in (plain, model):
        torch.manual_seed(1)
        first, second = loss(outputs(one, family)), loss(outputs(one, family))
        second.backward(retain_graph=True)
        first.backward()
        second.backward()
        expected.append(conformance.gradients(one))
    conformance.same_gradients(expected[1], expected[0])


def test_recomputation_in_another_thread():
    """As on a GPU, whose backward pass has a thread of its own."""
    family = FAMILIES["BERT"]
    model = steered("BERT", "NeuTRENO")
    model.train()
    torch.manual_seed(1)
    loss(outputs(model, family)).backward()
    expected = conformance.gradients(model)
    model.zero_grad()
    checkpoint(model, family)
    torch.manual_seed(1)
    value = loss(outputs(model, family))
    thread = threading.Thread(target=value.backward)
    thread.start()
    thread.join()
    conformance.same_gradients(conformance.gradients(model), expected)


def test_weights_are_never_those_of_a_pass_that_is_over():
    """After recomputation and a step: what is read, verified and folded is what the parameters say now."""
    family = FAMILIES[TOY]
    model = make(TOY)
    steer(model, Spectral())
    checkpoint(model, family)
    x = family.inputs()  # kept, as a batch is in a training loop
    model(x).square().sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    (layer, _) = steering_of(model).reparametrized
    now = Spectral().eigenvalues(layer.psi[None], 1)[0].sum().detach()
    values, back = layer.rows()
    torch.testing.assert_close(torch.einsum("hkd,hkd->", values, back).detach(), now)
    with torch.no_grad():
        expected = copy.deepcopy(model)(x)
        fold(model)
        all_close([model(x)], [expected], 1e-5)


@pytest.mark.parametrize("name", some(["BERT", TOY], 2))
@pytest.mark.parametrize("method", [NeuTRENO(0.5), ValueResidual(0.5), Spectral()], ids=str)
def test_passes_without_a_backward_are_let_go(name, method):
    """Evaluation without no_grad, of which there is a lot: memory must not grow."""
    family = FAMILIES[name]
    model = steer(make(name), method)
    seen = []
    model.get_submodule(family.block.format(1)).register_forward_pre_hook(
        lambda _m, args: seen.append(weakref.ref(args[0]))
    )
    for _ in range(3):
        outputs(model, family)
    gc.collect()
    assert len(seen) == 3
    assert not [ref for ref in seen if ref() is not None]


def test_a_block_alone_wants_the_pass_it_belongs_to():
    model = steer(make(TOY), NeuTRENO(0.5))
    with pytest.raises(InputError, match="run the whole model, and checkpoint with use_reentrant=False"):
        model.blocks[1](FAMILIES[TOY].inputs())


def test_an_error_inside_a_pass_ends_it():
    """A pass that failed leaves nothing behind for the next."""
    family = FAMILIES[TOY]
    model = steer(make(TOY), NeuTRENO(0.5))
    expected = outputs(model, family)[0]
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 3, 7))
    with pytest.raises(InputError):
        model.blocks[1](family.inputs())
    assert torch.equal(outputs(model, family)[0], expected)


def test_inputs_of_other_lengths_follow_each_other():
    model = steer(make("BERT"), NeuTRENO(0.5))
    plain = steer(make("BERT"), NeuTRENO(0.5))
    for n in (8, 3, 5, 8):
        ids = torch.arange(5, 5 + n)[None].repeat(n % 3 + 1, 1)
        torch.testing.assert_close(model(ids).last_hidden_state, plain(ids).last_hidden_state, rtol=0, atol=0)
        plain = steer(make("BERT"), NeuTRENO(0.5))


# torch.compile


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [NeuTRENO(0.6), FeatScale(0.3, 0.2)], ids=str)
def test_steering_what_was_compiled_before(method):
    model, family = make(TOY), FAMILIES[TOY]
    x, plain = family.inputs(), make(TOY)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    steer(compiled, method)
    steer(plain, method)
    model(x)  # what averages reads masks once before it is compiled
    torch.testing.assert_close(compiled(x), plain(x))
    unsteer(compiled)
    unsteer(plain)
    torch.testing.assert_close(compiled(x), plain(x))


@pytest.mark.filterwarnings("ignore")
def test_verbs_on_a_compiled_model():
    model = make(TOY)
    compiled = torch.compile(model, backend="eager")
    assert steer(compiled, Spectral()) is compiled
    assert steering_of(compiled) is steering_of(model)
    assert verify(compiled).layers
    x = FAMILIES[TOY].inputs()
    expected = compiled(x)
    assert fold(compiled) is compiled
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


@nightly
@pytest.mark.parametrize("method", some([Spectral("sharpen", start="cold"), NeuTRENO(0.4)], 2), ids=str)
def test_compiled_and_checkpointed_at_once(method):
    model, given = FAMILIES["ViT"].make(), FAMILIES["ViT"].inputs()
    steer(model, method)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()

    def gradients(of):
        model.zero_grad()
        tensors(run(of, given))[0].square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dynamo's own, about what it leaves uncompiled
        both = gradients(torch.compile(model, backend="aot_eager"))
    assert plain.keys() <= both.keys()
    for name, gradient in both.items():  # one graph gives zeros where nothing depends on a parameter
        torch.testing.assert_close(gradient, plain.get(name, torch.zeros_like(gradient)), msg=name)


# What other tools do with models


def test_state_dicts_load_by_name():
    """Resuming: the state of one steered model into another of the same settings."""
    for method in ("Spectral: sharpen", "AttnScale", "Spectral: smooth, bounded, Cayley, cold"):
        model, other = steered("BERT", method), steered("BERT", method, stirred=False)
        other.load_state_dict(model.state_dict())
        for a, b in zip(outputs(model, FAMILIES["BERT"]), outputs(other, FAMILIES["BERT"]), strict=True):
            assert torch.equal(a, b)
