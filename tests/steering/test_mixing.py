"""Attention that does more to values than weigh them is refused; what weighs them is not, however it is called."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.blocks import Block, SelfAttention, Stack
from torch import nn

from oversmooth import InputError, diagnose, steer, unsteer
from oversmooth.steering import Laplacian, NeuTRENO, Spectral, ValueResidual, fold, ramp, verify

D, HEADS, N = 16, 2, 6
METHODS = [Laplacian(0.4), NeuTRENO(0.5), ValueResidual(0.5), Spectral("sharpen")]
by_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
# Compiling takes a second: those that go together are compiled together.
together = pytest.mark.parametrize("methods", [METHODS[:1], METHODS[1:]], ids=["first", "rest"])

BEFORE = {
    "normed values": lambda v: F.rms_norm(v, v.shape[-1:]),
    "doubled values": lambda v: 2 * v,
    "clipped values": lambda v: v.clamp(-0.3, 0.3),
}
AFTER = {
    "half of it": lambda u: 0.5 * u,
    "heads exchanged": lambda u: u.flip(1),
    "heads mixed": lambda u: torch.einsum("gh,bhnk->bgnk", torch.tensor([[0.7, 0.3], [0.4, 0.6]]).to(u), u),
    "a norm before the output": lambda u: F.layer_norm(u, u.shape[-1:]),
    "a norm with a bias": lambda u: F.layer_norm(u, u.shape[-1:], bias=torch.linspace(-1, 1, D // HEADS).to(u)),
    "half of the tokens doubled": lambda u: u * (1 + torch.arange(N) % 2)[:, None],
}
FAULTS = [*BEFORE, *AFTER]


class Attention(SelfAttention):
    def __init__(self, fault=None, dropout=0.0):
        super().__init__(D, HEADS)
        self.fault, self.dropout = fault, dropout

    def mix(self, q, k, v, mask=None):
        v = BEFORE.get(self.fault, lambda v: v)(v)
        p = self.dropout if self.training else 0.0
        return AFTER.get(self.fault, lambda u: u)(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p))


def net(*faults, dropout=0.0):
    torch.manual_seed(0)
    return Stack(*(Block(D, Attention(fault, dropout)) for fault in faults))


def tokens(dtype=torch.float32):
    return torch.randn(2, N, D, generator=torch.Generator().manual_seed(1)).to(dtype)


@by_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_more_is_refused_in_the_first_pass(fault, dtype, method):
    model = net(None, fault).to(dtype).eval()
    plain = model(tokens(dtype))
    steer(model, method)
    for _ in range(2):  # and again
        with pytest.raises(InputError, match=r"cannot act on layer 1 \(blocks\.1\.attn\).*not a weighted mean"):
            model(tokens(dtype))
    unsteer(model)
    assert torch.equal(model(tokens(dtype)), plain)


def test_what_a_ramp_begins_is_refused_as_well():
    model = steer(net(None, "half of it").eval(), NeuTRENO(0.0))
    assert model(tokens()).isfinite().all()
    ramp(model, to=0.5, steps=1).step()
    with pytest.raises(InputError, match=r"NeuTRENO cannot act on layer 1 .*not a weighted mean"):
        model(tokens())


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "heads mixed"])
def test_a_diagnosis_refuses_or_leaves_open_the_same(fault):
    try:
        found = diagnose(net(fault).eval(), tokens(), depth=0)
    except InputError:
        return
    assert found.layers[1].dominance.undecided_share == 1


@by_method
@pytest.mark.parametrize("training", [False, True])
def test_what_weighs_values_is_left_alone(method, training):
    """Also with dropout, which takes weights away, and with the same random numbers as without a look."""
    model = net(None, None, dropout=0.5).train(training)
    steer(model, method)
    runs = []
    for again in (False, True):  # the first pass looks, the second does not
        torch.manual_seed(3)
        runs.append(model(tokens()))
        assert not again or torch.equal(*runs)


@by_method
def test_padding_is_no_fault(method):
    model, mask = net(None, None).eval(), torch.ones(2, 1, N, N, dtype=torch.bool)
    mask[0, :, :, 3:], mask[0, :, 3:] = False, False  # half of the first input sees nothing, and gets NaN or zeros
    assert steer(model, method)(tokens(), mask)[1].isfinite().all()


@pytest.mark.parametrize("rows", ["nothing", "uniform"])
@by_method
def test_batches_of_padding_are_no_fault(rows, method):
    """Fused attention gives zeros to tokens that see nothing."""
    model, mask = net(None, None).eval(), torch.zeros(8, 1, N, N, dtype=torch.bool)
    mask[0] = True
    if rows == "uniform":
        mask[1:, :, :, :1] = True
    x = torch.randn(8, N, D)
    assert steer(model, method)(x, mask)[0].isfinite().all()


class Remembering(Attention):
    """With a cache in an object of its own, or in lists within a dictionary."""

    def __init__(self, *given):
        super().__init__(*given)
        self.cache = type("Cache", (), {})()
        self.cache.values = []
        self._store = {"v": []}

    def mix(self, q, k, v, mask=None):
        self.cache.values.append((k, v))
        self._store["v"].append(v)
        return super().mix(q, *(torch.cat(each, 2) for each in zip(*self.cache.values, strict=True)), mask)


@by_method
@pytest.mark.parametrize("before", [0, 1])
def test_what_attention_remembers_is_not_touched(method, before):
    model = net(None, None).eval()
    for block in model.blocks:
        block.attn = Remembering()
    for _ in range(before):
        with torch.no_grad():
            model(tokens())
    twin = steer(copy.deepcopy(model), method)
    for check in (hook for block in twin.blocks for hook in block.attn._forward_pre_hooks.values()):
        if hasattr(check.__self__, "compared"):
            check.__self__.compared = True
    given = steer(model, method)(tokens())
    assert torch.equal(given, twin(tokens()))
    assert all(len(block.attn.cache.values) == len(block.attn._store["v"]) == before + 1 for block in model.blocks)


@by_method
def test_half_precision_inside_is_no_fault(method):
    class Half(Attention):
        def mix(self, *parts):
            return super().mix(*(part.bfloat16() for part in parts)).float()

    model = net(None, None).eval()
    for block in model.blocks:
        block.attn = Half()
    assert steer(model, method)(tokens()).isfinite().all()


def test_a_copy_looks_for_itself_and_hooks_are_not_called_twice():
    calls = []
    model = steer(net(None).eval(), Laplacian(0.4))
    twin = copy.deepcopy(model)
    twin.blocks[0].attn.fault = "half of it"
    model.blocks[0].attn.qkv.register_forward_hook(lambda *_: calls.append(1))
    model(tokens())
    assert calls == [1]
    with pytest.raises(InputError, match="not a weighted mean"):
        twin(tokens())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@together
def test_compiled_code_has_nothing_of_the_look(methods):
    model = steer(net(None, None).eval(), methods)
    expected = copy.deepcopy(model)(tokens())
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.allclose(compiled(tokens()), expected, atol=1e-6)
        assert torch.allclose(model(tokens()), expected, atol=1e-6)  # looks now
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.allclose(compiled(tokens()), expected, atol=1e-6)


@together
def test_a_symbolic_trace_goes_through(methods):
    from torch.fx.experimental.proxy_tensor import make_fx

    model = steer(net(None, None).eval(), methods)
    expected = copy.deepcopy(model)(tokens())
    assert torch.allclose(make_fx(model)(tokens())(tokens()), expected, atol=1e-6)
    assert torch.allclose(model(tokens()), expected, atol=1e-6)


class Wrapped(nn.Module):
    """As adapters put themselves around a projection."""

    def __init__(self, inner):
        super().__init__()
        self.base_layer = inner

    def forward(self, x):
        return 1.1 * self.base_layer(x)


@by_method
@pytest.mark.parametrize("which", ["qkv", "proj"])
@pytest.mark.parametrize("ran", [False, True])
def test_a_projection_that_is_replaced_after_steering_is_told_of(method, which, ran):
    model = net(None, None).eval()
    plain = model(tokens())
    steer(model, method)
    if ran:
        model(tokens())
    kept = getattr(model.blocks[1].attn, which)
    setattr(model.blocks[1].attn, which, Wrapped(kept))
    with pytest.raises(
        InputError, match=rf"blocks\.1\.attn\.{which} was steered and is another module now \(\S+Wrapped\)"
    ):
        model(tokens())
    if isinstance(method, Spectral):
        for look in (verify, fold):
            with pytest.raises(InputError, match="is another module now"):
                look(model)
    setattr(model.blocks[1].attn, which, kept)
    assert torch.allclose(unsteer(model)(tokens()), plain, atol=1e-6)


def test_an_adapter_that_is_trained_later_ends_the_promise():
    model = net(None).eval()
    model.blocks[0].attn.qkv = Adapted(D, 3 * D)
    model.blocks[0].attn.qkv.up.data.zero_()
    assert verify(steer(model, Spectral("sharpen"))).ok
    model.blocks[0].attn.qkv.up.data.normal_()
    for look in (verify, fold):
        with pytest.raises(InputError, match="does not return its input times its weight"):
            look(model)


class Adapted(nn.Linear):
    """A projection with an adapter beside its weight."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.down, self.up = nn.Parameter(torch.randn(2, sizes[0])), nn.Parameter(torch.randn(sizes[1], 2))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("which", ["qkv", "proj"])
def test_a_projection_that_is_more_than_its_weight_takes_no_spectrum(which):
    model = net(None, None).eval()
    for block in model.blocks:
        setattr(block.attn, which, Adapted(D, 3 * D if which == "qkv" else D))
    plain = model(tokens())
    with pytest.raises(InputError, match=rf"blocks\.0\.attn\.{which} of layer 0 \(Adapted\) does not return its input"):
        steer(model, Spectral("sharpen"))
    assert torch.equal(model(tokens()), plain)
    assert steer(model, NeuTRENO(0.5))(tokens()).isfinite().all()  # which takes the values as they are


@pytest.mark.parametrize("training", [False, True])
def test_linear_subclasses_that_are_their_weight_are_taken(training):
    class Renamed(nn.Linear):
        def forward(self, x):
            return super().forward(F.dropout(x, 0.5, self.training))

    model = net(None).train(training)
    model.blocks[0].attn.qkv = Renamed(D, 3 * D).train(training)
    state = torch.get_rng_state()
    assert verify(steer(model, Spectral("sharpen", start="warm"))).ok
    assert torch.equal(torch.get_rng_state(), state)
    model.eval()
    steered = model(tokens())
    assert torch.allclose(fold(model)(tokens()), steered, atol=1e-5)
