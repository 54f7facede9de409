"""Every family described by hand from its own source, for the oracle to prove and the diagnosis to meet.

Third-party sources were read, not copied: what stands here is where the stream passes and what multiplies what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from adversary.numbers import own_blocks as own
from adversary.numbers.family_oracle import (
    CASES,
    CODEGEN,
    CONV,
    PER_GROUP,
    PER_HEAD,
    SEPARATE,
    STACKED,
    Case,
    Modules,
    Passage,
    Step,
    project,
    value_weight,
)
from support.families import FAMILIES, HEADS, LAYERS, TOKENS, WIDTH, Family, Stack, pixels
from torch import Tensor, nn

# Families that are described elsewhere already


_READER = {
    "ViT": "layernorm_after",
    "DeiT": "layernorm_after",
    "DINOv2": "norm2",
    "CLIP (vision)": "layer_norm2",
    "ModernBERT": "mlp_norm",
    "GPT-2": "ln_2",
    "GPT-NeoX (one after another)": "post_attention_layernorm",
    "OPT": "final_layer_norm",
    "Gemma 2": "pre_feedforward_layernorm",
    "Gemma 3": "pre_feedforward_layernorm",
    "Whisper (encoder)": "final_layer_norm",
    "T5 (encoder)": "layer.1.layer_norm",
    "timm ViT": "norm2",
    "timm ViT (q/k norm, LayerScale)": "norm2",
    "torch encoder (Pre-LN)": "norm2",
    "torch encoder (Pre-LN, batch first)": "norm2",
    "around nn.MultiheadAttention": "norm2",
    **dict.fromkeys(("Llama", "Mistral", "Qwen3", "SmolLM3", "Phi-3"), "post_attention_layernorm"),
}
_PACKED = {"ModernBERT": STACKED, "GPT-2": CONV, "GPT-NeoX (parallel)": PER_HEAD, "Phi-3": STACKED}
_PACKED["GPT-NeoX (one after another)"] = PER_HEAD
_MASSIVE = {"GPT-2": "wte.weight", "GPT-NeoX (one after another)": "embed_in.weight", "ViT": "embeddings.cls_token"}
_MASSIVE |= dict.fromkeys(("Llama", "Mistral", "Qwen3", "SmolLM3", "Phi-3"), "embed_tokens.weight")
_MASSIVE |= {"GPT-NeoX (parallel)": "embed_in.weight", "timm ViT": "cls_token"}
_SCALES = {"DINOv2": ("layer_scale1", "lambda1"), "timm ViT (q/k norm, LayerScale)": ("ls1", "gamma")}
END = Step("mlp", "end")


def _post(after: str, last: str) -> tuple[Step, ...]:
    return (
        Step("attention", f"in:{after}"),
        Step("norm", f"out:{after}"),
        Step("mlp", f"in:{last}"),
        Step("norm", "end"),
    )


def _then_mlp(reader: str) -> tuple[Step, ...]:
    return (Step("attention", f"in:{reader}"), END)


PARALLEL = (Step("attention", "sum"), END)


def _known(family: Family) -> Case:
    name, packing = family.name, _PACKED.get(family.name, SEPARATE)
    if family.library != "transformers":
        packing = STACKED
    if family.after:
        course = _post(family.after, family.last)
    elif family.parts == ("attention",):
        course = (Step("attention", "end"),)
    elif "parallel" in name:
        course = PARALLEL
    else:
        course = _then_mlp(family.block + "." + _READER[name])
    scale = _SCALES.get(name)

    def factor(modules: Modules, place: int) -> float | Tensor:
        if scale is None:
            return 1.0
        return getattr(modules[f"{family.block.format(place)}.{scale[0]}"], scale[1]).detach().double()

    return Case(
        name,
        family.build,
        lambda how: _otherwise(family.given(), how),
        family.block,
        family.value,
        family.output,
        course,
        packing,
        branch=family.branch,
        factor=factor,
        beside=((family.block + ".mlp", 1.0),) if course is PARALLEL else (),
        kv_heads=family.kv_heads,
        head_dim=family.head_dim,
        runs=family.runs,
        library=family.library,
        gated="token" if name.startswith("Gemma") else "",
        massive=_MASSIVE.get(name, ""),
        batch_first=family.batch_first,
        norm=family.norm,
    )


def _otherwise(given: Any, how: str) -> Any:
    """What a family usually gets, without padding or with it on the left."""
    if how == "padded" or isinstance(given, Tensor):
        return given
    given = dict(given)
    for name in ("attention_mask", "src_key_padding_mask"):
        if name in given and how == "plain":
            del given[name]
        elif name in given:
            given[name] = given[name].flip(1)
    return given


# Families described here


_SIZES = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=48)
_WORDS = dict(vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
_GQA = dict(**_SIZES, **_WORDS, num_key_value_heads=2)


def hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build


def words(how: str) -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (2, TOKENS), generator=torch.Generator().manual_seed(7))
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, 5:] = 0
    if how == "plain":
        return {"input_ids": ids}
    return {"input_ids": ids, "attention_mask": mask.flip(1) if how == "left" else mask}


def array(_how: str = "plain") -> Tensor:
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(7))


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


_LLAMA = dict(
    given=words,
    block="layers.{}",
    value="layers.{}.self_attn.v_proj",
    output="layers.{}.self_attn.o_proj",
    course=_then_mlp("layers.{}.post_attention_layernorm"),
    packing=SEPARATE,
    kv_heads=2,
    massive="embed_tokens.weight",
)
_MINIMAX = dict(
    **_GQA,
    head_dim=8,
    num_local_experts=2,
    num_experts_per_tok=1,
    full_attn_alpha_factor=3.5,
    full_attn_beta_factor=0.8,
    linear_attn_alpha_factor=2.5,
    linear_attn_beta_factor=0.7,
    mlp_alpha_factor=1.5,
    mlp_beta_factor=0.6,
    block_size=4,
)
_IN_MINIMAX = _LLAMA | dict(
    # What is kept is what its first norm gave.
    course=(
        Step("norm", "out:layers.{}.input_layernorm"),
        Step("attention", "in:layers.{}.post_attention_layernorm"),
        Step("norm", "out:layers.{}.post_attention_layernorm"),
        END,
    ),
    keep=3.5,
    base=1,
    factor=lambda _modules, _place: 0.8,
    norm="",  # before attention, and on the stream
    # The model returns linear layers' states too, and in transformers 5.10 every other layer as cross-attention.
    weights_of="layers.{}.self_attn",
)
_WAV = dict(
    **_SIZES,
    vocab_size=32,
    conv_dim=(8, 8),
    conv_kernel=(10, 3),
    conv_stride=(5, 2),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    layerdrop=0.0,
)
_IN_WAV = dict(
    given=waves,
    tokens_of=frames,
    block="encoder.layers.{}",
    value="encoder.layers.{}.attention.v_proj",
    output="encoder.layers.{}.attention.out_proj",
    packing=SEPARATE,
)
_WAV_POST = _IN_WAV | dict(
    course=_post("encoder.layers.{}.layer_norm", "encoder.layers.{}.final_layer_norm"), norm="post"
)
_WAV_PRE = _IN_WAV | dict(course=_then_mlp("encoder.layers.{}.final_layer_norm"))
_MLLAMA = dict(
    hidden_size=WIDTH,
    num_hidden_layers=3,
    num_global_layers=2,
    attention_heads=HEADS,
    intermediate_size=48,
    image_size=8,
    patch_size=4,
    max_num_tiles=2,
    supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]],
    intermediate_layers_indices=[0],
    vision_output_dim=2 * WIDTH,
)


def _mllama(stack: str) -> dict[str, Any]:
    return dict(
        given=tiles,
        block=stack + ".layers.{}",
        value=stack + ".layers.{}.self_attn.v_proj",
        output=stack + ".layers.{}.self_attn.o_proj",
        weights_of=stack + ".layers.{}.self_attn",
        course=_then_mlp(stack + ".layers.{}.post_attention_layernorm"),
        packing=SEPARATE,
        settings={"stack": "global"} if "global" in stack else {},  # the other one is deeper
    )


def _tanh_gate(modules: Modules, place: int) -> Tensor:
    return modules[f"global_transformer.layers.{place}"].gate_attn.detach().double().tanh()


def _falcon(**more: Any) -> dict[str, Any]:
    sizes = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, alibi=False, **_WORDS)
    return dict(build=hf("FalconModel", "FalconConfig", **sizes, **more), given=words) | dict(
        block="h.{}",
        value="h.{}.self_attention.query_key_value",
        output="h.{}.self_attention.dense",
        massive="word_embeddings.weight",
    )


def _beside(mlp: str) -> dict[str, Any]:
    """The MLP runs beside attention and nobody reads the sum; `mlp` gives what is added."""
    return dict(course=PARALLEL, beside=((mlp, 1.0),))


_BIGCODE = dict(
    given=words,
    block="h.{}",
    value="h.{}.attn.c_attn",
    output="h.{}.attn.c_proj",
    course=_then_mlp("h.{}.ln_2"),
    massive="wte.weight",
)
_BIGCODE_SIZES = dict(n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, n_inner=48, **_WORDS)
_DEBERTA = dict(
    given=words,
    block="encoder.layer.{}",
    output="encoder.layer.{}.attention.output.dense",
    course=_post("encoder.layer.{}.attention.output.LayerNorm", "encoder.layer.{}.output.LayerNorm"),
    norm="post",
)
_DEBERTA_SIZES = dict(
    **_SIZES, **_WORDS, relative_attention=True, pos_att_type=["c2p", "p2c"], max_position_embeddings=32
)


def _latent_values(modules: Modules, place: int) -> list[Tensor]:
    """W_V by head through the latent, the inner norm's weight on the way; and without it."""
    attention = modules[f"layers.{place}.self_attn"]
    down = attention.kv_a_proj_with_mqa.weight[:16].detach().double()
    up = attention.kv_b_proj.weight.detach().double().reshape(HEADS, 8 + 8, 16)[:, 8:]
    gamma = attention.kv_a_layernorm.weight.detach().double()
    return [down.T @ (up * gamma).mT, down.T @ up.mT]


def _through_latent(case: Case, modules: Modules, passage: Passage) -> Tensor:
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


def _output_gate(case: Case, modules: Modules, passage: Passage) -> Tensor:
    """Qwen3-Next: the second half of each head's queries opens and shuts its channels, token by token."""
    gate = passage.heard["out:layers.{}.self_attn.q_proj"].double().unflatten(-1, (HEADS, 2, -1))[..., 1, :].sigmoid()
    W_V, _ = value_weight(case, modules, passage.place)
    mixed = passage.A @ (passage.heard["in:" + case.value].double()[:, None] @ W_V)
    return project(case, modules, passage.place, mixed * gate.transpose(1, 2))


_QWEN3_NEXT = dict(
    **_GQA,
    head_dim=8,
    num_experts=0,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
)
_FALCON_H1 = dict(
    **_GQA,
    mamba_d_ssm=32,
    mamba_n_heads=4,
    mamba_d_state=8,
    mamba_chunk_size=4,
    attention_out_multiplier=0.3,
    ssm_out_multiplier=0.4,
    key_multiplier=0.7,
    embedding_multiplier=1.3,
    mlp_multipliers=[0.8, 0.6],
    ssm_multipliers=[0.9, 0.8, 0.7, 1.1, 1.2],
)

_DESCRIBED = [
    Case(
        "Granite",
        hf("GraniteModel", "GraniteConfig", **_GQA, residual_multiplier=0.22, embedding_multiplier=2.0),
        **_LLAMA,
        factor=lambda _modules, _place: 0.22,
    ),
    Case(
        "GraniteMoe",
        hf(
            "GraniteMoeModel",
            "GraniteMoeConfig",
            **_GQA,
            residual_multiplier=0.6,
            num_local_experts=2,
            num_experts_per_tok=1,
        ),
        **_LLAMA,
        factor=lambda _modules, _place: 0.6,
    ),
    Case("MiniMax", hf("MiniMaxModel", "MiniMaxConfig", **_MINIMAX, layer_types=["full_attention"] * 2), **_IN_MINIMAX),
    Case(
        # The linear layer is no softmax and is left out with a remark; its block is where the first one starts.
        "MiniMax (linear, then full)",
        hf("MiniMaxModel", "MiniMaxConfig", **_MINIMAX, layer_types=["linear_attention", "full_attention"]),
        **_IN_MINIMAX | dict(massive=""),
        runs=(1,),
    ),
    Case(
        "FalconH1",
        hf("FalconH1Model", "FalconH1Config", **_FALCON_H1),
        **_LLAMA | dict(course=_then_mlp("layers.{}.pre_ff_layernorm")),
        other_course=(Step("attention", "sum"), Step("mamba", "in:layers.{}.pre_ff_layernorm"), END),
        factor=lambda _modules, _place: 0.3,
        beside=(("layers.{}.mamba", 0.4),),
    ),
    Case(
        "Mllama vision",
        hf("MllamaVisionModel", "MllamaVisionConfig", **_MLLAMA),
        **_mllama("transformer"),
        runs=(0, 1, 2),
    ),
    Case(
        "Mllama vision (global, gated)",
        hf("MllamaVisionModel", "MllamaVisionConfig", **_MLLAMA),
        **_mllama("global_transformer"),
        factor=_tanh_gate,
    ),
    Case("Wav2Vec2", hf("Wav2Vec2Model", "Wav2Vec2Config", **_WAV), **_WAV_POST),
    Case(
        "Wav2Vec2 (stable layer norm)",
        hf("Wav2Vec2Model", "Wav2Vec2Config", **_WAV, do_stable_layer_norm=True, feat_extract_norm="layer"),
        **_WAV_PRE,
    ),
    Case("HuBERT", hf("HubertModel", "HubertConfig", **_WAV), **_WAV_POST),
    Case(
        "HuBERT (stable layer norm)",
        hf("HubertModel", "HubertConfig", **_WAV, do_stable_layer_norm=True, feat_extract_norm="layer"),
        **_WAV_PRE,
    ),
    Case(
        "WavLM",
        hf("WavLMModel", "WavLMConfig", **_WAV, num_buckets=8, max_bucket_distance=16),
        **_WAV_POST | dict(value="encoder.layers.{}.attention", output="encoder.layers.{}.attention"),
        weights_of="multi_head_attention_forward",
    ),
    Case(
        "Phi",
        hf("PhiModel", "PhiConfig", **_SIZES, **_WORDS),
        **_LLAMA | _beside("layers.{}.mlp") | dict(output="layers.{}.self_attn.dense", kv_heads=HEADS),
    ),
    Case(
        "Falcon (one after another, per head)",
        **_falcon(multi_query=False, parallel_attn=False, bias=True),
        course=_then_mlp("h.{}.post_attention_layernorm"),
        packing=PER_HEAD,
    ),
    Case(
        "Falcon (parallel, one key and value)",
        **_falcon(multi_query=True, parallel_attn=True),
        **_beside("h.{}.mlp"),
        packing=STACKED,
        kv_heads=1,
    ),
    Case(
        "Falcon (new, groups)",
        **_falcon(new_decoder_architecture=True, num_kv_heads=2),
        **_beside("h.{}.mlp"),
        packing=PER_GROUP,
        kv_heads=2,
    ),
    Case(
        "BLIP (vision)",
        hf("BlipVisionModel", "BlipVisionConfig", **_SIZES, image_size=16, patch_size=4),
        lambda _how: pixels(),
        "encoder.layers.{}",
        "encoder.layers.{}.self_attn.qkv",
        "encoder.layers.{}.self_attn.projection",
        _then_mlp("encoder.layers.{}.layer_norm2"),
        STACKED,
    ),
    Case(
        "InternVL (vision)",
        hf("InternVLVisionModel", "InternVLVisionConfig", **_SIZES, image_size=[16, 16], patch_size=[4, 4]),
        lambda _how: pixels(),
        "encoder.layer.{}",
        "encoder.layer.{}.attention.v_proj",
        "encoder.layer.{}.attention.projection_layer",
        _then_mlp("encoder.layer.{}.layernorm_after"),
        SEPARATE,
        factor=lambda modules, place: modules[f"encoder.layer.{place}"].lambda_1.detach().double(),
    ),
    Case(
        "BLOOM",
        hf("BloomModel", "BloomConfig", hidden_size=WIDTH, n_head=HEADS, n_layer=2, **_WORDS),
        words,
        "h.{}",
        "h.{}.self_attention.query_key_value",
        "h.{}.self_attention.dense",
        _then_mlp("h.{}.post_attention_layernorm"),
        PER_HEAD,
        massive="word_embeddings.weight",
    ),
    Case(
        "ESM",
        hf("EsmModel", "EsmConfig", **_SIZES, **_WORDS, max_position_embeddings=40),
        words,
        "encoder.layer.{}",
        "encoder.layer.{}.attention.self.value",
        "encoder.layer.{}.attention.output.dense",
        _then_mlp("encoder.layer.{}.LayerNorm"),
        SEPARATE,
    ),
    Case(
        "MPT",
        hf("MptModel", "MptConfig", d_model=WIDTH, n_heads=HEADS, n_layers=2, max_seq_len=32, vocab_size=64),
        words,
        "blocks.{}",
        "blocks.{}.attn.Wqkv",
        "blocks.{}.attn.out_proj",
        _then_mlp("blocks.{}.norm_2"),
        STACKED,
        massive="wte.weight",
    ),
    Case(
        "GPTBigCode (multi-query)",
        hf("GPTBigCodeModel", "GPTBigCodeConfig", **_BIGCODE_SIZES, multi_query=True),
        **_BIGCODE,
        packing=STACKED,
        kv_heads=1,
    ),
    Case(
        "GPTBigCode (all heads)",
        hf("GPTBigCodeModel", "GPTBigCodeConfig", **_BIGCODE_SIZES, multi_query=False),
        **_BIGCODE,
        packing=PER_HEAD,
    ),
    Case(
        "CodeGen",
        hf(
            "CodeGenModel",
            "CodeGenConfig",
            n_embd=WIDTH,
            n_layer=2,
            n_head=HEADS,
            rotary_dim=4,
            n_positions=32,
            **_WORDS,
        ),
        words,
        "h.{}",
        "h.{}.attn.qkv_proj",
        "h.{}.attn.out_proj",
        packing=CODEGEN,
        **_beside("h.{}.mlp"),
        massive="wte.weight",
    ),
    Case(
        "DeBERTa",
        hf("DebertaModel", "DebertaConfig", **_DEBERTA_SIZES),
        **_DEBERTA,
        value="encoder.layer.{}.attention.self.in_proj",
        packing=PER_HEAD,
    ),
    Case(
        "DeBERTa v2",
        hf("DebertaV2Model", "DebertaV2Config", **_DEBERTA_SIZES, position_buckets=8),
        **_DEBERTA,
        value="encoder.layer.{}.attention.self.value_proj",
        packing=SEPARATE,
    ),
    Case(
        "DeepSeek-V3",
        hf(
            "DeepseekV3Model",
            "DeepseekV3Config",
            **_SIZES,
            **_WORDS,
            num_key_value_heads=HEADS,
            kv_lora_rank=16,
            q_lora_rank=16,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=8,
            first_k_dense_replace=2,
        ),
        **_LLAMA
        | dict(value="layers.{}.self_attn.kv_a_proj_with_mqa", kv_heads=HEADS, massive="")
        | dict(product=_latent_values, mix=_through_latent, also=("layers.{}.self_attn.kv_b_proj",), gated="token"),
    ),
    Case(
        "GPT-OSS",
        hf(
            "GptOssModel",
            "GptOssConfig",
            **_GQA,
            head_dim=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            sliding_window=4,
        ),
        **_LLAMA,
        gated="sink",
    ),
    Case(
        "Qwen3-Next",
        hf("Qwen3NextModel", "Qwen3NextConfig", **_QWEN3_NEXT, layer_types=["full_attention"] * 2),
        **_LLAMA,
        mix=_output_gate,
        also=("layers.{}.self_attn.q_proj",),
        gated="token",
    ),
    Case(
        "Qwen3-Next (linear, then full)",
        hf("Qwen3NextModel", "Qwen3NextConfig", **_QWEN3_NEXT, layer_types=["linear_attention", "full_attention"]),
        **_LLAMA | dict(massive=""),
        mix=_output_gate,
        also=("layers.{}.self_attn.q_proj",),
        gated="token",
        runs=(1,),
    ),
    Case(
        "ModernBERT decoder",
        hf("ModernBertDecoderModel", "ModernBertDecoderConfig", **_SIZES, **_WORDS, cls_token_id=1, sep_token_id=2),
        words,
        "layers.{}",
        "layers.{}.attn.v_proj",
        "layers.{}.attn.Wo",
        _then_mlp("layers.{}.mlp_norm"),
        SEPARATE,
        may_decline=True,
    ),
]


_BART = dict(
    given=words,
    block="encoder.layers.{}",
    value="encoder.layers.{}.self_attn.v_proj",
    output="encoder.layers.{}.self_attn.out_proj",
    course=_post("encoder.layers.{}.self_attn_layer_norm", "encoder.layers.{}.final_layer_norm"),
    packing=SEPARATE,
    norm="post",
)
_BART_SIZES = dict(
    d_model=WIDTH,
    encoder_layers=2,
    decoder_layers=1,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=2,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=32,
    decoder_start_token_id=1,
    **_WORDS,
)
_DESCRIBED += [
    Case("BART (encoder)", hf("BartModel", "BartConfig", **_BART_SIZES), **_BART),
    Case("PLBart (encoder)", hf("PLBartModel", "PLBartConfig", **_BART_SIZES), **_BART),
    Case("MVP (encoder)", hf("MvpModel", "MvpConfig", **_BART_SIZES), **_BART),
    Case(
        "Data2VecAudio",
        hf(
            "Data2VecAudioModel",
            "Data2VecAudioConfig",
            **_WAV | dict(num_conv_pos_embeddings=2),
            conv_pos_kernel_size=3,
        ),
        **_WAV_POST,
    ),
    Case("Nemotron", hf("NemotronModel", "NemotronConfig", **_GQA, head_dim=8), **_LLAMA),
    Case(
        "VaultGemma",
        hf("VaultGemmaModel", "VaultGemmaConfig", **_GQA, head_dim=8, sliding_window=4),
        **_LLAMA | dict(course=_then_mlp("layers.{}.pre_feedforward_layernorm")),
    ),
]


# Modules as people write them


def _own(name: str, block: type[nn.Module], *course: Step, **more: Any) -> Case:
    own = dict(
        given=array,
        block="blocks.{}",
        value="blocks.{}.attn.to_qkv",
        output="blocks.{}.attn.to_out",
        packing=STACKED,
        library="toy",
        on_disk=False,  # the factor is in no weight of a known name
    )
    return Case(
        name, lambda: Stack(block(), block()), course=course or (Step("attention", "note:attention"), END), **own | more
    )


_OWN = [
    _own("own: 0.5 of attention", own.Halved, factor=lambda _modules, _place: 0.5),
    _own(
        "own: one unnamed gate",
        own.OneGate,
        factor=lambda modules, place: modules[f"blocks.{place}"].zeta.detach().double().tanh(),
    ),
    _own(
        "own: an unnamed gate by channel",
        own.ChannelGate,
        factor=lambda modules, place: modules[f"blocks.{place}"].zeta.detach().double(),
    ),
    _own("own: a gate by token", own.TokenGate, gated="token"),
    _own(
        "own: DeepNorm",
        own.Deep,
        *_post("blocks.{}.norm1", "blocks.{}.norm2"),
        keep=2.2,
        norm="post",
    ),
    _own("own: no residual around attention", own.NoResidual, keep=0.0),
    _own("own: MLP before attention", own.MlpFirst, Step("mlp", "note:mlp"), Step("attention", "end"), base=1),
    _own(
        "own: parallel, both with a factor",
        own.Beside,
        Step("attention", "sum"),
        END,
        factor=lambda _modules, _place: 0.6,
        beside=(("blocks.{}.mlp", 0.4),),
    ),
    _own("own: a functional norm reads the sum", own.Functional, factor=lambda _modules, _place: 0.7, may_decline=True),
    _own(
        "own: 0.5 of nn.MultiheadAttention",
        own.HalvedHand,
        factor=lambda _modules, _place: 0.5,
        value="blocks.{}.attn",
        output="blocks.{}.attn",
        library="torch",
    ),
]


# Who counts as a token


def _lit(how: str) -> dict[str, Tensor]:
    lit = words("left" if how == "left" else "padded")["attention_mask"].bool()
    return {"tokens": array()} if how == "plain" else {"tokens": array(), "lit": lit}


def _additive(how: str) -> dict[str, Tensor]:
    """What may be seen, as numbers to add to scores, (batch, 1, n, n)."""
    given = words(how)
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
    given = words(how)
    return {name: given[name].float() if "mask" in name else given[name] for name in sorted(given)}


def _three(how: str) -> dict[str, Tensor]:
    """The third input has a single token."""
    ids = torch.randint(5, 60, (3, TOKENS), generator=torch.Generator().manual_seed(8))
    counted = torch.arange(TOKENS)[None] < torch.tensor([TOKENS, 5, 1])[:, None]
    return {"input_ids": ids} if how == "plain" else {"input_ids": ids, "attention_mask": counted.long()}


def _packed(_how: str) -> dict[str, Tensor]:
    return {"input_ids": words("plain")["input_ids"][:1], "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])}


def _plain_words(name: str, like: str, given: Callable[[str], Any], **more: Any) -> Case:
    """A family that stands above, given otherwise."""
    known = {case.name: case for case in (_known(FAMILIES[n]) for n in ("BERT", "Llama"))}[like]
    return replace(known, name=name, given=given, massive="", on_disk=False, **more)


def _masked(given: Any) -> Tensor | None:
    """Of a mask with one column a token, whatever its other axes: what some row may see."""
    mask = given.get("attention_mask")
    return None if mask is None else words("padded")["attention_mask"].bool()


_WHO = [
    _plain_words("BERT, a mask (batch, 1, n, n) to add", "BERT", _additive, tokens_of=_masked),
    _plain_words("Llama, a mask (batch, 1, n, n) to add", "Llama", _additive_causal, tokens_of=_masked),
    _plain_words("BERT, a mask of floats that comes first", "BERT", _float_first),
    _plain_words("BERT, one input of one token", "BERT", _three),
    _plain_words("Llama, one input of one token", "Llama", _three),
    _plain_words(
        "Llama, two sequences in a row",
        "Llama",
        _packed,
        sequences_of=lambda _given: [(0, torch.arange(5)), (0, torch.arange(5, 8))],
    ),
    Case(
        "BERT behind a prefix",
        lambda: own.Prefixed(hf("BertModel", "BertConfig", **_SIZES, **_WORDS)()),
        words,
        "bert.encoder.layer.{}",
        "bert.encoder.layer.{}.attention.self.value",
        "bert.encoder.layer.{}.attention.output.dense",
        _post("bert.encoder.layer.{}.attention.output.LayerNorm", "bert.encoder.layer.{}.output.LayerNorm"),
        SEPARATE,
        norm="post",
        on_disk=False,
        tokens_of=lambda given: (
            torch.cat([torch.ones(2, 3, dtype=torch.bool), given["attention_mask"].bool()], 1)
            if "attention_mask" in given
            else None
        ),
    ),
    Case(
        "own: a mask under another name",
        own.SeeingStack,
        _lit,
        "blocks.{}",
        "blocks.{}.attn.to_qkv",
        "blocks.{}.attn.to_out",
        _then_mlp("blocks.{}.norm2"),
        STACKED,
        library="toy",
        on_disk=False,
        tokens_of=lambda given: given.get("lit"),
    ),
]

CASES.update({case.name: case for case in [*(_known(f) for f in FAMILIES.values()), *_DESCRIBED, *_OWN, *_WHO]})
WHO = [case.name for case in _WHO]
"""Those about who counts as a token."""


# What is refused


@dataclass(frozen=True)
class Refused:
    """A model that cannot be looked at, and the words of which its refusal must have one."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    given: Callable[[], Any] = field(repr=False)
    words: tuple[str, ...]


REFUSED = [
    Refused(
        "Swin",
        hf(
            "SwinModel",
            "SwinConfig",
            image_size=16,
            patch_size=2,
            embed_dim=32,
            depths=(2, 2),
            num_heads=(4, 4),
            window_size=4,
        ),
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(7))},
        ("window", "stage", "fewer tokens"),
    ),
    Refused(
        "I-BERT",
        hf("IBertModel", "IBertConfig", **_SIZES, **_WORDS),
        lambda: words("padded"),
        ("integer", "quanti"),
    ),
    Refused(
        "Gemma 3n",
        hf(
            "Gemma3nTextModel",
            "Gemma3nTextConfig",
            **_GQA,
            head_dim=8,
            num_kv_shared_layers=0,
            laurel_rank=4,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=64,
            layer_types=["full_attention"] * 2,
            activation_sparsity_pattern=[0.0, 0.0],
        ),
        lambda: words("padded"),
        ("stream", "altup", "copies"),
    ),
    Refused(
        "Longformer",
        hf("LongformerModel", "LongformerConfig", **_SIZES, **_WORDS, attention_window=4, max_position_embeddings=32),
        lambda: words("padded"),
        ("window", "chunk", "sliding", "n by n"),
    ),
]
