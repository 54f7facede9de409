"""Families whose weights are packed in ways of their own: their W_V, W_O and biases, against what they compute.

The oracle is each model itself, with eager attention: hooks hear what the value module gets and what the
output module gives, and ``Σ_h A_h V_h W_O^h + b_O`` must be that, where A is what the model says it attended with.
Places are written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from support import family_checks as checks
from support.families import HEADS, WIDTH, randomise, text
from support.sizes import GPT, GQA, SIZES, SOUND, WORDS, sound
from support.torch_attention import with_weights_of_heads
from torch import Tensor, nn

from oversmooth import InputError
from oversmooth.anatomy import locate

_FALCON = dict(**SIZES, **WORDS, ffn_hidden_size=48)
_MLA = dict(
    **SIZES, **WORDS, num_key_value_heads=HEADS, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=8,
    qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1,
    moe_intermediate_size=16, first_k_dense_replace=1,
)  # fmt: skip
_TILES = dict(
    hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=1, num_global_layers=2, attention_heads=HEADS,
    image_size=16, patch_size=4, max_num_tiles=1, supported_aspect_ratios=[[1, 1]], intermediate_layers_indices=[0],
    vision_output_dim=2 * WIDTH,
)  # fmt: skip
_EXPERTS = dict(num_local_experts=2, num_experts_per_tok=1)


def tiles() -> dict[str, Tensor]:
    shape = (2, 1, 1, 3, 16, 16)
    return {
        "pixel_values": torch.randn(shape, generator=torch.Generator().manual_seed(7)),
        "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(2, 1, 1, dtype=torch.long),
    }


@dataclass(frozen=True)
class Case:
    family: str
    settings: dict[str, Any]
    value: str
    output: str
    given: Any = text
    kv_heads: int = HEADS
    head_dim: int = WIDTH // HEADS
    places: tuple[int, ...] = (0, 1)
    attentions: tuple[int, ...] = (0, 1)
    """Where A of these layers stands in what the model returns."""
    stack: str | None = None

    def make(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(0)
        config = getattr(transformers, f"{self.family}Config")(**self.settings)
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{self.family}Model")(config)
        return randomise(model).eval().to(dtype)

    def inputs(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in self.given().items()}
        given.pop("attention_mask", None)  # padded rows of A are whatever a family likes
        return given


_LATENT = dict(value="layers.{}.self_attn.kv_a_proj_with_mqa", output="layers.{}.self_attn.o_proj")
_SELF = dict(value="layers.{}.self_attn.v_proj", output="layers.{}.self_attn.o_proj")
_AUDIO = dict(value="encoder.layers.{}.attention.v_proj", output="encoder.layers.{}.attention.out_proj", given=sound)
_FALCON_AT = dict(value="h.{}.self_attention.query_key_value", output="h.{}.self_attention.dense")
_BIGCODE_AT = dict(value="h.{}.attn.c_attn", output="h.{}.attn.c_proj")
CASES = {
    "Phi": Case("Phi", GQA, "layers.{}.self_attn.v_proj", "layers.{}.self_attn.dense", kv_heads=2),
    "Falcon 7B": Case("Falcon", dict(**_FALCON, multi_query=True, bias=True), **_FALCON_AT, kv_heads=1),
    "Falcon 40B": Case(
        "Falcon", dict(**_FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True), **_FALCON_AT, kv_heads=2
    ),
    "Falcon RW": Case(
        "Falcon", dict(**_FALCON, multi_query=False, alibi=True, parallel_attn=False, bias=True), **_FALCON_AT
    ),
    "MPT": Case(
        "Mpt",
        dict(d_model=WIDTH, n_heads=HEADS, n_layers=2, expansion_ratio=2, max_seq_len=32, vocab_size=64),
        "blocks.{}.attn.Wqkv",
        "blocks.{}.attn.out_proj",
    ),
    "GPTBigCode (one value head)": Case("GPTBigCode", dict(**GPT, multi_query=True), **_BIGCODE_AT, kv_heads=1),
    "GPTBigCode": Case("GPTBigCode", dict(**GPT, multi_query=False), **_BIGCODE_AT),
    "CodeGen": Case(
        "CodeGen",
        dict(**{**GPT, "n_head": 8, "n_ctx": 32}, rotary_dim=4),
        "h.{}.attn.qkv_proj",
        "h.{}.attn.out_proj",
        kv_heads=8,
        head_dim=4,
    ),
    "DeBERTa": Case(
        "Deberta",
        dict(**SIZES, **WORDS, relative_attention=True, pos_att_type=["c2p", "p2c"]),
        "encoder.layer.{}.attention.self.in_proj",
        "encoder.layer.{}.attention.output.dense",
    ),
    "DeepSeek-V3": Case("DeepseekV3", _MLA, **_LATENT, head_dim=6),
    "DeepSeek-V3 (biases)": Case("DeepseekV3", dict(**_MLA, attention_bias=True), **_LATENT, head_dim=6),
    "GPT-OSS": Case("GptOss", dict(**GQA, head_dim=8, **_EXPERTS, sliding_window=16), **_SELF, kv_heads=2),
    "Granite": Case("Granite", dict(**GQA, residual_multiplier=0.22), **_SELF, kv_heads=2),
    "GraniteMoe": Case("GraniteMoe", dict(**GQA, residual_multiplier=0.3, **_EXPERTS), **_SELF, kv_heads=2),
    "MiniMax": Case(
        "MiniMax",
        dict(
            **{**GQA, "num_hidden_layers": 3},
            head_dim=8,
            layer_types=["full_attention", "linear_attention", "full_attention"],
            full_attn_alpha_factor=3.5,
            full_attn_beta_factor=0.7,
            **_EXPERTS,
            block_size=4,
        ),
        **_SELF,
        kv_heads=2,
        places=(0, 2),
        attentions=(0, 2),
    ),
    "Mllama (vision)": Case(
        "MllamaVision",
        _TILES,
        "global_transformer.layers.{}.self_attn.v_proj",
        "global_transformer.layers.{}.self_attn.o_proj",
        given=tiles,
        stack="global_transformer",
    ),
    "Wav2Vec2": Case("Wav2Vec2", SOUND, **_AUDIO),
    "WavLM": Case(  # torch's own function takes its weights: no projection runs
        "WavLM",
        dict(**SOUND, num_buckets=8, max_bucket_distance=16),
        "encoder.layers.{}.attention",
        "encoder.layers.{}.attention",
        given=sound,
    ),
    "Nemotron": Case("Nemotron", dict(**GQA, head_dim=8), **_SELF, kv_heads=2),
    "ModernBERT (decoder)": Case(
        "ModernBertDecoder",
        dict(**SIZES, **WORDS, cls_token_id=1, sep_token_id=2, local_attention=4),
        "layers.{}.attn.v_proj",
        "layers.{}.attn.Wo",
    ),
}
EVERY = pytest.mark.parametrize("name", CASES)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def listen(model: nn.Module, heard: dict[str, tuple[Tensor, Tensor]]) -> None:
    """What every leaf gets first and gives first, in its first run."""

    def hear(name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            got = args[0] if args else next(iter(kwargs.values()), None)
            out = out[0] if isinstance(out, tuple) else out
            if isinstance(got, Tensor) and isinstance(out, Tensor):
                heard.setdefault(name, (got.detach(), out.detach()))

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(hear(name), with_kwargs=True)


def run(case: Case, model: nn.Module) -> tuple[dict[str, tuple[Tensor, Tensor]], Any]:
    """What was heard, and A layer by layer."""
    heard: dict[str, tuple[Tensor, Tensor]] = {}
    listen(model, heard)
    encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    with torch.no_grad():
        out = encoder(**case.inputs(), output_attentions=True)
    return heard, out.attentions


def attend_aloud(monkeypatch: pytest.MonkeyPatch, name: str, model: nn.Module) -> list[Tensor]:
    """A of models that do not return it, or return its mean over heads."""
    said: list[Tensor] = []
    if name == "WavLM":
        attend = nn.functional.multi_head_attention_forward

        def every_head(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            out, A = with_weights_of_heads(attend, *args, **kwargs)
            said.append(A)
            return out, A.mean(1)

        monkeypatch.setattr(nn.functional, "multi_head_attention_forward", every_head)
    # transformers 5.10 returns every other layer of MiniMax as cross-attention.
    stacks = {"Mllama (vision)": "global_transformer.layers", "MiniMax": "layers"}
    if name in stacks:
        for layer in model.get_submodule(stacks[name]):
            layer.self_attn.register_forward_hook(lambda _, _args, out: said.append(out[1]))
    return said


@EVERY
def test_weights_give_what_attention_returns(name, monkeypatch):
    case = CASES[name]
    model = case.make()
    found = locate(model, stack=case.stack)
    said = attend_aloud(monkeypatch, name, model)
    heard, returned = run(case, model)
    for layer, place in zip(found, case.places, strict=True):
        assert case.output.format(place) in (layer.name, layer.output_module[0])
    for layer, place, which in zip(found, case.places, case.attentions, strict=True):
        assert (layer.kv_heads, layer.head_dim) == (case.kv_heads, case.head_dim)
        A = (said or returned)[which]
        x, given = heard[case.value.format(place)][0], heard[case.output.format(place)][1]
        if layer.values_normed:
            V = layer.values(x)
        else:
            V = x[:, None] @ layer.raw_W_V
            V = V if layer.value_bias is None else V + layer.value_bias[:, None]
            torch.testing.assert_close(layer.values(x), V, rtol=1e-4, atol=1e-4)
        expected = (A @ V @ layer.raw_W_O).sum(1)
        expected = expected if layer.output_bias is None else expected + layer.output_bias
        torch.testing.assert_close(expected, given.view_as(expected), rtol=1e-4, atol=1e-4)


@EVERY
def test_a_checkpoint_has_the_same_anatomy(name, tmp_path):
    case = CASES[name]
    model = case.make(torch.float32)
    model.save_pretrained(tmp_path)
    live, disk = locate(model, stack=case.stack), locate(tmp_path, stack=case.stack)
    for a, b in zip(live, disk, strict=True):
        for each in ("heads", "kv_heads", "head_dim", "width", "keep", "feed", "values_normed", "leak", "has_bias"):
            assert getattr(a, each) == getattr(b, each), each
        assert bool(a.causal) == bool(b.causal)  # encoders: False, or not said
        assert a.norm_position == b.norm_position
        assert a.layout == b.layout
        for each in ("W_V", "W_O", "value_bias", "output_bias"):
            checks._equal(getattr(a, each), getattr(b, each), f"{a}: {each}")
        assert (a.factor is None) == (b.factor is None)
        assert a.factor is None or float(a.factor) == float(b.factor)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("DeepSeek")])
@pytest.mark.parametrize("dim", [0, -1])
def test_join_is_the_inverse_of_split(name, dim):
    case = CASES[name]
    layer = locate(case.make(), stack=case.stack).layers[0]
    W = layer.weights.read(f"{layer.name}.{layer.layout.value}")
    W = W if dim == 0 else W.mT
    rest, values = layer.split(W, dim)
    assert values.shape[dim - 1 if dim else 0] == layer.kv_heads
    assert torch.equal(layer.join(rest, values, dim), W)
    _, twice = layer.split(layer.join(rest, values * 2, dim), dim)
    assert torch.equal(twice, values * 2)


def test_values_of_latent_attention_are_a_product_and_cannot_be_split():
    layer = locate(CASES["DeepSeek-V3"].make()).layers[0]
    assert layer.values_normed
    assert layer.W_V.shape == (HEADS, WIDTH, 6)
    assert torch.linalg.matrix_rank(layer.W_V.transpose(0, 1).flatten(1)) == 10
    with pytest.raises(InputError, match="a product of several"):
        layer.split(torch.ones(14, WIDTH))
    assert "product" in layer.cannot_steer
    assert "outside" in locate(CASES["DeBERTa"].make()).layers[0].cannot_steer
    assert locate(CASES["Phi"].make()).layers[0].cannot_steer is None


def test_latent_attention_in_half_precision_is_multiplied_in_single():
    exact = locate(CASES["DeepSeek-V3"].make(torch.float64)).layers[0]
    half = locate(CASES["DeepSeek-V3"].make(torch.bfloat16)).layers[0]
    assert half.W_V.dtype == torch.float32
    assert float((half.W_V - exact.W_V).norm() / exact.W_V.norm()) < 5e-3


def test_a_gate_beside_the_queries(tmp_path):
    """Qwen3-Next: linear attention in other layers, and a gate that takes a share of every row."""
    model = randomise(
        transformers.Qwen3NextModel(
            transformers.Qwen3NextConfig(
                **GQA,
                head_dim=8,
                layer_types=["linear_attention", "full_attention"],
                num_experts=2,
                num_experts_per_tok=1,
                moe_intermediate_size=16,
                shared_expert_intermediate_size=16,
                linear_num_value_heads=2,
                linear_num_key_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
            )
        )
    )
    model.save_pretrained(tmp_path)
    for found in (locate(model), locate(tmp_path)):
        (layer,) = found
        attention = model.layers[1].self_attn
        assert torch.equal(layer.W_V[2], attention.v_proj.weight[8:16].T)
        assert torch.equal(layer.W_O[2], attention.o_proj.weight[:, 16:24].T)
        assert layer.leak == "a gate"
        assert (layer.norm_position, layer.norm.kind, layer.norm.offset) == ("pre", "rms", 1.0)
        assert any("no attention of a known layout in 1 places (0)" in remark for remark in found.remarks)


def test_sinks_take_a_share_of_every_row():
    assert {layer.leak for layer in locate(CASES["GPT-OSS"].make())} == {"sinks"}
    assert {layer.leak for layer in locate(CASES["Granite"].make())} == {None}


def test_the_linear_attention_of_other_layers_is_left_out():
    found = locate(CASES["MiniMax"].make())
    assert any("no attention of a known layout in 1 places (1)" in remark for remark in found.remarks)


# Factors


@pytest.mark.parametrize(
    ("name", "reader", "stream"),
    [
        ("Granite", "layers.{}.post_attention_layernorm", "layers.{}"),
        ("GraniteMoe", "layers.{}.post_attention_layernorm", "layers.{}"),
        ("MiniMax", "layers.{}.post_attention_layernorm", "layers.{}.input_layernorm>"),
        (
            "Mllama (vision)",
            "global_transformer.layers.{}.post_attention_layernorm",
            "global_transformer.layers.{}.input_layernorm",
        ),
    ],
)
def test_the_stream_is_what_factors_say(name, reader, stream, tmp_path):
    """What the next norm reads is ``keep·x + scale·out``; x is what a module gets, or, with >, what it gives."""
    case = CASES[name]
    model = case.make()
    heard, _ = run(case, model)
    model.save_pretrained(tmp_path)
    for found in (locate(model, stack=case.stack), locate(tmp_path, stack=case.stack)):
        for layer, place in zip(found, case.places, strict=True):
            x = heard[stream.rstrip(">").format(place)][stream.endswith(">")]
            out = heard[case.output.format(place)][1].view_as(x)
            assert layer.scale is not None
            read = heard[reader.format(place)][0].view_as(x)
            torch.testing.assert_close(layer.keep * x + layer.scale * out, read, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(layer.W_O, layer.raw_W_O * float(layer.scale))


def test_factors_before_and_after_attention(tmp_path):
    """Falcon H1: what values get is multiplied, what attention gives too, and Mamba adds beside it."""
    model = randomise(
        transformers.FalconH1Model(
            transformers.FalconH1Config(
                **GQA,
                head_dim=8,
                attention_in_multiplier=0.5,
                attention_out_multiplier=0.3,
                mamba_d_ssm=32,
                mamba_n_heads=4,
                mamba_d_head=8,
                mamba_d_state=8,
                mamba_n_groups=1,
                mamba_chunk_size=4,
            )
        )
    ).eval()
    model.save_pretrained(tmp_path)
    heard: dict[str, tuple[Tensor, Tensor]] = {}
    listen(model, heard)
    with torch.no_grad():
        model(input_ids=text()["input_ids"])
    for layer in (locate(model).layers[1], locate(tmp_path).layers[1]):
        assert (layer.feed, layer.factor) == (0.5, 0.3)
        assert layer.cannot_steer is not None
        normed, values_from = heard["layers.1.input_layernorm"][1], heard["layers.1.self_attn.v_proj"][0]
        torch.testing.assert_close(values_from, 0.5 * normed)
        torch.testing.assert_close(normed[:, None] @ layer.W_V, values_from[:, None] @ layer.raw_W_V)
        x, out = heard["layers.1.input_layernorm"][0], heard["layers.1.self_attn.o_proj"][1]
        mamba = heard["layers.1.mamba"][1] * model.layers[1].ssm_out_multiplier
        read = heard["layers.1.pre_ff_layernorm"][0]
        torch.testing.assert_close(x + layer.factor * out + mamba, read, rtol=1e-4, atol=1e-4)


def test_a_factor_that_depends_on_the_depth(tmp_path):
    model = CASES["Granite"].make()
    model.config.residual_multiplier = 1.0
    model.config.scale_depth = 1.4
    model.save_pretrained(tmp_path)
    assert locate(tmp_path).layers[0].factor == pytest.approx(1.4 / 2**0.5)


def test_a_tower_has_factors_of_its_own(tmp_path):
    """Granite's text beside a vision tower, which has none."""
    config = transformers.LlavaConfig(
        text_config=dict(**GQA, model_type="granite", residual_multiplier=0.22),
        vision_config=dict(**SIZES, image_size=12, patch_size=4, model_type="clip_vision_model"),
        image_token_index=3,
    )
    model = transformers.LlavaModel(config)
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        assert locate(source, stack="language").layers[0].factor == 0.22
        assert locate(source, stack="vision").layers[0].factor is None


def test_gates_of_their_own():
    class Gated(nn.Module):
        def __init__(self, name: str, rows: int) -> None:
            super().__init__()
            self.num_heads = HEADS
            self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.add_module(name, nn.Linear(WIDTH, rows))

    for name, rows, leak in (("gate_proj", WIDTH, "a gate"), ("g_proj", HEADS, "a gate"), ("gate_proj", 48, None)):
        assert locate(nn.ModuleList([Gated(name, rows)])).layers[0].leak == leak


def test_plain_models_have_no_factors():
    for name in ("Phi", "Falcon 7B", "GPT-OSS", "Nemotron"):
        for layer in locate(CASES[name].make()):
            assert (layer.factor, layer.keep, layer.feed, layer.scale) == (None, 1.0, 1.0, None)


# Refused


def _swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=2
    )
    return transformers.SwinModel(config)


def _gemma3n() -> nn.Module:
    config = transformers.Gemma3nTextConfig(
        **GQA,
        head_dim=8,
        layer_types=["sliding_attention", "full_attention"],
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=64,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0, 0.0],
    )
    return transformers.Gemma3nTextModel(config)


REFUSED = {
    "Swin": (_swin, "not one sequence"),
    "I-BERT": (lambda: transformers.IBertModel(transformers.IBertConfig(**SIZES, **WORDS)), "quantized weights"),
    "Gemma 3n": (_gemma3n, "several streams"),
    "Longformer": (
        lambda: transformers.LongformerModel(
            transformers.LongformerConfig(**SIZES, **WORDS, attention_window=4, max_position_embeddings=32)
        ),
        "values of their own",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("how", ["live", "disk", "without a configuration"])
def test_families_that_the_theory_does_not_describe(name, how, tmp_path):
    build, says = REFUSED[name]
    model = build()
    model.save_pretrained(tmp_path)
    if how == "without a configuration":
        (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=says) as caught:
        locate(model if how == "live" else tmp_path, heads=HEADS if how == "without a configuration" else None)
    assert "\n" not in str(caught.value)
    assert "register" not in str(caught.value)
    assert str(caught.value).count(". ") == 0


def test_only_the_stack_that_is_looked_at_decides():
    """An encoder that is refused does not keep one from its decoder."""
    encoder, decoder = _swin(), CASES["Phi"].make(torch.float32)
    both = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    assert locate(both, stack="decoder").stack == "decoder.layers.*.self_attn"
    with pytest.raises(InputError, match="Swin"):
        locate(both, stack="encoder")
