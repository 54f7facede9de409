"""Names of the arguments by which transformers and torch pass masks and caches to their modules."""

KEY_PADDING_MASK = "src_key_padding_mask"
"""torch's encoder: True where a token is padding."""
ATTENTION_MASK = "attention_mask"
"""transformers: 1 where a token is valid. In some blocks it holds pairs of tokens."""
DECODER_ATTENTION_MASK = "decoder_attention_mask"
PAIRS = ("mask", "src_mask", "attn_mask")
"""(n, n): which token sees which, the same for all inputs."""
USE_CACHE = "use_cache"
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_position")
