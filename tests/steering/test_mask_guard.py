"""Averaging in compiled code and in copies, and over padding however a model says what is padding."""

import copy

import pytest
import torch
from support.blocks import Block, SelfAttention
from torch import nn

from oversmooth import InputError
from oversmooth.models.vit import ViT
from oversmooth.steering import AttnScale, Centred, ContraNorm, FeatScale, NeuTRENO, steer, steering_of
from oversmooth.trace.valid import valid_tokens

SMALL = dict(image=8, patch=4, channels=3, classes=3, width=16, depth=2, heads=2)
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", [AttnScale(0.3, learned=False), FeatScale(0.2, 0.1, learned=False)])
def test_compiled_code_averages_after_a_pass_as_it_is(method):
    torch.manual_seed(0)
    model = steer(ViT(**SMALL).eval(), method)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with torch.no_grad():
        with pytest.raises(InputError, match="run one batch through the model as it is"):
            compiled(X)
        expected = model(X)
        torch.testing.assert_close(compiled(X), expected, rtol=0, atol=1e-6)


def test_a_copy_has_checks_of_its_own():
    model = steer(ViT(**SMALL).eval(), Centred(0.3))
    model(X)
    other = copy.deepcopy(model)
    before, after = ([hooks.guard for hooks in steering_of(each).hooks.values()] for each in (model, other))
    assert [guard.layer.name for guard in after] == ["blocks.0.attn", "blocks.1.attn"]
    assert all(a.unmasked == b.unmasked is not a.unmasked for a, b in zip(after, before, strict=True))
    inside = dict(other.named_modules())
    for guard in after:
        assert {name: inside[name] for name in guard.projections} == {n: m for n, (_, m) in guard.projections.items()}


class Own(nn.Module):
    """An encoder whose mask has a name of its own."""

    def __init__(self, torchs):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(OwnBlock(torchs) for _ in range(2))

    def forward(self, x, keep=None):
        for layer in self.layers:
            x = layer(x, keep)
        return x


class OwnBlock(Block):
    def __init__(self, torchs):
        attn = nn.MultiheadAttention(16, 2, batch_first=True) if torchs else SelfAttention(16, together=False)
        super().__init__(16, attn)
        self.torchs = torchs

    def forward(self, x, keep=None):
        if self.torchs:
            return super().forward(x, key_padding_mask=None if keep is None else ~keep)
        return super().forward(x, None if keep is None else keep[:, None, None])


class Told(nn.Module):
    """Says what is padding of the tokens that it is given, and adds one."""

    def __init__(self):
        super().__init__()
        self.first, self.layers = nn.Parameter(torch.randn(1, 1, 16)), nn.ModuleList(OwnBlock(False) for _ in range(2))

    def forward(self, x, attention_mask):
        x = torch.cat([self.first.expand(len(x), 1, -1), x], 1)
        keep = torch.cat([attention_mask.new_ones(len(x), 1), attention_mask], 1).bool()
        for layer in self.layers:
            x = layer(x, keep)
        return x


AVERAGING = [AttnScale(0.4), Centred(0.5), FeatScale(0.3, 0.4), ContraNorm(0.3)]
TOKENS = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))
KEEP = torch.arange(8) < torch.tensor([8, 4])[:, None]


@pytest.mark.parametrize("method", AVERAGING, ids=str)
def test_torchs_attention_says_what_is_padding(method):
    """Whatever the model calls it: padding changes nothing."""
    model = steer(Own(torchs=True).eval(), method)
    with torch.no_grad():
        padded, alone = model(TOKENS, KEEP)[1, :4], model(TOKENS[1:, :4])[0]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", ["padded", "of one length", "without a mask"])
@pytest.mark.parametrize("method", AVERAGING, ids=str)
def test_padding_that_nobody_tells_of_is_refused(method, first):
    """In the first pass, and in a later one after passes without padding."""
    model = steer(Own(torchs=False).eval(), method)
    with torch.no_grad():
        if first != "padded":
            model(TOKENS, torch.ones_like(KEEP) if first == "of one length" else None)
        with pytest.raises(InputError, match="hides some from all others, as padding is, which no attention_mask"):
            model(TOKENS, KEEP)
        assert model(TOKENS, torch.ones_like(KEEP)).isfinite().all()


@pytest.mark.parametrize("method", AVERAGING, ids=str)
def test_a_mask_of_other_tokens_than_attentions(method):
    torch.manual_seed(0)
    model = steer(Told().eval(), method)
    with torch.no_grad():
        assert model(TOKENS, torch.ones(2, 8, dtype=torch.long)).isfinite().all()  # it hides nothing
        with pytest.raises(InputError, match=r"padding"):
            model(TOKENS, KEEP.long())
        assert steer(Told().eval(), NeuTRENO(0.5))(TOKENS, KEEP.long()).isfinite().all()


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -1e9, -1e4, -torch.inf])
def test_masks_that_are_added_hide_by_any_number(low):
    """Of pairs, given to the module that runs the blocks; rows of padding see all, or nothing."""
    keep = KEEP[:, None, None].expand(2, 1, 8, 8)
    for rows in (keep, keep & KEEP[:, None, :, None]):
        added = torch.where(rows, 0.0, low)
        assert torch.equal(valid_tokens(added), KEEP)
        assert torch.equal(valid_tokens(rows), KEEP)


@pytest.mark.parametrize("method", AVERAGING, ids=str)
def test_a_single_padded_input_without_a_batch(method):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
    model = steer(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), method)
    with torch.no_grad():
        batched = model(TOKENS[1:], src_key_padding_mask=~KEEP[1:])[0, :4]
        alone = model(TOKENS[1], src_key_padding_mask=~KEEP[1])[:4]
    torch.testing.assert_close(alone, batched, rtol=0, atol=1e-6)
