"""Padding, wherever it is told: cosines over real tokens alone, with loops; or a refusal."""

import pytest
import torch
from support.blocks import own_block
from support.oracles import mean_metric, streams
from torch import nn

import oversmooth
from oversmooth.steering import AttnScale, Centred, ContraNorm, FeatScale
from oversmooth.trace.valid import UnknownPaddingError, mask_of

WIDTH, LENGTHS = 16, (6, 3, 4)
MASK = torch.arange(6) < torch.tensor(LENGTHS)[:, None]


def block():
    return own_block(WIDTH, together=False)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(2))

    def forward(self, x, attention_mask=None):
        for layer in self.layers:
            x = layer(x, attention_mask[:, None, None])
        return x


class WithToken(nn.Module):
    """Puts a token of its own before those that it is given, with the mask that belongs to all of them."""

    def __init__(self, inside):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.first, self.inside = nn.Embedding(11, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH)), inside
        if inside:
            self.stack = Stack()
        else:
            self.layers = nn.ModuleList(block() for _ in range(2))

    @property
    def blocks(self):
        return self.stack.layers if self.inside else self.layers

    def forward(self, input_ids, attention_mask):
        x = torch.cat([self.first.expand(len(input_ids), 1, -1), self.words(input_ids)], 1)
        mask = torch.cat([torch.ones(len(x), 1, dtype=torch.bool), attention_mask.bool()], 1)
        if self.inside:
            return self.stack(x, attention_mask=mask)
        for layer in self.layers:
            x = layer(x, mask[:, None, None])
        return x


def cosines(model, blocks, given, lengths):
    """Mean over inputs of the mean cosine of pairs of different real tokens, before the first block and after each."""
    real = [torch.arange(max(lengths)) < length for length in lengths]
    arrays = streams(blocks, lambda: model(**given))
    return [mean_metric("cos", x[:, : max(lengths)], real) for x in arrays]


GIVEN = {
    "input_ids": torch.randint(1, 11, (3, 6), generator=torch.Generator().manual_seed(0)),
    "attention_mask": MASK.long(),
}


@pytest.mark.parametrize("inside", [True, False], ids=["told a module inside", "told nobody but attention"])
def test_a_mask_of_other_tokens_than_the_blocks_get(inside):
    model = WithToken(inside).eval()
    expected = cosines(model, model.blocks, GIVEN, [1 + n for n in LENGTHS])
    pattern = "stack.layers.*" if inside else "layers.*"
    assert oversmooth.diagnose(model, GIVEN).curve("cos") == pytest.approx(expected, abs=1e-4)
    assert oversmooth.Monitor(model, probe=GIVEN).snapshot(1)["cos"] == pytest.approx(expected, abs=1e-4)
    if inside:
        found = oversmooth.diagnose(model, GIVEN, blocks=pattern, spectra=False).curve("cos")
        assert found == pytest.approx(expected, abs=1e-4)
        assert oversmooth.Monitor(model, probe=GIVEN, blocks=pattern).snapshot(1)["cos"] == pytest.approx(
            expected, abs=1e-4
        )
    else:
        with pytest.raises(oversmooth.InputError, match=r"shape \(3, 6\) but the blocks receive \(3, 7\)"):
            oversmooth.diagnose(model, GIVEN, blocks=pattern, spectra=False)


def test_a_probe_of_gradients_leaves_the_same_tokens_out():
    """The share of the gradient in the band of differences, of real tokens alone, written out."""
    model = WithToken(inside=False).eval()

    def loss(out, _probe):
        return (out * torch.linspace(0, 1, out.shape[1])[:, None]).square().sum()

    row = oversmooth.Monitor(model, probe=GIVEN, gradients=1, loss=loss).snapshot(1)
    x = model(**GIVEN).detach().requires_grad_()
    (G,) = torch.autograd.grad(loss(x, None), x)
    high = whole = 0.0
    for one, length in zip(G.double(), LENGTHS, strict=True):
        real = one[: 1 + length]
        high += float((real - real.mean(0)).square().sum())
        whole += float(real.square().sum())
    assert row["gradient_hfc"][-1] == pytest.approx(high / whole, rel=1e-4)


@pytest.mark.filterwarnings("ignore::oversmooth.monitor.warning.MonitorWarning")
@pytest.mark.parametrize("inside", [True, False])
def test_the_passing_batch_of_a_mask_of_other_tokens(inside):
    model = WithToken(inside).train()
    expected = cosines(model, model.blocks, GIVEN, [1 + n for n in LENGTHS])
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1)
    model(**GIVEN)
    monitor.step()
    if inside:
        assert monitor.history.rows[0]["cos"] == pytest.approx(expected, abs=1e-4)
    else:
        assert not monitor.history.rows
        assert "blocks receive (3, 7)" in monitor.failures[0]
    whole = {**GIVEN, "attention_mask": torch.ones(3, 6, dtype=torch.long)}  # hides nothing: no matter
    model(**whole)
    monitor.step()
    assert monitor.history.rows[-1]["cos"] == pytest.approx(cosines(model, model.blocks, whole, (7, 7, 7)), abs=1e-4)


def test_compiled_code_that_cannot_read_such_a_mask_gives_no_number():
    torch.compiler.reset()
    model = WithToken(inside=False).train()
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1)
    compiled = torch.compile(model, backend="eager")
    whole = {**GIVEN, "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    for given in (whole, GIVEN):
        compiled(**given)
        monitor.step()
    first, *others = monitor.history.rows
    assert first["cos"] == pytest.approx(cosines(model, model.blocks, whole, (7, 7, 7)), abs=1e-4)
    assert all(value is None or value != value for row in others for value in row["cos"])
    monitor.close()
    torch.compiler.reset()


def test_wav2vec2s_mask_is_of_samples():
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=20)
    front = dict(conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 4), num_feat_extract_layers=2)
    places = dict(num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4)
    config = Wav2Vec2Config(**sizes, **front, **places, feat_extract_norm="layer", do_stable_layer_norm=True)
    model = Wav2Vec2ForCTC(config).eval()
    mask = (torch.arange(600) < torch.tensor([600, 300, 200])[:, None]).long()
    given = {"input_values": torch.randn(3, 600) * mask, "attention_mask": mask}
    blocks = model.wav2vec2.encoder.layers
    expected = cosines(model, list(blocks), given, [29, 14, 9])
    assert oversmooth.Monitor(model, probe=given).snapshot(1)["cos"] == pytest.approx(expected, abs=1e-4)
    named = oversmooth.diagnose(model, given, blocks="wav2vec2.encoder.layers.*", spectra=False)
    assert named.curve("cos") == pytest.approx(expected, abs=1e-4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("how", [{}, {"spectra": False}, {"spectra": False, "blocks": "decoder.layers.*"}])
@pytest.mark.parametrize("padded", [False, True], ids=["targets of one length", "padded targets"])
def test_a_decoders_tokens_are_not_its_sources(padded, how):
    """Source and target have as many tokens, and the source is padded."""
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, 2, 2, 2, 32, dropout=0.0, batch_first=True).train()
    given = {
        "src": torch.randn(3, 6, WIDTH),
        "tgt": torch.randn(3, 6, WIDTH),
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(6).isinf(),
        "src_key_padding_mask": ~MASK.flip(0),
        "memory_key_padding_mask": ~MASK.flip(0),
        **({"tgt_key_padding_mask": ~MASK} if padded else {}),
    }
    expected = cosines(model, list(model.decoder.layers), given, LENGTHS if padded else (6, 6, 6))
    found = oversmooth.diagnose(model.eval(), given, **({"stack": "decoder"} if "blocks" not in how else {}), **how)
    assert found.curve("cos") == pytest.approx(expected, abs=1e-4)


def test_a_mask_that_does_not_fit():
    x, mask = torch.zeros(3, 7, 4), MASK
    assert mask_of(x, torch.ones(3, 6)) is None
    assert mask_of(x[:, :6], mask) is mask
    with pytest.raises(UnknownPaddingError, match="pass inputs of equal length"):
        mask_of(x, mask)


@pytest.mark.parametrize("loader", [True, False])
def test_ids_with_their_mask_beside_them(loader):
    from transformers import BertConfig, BertModel

    sizes = dict(vocab_size=11, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    model, pair = BertModel(BertConfig(**sizes)).eval(), (GIVEN["input_ids"], GIVEN["attention_mask"])
    with pytest.raises(
        oversmooth.InputError, match=r"zeros and ones beside them, which may be their mask; give a dict"
    ):
        oversmooth.diagnose(model, [pair] if loader else pair)
    labelled = [(pair[0], torch.tensor([0, 1, 1]))]
    assert oversmooth.diagnose(model, labelled).provenance["inputs"] == 3


@pytest.mark.parametrize("padded", [False, True])
def test_longformers_encoder_is_given_a_mask_that_is_added(padded):
    from transformers import LongformerConfig, LongformerModel

    torch.manual_seed(0)
    sizes = dict(vocab_size=11, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    config = LongformerConfig(**sizes, attention_window=4, max_position_embeddings=32, pad_token_id=0)
    model = LongformerModel(config).eval()
    given = GIVEN if padded else {"input_ids": GIVEN["input_ids"]}
    blocks = model.encoder.layer
    expected = cosines(model, list(blocks), given, LENGTHS if padded else (6, 6, 6))
    found = oversmooth.diagnose(model, given, blocks="encoder.layer.*", spectra=False)
    assert found.curve("cos") == pytest.approx(expected, abs=1e-4)
    assert oversmooth.Monitor(model, probe=given).snapshot(1)["cos"] == pytest.approx(expected, abs=1e-4)


class Anything(nn.Module):
    """A wrapper that takes whatever comes, as adapters have them."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


@pytest.mark.parametrize("told", [False, True])
def test_wrappers_around_an_encoder_and_a_decoder(told):
    from transformers import BartConfig, BartModel

    torch.manual_seed(0)
    layers = {f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in (
        ("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip
    model = Anything(BartModel(BartConfig(vocab_size=11, d_model=WIDTH, max_position_embeddings=16, **layers))).eval()
    given = {**GIVEN, "attention_mask": MASK.flip(0).long(), "decoder_input_ids": GIVEN["input_ids"].flip(1)}
    given |= {"decoder_attention_mask": MASK.long()} if told else {}
    expected = cosines(model, list(model.model.decoder.layers), given, LENGTHS if told else (6, 6, 6))
    found = oversmooth.diagnose(model, given, blocks="model.decoder.layers.*", spectra=False)
    assert found.curve("cos") == pytest.approx(expected, abs=1e-4)
    assert oversmooth.diagnose(model, given, stack="decoder", depth=0).curve("cos") == pytest.approx(expected, abs=1e-4)
    row = oversmooth.Monitor(model, probe=given, blocks="model.decoder.layers.*").snapshot(1)
    assert row["cos"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("how", ["named blocks", "probe", "passing"])
def test_a_texts_padding_is_not_the_pictures(how):
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    torch.manual_seed(0)
    sizes = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    text = CLIPTextConfig(**sizes, vocab_size=11, max_position_embeddings=16, eos_token_id=2, pad_token_id=0)
    vision = CLIPVisionConfig(**sizes, image_size=8, patch_size=4)
    model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8)).eval()
    given = {**GIVEN, "pixel_values": torch.randn(3, 3, 8, 8)}
    expected = cosines(model, list(model.vision_model.encoder.layers), given, (5, 5, 5))
    blocks = "vision_model.encoder.layers.*"
    if how == "named blocks":
        found = oversmooth.diagnose(model, given, blocks=blocks, spectra=False).curve("cos")
    elif how == "probe":
        found = oversmooth.Monitor(model, probe=given, blocks=blocks).snapshot(1)["cos"]
    else:
        monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks=blocks)
        model.train()(**given)
        monitor.step()
        found = monitor.history.rows[0]["cos"]
    assert found == pytest.approx(expected, abs=1e-4)


class Unnamed(Stack):
    def forward(self, x, keep):
        return super().forward(x, attention_mask=keep)


@pytest.mark.filterwarnings("ignore::oversmooth.monitor.warning.MonitorWarning")
def test_a_mask_of_all_tokens_under_another_name():
    """Attention knows it; where that is not asked, it is said that padding is not known."""
    model = WithToken(inside=True).eval()
    model.stack.__class__ = Unnamed
    model.forward = lambda input_ids, attention_mask: model.stack(
        torch.cat([model.first.expand(len(input_ids), 1, -1), model.words(input_ids)], 1),
        torch.cat([torch.ones(len(input_ids), 1, dtype=torch.bool), attention_mask.bool()], 1),
    )
    expected = cosines(model, model.blocks, GIVEN, [1 + n for n in LENGTHS])
    assert oversmooth.diagnose(model, GIVEN).curve("cos") == pytest.approx(expected, abs=1e-4)
    assert oversmooth.Monitor(model, probe=GIVEN).snapshot(1)["cos"] == pytest.approx(expected, abs=1e-4)
    with pytest.raises(oversmooth.InputError, match="pass inputs of equal length"):
        oversmooth.diagnose(model, GIVEN, blocks="stack.layers.*", spectra=False)
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1)
    model.train()(**GIVEN)
    monitor.step()
    assert "blocks receive (3, 7)" in monitor.failures[0]


class Masked(Stack):
    """Takes padding in any form: 0 or 1 by token, what is added to scores, or either by pairs of tokens."""

    def forward(self, x, attention_mask=None, src_key_padding_mask=None):
        mask = src_key_padding_mask
        if mask is not None:
            mask = mask[:, None, None] if mask.is_floating_point() else ~mask[:, None, None]
        elif attention_mask is not None:
            added = attention_mask.is_floating_point() and not bool((attention_mask == 1).any())
            mask = attention_mask if added else attention_mask != 0
            mask = mask[:, None, None] if mask.ndim == 2 else mask
        for layer in self.layers:
            x = layer(x, mask)
        return x


def added(hidden, mask=MASK):
    return torch.zeros(mask.shape).masked_fill(~mask, hidden)


ALL, LOW = torch.ones_like(MASK), torch.finfo(torch.float32).min
KEYS = MASK[:, None, None]
PAIRS = KEYS & MASK[:, None, :, None]
FORMS = {
    **{f"{dtype}": {"attention_mask": MASK.to(dtype)} for dtype in (torch.bool, torch.int64, torch.float32)},
    **{f"{dtype}, all valid": {"attention_mask": ALL.to(dtype)} for dtype in (torch.bool, torch.int64, torch.float32)},
    "added, all valid": {"attention_mask": added(LOW, ALL)},
    **{f"added, {low:.2g}": {"attention_mask": added(low)} for low in (-torch.inf, LOW, -1e9, -1e4)},
    "keys, all valid": {"attention_mask": added(LOW, torch.ones_like(KEYS))},
    **{f"keys, {low:.2g}": {"attention_mask": added(low, KEYS)} for low in (-torch.inf, LOW, -1e9, -1e4)},
    **{f"keys, {dtype}": {"attention_mask": KEYS.to(dtype)} for dtype in (torch.bool, torch.int64)},
    "pairs, all valid": {"attention_mask": added(LOW, torch.ones_like(PAIRS))},
    "pairs, one for all inputs": {"attention_mask": torch.ones(1, 1, 6, 6, dtype=torch.bool)},
    "pairs, rows alike": {"attention_mask": KEYS.expand(3, 1, 6, 6).clone()},
    **{f"pairs, rows hidden by {low:.2g}": {"attention_mask": added(low, PAIRS)} for low in (LOW, -1e9, -1e4)},
    "hidden, bool": {"src_key_padding_mask": ~MASK},
    "hidden, added": {"src_key_padding_mask": added(-torch.inf)},
    "hidden, none": {"src_key_padding_mask": ~ALL},
}


@pytest.mark.parametrize("form", FORMS)
def test_observation_and_steering_leave_out_the_same_tokens(form):
    """Every valid token is measured, and steered, as where its input comes alone and without a mask."""
    torch.manual_seed(0)
    model, x = Masked().eval(), torch.randn(3, 6, WIDTH)
    lengths = (6, 6, 6) if "all" in form or "none" in form else LENGTHS
    given = {"x": x, **FORMS[form]}
    expected = cosines(model, model.layers, given, lengths)
    for how in ({"blocks": "layers.*", "spectra": False}, {"depth": 0}):
        assert oversmooth.diagnose(model, given, **how).curve("cos") == pytest.approx(expected, abs=1e-4)
    for method in (Centred(0.5), AttnScale(0.5), FeatScale(0.5, 0.3), ContraNorm(0.5)):
        oversmooth.steer(model, method)
        with torch.no_grad():
            steered = model(**given)
            for one, length, found in zip(x, lengths, steered, strict=True):
                alone = model(one[None, :length])[0]
                torch.testing.assert_close(found[:length], alone, rtol=1e-4, atol=1e-5, msg=f"{method}")
        oversmooth.unsteer(model)
