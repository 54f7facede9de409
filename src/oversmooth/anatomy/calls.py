"""Names of the arguments by which transformers and torch pass masks and caches to their modules."""

PADDING_HIDDEN = "src_key_padding_mask"
"""torch's encoder: True where a token is padding."""
PADDING_SHOWN = "attention_mask"
"""transformers: 1 where a token counts. In some blocks it holds pairs of tokens."""
DECODER_PADDING_SHOWN = "decoder_attention_mask"
PAIRS = ("mask", "src_mask", "attn_mask")
"""(n, n): which token sees which, the same for all inputs."""
USE_CACHE = "use_cache"
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_position")
