"""How attention modules name and pack their weights: the table to extend for a new family.

A layout is recognised by the names of its value and output weights, relative to the module that holds both, so the
same row serves a live module and a checkpoint on disk. transformers renamed things between 4.57 and 5: both names are
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError

Packing = Literal["separate", "stacked", "per head", "quarters", "latent"]
Transposed = bool | Literal["value", "output"]
Role = Literal["factor", "keep", "feed"]


@dataclass(frozen=True)
class Layout:
    """Where the value and output weights live, relative to the attention module."""

    name: str
    """In words: the weights, and the families that have them."""
    value: str
    """The value weight, or the fused weight that holds it, such as ``v_proj.weight``, or ``w_qkv`` for a parameter of
    the attention module itself.
    """
    output: str
    """The output weight, such as ``o_proj.weight`` or ``w_out``."""
    packing: Packing = "separate"
    """How a fused weight is packed: stacked is all queries, all keys, all values; per head is q, k, v of the first
    value head, then of the next, with one q for each query head that shares the values; quarters is four times q, v, k
    of a quarter of the heads. Latent is a product of the weight's first rows, a norm and what expands it.
    """
    transposed: Transposed = False
    """Whether weights are stored (in, out), as in GPT-2's Conv1D and in ``x @ self.w``; torch's Linear has (out, in).
    "value" or "output": only that one.
    """
    models: tuple[str, ...] = ()
    """The model_types that it holds for, where the same names mean another packing elsewhere; empty: all."""
    own_bias: str = ""
    """The bias of the values alone, where it is a parameter of its own and not part of the value module."""
    biases: tuple[str, str] = ("", "")
    """The value bias, packed as its weight, and the output bias; empty: ``bias`` in place of ``weight``."""
    heads: int | None = None
    """The number of heads, for models that do not state it."""
    norm: str = ""
    """The module that norms the input of attention, relative to attention or a module around it; empty: by name."""
    latent_norm: str = ""
    """Latent: the weight of the norm."""
    expand: str = ""
    """Latent: the weight of the projection after the norm, which holds keys and values of every head."""

    @property
    def value_bias(self) -> str:
        """The name of the values' bias, where there is one."""
        return self.own_bias or self.biases[0] or _bias(self.value)

    @property
    def output_bias(self) -> str:
        """The name of the output's bias, where there is one."""
        return self.biases[1] or _bias(self.output)

    @property
    def value_transposed(self) -> bool:
        """Whether the value weight is stored (in, out)."""
        return self.transposed in (True, "value")

    @property
    def output_transposed(self) -> bool:
        """Whether the output weight is stored (in, out)."""
        return self.transposed in (True, "output")


def _bias(weight: str) -> str:
    return weight.removesuffix("weight") + "bias" if weight.endswith("weight") else ""


LAYOUTS: list[Layout] = [
    Layout("v_proj, o_proj (Llama, Mistral, Qwen, Gemma; ViT in transformers 5)", "v_proj.weight", "o_proj.weight"),
    Layout("v_proj, out_proj (OPT, Whisper, BART, CLIP)", "v_proj.weight", "out_proj.weight"),
    Layout("self.value, output.dense (BERT, RoBERTa)", "self.value.weight", "output.dense.weight"),
    Layout(
        "attention.value, output.dense (ViT, DINOv2 in checkpoints)", "attention.value.weight", "output.dense.weight"
    ),
    Layout("value, dense (ALBERT)", "value.weight", "dense.weight"),
    Layout("v_lin, out_lin (DistilBERT)", "v_lin.weight", "out_lin.weight"),
    Layout("v_proj, dense (Phi)", "v_proj.weight", "dense.weight"),
    Layout("v_proj, Wo (ModernBERT's decoder)", "v_proj.weight", "Wo.weight"),
    Layout("c_attn, c_proj (GPTBigCode)", "c_attn.weight", "c_proj.weight", "per head", models=("gpt_bigcode",)),
    Layout("c_attn, c_proj (GPT-2)", "c_attn.weight", "c_proj.weight", "stacked", transposed=True),
    Layout("query_key_value, dense (GPT-NeoX, BLOOM, Falcon)", "query_key_value.weight", "dense.weight", "per head"),
    Layout("v, o (T5)", "v.weight", "o.weight"),
    Layout("qkv, proj (timm)", "qkv.weight", "proj.weight", "stacked"),
    Layout("qkv, projection (BLIP)", "qkv.weight", "projection.weight", "stacked"),
    Layout("v_proj, projection_layer (InternVL, Janus)", "v_proj.weight", "projection_layer.weight"),
    Layout("att_proj, out_proj (Bark)", "att_proj.weight", "out_proj.weight", "stacked"),
    Layout("in_proj, out_proj (torch.nn.MultiheadAttention)", "in_proj_weight", "out_proj.weight", "stacked"),
    Layout("qkv_proj, o_proj (Phi-3)", "qkv_proj.weight", "o_proj.weight", "stacked"),
    Layout("qkv_proj, out_proj (CodeGen)", "qkv_proj.weight", "out_proj.weight", "quarters", models=("codegen",)),
    Layout("Wqkv, Wo (ModernBERT)", "Wqkv.weight", "Wo.weight", "stacked"),
    Layout("Wqkv, out_proj (MPT)", "Wqkv.weight", "out_proj.weight", "stacked"),
    Layout(
        "kv_a_proj_with_mqa, kv_b_proj, o_proj (DeepSeek's latent attention)",
        "kv_a_proj_with_mqa.weight",
        "o_proj.weight",
        "latent",
        latent_norm="kv_a_layernorm.weight",
        expand="kv_b_proj.weight",
    ),
    Layout(
        "self.in_proj, output.dense (DeBERTa v1)",
        "self.in_proj.weight",
        "output.dense.weight",
        "per head",
        own_bias="self.v_bias",
    ),
    Layout("self.value_proj, output.dense (DeBERTa)", "self.value_proj.weight", "output.dense.weight"),
    Layout("wv, wo (Llama as first released)", "wv.weight", "wo.weight"),
    Layout("attn_v, attn_output (GGUF)", "attn_v.weight", "attn_output.weight"),
    Layout("attn_qkv, attn_output (GGUF)", "attn_qkv.weight", "attn_output.weight", "stacked"),
    Layout("to_v, to_out", "to_v.weight", "to_out.weight"),
    Layout("to_v, to_out.0", "to_v.weight", "to_out.0.weight"),
    Layout("to_qkv, to_out", "to_qkv.weight", "to_out.weight", "stacked"),
    Layout("to_qkv, to_out.0", "to_qkv.weight", "to_out.0.weight", "stacked"),
]


def register(
    name: str,
    *,
    value: str,
    output: str,
    packing: Packing = "separate",
    transposed: Transposed = False,
    value_bias: str | None = None,
    output_bias: str | None = None,
    heads: int | None = None,
    norm: str | None = None,
) -> Layout:
    """Add a layout to those that `locate` knows; the newest is tried first.

    Args:
        name: of the layout, in words.
        value: the name of the value weight, or of the fused weight that holds it, relative to the attention module:
            "v.weight" of a Linear, "w_qkv" of a parameter.
        output: the name of the output weight, likewise.
        packing: "separate", "stacked" (all queries, all keys, all values) or "per head" (q, k, v of the first head,
            then of the next).
        transposed: whether weights are stored (in, out), as ``x @ self.w`` needs; torch's Linear has (out, in).
            "value" or "output" for only one of them.
        value_bias, output_bias: names of the biases. By default "bias" in place of "weight", and none for parameters
            of other names.
        heads: the number of heads, where the model does not state it.
        norm: the name of the norm before attention, such as "pre_a", where it is an unusual one.

    Returns:
        The layout, which ``LAYOUTS.remove`` takes out again.

    >>> mine = register("mine", value="w_qkv", output="w_out", packing="stacked", transposed=True, norm="pre_a")
    >>> LAYOUTS.remove(mine)
    """
    arguments.choice(packing, "packing", ("separate", "stacked", "per head"))
    if transposed not in ("value", "output"):
        arguments.flag(transposed, "transposed")
    names = {"value": value, "output": output, "value_bias": value_bias, "output_bias": output_bias, "norm": norm}
    for role, text in names.items():
        if not (isinstance(text, str) and text) and (text is not None or role in ("value", "output")):
            example = "a module, such as 'pre_a'" if role == "norm" else "a parameter, such as 'v.weight' or 'w_qkv'"
            raise InputError(f"{role} is {arguments.shown(text)}; give the name of {example}")
    if heads is not None:
        heads = arguments.whole(heads, "heads", least=1)
    layout = Layout(
        name, value, output, packing, transposed, biases=(value_bias or "", output_bias or ""), heads=heads,
        norm=norm or "",
    )  # fmt: skip
    LAYOUTS.insert(0, layout)
    return layout


# Families whose weights look like a known layout but are used in a way that the theory does not describe: part of a
# weight's name, the models, and why.
UNSUPPORTED: dict[str, tuple[tuple[str, ...], str]] = {
    ".downsample.reduction.": (
        ("swin", "swinv2", "swin2sr", "donut-swin", "maskformer-swin"),
        "Swin attends in windows that are cut again in every layer and merges tokens between stages, so its tokens are "
        "not one sequence; choose a model whose layers attend over one sequence",
    ),
    ".value.weight_integer": (
        ("ibert",),
        "I-BERT computes with quantized weights that are made again in every call, so those in its layers are not what "
        "it applies; choose the RoBERTa that it was made from",
    ),
    ".altup.": (
        ("gemma3n", "gemma3n_text"),
        "Gemma 3n keeps several streams side by side (AltUp), and attention adds to a mixture of them, so there is no "
        "one stream to follow; choose Gemma 3",
    ),
    ".shared_transformer.": (
        ("zamba", "zamba2"),
        "Zamba's attention reads each token beside its embedding, so that W_V W_O maps no stream to itself; measure "
        "tokens alone by diagnose(model, x, blocks='layers.*', spectra=False)",
    ),
    ".value_global.": (
        ("longformer",),
        "Longformer attends in sliding chunks and gives its global tokens values of their own (value_global), so a "
        "layer has no single W_V; choose a model with one value weight per layer",
    ),
}

# Relative to the block or anything between it and the attention module.
NORM_BEFORE = (
    "layernorm_before", "norm1", "ln_1", "input_layernorm", "self_attn_layer_norm", "layer_norm1", "attn_norm",
    "attention_norm", "layer_norm", "ln1", "norm_1", "attn_ln", "ln_attn", "rms_norm1", "attention_layernorm",
    "pre_sa_norm", "operator_norm", "temporal_pre_norm", "pre_self_attn_layernorm", "ln",
)  # fmt: skip
# Relative to the attention module, or beside it.
NORM_AFTER_BY_NAME = ("output.LayerNorm", "sa_layer_norm")
NORM_AFTER = (*NORM_AFTER_BY_NAME, "LayerNorm")
# The norm that follows: after the addition in models that are known to be Post-LN, before the MLP in others.
NORM_NEXT = ("post_attention_layernorm",)
LAYER_SCALE = ("layer_scale1.lambda1", "ls1.gamma", "gamma_1", "lambda_1")
CROSS_ATTENTION = (
    "encoder_attn", "encdecattention", "crossattention", "cross_attn", "cross_attention", "multihead_attn",
)  # fmt: skip
# Parameters of attention itself that take a share of every row of A.
SINKS = ("sinks", "attention_sink_bias", "attn_sinks.weight")
# Norms of what attention gives, before it is added to the stream; and those around the MLP that tell such a norm from
# the one before the MLP, which many models call post_attention_layernorm.
NORM_ON_BRANCH = ("post_self_attn_layernorm", "post_norm1", "post_attn_norm", "post_attention_norm")
NORM_OF_MLP = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
# Of attention itself: timm's stands before the output projection, others' before the values.
NORM_INSIDE = ("norm.weight",)
# Settings with which the norms that others have before attention and MLP stand after them (Chameleon, Molmo 2), classes
# of blocks that are made so (timm), and what the name of such an architecture holds (timm's vit_relpos_…_rpn_…).
NORMS_AFTER = ("swin_norm", "norm_after")
BLOCKS_NORMED_AFTER = ("ResPostBlock", "ResPostRelPosBlock")
ARCHITECTURE_NORMED_AFTER = "_rpn_"
# One number per channel that multiplies the stream before attention is added to it (Doge).
STREAM_SCALE = ("input_residual",)
# What is done to values, or to what attention mixes, so that the weights are not all of it: by parameters of attention
# itself, by settings, and by model.
MIXING_BY_NAME = {
    ("attn_sub_norm.weight", "inner_attn_ln.weight", "o_norm.weight", "sub_norm.weight", "subln.weight"): (
        "what it mixes is normed before the output projection"
    ),
    ("v_sconv.conv1d.weight",): "its values pass through a convolution over tokens",
}
MIXING_BY_SETTING = {
    "clip_qkv": "its values are clipped",
    "attention_value_scale": "its values are multiplied by a number on the way",
}
OTHER_MIXING = {
    "diffllama": "it mixes with the difference of two attentions, and norms what it mixes",
    "convbert": "half of what it mixes comes from a convolution",
    **dict.fromkeys(
        ("mra", "nystromformer", "yoso"), "its attention is an approximation whose rows need not sum to one"
    ),
}
# Of attention without a softmax, whose weights have the names of others (Kimi's and Olmo's delta rules).
LINEAR_ATTENTION = ("A_log", "forget_gate.A_log")
# Projections beside v_proj whose sigmoid multiplies what attention gives, token by token.
OUTPUT_GATE = ("gate_proj", "g_proj", "attn_gate", "output_gate")
# One number beside attention whose tanh multiplies what it adds (Mllama).
TANH_GATE = ("gate_attn",)
# Settings of a configuration that scale the stream: "factor" what attention adds, "keep" the stream that it adds to,
# "feed" the tokens that values are computed from.
FACTORS: dict[str, Role] = {
    "residual_multiplier": "factor",
    "attention_out_multiplier": "factor",
    "attention_in_multiplier": "feed",
    "full_attn_alpha_factor": "keep",
    "full_attn_beta_factor": "factor",
}
# Factors that the configuration gives multiplied by the root of the depth (MiniCPM).
FACTORS_BY_DEPTH = ("scale_depth",)

# Where norms stand and whether they multiply by γ or 1 + γ, for checkpoints: observed by hooks in transformers' models
# with random weights; "output.LayerNorm" and "sa_layer_norm" need no list. Models that are not here are "unknown".
NORM_FIRST = ("norm_first", "do_layer_norm_before", "normalize_before", "pre_norm", "do_stable_layer_norm")
# Models for which one of these settings decides.
NORM_FIRST_MODELS = ("hubert", "opt", "unispeech", "unispeech-sat", "wav2vec2", "wavlm", "xmod")
# MiniMax's first norm produces the stream that attention adds to: Post-LN, counted from one norm later.
POST_NORM_MODELS = (
    "albert", "bart", "blenderbot-small", "data2vec-audio", "fsmt", "gte", "jina_embeddings_v3", "marian", "minimax",
    "mpnet", "mvp", "nomic_bert", "openai-gpt", "plbart", "sew", "sew-d", "speecht5", "vits",
)  # fmt: skip
_PRE_NORM_CAUSAL = (
    "apertus", "arcee", "aria_text", "bamba", "biogpt", "bitnet", "bloom", "codegen", "cohere", "cohere2", "cwm",
    "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "falcon", "falcon_h1", "gemma", "gemma2", "gemma3_text",
    "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj",
    "granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium",
    "higgs_audio_v2", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "jais2", "jamba", "kimi_linear",
    "kosmos_2_5_text_model", "lfm2", "llama", "llama4_text", "minimax_m2", "ministral", "ministral3", "mistral",
    "mixtral", "modernbert-decoder", "mpt", "nemotron", "olmoe", "persimmon", "phi", "phi3", "phimoe", "qwen2",
    "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl_text", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe",
    "qwen3_next", "qwen3_vl_moe_text", "qwen3_vl_text", "recurrent_gemma", "seed_oss", "smollm3", "solar_open",
    "stablelm", "starcoder2", "vaultgemma", "voxtral_realtime_encoder", "xglm",
)  # fmt: skip
PRE_NORM_MODELS = (
    *_PRE_NORM_CAUSAL, "aimv2_vision_model", "altclip_vision_model", "audio-spectrogram-transformer", "beit",
    "bigbird_pegasus", "blenderbot", "chinese_clip_vision_model", "clip", "clip_text_model", "clip_vision_model",
    "clipseg_text_model", "cohere2_moe", "data2vec-vision", "deit", "dia", "dinov2", "dinov2_with_registers",
    "dinov3_vit", "esm", "eurobert", "exaone_moe", "git_vision_model", "glmasr_encoder", "gpt_neox_japanese",
    "groupvit_vision_model", "idefics3_vision", "ijepa", "imagegpt", "longt5", "m2m_100", "mbart", "megatron-bert",
    "mellum", "metaclip_2_text_model", "mimo_v2_flash", "mlcd_vision_model", "mllama_text_model", "mllama_vision_model",
    "modernbert", "moonshine", "mt5", "nllb-moe", "openai_privacy_filter", "owlv2_text_model", "owlvit_text_model",
    "pegasus", "pixio", "pixtral", "qwen2_audio_encoder", "roberta-prelayernorm", "siglip", "siglip2_vision_model",
    "siglip_text_model", "siglip_vision_model", "smolvlm_vision", "speech_to_text", "switch_transformers", "t5",
    "t5_gemma_module", "t5gemma2_encoder", "tipsv2_text_model", "tipsv2_vision_model", "umt5", "videomae", "vilt",
    "vit", "vit_mae", "vit_msn", "vivit", "voxtral_encoder", "whisper", "xlm-roberta-xl", "yolos",
)  # fmt: skip
# Pre-LN models whose first layer has no norm: their embedding is normed already.
FIRST_UNNORMED_MODELS = ("modernbert", "modernbert-decoder")
# Models whose values are computed from the stream as it is; a norm stands on the branch, or nowhere.
NO_NORM_MODELS = ("exaone4", "flex_olmo", "olmo2", "olmo3")
# Attention that passes its projections' weights to a function, so that its modules never run.
WEIGHTS_IN_A_FUNCTION = ("wavlm",)
# Norms that multiply by 1 + weight.
OFFSET_NORM_MODELS = (
    "gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma",
    "t5_gemma_module", "t5gemma2_encoder", "vaultgemma",
)  # fmt: skip
# LayerNorms without a bias, which look like RMSNorms on disk.
BIASLESS_LAYER_NORM_MODELS = ("modernbert", "modernbert-decoder", "cohere", "cohere2", "cohere2_moe", "mpt")
CAUSAL_MODELS = (
    *_PRE_NORM_CAUSAL, "exaone4", "flex_olmo", "minimax", "nemotron_h", "olmo", "olmo_hybrid", "olmo2", "olmo3",
    "openai-gpt", "opt",
)  # fmt: skip
BIDIRECTIONAL_MODELS = (
    "albert", "bert", "beit", "clip_vision_model", "deberta", "deberta-v2", "deit", "dinov2", "dinov2_with_registers",
    "distilbert", "electra", "modernbert", "mt5", "roberta", "siglip_vision_model", "t5", "vit", "vit_mae", "whisper",
    "xlm-roberta",
)  # fmt: skip
HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead", "num_head", "attention_heads")
ENCODER_HEADS, DECODER_HEADS = "encoder_attention_heads", "decoder_attention_heads"
HEAD_DIM = ("v_head_dim", "head_dim", "d_kv", "attention_head_size", "dim_head")
# Looked up on the attention module alone: other layers of the model may see further.
WINDOW = ("sliding_window", "local_attention")
