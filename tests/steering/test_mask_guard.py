"""Averaging in compiled code and in copies, and over padding however a model says what is padding."""

import pytest
import torch
from support.blocks import Block, SelfAttention, Stack, own_block, torch_block
from torch import nn

from oversmooth import InputError
from oversmooth.models.vit import ViT
from oversmooth.steering import AttnScale, Centred, ContraNorm, FeatScale, NeuTRENO, steer
from oversmooth.trace.valid import valid_tokens

SMALL = dict(image=8, patch=4, channels=3, classes=3, width=16, depth=2, heads=2)
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_compiled_code_averages_after_a_pass_as_it_is():
    torch.manual_seed(0)
    model = steer(ViT(**SMALL).eval(), FeatScale(0.2, 0.1, learned=False))
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with torch.no_grad():
        with pytest.raises(InputError, match="run one batch through the model as it is"):
            compiled(X)
        expected = model(X)
        torch.testing.assert_close(compiled(X), expected, rtol=0, atol=1e-6)


def test_compiled_code_takes_no_mask_that_was_never_seen():
    """A window that the pass as it is did not have would be averaged across without a word."""
    torch.manual_seed(0)
    model = steer(Stack(*(own_block(16, together=False) for _ in range(2))).eval(), Centred(0.5))
    near = (torch.arange(8)[:, None] - torch.arange(8)).abs() < 3
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with torch.no_grad():
        expected = model(TOKENS)
        torch.testing.assert_close(compiled(TOKENS), expected, rtol=0, atol=1e-6)
        with pytest.raises(InputError, match="it is compiled"):
            compiled(TOKENS, near)


class Flagged(SelfAttention):
    """Causal by a flag alone."""

    def mix(self, q, k, v, decoder=False):
        return super().mix(q, k, v, torch.ones(8, 8, dtype=torch.bool).tril() if decoder else None)


def test_a_flag_that_no_earlier_pass_had_is_looked_at():
    """Attention that hid nothing in one call may hide tokens in the next."""
    torch.manual_seed(0)
    model = steer(Stack(*(Block(16, Flagged(16, 2, together=False)) for _ in range(2))).eval(), Centred(0.5))
    with torch.no_grad():
        model(TOKENS)
        with pytest.raises(InputError, match="hides some of them from others"):
            model(TOKENS, True)


class Told(nn.Module):
    """Says what is padding of the tokens that it is given, and adds one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, 16))
        self.layers = nn.ModuleList(own_block(16, together=False) for _ in range(2))

    def forward(self, x, attention_mask):
        x = torch.cat([self.first.expand(len(x), 1, -1), x], 1)
        keep = torch.cat([attention_mask.new_ones(len(x), 1), attention_mask], 1).bool()
        for layer in self.layers:
            x = layer(x, keep[:, None, None])
        return x


AVERAGING = [AttnScale(0.4), Centred(0.5), FeatScale(0.3, 0.4), ContraNorm(0.3)]
TOKENS = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))
KEEP = torch.arange(8) < torch.tensor([8, 4])[:, None]


@pytest.mark.parametrize("method", AVERAGING, ids=str)
def test_torchs_attention_says_what_is_padding(method):
    """Whatever the model around it calls it: padding changes nothing."""
    torch.manual_seed(0)
    model = steer(Stack(torch_block(16), torch_block(16)).eval(), method)
    with torch.no_grad():
        padded, alone = model(TOKENS, key_padding_mask=~KEEP)[1, :4], model(TOKENS[1:, :4])[0]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-6)


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
