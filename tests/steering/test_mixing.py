"""Attention that does more to values than weigh them is refused; what weighs them is not, however it is called."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oversmooth import InputError, diagnose, steer, unsteer
from oversmooth.steering import Laplacian, NeuTRENO, Spectral, ValueResidual, fold, verify

D, HEADS, N = 16, 2, 6
METHODS = [Laplacian(0.4), NeuTRENO(0.5), ValueResidual(0.5), Spectral("sharpen")]
by_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)

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
}
FAULTS = [*BEFORE, *AFTER]


class Attention(nn.Module):
    num_heads = HEADS

    def __init__(self, fault=None, dropout=0.0):
        super().__init__()
        self.qkv, self.proj, self.fault, self.dropout = nn.Linear(D, 3 * D), nn.Linear(D, D), fault, dropout

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, D // HEADS)).permute(2, 0, 3, 1, 4)
        v = BEFORE.get(self.fault, lambda v: v)(v)
        p = self.dropout if self.training else 0.0
        u = AFTER.get(self.fault, lambda u: u)(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p))
        return self.proj(u.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, fault=None, dropout=0.0):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(D), Attention(fault, dropout)

    def forward(self, x, mask=None):
        return x + self.attn(self.norm1(x), mask)


class Net(nn.Module):
    def __init__(self, *faults, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(fault, dropout) for fault in faults])

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x, mask)
        return x


def tokens(dtype=torch.float32):
    return torch.randn(2, N, D, generator=torch.Generator().manual_seed(1)).to(dtype)


@by_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_more_is_refused_in_the_first_pass(fault, dtype, method):
    model = Net(None, fault).to(dtype).eval()
    plain = model(tokens(dtype))
    steer(model, method)
    for _ in range(2):  # and again
        with pytest.raises(InputError, match=r"cannot act on layer 1 \(blocks\.1\.attn\).*does more than weigh them"):
            model(tokens(dtype))
    unsteer(model)
    assert torch.equal(model(tokens(dtype)), plain)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "heads mixed"])
def test_a_diagnosis_refuses_or_leaves_open_the_same(fault):
    try:
        found = diagnose(Net(fault).eval(), tokens(), depth=0)
    except InputError:
        return
    assert found.layers[1].dominance.undecided_share == 1


@by_method
@pytest.mark.parametrize("training", [False, True])
def test_what_weighs_values_is_left_alone(method, training):
    """Also with dropout, which takes weights away, and with the same random numbers as without a look."""
    model = Net(None, None, dropout=0.5).train(training)
    steer(model, method)
    runs = []
    for again in (False, True):  # the first pass looks, the second does not
        torch.manual_seed(3)
        runs.append(model(tokens()))
        assert not again or torch.equal(*runs)


@by_method
def test_padding_is_no_fault(method):
    model, mask = Net(None, None).eval(), torch.ones(2, 1, N, N, dtype=torch.bool)
    mask[0, :, :, 3:], mask[0, :, 3:] = False, False  # half of the first input sees nothing, and gets NaN or zeros
    assert steer(model, method)(tokens(), mask)[1].isfinite().all()


def test_a_copy_looks_for_itself_and_hooks_are_not_called_twice():
    calls = []
    model = steer(Net(None).eval(), Laplacian(0.4))
    twin = copy.deepcopy(model)
    twin.blocks[0].attn.fault = "half of it"
    model.blocks[0].attn.qkv.register_forward_hook(lambda *_: calls.append(1))
    model(tokens())
    assert calls == [1]
    with pytest.raises(InputError, match="does more than weigh them"):
        twin(tokens())


def test_generation_with_a_cache():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=32)).eval()
    steer(model, NeuTRENO(0.5))
    ids = torch.randint(3, 50, (1, 5))
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :3], use_cache=True)
        rest = model(ids[:, 3:], past_key_values=first.past_key_values).logits
    assert torch.allclose(torch.cat([first.logits, rest], 1), whole, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@by_method
def test_compiled_code_has_nothing_of_the_look(method):
    model = steer(Net(None, None).eval(), method)
    expected = copy.deepcopy(model)(tokens())
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.allclose(compiled(tokens()), expected, atol=1e-6)
        assert torch.allclose(model(tokens()), expected, atol=1e-6)  # looks now
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.allclose(compiled(tokens()), expected, atol=1e-6)


class Adapted(nn.Linear):
    """A projection with an adapter beside its weight."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.down, self.up = nn.Parameter(torch.randn(2, sizes[0])), nn.Parameter(torch.randn(sizes[1], 2))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("which", ["qkv", "proj"])
def test_a_projection_that_is_more_than_its_weight_takes_no_spectrum(which):
    model = Net(None, None).eval()
    for block in model.blocks:
        setattr(block.attn, which, Adapted(D, 3 * D if which == "qkv" else D))
    plain = model(tokens())
    with pytest.raises(InputError, match=rf"blocks\.0\.attn\.{which} of layer 0 \(Adapted\) does not give its input"):
        steer(model, Spectral("sharpen"))
    assert torch.equal(model(tokens()), plain)
    assert steer(model, NeuTRENO(0.5))(tokens()).isfinite().all()  # which takes the values as they are


def test_linear_subclasses_that_are_their_weight_are_taken():
    class Renamed(nn.Linear):
        pass

    model = Net(None).eval()
    model.blocks[0].attn.qkv = Renamed(D, 3 * D)
    assert verify(steer(model, Spectral("sharpen"))).ok
    steered = model(tokens())
    assert torch.allclose(fold(model)(tokens()), steered, atol=1e-5)
