"""Settings of small models of transformers, by the names that families of configurations share."""

import torch
from support.families import HEADS, WIDTH
from torch import Tensor

SIZES = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=48)
WORDS = dict(vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
GQA = dict(**SIZES, **WORDS, num_key_value_heads=2)
GPT = dict(n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=32, n_inner=48, **WORDS)
SEQ2SEQ = {f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")} | dict(
    d_model=WIDTH, encoder_layers=2, decoder_layers=1, encoder_attention_heads=HEADS, decoder_attention_heads=2,
    max_position_embeddings=32, decoder_start_token_id=1, **WORDS,
)  # fmt: skip
SOUND = dict(
    **SIZES, conv_dim=(8, 8), conv_kernel=(4, 2), conv_stride=(4, 2), num_feat_extract_layers=2,
    num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, layerdrop=0.0,
)  # fmt: skip


def sound() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 64, generator=torch.Generator().manual_seed(7))}
