"""One small random model of every family that is claimed to work, its inputs, and where its parts are.

Places are written down here by hand, so that nothing that is tested has a say in where to look. Every parameter is
drawn again: models start with biases of 0 and norms of 1, which hide errors.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from support import timm_models
from torch import Tensor, nn

WIDTH, LAYERS, HEADS, TOKENS = 32, 2, 4, 8
TRANSFORMERS = int(version("transformers").split(".")[0])
"""4 or 5: some modules have other names, and some models take other masks."""


@dataclass(frozen=True)
class Family:
    """What to make and what must be found in it. Names of modules have {} for the number of the layer."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    given: Callable[[], Any] = field(repr=False)
    block: str
    value: str
    """The module that gets what values are made of."""
    output: str
    """The module that gives what attention returns."""
    library: str = "transformers"
    branch: str = ""
    """The module that gives what is added to the stream, if other than output."""
    gated: bool = False
    """Whether what is added is scaled token by token, so that no theorem applies."""
    after: str = ""
    """Post-LN: the norm after the addition."""
    last: str = ""
    """Post-LN: the norm at the end of the block."""
    norm: str = "pre"
    kind: str | None = "layer"
    kv_heads: int = HEADS
    head_dim: int = WIDTH // HEADS
    causal: bool | None = False
    """What anatomy says before anything ran."""
    local: bool = False
    """Whether some layers have a window."""
    runs: tuple[int, ...] = tuple(range(LAYERS))
    """The number of the layer, run by run."""
    parts: tuple[str, ...] = ("attention", "mlp")
    batch_first: bool = True

    def make(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        return copy.deepcopy(_made(self.name)).to(dtype)

    def inputs(self, dtype: torch.dtype = torch.float32) -> Any:
        return _cast(self.given(), dtype)

    def mask(self) -> Tensor | None:
        """The tokens that are not padding, (batch, n)."""
        given = self.given()
        if isinstance(given, Tensor):
            return None
        if "src_key_padding_mask" in given:
            return ~given["src_key_padding_mask"]
        return given["attention_mask"].bool() if "attention_mask" in given else None

    def rows(self) -> list[slice | Tensor]:
        """For each input, the tokens that count."""
        mask = self.mask()
        return [slice(None)] * 2 if mask is None else list(mask)


def _cast(given: Any, dtype: torch.dtype) -> Any:
    if isinstance(given, Tensor):
        return given.to(dtype) if given.is_floating_point() else given.clone()
    return {name: _cast(value, dtype) for name, value in given.items()}


def run(model: nn.Module, given: Any, **more: Any) -> Any:
    """One call of the model, or of the encoder where the rest would want inputs of its own."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        model = model.get_encoder()
    return model(given, **more) if isinstance(given, Tensor) else model(**given, **more)


def tensors(out: Any) -> list[Tensor]:
    """All arrays of an output, in order."""
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, (tuple, list)):
        return [tensor for part in out for tensor in tensors(part)]
    return []


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter away from the value it starts with, biases and norms included."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            draw = torch.randn(p.shape, generator=source)
            if any(part in name for part in ("lambda", "ls1.", "ls2.", "gamma_1", "gamma_2")):
                p.copy_(0.6 * draw.sign() + 0.3 * draw)
            elif p.ndim > 1 and "embed" not in name:
                p.copy_(draw / math.sqrt(p.shape[-1]))
            elif p.ndim > 1:
                p.copy_(draw)
            else:
                p.copy_((1.0 if p.mean() > 0.9 else 0.0) + 0.3 * draw)
    return model


@functools.cache
def _made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return randomise(FAMILIES[name].build()).eval()


# What models get


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def text() -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (2, TOKENS), generator=torch.Generator().manual_seed(7))
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def pixels() -> dict[str, Tensor]:
    return {"pixel_values": _normal(2, 3, 12, 12)}


def image() -> Tensor:
    return _normal(2, 3, 12, 12)


def sound() -> dict[str, Tensor]:
    return {"input_features": _normal(2, 8, 2 * TOKENS)}


def array() -> Tensor:
    return _normal(2, TOKENS, WIDTH)


def padded() -> dict[str, Tensor]:
    hidden = torch.zeros(2, TOKENS, dtype=torch.bool)
    hidden[1, 5:] = True
    return {"src": array(), "src_key_padding_mask": hidden}


def padded_sequence_first() -> dict[str, Tensor]:
    given = padded()
    return {**given, "src": given["src"].transpose(0, 1).contiguous()}


# Models written by hand


class HandBlock(nn.Module):
    """A block as people write it around torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dropout=0.1)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ToyAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.to_qkv, self.to_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1))
        dropout = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


class ToyBlock(nn.Module):
    """Attention and nothing else."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.attn = ToyAttention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm1(x))


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _encoder(**settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, **settings)
    # Nested arrays only come with batch_first and Post-LN; torch warns of asking for them elsewhere.
    nested = settings.get("batch_first", False) and not settings.get("norm_first", False)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=nested)


# Families

_SIZES = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=48)
_WORDS = dict(vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
_PICTURE = dict(image_size=12, patch_size=4)


def _hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build


def _timm(module: str, model: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        timm_models.timm()
        sizes = dict(img_size=12, patch_size=4, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, num_classes=5)
        return getattr(importlib.import_module(f"timm.models.{module}"), model)(**sizes, **settings)

    return build


def _without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _renamed(new: str, old: str) -> str:
    """A module's name in transformers 5, and in 4."""
    return new if TRANSFORMERS > 4 else old


def _has_class(file: str, name: str) -> bool:
    """Whether a file of transformers defines this class: read, since importing it would take seconds."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    return f"\nclass {name}(" in (Path(spec.origin).parent / file).read_text(encoding="utf-8")


_VIT_BLOCK = _renamed("layers.{}", "encoder.layer.{}")
_VIT_VALUE = _renamed(".attention.v_proj", ".attention.attention.value")
_VIT_OUTPUT = _renamed(".attention.o_proj", ".attention.output.dense")
_VIT = dict(block=_VIT_BLOCK, value=_VIT_BLOCK + _VIT_VALUE, output=_VIT_BLOCK + _VIT_OUTPUT, given=pixels)
# Its attention got ViT's names within version 5.
_DINOV2_NESTED = _has_class("models/dinov2/modeling_dinov2.py", "Dinov2SelfAttention")
_CLIP_BLOCK = _renamed("encoder.layers.{}", "vision_model.encoder.layers.{}")
_BERT = dict(
    block="encoder.layer.{}",
    value="encoder.layer.{}.attention.self.value",
    output="encoder.layer.{}.attention.output.dense",
    after="encoder.layer.{}.attention.output.LayerNorm",
    last="encoder.layer.{}.output.LayerNorm",
    norm="post",
    parts=("attention", "norm", "mlp", "norm"),
    given=text,
)
_ALBERT_BLOCK = "encoder.albert_layer_groups.{}.albert_layers.0"
_ALBERT = dict(
    block=_ALBERT_BLOCK,
    value=_ALBERT_BLOCK + ".attention.value",
    output=_ALBERT_BLOCK + ".attention.dense",
    after=_ALBERT_BLOCK + ".attention.LayerNorm",
    last=_ALBERT_BLOCK + ".full_layer_layer_norm",
    norm="post",
    parts=("attention", "norm", "mlp", "norm"),
    given=text,
)
_LLAMA = dict(
    block="layers.{}",
    value="layers.{}.self_attn.v_proj",
    output="layers.{}.self_attn.o_proj",
    kind="rms",
    kv_heads=2,
    causal=True,
    given=text,
)
_OPT = dict(
    block="decoder.layers.{}",
    value="decoder.layers.{}.self_attn.v_proj",
    output="decoder.layers.{}.self_attn.out_proj",
    causal=True,
    given=text,
)
_NEOX = dict(
    block="layers.{}",
    value="layers.{}.attention.query_key_value",
    output="layers.{}.attention.dense",
    causal=True,
    given=text,
)
_TIMM = dict(
    library="timm",
    block="blocks.{}",
    value="blocks.{}.attn.qkv",
    output="blocks.{}.attn.proj",
    causal=None,
    given=image,
)
_ENCODER = dict(
    library="torch", block="layers.{}", value="layers.{}.self_attn", output="layers.{}.self_attn", causal=None
)
_POST = dict(norm="post", after="layers.{}.norm1", last="layers.{}.norm2", parts=("attention", "norm", "mlp", "norm"))
_TOY = dict(
    library="toy",
    block="blocks.{}",
    value="blocks.{}.attn.to_qkv",
    output="blocks.{}.attn.to_out",
    parts=("attention",),
    causal=None,
    given=array,
)
_GQA = dict(**_SIZES, **_WORDS, num_key_value_heads=2)
_OPT_SIZES = dict(
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    ffn_dim=48,
    word_embed_proj_dim=WIDTH,
    max_position_embeddings=32,
    **_WORDS,
)
_NEOX_CONFIG = functools.partial(_hf, "GPTNeoXModel", "GPTNeoXConfig", **_SIZES, **_WORDS)

_ALL = [
    Family("ViT", _hf("ViTModel", "ViTConfig", **_SIZES, **_PICTURE), **_VIT),
    Family("DeiT", _hf("DeiTModel", "DeiTConfig", **_SIZES, **_PICTURE), **_VIT),
    Family(
        "DINOv2",
        _hf("Dinov2Model", "Dinov2Config", **_without(_SIZES, "intermediate_size"), **_PICTURE, drop_path_rate=0.3),
        given=pixels,
        block="encoder.layer.{}",
        value="encoder.layer.{}.attention." + ("attention.value" if _DINOV2_NESTED else "v_proj"),
        output="encoder.layer.{}.attention." + ("output.dense" if _DINOV2_NESTED else "o_proj"),
        branch="encoder.layer.{}.layer_scale1",
    ),
    Family(
        "CLIP (vision)",
        _hf("CLIPVisionModel", "CLIPVisionConfig", **_SIZES, **_PICTURE),
        given=pixels,
        block=_CLIP_BLOCK,
        value=_CLIP_BLOCK + ".self_attn.v_proj",
        output=_CLIP_BLOCK + ".self_attn.out_proj",
    ),
    Family("BERT", _hf("BertModel", "BertConfig", **_SIZES, **_WORDS), **_BERT),
    Family("RoBERTa", _hf("RobertaModel", "RobertaConfig", **_SIZES, **_WORDS), **_BERT),
    Family(
        "ALBERT",
        _hf("AlbertModel", "AlbertConfig", **{**_SIZES, "num_hidden_layers": 12}, **_WORDS, embedding_size=16),
        **_ALBERT,
        runs=(0,) * 12,
    ),
    Family(
        "ALBERT (2 groups)",
        _hf(
            "AlbertModel",
            "AlbertConfig",
            **{**_SIZES, "num_hidden_layers": 4},
            **_WORDS,
            embedding_size=16,
            num_hidden_groups=2,
        ),
        **_ALBERT,
        runs=(0, 0, 1, 1),
    ),
    Family(
        "DistilBERT",
        _hf("DistilBertModel", "DistilBertConfig", dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=64),
        given=text,
        block="transformer.layer.{}",
        value="transformer.layer.{}.attention.v_lin",
        output="transformer.layer.{}.attention.out_lin",
        after="transformer.layer.{}.sa_layer_norm",
        last="transformer.layer.{}.output_layer_norm",
        norm="post",
        parts=("attention", "norm", "mlp", "norm"),
    ),
    Family(
        "ModernBERT",
        _hf(
            "ModernBertModel", "ModernBertConfig", **_SIZES, **_WORDS, cls_token_id=1, sep_token_id=2, local_attention=4
        ),
        given=text,
        block="layers.{}",
        value="layers.{}.attn.Wqkv",
        output="layers.{}.attn.Wo",
        local=True,
    ),
    Family(
        "GPT-2",
        _hf("GPT2Model", "GPT2Config", n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32, **_WORDS),
        given=text,
        block="h.{}",
        value="h.{}.attn.c_attn",
        output="h.{}.attn.c_proj",
        causal=True,
    ),
    Family("GPT-NeoX (parallel)", _NEOX_CONFIG(use_parallel_residual=True), **_NEOX),
    Family("GPT-NeoX (one after another)", _NEOX_CONFIG(use_parallel_residual=False), **_NEOX),
    Family("OPT", _hf("OPTModel", "OPTConfig", **_OPT_SIZES), **_OPT),
    Family(
        "OPT (Post-LN)",
        _hf("OPTModel", "OPTConfig", **_OPT_SIZES, do_layer_norm_before=False),
        **_OPT,
        norm="post",
        after="decoder.layers.{}.self_attn_layer_norm",
        last="decoder.layers.{}.final_layer_norm",
        parts=("attention", "norm", "mlp", "norm"),
    ),
    Family("Llama", _hf("LlamaModel", "LlamaConfig", **_GQA), **_LLAMA),
    Family("Mistral", _hf("MistralModel", "MistralConfig", **_GQA, sliding_window=4), **_LLAMA),
    Family("Qwen3", _hf("Qwen3Model", "Qwen3Config", **_GQA, head_dim=12), **_LLAMA | dict(head_dim=12)),
    Family(
        "Gemma 2",
        _hf("Gemma2Model", "Gemma2Config", **_GQA, head_dim=12, sliding_window=4, attn_implementation="eager"),
        **_LLAMA | dict(head_dim=12, branch="layers.{}.post_attention_layernorm", gated=True),
    ),
    Family(
        "Gemma 3",
        _hf("Gemma3TextModel", "Gemma3TextConfig", **_GQA, head_dim=12, sliding_window=4),
        **_LLAMA | dict(head_dim=12, branch="layers.{}.post_attention_layernorm", gated=True),
    ),
    Family("SmolLM3", _hf("SmolLM3Model", "SmolLM3Config", **_GQA), **_LLAMA),
    Family("Phi-3", _hf("Phi3Model", "Phi3Config", **_GQA), **_LLAMA | dict(value="layers.{}.self_attn.qkv_proj")),
    Family(
        "Whisper (encoder)",
        _hf(
            "WhisperModel",
            "WhisperConfig",
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=1,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_source_positions=TOKENS,
            num_mel_bins=8,
            decoder_start_token_id=1,
            **_WORDS,
        ),
        given=sound,
        block="encoder.layers.{}",
        value="encoder.layers.{}.self_attn.v_proj",
        output="encoder.layers.{}.self_attn.out_proj",
    ),
    Family(
        "T5 (encoder)",
        _hf("T5EncoderModel", "T5Config", d_model=WIDTH, d_kv=12, num_layers=2, num_heads=4, d_ff=48, vocab_size=64),
        given=text,
        block="encoder.block.{}",
        value="encoder.block.{}.layer.0.SelfAttention.v",
        output="encoder.block.{}.layer.0.SelfAttention.o",
        kind="rms",
        head_dim=12,
    ),
    Family("timm ViT", _timm("vision_transformer", "VisionTransformer"), **_TIMM),
    Family(
        "timm ViT (q/k norm, LayerScale)",
        _timm("vision_transformer", "VisionTransformer", qk_norm=True, init_values=0.1),
        **_TIMM,
        branch="blocks.{}.ls1",
    ),
    Family(
        "torch encoder (Post-LN)",
        lambda: _encoder(),
        **_ENCODER,
        **_POST,
        given=padded_sequence_first,
        batch_first=False,
    ),
    Family(
        "torch encoder (Post-LN, batch first)", lambda: _encoder(batch_first=True), **_ENCODER, **_POST, given=padded
    ),
    Family(
        "torch encoder (Pre-LN)",
        lambda: _encoder(norm_first=True),
        **_ENCODER,
        given=padded_sequence_first,
        batch_first=False,
    ),
    Family(
        "torch encoder (Pre-LN, batch first)",
        lambda: _encoder(norm_first=True, batch_first=True),
        **_ENCODER,
        given=padded,
    ),
    Family(
        "around nn.MultiheadAttention",
        lambda: Stack(HandBlock(), HandBlock()),
        library="torch",
        given=array,
        block="blocks.{}",
        value="blocks.{}.attn",
        output="blocks.{}.attn",
        causal=None,
    ),
    Family("attention alone (Pre-LN)", lambda: Stack(ToyBlock(True), ToyBlock(True)), **_TOY),
    Family(
        "attention alone (no norm)", lambda: Stack(ToyBlock(False), ToyBlock(False)), **_TOY, norm="none", kind=None
    ),
]
FAMILIES = {family.name: family for family in _ALL}


@dataclass(frozen=True)
class Refused:
    """A model that cannot be looked at, and says so."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    given: Callable[[], Any] = field(repr=False)
    why: str
    says: str
    """Part of the message."""
    library: str = "timm"


class ExtraKey(HandBlock):
    """torch's attention with a token of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_zero_attn=True)


REFUSED = [
    Refused(
        "timm EVA", _timm("eva", "Eva"), image, "its value bias is put together again in every call", "qkv did not run"
    ),
    Refused(
        "timm BEiT",
        _timm("beit", "Beit"),
        image,
        "its value bias is put together again in every call",
        "qkv did not run",
    ),
    Refused(
        "timm EVA (separate q, k, v)",
        _timm("eva", "Eva", qkv_fused=False),
        image,
        "v_proj beside proj is no layout that is known",
        "v_proj.weight looks like attention's values",
    ),
    Refused(
        "timm ViT with parallel scaling blocks",
        lambda: _timm("vision_transformer", "VisionTransformer", block_fn=_timm_block("ParallelScalingBlock"))(),
        image,
        "one weight has q, k, v and the MLP's first layer",
        "no attention found",
    ),
    Refused(
        "nn.MultiheadAttention with add_zero_attn or bias_k",
        lambda: Stack(ExtraKey()),
        array,
        "the token it adds has no place in A",
        "adds a token of its own",
        library="torch",
    ),
]


def _timm_block(name: str) -> Any:
    timm_models.timm()
    from timm.models import vision_transformer

    return getattr(vision_transformer, name)


def usable() -> list[str]:
    return [f.name for f in _ALL if f.library != "timm" or timm_models.available()]
