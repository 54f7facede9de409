"""Small random models of every family that is claimed to work, their inputs, and where their parts are.

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
from support.blocks import Block, Stack
from torch import Tensor, nn

WIDTH, LAYERS, HEADS, TOKENS = 32, 2, 4, 8
TRANSFORMERS = int(version("transformers").split(".")[0])
"""4 or 5: some modules have other names, and some models take other masks."""

Modules = dict[str, nn.Module]
Sequence = tuple[int, Tensor]
"""A row of the batch, and the places in it of the tokens that are measured together."""


@dataclass(frozen=True)
class Step:
    """A part of the block, and where the stream can be read after it.

    read: "in:module" (what a reader gets), "out:module" (what a norm on the stream gives), "end" of the block, "sum"
    (nobody reads it: what it added to, with the factor), or "note:key" of a module written here.
    """

    part: str
    read: str


END = Step("mlp", "end")


@dataclass(frozen=True)
class Family:
    """A model, and what must be found in it. Names of modules have {} for the number of the layer."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    given: Callable[..., Any] = field(repr=False)
    """How ("padded", "plain", "left") -> what the model gets."""
    block: str
    value: str
    """The module that gets what values are made of."""
    output: str
    """The module that gives what W_O and its bias gave."""
    library: str = "transformers"
    packing: str = "separate"
    """Where values lie in the weight: separate, stacked, conv (stacked, transposed), per head, per group or codegen."""
    reader: str = ""
    """Pre-LN: the module that reads the stream after attention."""
    after: str = ""
    """Post-LN: the norm after the addition."""
    last: str = ""
    """Post-LN: the norm at the end of the block."""
    steps: tuple[Step, ...] = ()
    """The parts of the block, where `reader`, `after` and `last` do not tell them."""
    other_course: tuple[Step, ...] = ()
    """Another way to tell the parts apart that is as right."""
    branch: str = ""
    """The module that gives what is added to the stream, if a norm or the like stands between."""
    factor: float | str | Callable[[Modules, int], Tensor] = field(default=1.0, repr=False)
    """What multiplies attention's output: a number, a parameter of the block, or what comes of one."""
    keep: float = 1.0
    """What multiplies the stream that attention adds to."""
    base: int = 0
    """Which state attention adds to: 0 what enters, 1 what the first part left, and so on."""
    beside: tuple[tuple[str, float], ...] = ()
    """Modules whose outputs, so often, are added together with attention's (a Mamba, a parallel MLP)."""
    gated: str = ""
    """Why there is no verdict: "token" (a factor by token) or "sink" (rows sum to less than one)."""
    norm: str = "pre"
    """Where attention's norm stands: pre, post or none; "" where none of the words fits."""
    kind: str | None = "layer"
    kv_heads: int = HEADS
    head_dim: int = WIDTH // HEADS
    causal: bool | None = False
    """What anatomy says before anything ran."""
    local: bool = False
    """Whether some layers have a window."""
    runs: tuple[int, ...] = tuple(range(LAYERS))
    """The number of the layer, run by run."""
    others: tuple[int, ...] = ()
    """The numbers of blocks without attention, of which tokens alone are measured."""
    batch_first: bool = True
    weights_of: str = ""
    """The module that returns the weights of eager attention, where the model does not."""
    mix: Callable[..., Tensor] | None = field(default=None, repr=False)
    """Attention's output where it is more than A times values: a gate, a norm on the values."""
    also: tuple[str, ...] = ()
    """Modules that `mix` wants to hear."""
    product: Callable[[Modules, int], list[Tensor]] | None = field(default=None, repr=False)
    """W_V where it is no single weight: all that may be called so."""
    settings: dict[str, Any] = field(default_factory=dict)
    """For `diagnose` and `locate`."""
    on_disk: bool = True
    """Whether a checkpoint holds all that is needed."""
    massive: str = ""
    """The weight whose first row, times 1e3, makes a massive token of the stream."""
    may_decline: bool = False
    """Whether a remark and no number is right as well."""
    tokens_of: Callable[[Any], Tensor | None] | None = field(default=None, repr=False)
    """The valid tokens, (batch, n), where the mask given is not of the stream's tokens."""
    sequences_of: Callable[[Any], list[Sequence]] | None = field(default=None, repr=False)
    """What is measured together, where it is not a row of the batch."""

    def make(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        return copy.deepcopy(_made(self.build)).to(dtype)

    def inputs(self, dtype: torch.dtype = torch.float32, how: str = "padded") -> Any:
        return _cast(self.given(how), dtype)

    def mask(self, how: str = "padded") -> Tensor | None:
        """The valid tokens, (batch, n); None: all."""
        given = self.given(how)
        if self.tokens_of is not None:
            return self.tokens_of(given)
        if isinstance(given, Tensor):
            return None
        if "src_key_padding_mask" in given:
            return ~given["src_key_padding_mask"]
        return given["attention_mask"].bool() if "attention_mask" in given else None

    def rows(self) -> list[slice | Tensor]:
        """For each input, the valid tokens."""
        mask = self.mask()
        return [slice(None)] * 2 if mask is None else list(mask)

    def together(self, how: str, like: Tensor) -> list[Sequence]:
        """What is measured together; whoever is alone is left out. like: an array of the stream."""
        if self.sequences_of is not None:
            return self.sequences_of(self.given(how))
        mask = self.mask(how)
        keep = torch.ones(like.shape[:2], dtype=torch.bool) if mask is None else mask
        return [(i, row.nonzero()[:, 0]) for i, row in enumerate(keep) if int(row.sum()) > 1]

    def other_ways(self) -> list[str]:
        """To give inputs, beside the usual one."""
        left = self.mask() is not None and self.tokens_of is None and self.sequences_of is None
        return ["plain", "left"] if left and len(self.runs) < 9 else ["plain"]  # ALBERT's twelve take long

    @property
    def course(self) -> tuple[Step, ...]:
        """The parts of the block, in order."""
        if self.steps:
            return self.steps
        if self.after:
            first = Step("attention", f"in:{self.after}"), Step("norm", f"out:{self.after}")
            return *first, Step("mlp", f"in:{self.last}"), Step("norm", "end")
        if self.beside:
            return Step("attention", "sum"), END
        return (Step("attention", f"in:{self.reader}"), END) if self.reader else (Step("attention", "end"),)

    @property
    def attention_step(self) -> int:
        return next(i for i, step in enumerate(self.course) if step.part.startswith("attention"))

    def scale(self, modules: Modules, place: int) -> float | Tensor:
        if callable(self.factor):
            return self.factor(modules, place)
        if isinstance(self.factor, float):
            return self.factor
        module, _, parameter = f"{self.block.format(place)}.{self.factor}".rpartition(".")
        return getattr(modules[module], parameter).detach().double()


def described(
    name: str, build: Callable[[], nn.Module], given: Any, block: str, value: str, output: str, **more: Any
) -> Family:
    """A family whose modules are named as they are within a block."""
    for key in ("reader", "after", "last", "branch", "weights_of"):
        if key in more:
            more[key] = f"{block}.{more[key]}"
    more["beside"] = tuple((f"{block}.{module}", times) for module, times in more.get("beside", ()))
    return Family(name, build, given, block, f"{block}.{value}", f"{block}.{output}", **more)


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
def _made(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():  # whoever asks later finds it made, and draws the same numbers
        torch.manual_seed(0)
        model = randomise(build()).eval()
    if hasattr(getattr(model, "config", None), "use_cache"):
        model.config.use_cache = False  # with a cache, Llama does not see that sequences are packed
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.rpartition(".")[2] in ("gate_attn", "gate_ffn", "sinks", "zeta"):
                p.copy_(torch.linspace(0.7, -0.5, p.numel()).reshape(p.shape))  # neither shut nor all alike
    return model


# What models get


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def text(how: str = "padded") -> dict[str, Tensor]:
    ids = torch.randint(5, 60, (2, TOKENS), generator=torch.Generator().manual_seed(7))
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, 5:] = 0
    if how == "plain":
        return {"input_ids": ids}
    return {"input_ids": ids, "attention_mask": mask.flip(1) if how == "left" else mask}


def pixels(_how: str = "") -> dict[str, Tensor]:
    return {"pixel_values": _normal(2, 3, 12, 12)}


def image(_how: str = "") -> Tensor:
    return _normal(2, 3, 12, 12)


def sound(_how: str = "") -> dict[str, Tensor]:
    return {"input_features": _normal(2, 8, 2 * TOKENS)}


def array(_how: str = "") -> Tensor:
    return _normal(2, TOKENS, WIDTH)


def padded(how: str = "padded") -> dict[str, Tensor]:
    hidden = ~text()["attention_mask"].bool()
    if how == "plain":
        return {"src": array()}
    return {"src": array(), "src_key_padding_mask": hidden.flip(1) if how == "left" else hidden}


def padded_sequence_first(how: str = "padded") -> dict[str, Tensor]:
    given = padded(how)
    return {**given, "src": given["src"].transpose(0, 1).contiguous()}


# Models written by hand


class HandBlock(Block):
    """A block as people write it around torch's attention."""

    def __init__(self) -> None:
        super().__init__(WIDTH, nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dropout=0.1), 48)


class ToyAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.to_qkv, self.to_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1))
        mask, dropout = None if seen is None else seen[:, None, None], 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


class ToyBlock(nn.Module):
    """Attention and nothing else."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.attn = ToyAttention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm1(x))


def _encoder(**settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, **settings)
    # Nested arrays only come with batch_first and Post-LN; torch warns of asking for them elsewhere.
    nested = settings.get("batch_first", False) and not settings.get("norm_first", False)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=nested)


# Families

SIZES = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=48)
WORDS = dict(vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
_PICTURE = dict(image_size=12, patch_size=4)
GQA = dict(**SIZES, **WORDS, num_key_value_heads=2)
_OPT_SIZES = dict(
    **{name: value for name, value in SIZES.items() if name != "intermediate_size"},
    **WORDS, ffn_dim=48, word_embed_proj_dim=WIDTH, max_position_embeddings=32,
)  # fmt: skip
_WHISPER_SIZES = dict(
    d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=1, encoder_attention_heads=HEADS, decoder_attention_heads=2,
    encoder_ffn_dim=48, decoder_ffn_dim=48, decoder_start_token_id=1, **WORDS,
)  # fmt: skip


def hf(family: str, model: str = "Model", **settings: Any) -> Callable[[], nn.Module]:
    """A model of transformers: its class is called family and model, its configuration family and Config."""

    def build() -> nn.Module:
        import transformers

        return getattr(transformers, family + model)(getattr(transformers, family + "Config")(**settings))

    return build


def _timm(module: str, model: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        timm_models.timm()
        sizes = dict(img_size=12, patch_size=4, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, num_classes=5)
        return getattr(importlib.import_module(f"timm.models.{module}"), model)(**sizes, **settings)

    return build


def _renamed(new: str, old: str) -> str:
    """A module's name in transformers 5, and in 4."""
    return new if TRANSFORMERS > 4 else old


def _has_class(file: str, name: str) -> bool:
    """Whether a file of transformers defines this class: read, since importing it would take seconds."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    return f"\nclass {name}(" in (Path(spec.origin).parent / file).read_text(encoding="utf-8")


# Its attention got ViT's names within version 5.
_DINOV2_NESTED = _has_class("models/dinov2/modeling_dinov2.py", "Dinov2SelfAttention")
_VIT = dict(
    given=pixels,
    block=_renamed("layers.{}", "encoder.layer.{}"),
    value=_renamed("attention.v_proj", "attention.attention.value"),
    output=_renamed("attention.o_proj", "attention.output.dense"),
    reader="layernorm_after",
)
_BERT = dict(
    given=text, block="encoder.layer.{}", value="attention.self.value", output="attention.output.dense",
    after="attention.output.LayerNorm", last="output.LayerNorm", norm="post",
)  # fmt: skip
_ALBERT = dict(
    given=text, block="encoder.albert_layer_groups.{}.albert_layers.0", value="attention.value",
    output="attention.dense", after="attention.LayerNorm", last="full_layer_layer_norm", norm="post",
)  # fmt: skip
_ALBERT_SIZES = dict(**SIZES, **WORDS, embedding_size=16)
LLAMA = dict(
    given=text, block="layers.{}", value="self_attn.v_proj", output="self_attn.o_proj", causal=True, kind="rms",
    reader="post_attention_layernorm", kv_heads=2, massive="embed_tokens.weight",
)  # fmt: skip
_GEMMA = LLAMA | dict(
    head_dim=12, branch="post_attention_layernorm", reader="pre_feedforward_layernorm", gated="token", massive=""
)
_OPT = dict(
    given=text, block="decoder.layers.{}", value="self_attn.v_proj", output="self_attn.out_proj", causal=True
)  # fmt: skip
_NEOX = dict(
    given=text, block="layers.{}", value="attention.query_key_value", output="attention.dense", causal=True,
    packing="per head", massive="embed_in.weight",
)  # fmt: skip
_TIMM = dict(
    given=image, block="blocks.{}", value="attn.qkv", output="attn.proj", reader="norm2", causal=None,
    packing="stacked", library="timm",
)  # fmt: skip
_ENCODER = dict(
    block="layers.{}", value="self_attn", output="self_attn", causal=None, packing="stacked", library="torch"
)
_PRE, _POST = dict(reader="norm2"), dict(norm="post", after="norm1", last="norm2")
_SEQUENCE_FIRST = dict(given=padded_sequence_first, batch_first=False)
_TOY = dict(
    given=array, block="blocks.{}", value="attn.to_qkv", output="attn.to_out", causal=None, packing="stacked",
    library="toy",
)  # fmt: skip

_ALL = [
    described("ViT", hf("ViT", **SIZES, **_PICTURE), **_VIT, massive="embeddings.cls_token"),
    described("DeiT", hf("DeiT", **SIZES, **_PICTURE), **_VIT),
    described(
        "DINOv2",
        hf("Dinov2", hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, **_PICTURE, drop_path_rate=0.3),
        pixels, "encoder.layer.{}", "attention." + ("attention.value" if _DINOV2_NESTED else "v_proj"),
        "attention." + ("output.dense" if _DINOV2_NESTED else "o_proj"), branch="layer_scale1",
        factor="layer_scale1.lambda1", reader="norm2",
    ),
    described(
        "CLIP (vision)", hf("CLIPVision", **SIZES, **_PICTURE), pixels,
        _renamed("encoder.layers.{}", "vision_model.encoder.layers.{}"), "self_attn.v_proj", "self_attn.out_proj",
        reader="layer_norm2",
    ),
    described("BERT", hf("Bert", **SIZES, **WORDS), **_BERT),
    described("RoBERTa", hf("Roberta", **SIZES, **WORDS), **_BERT),
    described("ALBERT", hf("Albert", **_ALBERT_SIZES | dict(num_hidden_layers=12)), **_ALBERT, runs=(0,) * 12),
    described(
        "ALBERT (2 groups)", hf("Albert", **_ALBERT_SIZES | dict(num_hidden_layers=4), num_hidden_groups=2), **_ALBERT,
        runs=(0, 0, 1, 1),
    ),
    described(
        "DistilBERT", hf("DistilBert", dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=64), text,
        "transformer.layer.{}", "attention.v_lin", "attention.out_lin", after="sa_layer_norm", last="output_layer_norm",
        norm="post",
    ),
    described(
        "ModernBERT", hf("ModernBert", **SIZES, **WORDS, cls_token_id=1, sep_token_id=2, local_attention=4), text,
        "layers.{}", "attn.Wqkv", "attn.Wo", reader="mlp_norm", packing="stacked", local=True,
    ),
    described(
        "GPT-2", hf("GPT2", n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32, **WORDS), text, "h.{}", "attn.c_attn",
        "attn.c_proj", reader="ln_2", packing="conv", causal=True, massive="wte.weight",
    ),
    described(
        "GPT-NeoX (parallel)", hf("GPTNeoX", **SIZES, **WORDS, use_parallel_residual=True), **_NEOX,
        beside=(("mlp", 1.0),),
    ),
    described(
        "GPT-NeoX (one after another)", hf("GPTNeoX", **SIZES, **WORDS, use_parallel_residual=False), **_NEOX,
        reader="post_attention_layernorm",
    ),
    described("OPT", hf("OPT", **_OPT_SIZES), **_OPT, reader="final_layer_norm"),
    described(
        "OPT (Post-LN)", hf("OPT", **_OPT_SIZES, do_layer_norm_before=False), **_OPT, norm="post",
        after="self_attn_layer_norm", last="final_layer_norm",
    ),
    described("Llama", hf("Llama", **GQA), **LLAMA),
    described("Mistral", hf("Mistral", **GQA, sliding_window=4), **LLAMA),
    described("Qwen3", hf("Qwen3", **GQA, head_dim=12), **LLAMA, head_dim=12),
    described("Gemma 2", hf("Gemma2", **GQA, head_dim=12, sliding_window=4, attn_implementation="eager"), **_GEMMA),
    described("Gemma 3", hf("Gemma3Text", **GQA, head_dim=12, sliding_window=4), **_GEMMA),
    described("SmolLM3", hf("SmolLM3", **GQA), **LLAMA),
    described("Phi-3", hf("Phi3", **GQA), **LLAMA | dict(value="self_attn.qkv_proj"), packing="stacked"),
    described(
        "Whisper (encoder)", hf("Whisper", **_WHISPER_SIZES, max_source_positions=TOKENS, num_mel_bins=8), sound,
        "encoder.layers.{}", "self_attn.v_proj", "self_attn.out_proj", reader="final_layer_norm",
    ),
    described(
        "T5 (encoder)",
        hf("T5", "EncoderModel", d_model=WIDTH, d_kv=12, num_layers=2, num_heads=4, d_ff=48, vocab_size=64), text,
        "encoder.block.{}", "layer.0.SelfAttention.v", "layer.0.SelfAttention.o", reader="layer.1.layer_norm",
        kind="rms", head_dim=12,
    ),
    described("timm ViT", _timm("vision_transformer", "VisionTransformer"), **_TIMM, massive="cls_token"),
    described(
        "timm ViT (q/k norm, LayerScale)",
        _timm("vision_transformer", "VisionTransformer", qk_norm=True, init_values=0.1), **_TIMM, branch="ls1",
        factor="ls1.gamma",
    ),
    described("torch encoder (Post-LN)", lambda: _encoder(), **_ENCODER, **_POST, **_SEQUENCE_FIRST),
    described(
        "torch encoder (Post-LN, batch first)", lambda: _encoder(batch_first=True), **_ENCODER, **_POST, given=padded
    ),
    described("torch encoder (Pre-LN)", lambda: _encoder(norm_first=True), **_ENCODER, **_PRE, **_SEQUENCE_FIRST),
    described(
        "torch encoder (Pre-LN, batch first)", lambda: _encoder(norm_first=True, batch_first=True), **_ENCODER, **_PRE,
        given=padded,
    ),
    described(
        "around nn.MultiheadAttention", lambda: Stack(HandBlock(), HandBlock()),
        **_ENCODER | _PRE | dict(given=array, block="blocks.{}", value="attn", output="attn"),
    ),
    described("attention alone (Pre-LN)", lambda: Stack(ToyBlock(True), ToyBlock(True)), **_TOY),
    described(
        "attention alone (no norm)", lambda: Stack(ToyBlock(False), ToyBlock(False)), **_TOY, norm="none", kind=None
    ),
]  # fmt: skip
FAMILIES = {family.name: family for family in _ALL}


@dataclass(frozen=True)
class Refused:
    """A model that cannot be looked at."""

    name: str
    build: Callable[[], nn.Module] = field(repr=False)
    given: Callable[[], Any] = field(repr=False)
    says: tuple[str, ...]
    """The refusal has one of these."""
    why: str = ""
    """What docs/models.md says in place of the refusal."""
    library: str = "transformers"

    @property
    def usable(self) -> bool:
        return self.library != "timm" or timm_models.available()


class ExtraKey(HandBlock):
    """torch's attention with a token of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_zero_attn=True)


def _parallel_scaling() -> nn.Module:
    timm_models.timm()
    from timm.models.vision_transformer import ParallelScalingBlock

    return _timm("vision_transformer", "VisionTransformer", block_fn=ParallelScalingBlock)()


_NO_BIAS = dict(
    given=image, says=("qkv did not run",), why="its value bias is put together again in every call", library="timm"
)
REFUSED = [
    Refused("timm EVA", _timm("eva", "Eva"), **_NO_BIAS),
    Refused("timm BEiT", _timm("beit", "Beit"), **_NO_BIAS),
    Refused(
        "timm EVA (separate q, k, v)", _timm("eva", "Eva", qkv_fused=False), image,
        ("v_proj.weight looks like attention's values",), "v_proj beside proj is no layout that is known", "timm",
    ),
    Refused(
        "timm ViT with parallel scaling blocks", _parallel_scaling, image, ("no attention found",),
        "one weight has q, k, v and the MLP's first layer", "timm",
    ),
    Refused(
        "nn.MultiheadAttention with add_zero_attn or bias_k", lambda: Stack(ExtraKey()), array,
        ("adds a token of its own",), "the token it adds has no place in A", "torch",
    ),
]  # fmt: skip


def usable() -> list[str]:
    return [f.name for f in _ALL if f.library != "timm" or timm_models.available()]
