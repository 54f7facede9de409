"""More families, described by hand from their own source, for the oracle to prove and the diagnosis to meet.

Third-party sources were read, not copied: what stands here is where the stream passes and what multiplies what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from adversary.numbers import own_blocks as own
from adversary.numbers.family_oracle import CASES, Passage, project, value_weight
from support.families import (
    END,
    FAMILIES,
    GQA,
    HEADS,
    LLAMA,
    SIZES,
    TOKENS,
    WIDTH,
    WORDS,
    Family,
    Modules,
    Refused,
    Stack,
    Step,
    array,
    described,
    hf,
    pixels,
    text,
)
from torch import Tensor, nn

# What models get


def waves(how: str) -> dict[str, Tensor]:
    sound = torch.randn(2, 100, generator=torch.Generator().manual_seed(7))
    mask = torch.ones(2, 100, dtype=torch.long)
    mask[1, 70:] = 0
    return {"input_values": sound} if how != "padded" else {"input_values": sound, "attention_mask": mask}


def frames(given: Any) -> Tensor | None:
    """The frames of two convolutions, kernels 10 and 3, strides 5 and 2, that samples make."""
    if "attention_mask" not in given:
        return None
    lengths = [((int(n) - 10) // 5 + 1 - 3) // 2 + 1 for n in given["attention_mask"].sum(-1)]
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def tiles(_how: str) -> dict[str, Tensor]:
    """Two pictures of two tiles each. Padding patches are seen by the others, and so count."""
    pictures = torch.randn(2, 1, 2, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    ones = torch.ones(2, 1, 2, dtype=torch.long)
    return {"pixel_values": pictures, "aspect_ratio_ids": torch.full((2, 1), 2), "aspect_ratio_mask": ones}


# Layouts that several families have

_MINIMAX = dict(
    **GQA, head_dim=8, num_local_experts=2, num_experts_per_tok=1, full_attn_alpha_factor=3.5,
    full_attn_beta_factor=0.8, linear_attn_alpha_factor=2.5, linear_attn_beta_factor=0.7, mlp_alpha_factor=1.5,
    mlp_beta_factor=0.6, block_size=4,
)  # fmt: skip
_IN_MINIMAX = LLAMA | dict(
    # What is kept is what its first norm gave.
    steps=(
        Step("norm", "out:layers.{}.input_layernorm"),
        Step("attention", "in:layers.{}.post_attention_layernorm"),
        Step("norm", "out:layers.{}.post_attention_layernorm"),
        END,
    ),
    keep=3.5,
    base=1,
    factor=0.8,
    norm="",  # before attention, and on the stream
    # The model returns linear layers' states too, and in transformers 5.10 every other layer as cross-attention.
    weights_of="self_attn",
)
WAV = dict(
    **SIZES, vocab_size=32, conv_dim=(8, 8), conv_kernel=(10, 3), conv_stride=(5, 2), num_feat_extract_layers=2,
    num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, layerdrop=0.0,
)  # fmt: skip
STABLE = WAV | dict(do_stable_layer_norm=True, feat_extract_norm="layer")
_IN_WAV = dict(
    given=waves, tokens_of=frames, block="encoder.layers.{}", value="attention.v_proj", output="attention.out_proj"
)
_WAV_POST = _IN_WAV | dict(after="layer_norm", last="final_layer_norm", norm="post")
_WAV_PRE = _IN_WAV | dict(reader="final_layer_norm")
_MLLAMA = dict(
    hidden_size=WIDTH, num_hidden_layers=3, num_global_layers=2, attention_heads=HEADS, intermediate_size=48,
    image_size=8, patch_size=4, max_num_tiles=2, supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]],
    intermediate_layers_indices=[0], vision_output_dim=2 * WIDTH,
)  # fmt: skip
_IN_MLLAMA = dict(
    given=tiles, value="self_attn.v_proj", output="self_attn.o_proj", weights_of="self_attn",
    reader="post_attention_layernorm",
)  # fmt: skip
_FALCON_SIZES = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, alibi=False, **WORDS)
_FALCON = dict(
    given=text, block="h.{}", value="self_attention.query_key_value", output="self_attention.dense",
    massive="word_embeddings.weight",
)  # fmt: skip
_BESIDE = dict(beside=(("mlp", 1.0),))
_BIGCODE = dict(
    given=text, block="h.{}", value="attn.c_attn", output="attn.c_proj", reader="ln_2", massive="wte.weight"
)
GPT_SIZES = dict(n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, n_inner=48, **WORDS)
_DEBERTA = dict(
    given=text, block="encoder.layer.{}", output="attention.output.dense", after="attention.output.LayerNorm",
    last="output.LayerNorm", norm="post",
)  # fmt: skip
_DEBERTA_SIZES = dict(
    **SIZES, **WORDS, relative_attention=True, pos_att_type=["c2p", "p2c"], max_position_embeddings=32
)
_BART = dict(
    given=text, block="encoder.layers.{}", value="self_attn.v_proj", output="self_attn.out_proj",
    after="self_attn_layer_norm", last="final_layer_norm", norm="post",
)  # fmt: skip
BART_SIZES = dict(
    d_model=WIDTH, encoder_layers=2, decoder_layers=1, encoder_attention_heads=HEADS, decoder_attention_heads=2,
    encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, decoder_start_token_id=1, **WORDS,
)  # fmt: skip
_QWEN3_NEXT = dict(
    **GQA, head_dim=8, num_experts=0, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
    linear_num_value_heads=2,
)  # fmt: skip
_FALCON_H1 = dict(
    **GQA, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_state=8, mamba_chunk_size=4, attention_out_multiplier=0.3,
    ssm_out_multiplier=0.4, key_multiplier=0.7, embedding_multiplier=1.3, mlp_multipliers=[0.8, 0.6],
    ssm_multipliers=[0.9, 0.8, 0.7, 1.1, 1.2],
)  # fmt: skip
_DEEPSEEK = dict(
    **SIZES, **WORDS, num_key_value_heads=HEADS, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4,
    qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=2,
)  # fmt: skip
_KIMI = _DEEPSEEK | dict(
    q_lora_rank=None, linear_head_dim=8, linear_num_heads=HEADS, num_local_experts=2, num_experts_per_tok=1,
    moe_intermediate_size=16, first_k_dense_replace=1,
)  # fmt: skip
_LONGCAT = dict(
    hidden_size=WIDTH, num_layers=2, num_attention_heads=HEADS, ffn_hidden_size=48, expert_ffn_hidden_size=16,
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, head_dim=4, qk_nope_head_dim=8, v_head_dim=8, moe_topk=2,
    n_routed_experts=4, zero_expert_num=1, **WORDS,
)  # fmt: skip


def _tanh_gate(modules: Modules, place: int) -> Tensor:
    return modules[f"global_transformer.layers.{place}"].gate_attn.detach().double().tanh()


def _latent_values(modules: Modules, place: int) -> list[Tensor]:
    """W_V by head through the latent, the inner norm's weight on the way; and without it."""
    attention = modules[f"layers.{place}.self_attn"]
    down = attention.kv_a_proj_with_mqa.weight[:16].detach().double()
    up = attention.kv_b_proj.weight.detach().double().reshape(HEADS, 8 + 8, 16)[:, 8:]
    gamma = attention.kv_a_layernorm.weight.detach().double()
    return [down.T @ (up * gamma).mT, down.T @ up.mT]


def _through_latent(case: Family, modules: Modules, passage: Passage) -> Tensor:
    """Values are x W_V over the size of the token's latent: one number per token."""
    attention = modules[f"layers.{passage.place}.self_attn"]
    x = passage.heard["in:" + case.value].double()
    latent = x @ attention.kv_a_proj_with_mqa.weight[:16].detach().double().T
    scale = (latent.square().mean(-1, keepdim=True) + attention.kv_a_layernorm.variance_epsilon).rsqrt()
    W_V, _ = _latent_values(modules, passage.place)
    # The norm computes in float32, whatever it is given; what it gave is heard at the next module.
    exact = x[:, None] @ W_V * scale[:, None]
    heard = passage.heard["in:layers.{}.self_attn.kv_b_proj"].double()
    up = attention.kv_b_proj.weight.detach().double().reshape(HEADS, 16, 16)[:, 8:]
    values = heard[:, None] @ up.mT
    assert float((values - exact).abs().max() / exact.abs().max()) < 1e-5, "the latent's norm is not as described"
    return project(case, modules, passage.place, passage.A @ values)


_LATENT = dict(
    value="self_attn.kv_a_proj_with_mqa", kv_heads=HEADS, massive="", product=_latent_values, mix=_through_latent,
    also=("layers.{}.self_attn.kv_b_proj",), gated="token",
)  # fmt: skip


def _output_gate(case: Family, modules: Modules, passage: Passage) -> Tensor:
    """Qwen3-Next: the second half of each head's queries opens and shuts its channels, token by token."""
    gate = passage.heard["out:layers.{}.self_attn.q_proj"].double().unflatten(-1, (HEADS, 2, -1))[..., 1, :].sigmoid()
    W_V, _ = value_weight(case, modules, passage.place)
    mixed = passage.A @ (passage.heard["in:" + case.value].double()[:, None] @ W_V)
    return project(case, modules, passage.place, mixed * gate.transpose(1, 2))


_IN_QWEN3_NEXT = LLAMA | dict(mix=_output_gate, also=("layers.{}.self_attn.q_proj",), gated="token")
# A linear layer is no softmax: of its block tokens alone are measured.
_LINEAR_FIRST = dict(runs=(1,), others=(0,))
_FULL, _MIXED = dict(layer_types=["full_attention"] * 2), dict(layer_types=["linear_attention", "full_attention"])

_DESCRIBED = [
    described(
        "Granite", hf("Granite", **GQA, residual_multiplier=0.22, embedding_multiplier=2.0), **LLAMA, factor=0.22
    ),
    described(
        "GraniteMoe", hf("GraniteMoe", **GQA, residual_multiplier=0.6, num_local_experts=2, num_experts_per_tok=1),
        **LLAMA, factor=0.6,
    ),
    described("MiniMax", hf("MiniMax", **_MINIMAX, **_FULL), **_IN_MINIMAX),
    described("MiniMax (linear, then full)", hf("MiniMax", **_MINIMAX, **_MIXED), **_IN_MINIMAX | _LINEAR_FIRST),
    described(
        "FalconH1", hf("FalconH1", **_FALCON_H1), **LLAMA,
        steps=(Step("attention", "in:layers.{}.pre_ff_layernorm"), END),
        other_course=(Step("attention", "sum"), Step("mamba", "in:layers.{}.pre_ff_layernorm"), END), factor=0.3,
        beside=(("mamba", 0.4),),
    ),
    described(
        "Mllama vision", hf("MllamaVision", **_MLLAMA), block="transformer.layers.{}", **_IN_MLLAMA, runs=(0, 1, 2),
    ),
    described(
        "Mllama vision (global, gated)",
        hf("MllamaVision", **_MLLAMA),
        block="global_transformer.layers.{}",
        **_IN_MLLAMA,
        factor=_tanh_gate,
        settings={"stack": "global"},  # the other one is deeper
    ),
    described("Wav2Vec2", hf("Wav2Vec2", **WAV), **_WAV_POST),
    described("Wav2Vec2 (stable layer norm)", hf("Wav2Vec2", **STABLE), **_WAV_PRE),
    described("HuBERT", hf("Hubert", **WAV), **_WAV_POST),
    described("HuBERT (stable layer norm)", hf("Hubert", **STABLE), **_WAV_PRE),
    replace(
        described(
            "WavLM",
            hf("WavLM", **WAV, num_buckets=8, max_bucket_distance=16),
            **_WAV_POST | dict(value="attention", output="attention"),
        ),
        weights_of="multi_head_attention_forward",
    ),
    described("Phi", hf("Phi", **SIZES, **WORDS), **LLAMA | _BESIDE | dict(output="self_attn.dense", kv_heads=HEADS)),
    described(
        "Falcon (one after another, per head)",
        hf("Falcon", **_FALCON_SIZES, multi_query=False, parallel_attn=False, bias=True), **_FALCON,
        reader="post_attention_layernorm", packing="per head",
    ),
    described(
        "Falcon (parallel, one key and value)", hf("Falcon", **_FALCON_SIZES, multi_query=True, parallel_attn=True),
        **_FALCON | _BESIDE, packing="stacked", kv_heads=1,
    ),
    described(
        "Falcon (new, groups)", hf("Falcon", **_FALCON_SIZES, new_decoder_architecture=True, num_kv_heads=2),
        **_FALCON | _BESIDE, packing="per group", kv_heads=2,
    ),
    described(
        "BLIP (vision)", hf("BlipVision", **SIZES, image_size=16, patch_size=4), pixels, "encoder.layers.{}",
        "self_attn.qkv", "self_attn.projection", reader="layer_norm2", packing="stacked",
    ),
    described(
        "InternVL (vision)", hf("InternVLVision", **SIZES, image_size=[16, 16], patch_size=[4, 4]), pixels,
        "encoder.layer.{}", "attention.v_proj", "attention.projection_layer", reader="layernorm_after",
        factor="lambda_1",
    ),
    described(
        "BLOOM", hf("Bloom", hidden_size=WIDTH, n_head=HEADS, n_layer=2, **WORDS), **_FALCON,
        reader="post_attention_layernorm", packing="per head",
    ),
    described(
        "ESM", hf("Esm", **SIZES, **WORDS, max_position_embeddings=40), text, "encoder.layer.{}",
        "attention.self.value", "attention.output.dense", reader="LayerNorm",
    ),
    described(
        "MPT", hf("Mpt", d_model=WIDTH, n_heads=HEADS, n_layers=2, max_seq_len=32, vocab_size=64), text, "blocks.{}",
        "attn.Wqkv", "attn.out_proj", reader="norm_2", packing="stacked", massive="wte.weight",
    ),
    described(
        "GPTBigCode (multi-query)", hf("GPTBigCode", **GPT_SIZES, multi_query=True), **_BIGCODE, packing="stacked",
        kv_heads=1,
    ),
    described(
        "GPTBigCode (all heads)", hf("GPTBigCode", **GPT_SIZES, multi_query=False), **_BIGCODE, packing="per head",
    ),
    described(
        "CodeGen", hf("CodeGen", n_embd=WIDTH, n_layer=2, n_head=HEADS, rotary_dim=4, n_positions=32, **WORDS), text,
        "h.{}", "attn.qkv_proj", "attn.out_proj", **_BESIDE, packing="codegen", massive="wte.weight",
    ),
    described(
        "DeBERTa", hf("Deberta", **_DEBERTA_SIZES), **_DEBERTA, value="attention.self.in_proj", packing="per head",
    ),
    described(
        "DeBERTa v2", hf("DebertaV2", **_DEBERTA_SIZES, position_buckets=8), **_DEBERTA,
        value="attention.self.value_proj",
    ),
    described("DeepSeek-V3", hf("DeepseekV3", **_DEEPSEEK), **LLAMA | _LATENT),
    described(
        "Kimi Linear (linear, then latent)", hf("KimiLinear", **_KIMI, layer_types=_MIXED["layer_types"]),
        **LLAMA | _LATENT | _LINEAR_FIRST,
    ),
    described(
        "GPT-OSS", hf("GptOss", **GQA, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4),
        **LLAMA, gated="sink",
    ),
    described("Qwen3-Next", hf("Qwen3Next", **_QWEN3_NEXT, **_FULL), **_IN_QWEN3_NEXT),
    described(
        "Qwen3-Next (linear, then full)", hf("Qwen3Next", **_QWEN3_NEXT, **_MIXED), **_IN_QWEN3_NEXT | _LINEAR_FIRST
    ),
    described(
        "Jamba (Mamba, attention, MoE)",
        hf(
            "Jamba", **GQA | dict(num_hidden_layers=3), attn_layer_period=3, attn_layer_offset=1, num_experts=2,
            mamba_d_state=4,
        ),
        **LLAMA | dict(reader="pre_ff_layernorm", runs=(1,), others=(0, 2)),
    ),
    described(
        "Granite 4 (Mamba 2, attention, MoE)",
        hf(
            "GraniteMoeHybrid", **GQA, layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=8,
            mamba_d_state=8, mamba_chunk_size=4, num_local_experts=2, num_experts_per_tok=1,
            shared_intermediate_size=32, residual_multiplier=0.5,
        ),
        **LLAMA | _LINEAR_FIRST, factor=0.5,
    ),
    described(
        "Nemotron-H (Mamba 2, attention, MLP)",
        hf(
            "NemotronH", **{name: value for name, value in GQA.items() if name != "num_hidden_layers"}, head_dim=8,
            layers_block_type=["mamba", "attention", "mlp"], mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=8,
            n_groups=1, chunk_size=4,
        ),
        text, "layers.{}", "mixer.v_proj", "mixer.o_proj", causal=True, kind="rms", kv_heads=2, runs=(1,),
        others=(0, 2), norm="", may_decline=True,
    ),
    described(
        "LFM2 (convolution, attention)", hf("Lfm2", **GQA, layer_types=["conv", "full_attention"]),
        **LLAMA | _LINEAR_FIRST | dict(output="self_attn.out_proj", reader="ffn_norm"),
    ),
    described(
        "ModernBERT decoder", hf("ModernBertDecoder", **SIZES, **WORDS, cls_token_id=1, sep_token_id=2), text,
        "layers.{}", "attn.v_proj", "attn.Wo", reader="mlp_norm", may_decline=True,
    ),
    described("BART (encoder)", hf("Bart", **BART_SIZES), **_BART),
    described("PLBart (encoder)", hf("PLBart", **BART_SIZES), **_BART),
    described("MVP (encoder)", hf("Mvp", **BART_SIZES), **_BART),
    described(
        "Data2VecAudio", hf("Data2VecAudio", **WAV | dict(num_conv_pos_embeddings=2), conv_pos_kernel_size=3),
        **_WAV_POST,
    ),
    described("Nemotron", hf("Nemotron", **GQA, head_dim=8), **LLAMA),
    described(
        "VaultGemma", hf("VaultGemma", **GQA, head_dim=8, sliding_window=4),
        **LLAMA | dict(reader="pre_feedforward_layernorm"),
    ),
]  # fmt: skip


# Modules as people write them


def _own(name: str, block: type[nn.Module], *steps: Step, **more: Any) -> Family:
    usual = dict(
        given=array, block="blocks.{}", value="attn.to_qkv", output="attn.to_out", packing="stacked", library="toy",
        on_disk=False,  # the factor is in no weight of a known name
        steps=steps or (Step("attention", "note:attention"), END),
    )  # fmt: skip
    return described(f"own: {name}", lambda: Stack(block(), block()), **usual | more)


_OWN = [
    _own("0.5 of attention", own.Halved, factor=0.5),
    _own(
        "one unnamed gate", own.OneGate,
        factor=lambda modules, place: modules[f"blocks.{place}"].zeta.detach().double().tanh(),
    ),
    _own("an unnamed gate by channel", own.ChannelGate, factor="zeta"),
    _own("a gate by token", own.TokenGate, gated="token"),
    _own("DeepNorm", own.Deep, keep=2.2, norm="post", steps=(), after="norm1", last="norm2"),
    _own("no residual around attention", own.NoResidual, keep=0.0),
    _own("MLP before attention", own.MlpFirst, Step("mlp", "note:mlp"), Step("attention", "end"), base=1),
    _own("parallel, both with a factor", own.Beside, steps=(), factor=0.6, beside=(("mlp", 0.4),)),
    _own("a functional norm reads the sum", own.Functional, factor=0.7, may_decline=True),
    _own("0.5 of nn.MultiheadAttention", own.HalvedHand, factor=0.5, value="attn", output="attn", library="torch"),
]  # fmt: skip


# Who counts as a token


def _lit(how: str) -> dict[str, Tensor]:
    lit = text("left" if how == "left" else "padded")["attention_mask"].bool()
    return {"tokens": array()} if how == "plain" else {"tokens": array(), "lit": lit}


def _additive(how: str) -> dict[str, Tensor]:
    """What may be seen, as numbers to add to scores, (batch, 1, n, n)."""
    given = text(how)
    if "attention_mask" in given:
        hidden = ~given["attention_mask"].bool()[:, None, None].expand(-1, -1, TOKENS, -1)
        given["attention_mask"] = torch.zeros(2, 1, TOKENS, TOKENS).masked_fill(hidden, -1e9)
    return given


def _additive_causal(how: str) -> dict[str, Tensor]:
    given = _additive(how)
    if "attention_mask" in given:
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        given["attention_mask"] = given["attention_mask"].masked_fill(later, -1e9)
    return given


def _float_first(how: str) -> dict[str, Tensor]:
    given = text(how)
    return {name: given[name].float() if "mask" in name else given[name] for name in sorted(given)}


def _three(how: str) -> dict[str, Tensor]:
    """The third input has a single token."""
    ids = torch.randint(5, 60, (3, TOKENS), generator=torch.Generator().manual_seed(8))
    counted = torch.arange(TOKENS)[None] < torch.tensor([TOKENS, 5, 1])[:, None]
    return {"input_ids": ids} if how == "plain" else {"input_ids": ids, "attention_mask": counted.long()}


def _packed(_how: str) -> dict[str, Tensor]:
    return {"input_ids": text("plain")["input_ids"][:1], "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])}


def _told(name: str, given: Callable[[str], Any], **more: Any) -> Family:
    """A family that stands above, given otherwise."""
    return replace(FAMILIES[name.partition(",")[0]], name=name, given=given, massive="", on_disk=False, **more)


def _masked(given: Any) -> Tensor | None:
    """Of a mask with one column a token, whatever its other axes: what some row may see."""
    return None if "attention_mask" not in given else text()["attention_mask"].bool()


def _behind_a_prefix(given: Any) -> Tensor | None:
    mask = given.get("attention_mask")
    return None if mask is None else torch.cat([torch.ones(2, 3, dtype=torch.bool), mask.bool()], 1)


_WHO = [
    _told("BERT, a mask (batch, 1, n, n) to add", _additive, tokens_of=_masked),
    _told("Llama, a mask (batch, 1, n, n) to add", _additive_causal, tokens_of=_masked),
    _told("BERT, a mask of floats that comes first", _float_first),
    _told("BERT, one input of one token", _three),
    _told("Llama, one input of one token", _three),
    _told(
        "Llama, two sequences in a row", _packed,
        sequences_of=lambda _given: [(0, torch.arange(5)), (0, torch.arange(5, 8))],
    ),
    described(
        "BERT behind a prefix", lambda: own.Prefixed(hf("Bert", **SIZES, **WORDS)()), text, "bert.encoder.layer.{}",
        "attention.self.value", "attention.output.dense", after="attention.output.LayerNorm", last="output.LayerNorm",
        norm="post", on_disk=False, tokens_of=_behind_a_prefix,
    ),
    described(
        "own: a mask under another name", own.SeeingStack, _lit, "blocks.{}", "attn.to_qkv", "attn.to_out",
        reader="norm2", packing="stacked", library="toy", on_disk=False, tokens_of=lambda given: given.get("lit"),
    ),
]  # fmt: skip

CASES.update({case.name: case for case in [*_DESCRIBED, *_OWN, *_WHO]})
WHO = [case.name for case in _WHO]
"""Those about who counts as a token."""


# What is refused

_SWIN = dict(image_size=16, patch_size=2, embed_dim=32, depths=(2, 2), num_heads=(4, 4), window_size=4)
_GEMMA_3N = dict(
    **GQA, **_FULL, head_dim=8, num_kv_shared_layers=0, laurel_rank=4, hidden_size_per_layer_input=8,
    vocab_size_per_layer_input=64, activation_sparsity_pattern=[0.0, 0.0],
)  # fmt: skip
_ZAMBA = dict(
    **GQA | dict(num_key_value_heads=HEADS), layers_block_type=["mamba", "hybrid"], mamba_d_state=8, n_mamba_heads=2,
    chunk_size=4,
)  # fmt: skip
_LONGFORMER = dict(**SIZES, **WORDS, attention_window=4, max_position_embeddings=32)
REFUSED = [
    Refused(
        "Swin", hf("Swin", **_SWIN),
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(7))},
        ("window", "stage", "fewer tokens"),
    ),
    Refused("I-BERT", hf("IBert", **SIZES, **WORDS), text, ("integer", "quanti")),
    Refused("Gemma 3n", hf("Gemma3nText", **_GEMMA_3N), text, ("stream", "altup", "copies")),
    Refused("Longformer", hf("Longformer", **_LONGFORMER), text, ("window", "chunk", "sliding", "n by n")),
    Refused("LongCat Flash", hf("LongcatFlash", **_LONGCAT), text, ("two attention layers",)),
    Refused("Zamba 2", hf("Zamba2", **_ZAMBA), text, ("beside its embedding",)),
]  # fmt: skip
