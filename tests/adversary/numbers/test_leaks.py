"""Methods that average over tokens, on attention that hides tokens in whatever way people write it.

The oracle knows nothing of masks: it moves one token and looks whether another one's output moves.
"""

import copy
import functools
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from support.blocks import Block, SelfAttention, Stack
from support.conformance_methods import make
from support.families import FAMILIES, text
from support.nightly import nightly, some
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from oversmooth import InputError, diagnose, steer, unsteer
from oversmooth.anatomy import locate
from oversmooth.steering import AttnScale, Centred, ContraNorm, FeatScale, NeuTRENO, Spectral, mask_guard, steering_of

D, HEADS, N = 32, 4, 9
METHODS = [Centred(0.5), AttnScale(0.4), ContraNorm(0.3), FeatScale(0.3, 0.2)]
SAYS = "averages over all tokens"

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # processors without bfloat16


# Ways to look: each from q, k, v (batch, heads, n, k) to what attention gives


def scores(q, k):
    return q @ k.mT / q.shape[-1] ** 0.5


def distance(n):
    """How far key j comes after query i."""
    places = torch.arange(n)
    return places[None, :] - places[:, None]


def hand(hidden, by=-torch.inf):
    """Scores, a mask added by hand where hidden(j − i), softmax."""

    def look(_module, q, k, v):
        far = distance(q.shape[-2])
        return (scores(q, k) + torch.zeros_like(far, dtype=q.dtype).masked_fill(hidden(far), by)).softmax(-1) @ v

    return look


def fused(hidden):
    return lambda _module, q, k, v: F.scaled_dot_product_attention(q, k, v, ~hidden(distance(q.shape[-2])))


def seeing(seen):
    """The fused call with the mask that seen(j − i) makes."""
    return lambda _module, q, k, v: F.scaled_dot_product_attention(q, k, v, seen(distance(q.shape[-2])))


def fused_open(_module, q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def fused_causal(_module, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def hand_open(_module, q, k, v):
    return scores(q, k).softmax(-1) @ v


def buffer(module, q, k, v):
    n = q.shape[-2]
    return scores(q, k).masked_fill(~module.tril[:n, :n], torch.finfo(q.dtype).min).softmax(-1) @ v


def all_but_the_first_two(far):
    """Two special tokens that do not see each other, as a distillation token and CLS might not."""
    seen = torch.ones_like(far, dtype=torch.bool)
    seen[0, 1] = seen[1, 0] = False
    return seen


def running_sum(_module, q, k, v):
    """Causal linear attention: no softmax, and no mask at all."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    mixed = (q[..., None, :] @ (k[..., None] * v[..., None, :]).cumsum(-3))[..., 0, :]
    return mixed / (q * k.cumsum(-2)).sum(-1, keepdim=True)


def a_loop(module, q, k, v):
    """Token by token, each with those before it."""
    so_far = [(q[..., i : i + 1, :], k[..., : i + 1, :], v[..., : i + 1, :]) for i in range(q.shape[-2])]
    return torch.cat([hand_open(module, *part) for part in so_far], -2)


later = lambda far: far > 0  # noqa: E731
HIDING = {
    "is_causal": fused_causal,
    "is_causal by place": lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, True),
    "is_causal with dropout in eval mode": lambda _, q, k, v: F.scaled_dot_product_attention(
        q, k, v, dropout_p=0.3, is_causal=True
    ),
    "-1e9 by hand": hand(later, -1e9),
    "-1e4 by hand": hand(later, -1e4),
    "-inf by hand": hand(later),
    "-100 by hand": hand(later, -100.0),
    "a window of -100": lambda _, q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.where(distance(q.shape[-2]).abs() > 2, -100.0, 0.0).to(q)
    ),
    "a buffer, filled": buffer,
    "a bool mask": fused(later),
    "a window": fused(lambda far: far.abs() > 2),
    "a window by hand": hand(lambda far: far.abs() > 3, -1e4),
    "a causal window": fused(lambda far: (far > 0) | (far < -2)),
    "every other token": hand(lambda far: far % 2 == 1),
    "earlier tokens": fused(lambda far: far < 0),
    "texts laid end to end": seeing(lambda far: torch.arange(len(far))[:, None] // 4 == torch.arange(len(far)) // 4),
    "a prefix": seeing(lambda far: (far <= 0) | (torch.arange(len(far)) < 3)),
    "two tokens": seeing(all_but_the_first_two),
    "a running sum": running_sum,
    "a loop": a_loop,
    # Zero values do not stay zero.
    "values with a norm": lambda _, q, k, v: fused_causal(_, q, k, F.layer_norm(v, v.shape[-1:]) + 0.7),
    "itself alone": lambda _, _q, _k, v: v.clone(),
}


def soft_bias(_module, q, k, v):
    """ALiBi: far tokens count for less, and for something."""
    slopes = 2.0 ** -torch.arange(1, HEADS + 1).to(q.dtype)
    return (scores(q, k) - slopes[:, None, None] * distance(q.shape[-2]).abs().to(q.dtype)).softmax(-1) @ v


def linear(_module, q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


def normed(_module, q, k, v):
    q, k, v = (F.layer_norm(x, x.shape[-1:]) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v + 0.7)


OPEN = {
    "fused": fused_open,
    "by hand": hand_open,
    "with dropout in eval mode": lambda _, q, k, v: F.dropout(scores(q, k).softmax(-1), 0.5) @ v,
    "with a soft bias": soft_bias,
    "linear": linear,
    "some heads sharp": lambda _, q, k, v: (
        (scores(q, k) * torch.tensor([300.0, 300, 1, 1])[:, None, None].to(q)).softmax(-1) @ v
    ),
    # What one head hides another shows: the layer as a whole hides nothing.
    "some heads causal": seeing(lambda far: (far <= 0) | (torch.arange(HEADS) >= 2)[:, None, None]),
    "norms": normed,
    "sharp": lambda _, q, k, v: (300 * scores(q, k)).softmax(-1) @ v,
    "gated": lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v) * q.sigmoid(),
}


# No softmax, and no fused call: what is mixed is not seen, so that nothing is averaged.
UNSEEN = {"linear": OPEN.pop("linear"), **{name: HIDING[name] for name in ("a running sum", "a loop", "itself alone")}}
# Scores hundreds apart in every head: most weights are 0 in float32, as where a mask hides.
SHARP = OPEN.pop("sharp")


# Models around them


class Attention(SelfAttention):
    def __init__(self, look, together=True):
        super().__init__(D, HEADS, together=together)
        self.look = look
        self.register_buffer("tril", torch.ones(64, 64, dtype=torch.bool).tril())
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x, *given, **named):
        self.calls += 1
        self.last = x
        return super().forward(x, *given, **named)

    def mix(self, *parts, **named):
        return self.look(self, *parts, **named)


def model_of(*looks, together=True, dtype=torch.float32):
    torch.manual_seed(1)
    return Stack(*[Block(D, Attention(look, together), 48) for look in looks]).to(dtype).eval()


def tokens(n=N, dtype=torch.float32, batch=2):
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(2)).to(dtype)


@torch.no_grad()
def sees(model, x, j):
    """For each token whether its output moves with token j."""
    other = x.clone()
    other[:, j] = other[:, j].flip(-1) + 1
    outs = []
    with torch.random.fork_rng():
        for given in (x, other):
            torch.manual_seed(5)
            outs.append(model(given))
    return (outs[0] != outs[1]).any(-1).any(0)


@functools.cache
def hides_some(look):
    model, x = model_of(look), tokens(batch=1)
    return not all(sees(model, x, j).all() for j in range(N))


def refuses(model, *given, says=SAYS, **named):
    with pytest.raises(InputError, match=says):
        model(*given, **named)


def check_refused(model, method, x, *given, says=("hides some of them from others",), **named):
    """Refused before anything comes out, every time, and as it was when unsteered."""
    with torch.no_grad():
        torch.manual_seed(4)
        before = model(x, *given, **named)
    steer(model, method)
    for _ in range(2):
        with pytest.raises(InputError, match=f"{SAYS}|not a weighted mean") as error:
            model(x, *given, **named)
        assert any(word in str(error.value) for word in says)
        assert "\n" not in str(error.value)
        assert not torch.overrides._get_current_function_mode_stack()  # nobody listens any more
    unsteer(model)
    with torch.no_grad():
        torch.manual_seed(4)
        assert torch.equal(model(x, *given, **named), before)
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    return str(error.value)


def do_not_look(patch):
    def trusting(self, _x, tokens):
        running = self.states.current()
        return None if running is None else running.valid_for(tokens)

    patch.setattr(mask_guard.MaskGuard, "averaged_over", trusting)


def outcome(model, method, call):
    """What a steered model gives in training and in eval mode, its gradients, and the random numbers that follow."""
    model = steer(copy.deepcopy(model), method)
    found = []
    for train in (False, True):
        model.train(train)
        torch.manual_seed(3)
        out = call(model)
        out.float().sin().sum().backward()
        found += [out.detach(), torch.rand(3)]
    found += [p.grad for p in model.parameters()]
    return found + [b.clone() for b in model.buffers()]


def check_same_as_unlooked(model, method, call, monkeypatch):
    """Bit for bit what comes out where nobody looks whether tokens are hidden."""
    got = outcome(model, method, call)
    with monkeypatch.context() as patch:
        do_not_look(patch)
        expected = outcome(model, method, call)
    assert len(got) == len(expected) > 4
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


by_method = pytest.mark.parametrize("method", some(METHODS, 4), ids=str)


@by_method
@pytest.mark.parametrize("how", HIDING)
def test_hidden_tokens_are_found(how, method):
    assert hides_some(HIDING[how])
    says = ["an unknown set of tokens" if how in UNSEEN else "hides some of them from others"]
    if how == "values with a norm" and method.place == "attention":
        says = ["not a weighted mean"]
    for together in (True, False):
        said = check_refused(model_of(HIDING[how], HIDING[how], together=together), method, tokens(), says=says)
    assert said.startswith(type(method).__name__)
    assert "layer 0 (blocks.0.attn)" in said
    assert "use NeuTRENO" in said or "unsteer" in said


@by_method
def test_what_is_not_seen_is_not_averaged(method):
    for look in (UNSEEN["linear"], SHARP):
        says = ["an unknown set of tokens", "hides some of them from others"]
        check_refused(model_of(look), method, tokens(), says=says)


PRECISIONS = [dict(dtype=dtype) for dtype in some([torch.bfloat16, torch.float16, torch.float64], 2)]
LENGTHS = [dict(n=n, batch=batch) for n, batch in ((2, 1), (2, 3), (3, 1), (5, 3), (8, 1), (40, 2))]


@by_method
@pytest.mark.parametrize("given", [*PRECISIONS, *LENGTHS], ids=str)
def test_hidden_tokens_are_found_in_every_precision_and_at_every_length(given, method):
    for how in ("is_causal", "-1e4 by hand", "a buffer, filled", "a window", "-1e9 by hand", "earlier tokens"):
        if given.get("n", N) > 3 or how != "a window":  # which is wider than three tokens
            check_refused(model_of(HIDING[how], dtype=given.get("dtype", torch.float32)), method, tokens(**given))


@by_method
def test_one_layer_of_many(method):
    said = check_refused(model_of(fused_open, fused_open, fused_causal), method, tokens())
    assert "layer 2 (blocks.2.attn)" in said
    model, x = model_of(fused_open, fused_open, fused_causal), tokens()
    steer(model, method, layers=[0, 1])
    assert model(x).isfinite().all()


@by_method
def test_what_would_have_leaked(method, monkeypatch):
    """The oracle on the model that is refused: causal as it is, and not as a method leaves it."""
    model, x = model_of(fused_causal), tokens()
    assert not sees(model, x, -1)[0]
    do_not_look(monkeypatch)
    assert sees(steer(model, method), x, -1)[0]


# What is not hidden is left alone


@by_method
@pytest.mark.parametrize("how", OPEN)
def test_open_attention_is_taken_and_gives_the_same(how, method, monkeypatch):
    assert not hides_some(OPEN[how])
    for together in (True, False):
        model = model_of(OPEN[how], OPEN[how], together=together)
        if how in ("norms", "gated") and method.place == "attention":  # another A than the one that weighs the values
            with pytest.raises(InputError, match="not a weighted mean"):
                steer(model, method)(tokens())
        else:
            check_same_as_unlooked(model, method, lambda m: m(tokens()), monkeypatch)


@by_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_open_attention_in_every_precision(dtype, method, monkeypatch):
    for how in ("fused", "some heads sharp", "with a soft bias"):
        model = model_of(OPEN[how], dtype=dtype)
        check_same_as_unlooked(model, method, lambda m: m(tokens(20, dtype, batch=1)), monkeypatch)


@by_method
@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e3])
def test_weights_of_any_size(scale, method):
    """Biases and scores that are huge, or nothing; scores of softmax by hand may be too far apart."""
    for how in ("fused", *(["by hand"] if scale < 1 else [])):
        model = model_of(OPEN[how])
        with torch.no_grad():
            for p in model.blocks[0].attn.parameters():
                p.mul_(scale)
        steer(model, method)
        assert model(scale * tokens(50)).isfinite().all()


# Padding


def both_ways(hidden):
    """What is seen where padding sees nothing either."""
    return ~hidden[:, None, :, None] & ~hidden[:, None, None, :]


def with_padding(_module, q, k, v, hidden):
    return F.scaled_dot_product_attention(q, k, v, ~hidden[:, None, None, :])


def with_padding_added(_module, q, k, v, hidden):
    return (scores(q, k) + hidden[:, None, None, :] * -1e9).softmax(-1) @ v


def with_padding_both_ways(_module, q, k, v, hidden):
    return F.scaled_dot_product_attention(q, k, v, both_ways(hidden))


def with_padding_both_ways_added(_module, q, k, v, hidden):
    """Padding, from which all is hidden alike, sees all alike. Untold it is refused: a causal text's end looks so."""
    return scores(q, k).masked_fill(~both_ways(hidden), -1e9).softmax(-1) @ v


def causal_with_padding(_module, q, k, v, hidden):
    far = distance(q.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, (far <= 0) & ~hidden[:, None, None, :] | (far == 0))


def padding(left=False):
    hidden = torch.zeros(3, N, dtype=torch.bool)
    hidden[1, 5:] = hidden[2, 2:] = True
    return hidden.flip(-1) if left else hidden


class Padded(Stack):
    """Says which tokens count, as torch's encoders do."""

    def forward(self, x, src_key_padding_mask):
        return super().forward(x, src_key_padding_mask)


PADDED = [with_padding, with_padding_added, with_padding_both_ways]
TOLD = [*PADDED, with_padding_both_ways_added]


@by_method
@pytest.mark.parametrize("look", TOLD)
def test_padding_is_fine(look, method, monkeypatch):
    for left in (False, True):
        model, hidden, x = model_of(look, look), padding(left), tokens(batch=3)
        model = Padded(*model.blocks)
        check_same_as_unlooked(model, method, lambda m, x=x, h=hidden: m(x, h)[~h], monkeypatch)


@by_method
@pytest.mark.parametrize("look", PADDED)
def test_padding_that_is_not_told_is_not(look, method):
    """It would be averaged over, and the longest input of a batch would change the others."""
    for left in (False, True):
        model = steer(model_of(look, look), method)
        with pytest.raises(InputError, match="or padding that no attention_mask"):
            model(tokens(batch=3), padding(left))


@by_method
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
def test_causal_with_padding_is_not(declared, left, method):
    model, hidden = model_of(causal_with_padding), padding(left)
    check_refused(Padded(*model.blocks) if declared else model, method, tokens(batch=3), hidden)


# Masks and switches that are handed over: they can be others in the next pass


def by_switch(_module, q, k, v, causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def by_mask(_module, q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, mask)


@by_method
def test_a_switch_that_is_turned(method):
    model, x = model_of(by_switch), tokens()
    steer(model, method)
    model(x)
    model(x, causal=False)
    for _ in range(2):
        refuses(model, x, causal=True)
    model(x)
    unsteer(model)
    model(x, causal=True)


@by_method
def test_an_attribute_that_is_set(method):
    look = lambda module, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=module.is_causal)  # noqa: E731
    model, x = model_of(look), tokens()
    model.blocks[0].attn.is_causal = False
    steer(model, method)
    model(x)
    model.blocks[0].attn.is_causal = True
    refuses(model, x)


@by_method
@pytest.mark.parametrize(("n", "shape"), [(2, ()), (3, (2, 1)), (N, ()), (N, (2, 1)), (N, (2, HEADS))])
@pytest.mark.parametrize("added", [None, -1e9, -torch.inf], ids=["bool", "-1e9", "-inf"])
def test_a_mask_that_changes(added, shape, n, method):
    """The first pass hides nothing or a soft bias; a later one hides padding or the future."""

    def mask_of(seen):
        seen = seen.expand(*shape, n, n)
        return seen if added is None else torch.zeros(seen.shape).masked_fill(~seen, added)

    model, x = model_of(by_mask, by_mask), tokens(n)
    everything = torch.ones(n, n, dtype=torch.bool)
    padded = everything.clone()
    padded[:, -1] = False
    steer(model, method)
    model(x, mask=mask_of(everything))
    with pytest.raises(InputError, match=SAYS):
        model(x, mask=mask_of(padded))
    model(x, mask=-distance(n).abs().float().expand(1, 1, n, n))
    for seen in (everything.tril(), everything.triu(), everything.tril()):
        refuses(model, x, mask=mask_of(seen))
    model(x, mask=mask_of(everything))


@by_method
def test_masks_for_a_bidirectional_model_of_transformers(method):
    """BERT takes a mask of pairs, and as a decoder makes one itself."""
    given = text()
    n = given["input_ids"].shape[1]
    model = steer(make("BERT"), method)
    model(**given)
    seen = torch.ones(2, 1, n, n, dtype=torch.bool).tril()
    refuses(model, input_ids=given["input_ids"], attention_mask=seen)
    model(**given)


def test_a_decoder_made_of_a_bidirectional_model():
    from transformers import BertConfig, BertModel

    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=64)
    for cache in (True, False):
        model = BertModel(BertConfig(**sizes, is_decoder=True, use_cache=cache)).eval()
        with pytest.raises(InputError, match=SAYS):
            steer(model, Centred(0.5))(**text())


@by_method
def test_windows_that_are_known_are_refused_at_once(method):
    """ModernBERT: the first layer sees everything, the second what is near."""
    model, given = make("ModernBERT"), text()
    assert [layer.window for layer in locate(model)] == [None, 3]
    with pytest.raises(InputError, match=r"layer 1 \(layers.1.attn\): .*with a window of 3 .*leave such layers out"):
        steer(model, method)
    assert steering_of(model) is None
    steer(model, method, layers=lambda _index, layer: layer.window is None)
    model(**given)
    unsteer(model)
    model.layers[1].attn.sliding_window = None  # not said, and found in the first pass
    steer(model, method)
    with pytest.raises(InputError, match=r"layer 1 \(layers.1.attn\) hides some of them"):
        model(**given)


@by_method
def test_a_window_wider_than_the_first_text(method):
    model = steer(model_of(fused(lambda far: far.abs() > 4)), method)
    for n in (1, 2, 5, 3, 5):
        model(tokens(n))
    refuses(model, tokens(6))
    model(tokens(5))


@by_method
def test_one_token_says_nothing(method):
    model = steer(model_of(fused_causal), method)
    model(tokens(1))
    refuses(model, tokens(2))


# Modules as people write them


class HoldsProjections(nn.Module):
    """Attention in the block's own lines; what holds the projections is never called."""

    def __init__(self, causal):
        super().__init__()
        self.norm1, self.causal_mask = nn.LayerNorm(D), causal
        self.attn = nn.ModuleDict({"to_qkv": nn.Linear(D, 3 * D), "to_out": nn.Linear(D, D)})
        self.mlp = nn.Linear(D, D)

    def forward(self, x):
        parts = self.attn["to_qkv"](self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal_mask)
        x = x + self.attn["to_out"](mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


@by_method
def test_attention_that_is_no_module(method):
    x = tokens()
    model = Stack(HoldsProjections(True), HoldsProjections(True)).eval()
    refuses(steer(model, method, heads=HEADS), x)
    unsteer(model)
    assert not sees(model, x, -1)[0]
    model = steer(Stack(HoldsProjections(False), HoldsProjections(False)), method, heads=HEADS)
    model(x)
    refuses(steer(Stack(HoldsProjections(False), HoldsProjections(True)), method, heads=HEADS), x)


class AroundTorch(nn.Module):
    def __init__(self, causal, batch_first):
        super().__init__()
        self.norm1, self.mlp, self.causal_mask = nn.LayerNorm(D), nn.Linear(D, D), causal
        self.attn = nn.MultiheadAttention(D, HEADS, batch_first=batch_first, dropout=0.1)

    def forward(self, x):
        n = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n) if self.causal_mask else None
        h = self.norm1(x)
        h = h if self.attn.batch_first else h.transpose(0, 1)
        h = self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        x = x + (h if self.attn.batch_first else h.transpose(0, 1))
        return x + self.mlp(x)


@by_method
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_own_attention(batch_first, method):
    x = tokens()
    check_refused(Stack(AroundTorch(True, batch_first)).eval(), method, x)
    for train in (False, True):
        steer(Stack(AroundTorch(False, batch_first)).train(train), method)(x)


@by_method
def test_a_mask_of_torchs_encoder_that_changes(method):
    name = "torch encoder (Pre-LN)"  # (n, batch, d)
    model = steer(make(name), method)
    x = FAMILIES[name].inputs()["src"]
    n = x.shape[0]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    model(x)
    for mask in (~seen, torch.zeros(n, n).masked_fill(~seen, -torch.inf), torch.zeros(n, n).masked_fill(~seen, -1e9)):
        refuses(model, x, mask=mask)
    model(x, mask=-distance(n).abs().float())  # soft
    model(**FAMILIES[name].inputs())


@by_method
def test_a_forward_that_was_replaced(method):
    """On the object itself and calling what was there, as accelerate does."""
    from accelerate.hooks import ModelHook, add_hook_to_module

    for look, fits in ((fused_open, True), (fused_causal, False)):
        model = model_of(look)
        for module in (model.blocks[0].attn, model.blocks[0].attn.qkv):
            add_hook_to_module(module, ModelHook())
        steer(model, method)
        if fits:
            model(tokens())
        else:
            refuses(model, tokens())


# Nothing is left behind


@by_method
def test_looking_leaves_no_trace(method):
    """Buffers, attributes, hooks that listen, grad mode, and what is handed over."""
    seen = []

    def cached(_module, q, k, v, cache):
        cache.append(k.shape[-2])
        return F.scaled_dot_product_attention(q, k, v)

    model, x = steer(model_of(cached, cached), method), tokens()
    attn = model.blocks[0].attn
    attn.proj.register_forward_hook(lambda *_: seen.append(1))
    attn.register_forward_pre_hook(lambda *_: seen.append(2))
    cache = []
    model(x, cache)
    assert cache == [N, N]
    assert seen == [2, 1]
    assert [int(block.attn.calls) for block in model.blocks] == [1, 1]
    assert attn.last.shape == x.shape
    assert not torch.equal(attn.last[:, 0], attn.last[:, 1])
    assert torch.is_grad_enabled()
    assert not model.training


@by_method
def test_masks_are_read_no_more_than_needed(method, monkeypatch):
    """Scores of softmax by hand once for each length, a mask that all layers have once in every pass."""
    x, reads, real = tokens(), [], mask_guard.MaskGuard._check_pairs
    monkeypatch.setattr(mask_guard.MaskGuard, "_check_pairs", lambda *a: reads.append(a[0].index) or real(*a))
    model = steer(model_of(hand_open, hand_open, fused_open), method)
    for _ in range(3):
        model(x)
    model(tokens(4))
    assert reads == [0, 1]
    model.train()(tokens(N + 1))
    assert reads == [0, 1] * 2
    model, mask = steer(model_of(by_mask, by_mask), method), torch.ones(N, N, dtype=torch.bool)
    for _ in range(2):
        model(x, mask=mask)
    assert reads == [0, 1] * 2 + [0, 0]


def test_weights_under_autocast_keep_their_gradients():
    model = steer(model_of(fused_open, fused_open), Centred(0.5))
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens()).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@by_method
@pytest.mark.parametrize("kind", ["recomputed", "reentrant", "selective"])
def test_activation_checkpointing(kind, method):
    class Recomputed(Stack):
        def forward(self, x):
            keep = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
            policy = lambda _ctx, op, *_, **__: (  # noqa: E731
                CheckpointPolicy.MUST_SAVE if op in keep else CheckpointPolicy.PREFER_RECOMPUTE
            )
            how = dict(use_reentrant=kind == "reentrant")
            if kind == "selective":
                how["context_fn"] = lambda: create_selective_checkpoint_contexts(policy)
            for block in self.blocks:
                x = checkpoint(block, x, **how)
            return x

    found = []
    for cls in (Stack, Recomputed):
        model = steer(cls(*model_of(fused_open, fused_open).blocks).train(), method)
        x = tokens().requires_grad_()
        if kind == "reentrant" and cls is Recomputed:
            with pytest.raises(InputError, match="use_reentrant=False"):
                model(x).sin().sum().backward()
            break
        model(x).sin().sum().backward()
        found.append([x.grad, *[p.grad for p in model.parameters()]])
    for a, b in zip(found[0], found[-1], strict=True):
        torch.testing.assert_close(a, b)
    model = steer(Recomputed(*model_of(fused_open, fused_causal).blocks).train(), method)
    refuses(model, tokens().requires_grad_())


@by_method
def test_inference_mode_and_the_meta_device(method):
    with torch.inference_mode():
        steer(model_of(fused_open), method)(tokens())
        refuses(steer(model_of(fused_causal), method), tokens())
    model = steer(model_of(fused_causal), method)
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model(torch.randn(2, N, D)).shape == (2, N, D)
    model.to("meta")(torch.empty(2, N, D, device="meta"))


@by_method
def test_copies_look_for_themselves(method):
    model = steer(model_of(by_switch), method)
    for other in (copy.deepcopy(model), copy.deepcopy(model)):
        other(tokens())
        refuses(other, tokens(), causal=True)
    module = steer(make("attention alone (Pre-LN)"), method)
    module(tokens(8))
    again = pickle.loads(pickle.dumps(module))
    assert torch.equal(again(tokens(8)), module(tokens(8)))


def test_two_passes_at_once():
    model, x = model_of(fused_open, fused_open).train(), tokens(30)
    expected = steer(copy.deepcopy(model), Centred(0.5))(x)
    steer(model, Centred(0.5))
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(one, expected) for one in pool.map(model, [x] * 4))


@by_method
def test_together_with_weights_that_are_computed(method):
    for look, fits in ((fused_open, True), (fused_causal, False)):
        model = steer(model_of(look, look), [Spectral(), method])
        if fits:
            model(tokens()).sum().backward()
        else:
            refuses(model, tokens())
            unsteer(model)


def test_methods_that_do_not_average_look_at_nothing(monkeypatch):
    monkeypatch.setattr(mask_guard.MaskGuard, "averaged_over", None)
    model, x = steer(model_of(fused_causal, fused_causal), NeuTRENO(0.4)), tokens()
    assert not sees(model, x, -1)[0]


@by_method
def test_a_diagnosis_is_the_first_pass(method):
    """Listening, and looking whether anything is hidden, do not meet."""
    x = tokens()
    plain, looked = (steer(model_of(fused_open, fused_open), method) for _ in range(2))
    looked(x)
    first, second = (diagnose(one, x, depth=0) for one in (plain, looked))
    assert first.layers == second.layers
    with pytest.raises(InputError, match=SAYS):
        diagnose(steer(model_of(fused_causal, fused_causal), method), x)


# torch.compile


@nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("whole", "method", "how"),
    some([(True, Centred(0.5), "-1e9 by hand"), (False, ContraNorm(0.3), "is_causal")], 2),
    ids=str,
)
def test_the_first_pass_is_compiled(whole, method, how):
    """Refused, as its masks cannot be read, and compiled after an eager pass; where that is refused, it stays so."""
    refused = pytest.raises(torch._dynamo.exc.Unsupported if whole else InputError, match="before it is compiled")
    for look, fits in ((fused_open, True), (HIDING[how], False)):
        torch._dynamo.reset()
        x = tokens()
        model = model_of(fused_open, look).train()
        stock = copy.deepcopy(model)
        compiled = torch.compile(steer(model, method), backend="aot_eager", fullgraph=whole)
        with refused:
            compiled(x)
        torch._dynamo.reset()
        if fits:
            expected = model(x)
            torch.manual_seed(6)
            state = torch.get_rng_state()
            for _ in range(2):
                torch.testing.assert_close(compiled(x), expected)
            assert torch.equal(torch.get_rng_state(), state)
            torch.testing.assert_close(expected, steer(stock, method)(x))
        else:
            refuses(model, x)
            with refused:
                compiled(x)
            unsteer(model)


@nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", some([FeatScale(0.3, 0.2), AttnScale(0.4)], 2), ids=str)
def test_a_compiled_model_of_transformers(method):
    """A family that is known to be bidirectional: at once without masks, and with them at any length after one pass."""
    given = text()
    alone = {key: value for key, value in given.items() if key != "attention_mask"}
    model = make("BERT")
    expected = steer(copy.deepcopy(model), method)
    run = lambda given: torch.compile(model, backend="eager", fullgraph=True)(**given).last_hidden_state  # noqa: E731
    steer(model, method)
    torch.testing.assert_close(run(alone), expected(**alone).last_hidden_state)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="before it is compiled"):
        run(given)
    torch._dynamo.reset()
    model(**{key: value[:, -3:] for key, value in given.items()})
    torch.testing.assert_close(run(given), expected(**given).last_hidden_state)


@pytest.mark.filterwarnings("ignore")
def test_compiled_where_attention_is_no_module():
    model, x = steer(Stack(HoldsProjections(False)).eval(), Centred(0.5), heads=HEADS), tokens()
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(InputError, match="run one batch through the model as it is"):
        compiled(x)
    expected = model(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), expected)


@pytest.mark.filterwarnings("ignore")
def test_exporting_wants_a_pass_first():
    model, x = steer(model_of(fused_open).requires_grad_(False), Centred(0.5)), tokens()
    with pytest.raises(Exception, match="run one batch through the model as it is"):
        torch.export.export(model, (x,), strict=False)


@pytest.mark.parametrize("dynamic", some([None, True], 2))
def test_a_window_wider_than_the_first_text_compiled(dynamic):
    """Code for short texts, or for texts of any length, has not seen what a window hides of longer ones."""
    model = steer(model_of(fused(lambda far: far.abs() > 8)), FeatScale(0.1, 0.2, learned=False))
    run = torch.compile(model, backend="eager", dynamic=dynamic)
    with torch.no_grad():
        assert model(tokens(5)).isfinite().all()
        assert dynamic is None or run(tokens(5)).isfinite().all()
        with pytest.raises(Exception, match="averages over all tokens"):
            run(tokens(40))
