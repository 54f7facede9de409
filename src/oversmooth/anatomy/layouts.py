"""How attention modules name and pack their weights: the one table to extend when a new family comes along.

A layout is recognised by the names of its value and output weights, relative to the module that holds both, so the
same row serves a live module and a checkpoint on disk. transformers renamed things between 4.57 and 5: both names are
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oversmooth.errors import InputError

Packing = Literal["separate", "stacked", "per head"]


@dataclass(frozen=True)
class Layout:
    """Where values and outputs live, relative to the attention module."""

    name: str
    value: str
    """The value weight, or the fused weight that holds it, such as ``v_proj.weight`` or ``in_proj_weight``."""
    output: str
    packing: Packing = "separate"
    """Fused weights: stacked is all queries, all keys, all values; per head is q, k, v of the first head, then of the
    next.
    """
    transposed: bool = False
    """Weights stored (in, out), as GPT-2's Conv1D does; torch's Linear has (out, in)."""

    @property
    def value_bias(self) -> str:
        return _bias(self.value)

    @property
    def output_bias(self) -> str:
        return _bias(self.output)


def _bias(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"


LAYOUTS: list[Layout] = [
    Layout("v_proj, o_proj (Llama, Mistral, Qwen, Gemma; ViT in transformers 5)", "v_proj.weight", "o_proj.weight"),
    Layout("v_proj, out_proj (OPT, Whisper, BART, CLIP)", "v_proj.weight", "out_proj.weight"),
    Layout("self.value, output.dense (BERT, RoBERTa)", "self.value.weight", "output.dense.weight"),
    Layout(
        "attention.value, output.dense (ViT, DINOv2 in checkpoints)", "attention.value.weight", "output.dense.weight"
    ),
    Layout("value, dense (ALBERT)", "value.weight", "dense.weight"),
    Layout("v_lin, out_lin (DistilBERT)", "v_lin.weight", "out_lin.weight"),
    Layout("c_attn, c_proj (GPT-2)", "c_attn.weight", "c_proj.weight", "stacked", transposed=True),
    Layout("query_key_value, dense (GPT-NeoX, BLOOM)", "query_key_value.weight", "dense.weight", "per head"),
    Layout("v, o (T5)", "v.weight", "o.weight"),
    Layout("qkv, proj (timm)", "qkv.weight", "proj.weight", "stacked"),
    Layout("in_proj, out_proj (torch.nn.MultiheadAttention)", "in_proj_weight", "out_proj.weight", "stacked"),
    Layout("qkv_proj, o_proj (Phi-3)", "qkv_proj.weight", "o_proj.weight", "stacked"),
    Layout("Wqkv, Wo (ModernBERT)", "Wqkv.weight", "Wo.weight", "stacked"),
    Layout("self.value_proj, output.dense (DeBERTa)", "self.value_proj.weight", "output.dense.weight"),
    Layout("wv, wo (Llama as first released)", "wv.weight", "wo.weight"),
    Layout("to_v, to_out", "to_v.weight", "to_out.weight"),
    Layout("to_v, to_out.0", "to_v.weight", "to_out.0.weight"),
    Layout("to_qkv, to_out", "to_qkv.weight", "to_out.weight", "stacked"),
    Layout("to_qkv, to_out.0", "to_qkv.weight", "to_out.0.weight", "stacked"),
]


def register(name: str, *, value: str, output: str, packing: Packing = "separate", transposed: bool = False) -> Layout:
    """Teach anatomy another layout. Names are relative to the attention module; the newest is tried first.

    >>> mine = register("mine", value="to_values.weight", output="merge.weight")
    >>> LAYOUTS.remove(mine)
    """
    if packing not in ("separate", "stacked", "per head"):
        raise InputError(f"packing is {packing!r}; choose 'separate', 'stacked' or 'per head'")
    for role, weight in (("value", value), ("output", output)):
        if not weight.endswith("weight"):
            raise InputError(f"{role} is {weight!r}; name the parameter itself, such as {weight + '.weight'!r}")
    layout = Layout(name, value, output, packing, transposed)
    LAYOUTS.insert(0, layout)
    return layout


# Relative to the block or anything between it and the attention module.
NORM_BEFORE = (
    "layernorm_before",
    "norm1",
    "ln_1",
    "input_layernorm",
    "self_attn_layer_norm",
    "layer_norm1",
    "attn_norm",
    "attention_norm",
    "layer_norm",
    "ln1",
    "norm_1",
    "attn_ln",
)
# Relative to the attention module, or beside it.
NORM_AFTER = ("output.LayerNorm", "LayerNorm", "sa_layer_norm")
LAYER_SCALE = ("layer_scale1.lambda1", "ls1.gamma", "gamma_1", "lambda_1")
CROSS_ATTENTION = (
    "encoder_attn",
    "encdecattention",
    "crossattention",
    "cross_attn",
    "cross_attention",
    "multihead_attn",
)
# Blocks whose norm1 or self_attn_layer_norm stands after the addition; others of that name stand before the layer.
POST_NORM_MODELS = ("bart", "blenderbot-small", "hubert", "marian", "wav2vec2")
# RMSNorms that multiply by 1 + weight.
OFFSET_NORM_MODELS = ("gemma", "gemma2", "gemma3", "gemma3_text", "paligemma")
# LayerNorms without a bias, which look like RMSNorms on disk.
BIASLESS_LAYER_NORM_MODELS = ("modernbert", "cohere", "cohere2", "mpt")
CAUSAL_MODELS = (
    "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2",
    "gemma3_text", "phi", "phi3", "bloom", "falcon", "smollm3", "olmo", "olmo2", "stablelm", "codegen", "cohere",
)  # fmt: skip
BIDIRECTIONAL_MODELS = (
    "albert", "bert", "beit", "clip_vision_model", "deberta", "deberta-v2", "deit", "dinov2", "dinov2_with_registers",
    "distilbert", "electra", "modernbert", "mt5", "roberta", "siglip_vision_model", "t5", "vit", "vit_mae", "whisper",
    "xlm-roberta",
)  # fmt: skip
HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead", "num_head")
ENCODER_HEADS, DECODER_HEADS = "encoder_attention_heads", "decoder_attention_heads"
HEAD_DIM = ("head_dim", "d_kv", "attention_head_size", "dim_head")
# Asked of the attention module alone: its model's other layers may look further.
WINDOW = ("sliding_window", "local_attention")
