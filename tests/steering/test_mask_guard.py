"""Averaging in compiled code and in copies, and over padding however a model says what is padding."""

import pytest
import torch
from support.blocks import Block, SelfAttention
from torch import nn

from oversmooth import InputError
from oversmooth.steering import AttnScale, Centred, ContraNorm, FeatScale, NeuTRENO, steer


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


@pytest.mark.parametrize("method", AVERAGING, ids=str)
def test_a_mask_of_other_tokens_than_attentions(method):
    torch.manual_seed(0)
    model = steer(Told().eval(), method)
    with torch.no_grad():
        assert model(TOKENS, torch.ones(2, 8, dtype=torch.long)).isfinite().all()  # it hides nothing
        with pytest.raises(InputError, match=r"padding"):
            model(TOKENS, KEEP.long())
        assert steer(Told().eval(), NeuTRENO(0.5))(TOKENS, KEEP.long()).isfinite().all()


@pytest.mark.parametrize("method", AVERAGING, ids=str)
def test_a_single_padded_input_without_a_batch(method):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
    model = steer(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), method)
    with torch.no_grad():
        batched = model(TOKENS[1:], src_key_padding_mask=~KEEP[1:])[0, :4]
        alone = model(TOKENS[1], src_key_padding_mask=~KEEP[1])[:4]
    torch.testing.assert_close(alone, batched, rtol=0, atol=1e-6)
