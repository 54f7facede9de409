"""Where norms stand and what they do: of checkpoints against live models that are heard while they run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from adversary.numbers.family_cases import BART_SIZES, GPT_SIZES, STABLE, WAV, waves
from support.families import FAMILIES, GQA, HEADS, SIZES, WIDTH, WORDS, pixels, randomise, text
from torch import Tensor, nn
from typer.testing import CliRunner

from oversmooth import InputError
from oversmooth.anatomy import locate
from oversmooth.anatomy.live import norm_form
from oversmooth.cli import app
from oversmooth.diagnosis.weights import diagnose_weights, layer_spectrum

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def sound() -> dict[str, Tensor]:
    return waves("plain")


def words() -> dict[str, Tensor]:
    return {"input_ids": text()["input_ids"]}


LLAMAS = (
    "apertus", "arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4",
    "granite", "llama", "mistral", "nemotron", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen3", "seed_oss",
    "smollm3", "stablelm", "starcoder2", "vaultgemma",
)  # fmt: skip
BERTS = (
    "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "electra", "ernie", "esm", "megatron-bert",
    "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
BARTS = (
    "bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "mvp", "pegasus", "plbart",
)  # fmt: skip
VIEWS = ("vit", "deit", "siglip_vision_model", "clip_vision_model")
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    **{name: (name, GQA, words) for name in LLAMAS},
    **{name: (name, dict(**SIZES, **WORDS), words) for name in BERTS},
    **{name: (name, BART_SIZES, words) for name in BARTS},
    "xmod (Pre-LN)": ("xmod", dict(**SIZES, **WORDS, pre_norm=True), words),
    **{name: (name, GPT_SIZES, words) for name in ("gpt2", "gpt_bigcode", "openai-gpt")},
    "codegen": ("codegen", dict(**GPT_SIZES, n_ctx=32, rotary_dim=4), words),
    "gptj": ("gptj", dict(**GPT_SIZES, rotary_dim=4), words),
    **{name: (name, dict(**SIZES, image_size=12, patch_size=4), pixels) for name in VIEWS},
    **{name: (name, WAV, sound) for name in ("wav2vec2", "hubert", "unispeech")},
    **{f"{name} (stable)": (name, STABLE, sound) for name in ("wav2vec2", "hubert", "unispeech")},
    "wavlm": ("wavlm", dict(**WAV, num_buckets=8, max_bucket_distance=16), sound),
    "wavlm (stable)": ("wavlm", dict(**STABLE, num_buckets=8, max_bucket_distance=16), sound),
    "data2vec-audio": ("data2vec-audio", dict(**WAV, conv_pos_kernel_size=3), sound),
    "modernbert-decoder": (
        "modernbert-decoder",
        dict(**SIZES, **WORDS, cls_token_id=1, sep_token_id=2, local_attention=4),
        words,
    ),
}


def make(name: str) -> tuple[nn.Module, Any]:
    model_type, settings, given = CASES[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **settings)
    model = randomise(transformers.AutoModel.from_config(config)).eval()
    if model_type == "xmod":
        model.set_default_language("en_XX")
    return model, given()


def tokens_in(*given: Any) -> Tensor | None:
    for value in given:
        if isinstance(value, (tuple, list)):
            value = tokens_in(*value)
        if isinstance(value, Tensor) and value.is_floating_point() and value.shape[-1] == WIDTH:
            return value.detach().reshape(-1, WIDTH)
    return None


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and bool((a - b).norm() < 1e-4 * b.norm())


def seen(model: nn.Module, given: Any, block: str, value: str, output: str) -> tuple[str, str | None, Any]:
    """(position, name of the norm, γ times what σ leaves): who made what values are made of, and who reads the sum."""
    modules = dict(model.named_modules())
    got: dict[str, Tensor] = {}
    gave: dict[str, Tensor] = {}
    for name, module in modules.items():
        if name == block or name.startswith(block + "."):

            def hear(_: nn.Module, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
                x, y = tokens_in(*args, *kwargs.values()), tokens_in(out)
                if x is not None and y is not None:
                    got.setdefault(name, x), gave.setdefault(name, y)
                elif x is not None:
                    got.setdefault(name, x)

            module.register_forward_hook(hear, with_kwargs=True)
    encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    with torch.no_grad():
        encoder(**given)
    norms = [
        name
        for name in gave
        if not list(modules[name].children()) and [p.ndim for p in modules[name].parameters()] in ([1], [1, 1])
    ]
    for name in norms:
        if same(gave[name], got[value]):
            return "pre", name, (got[name], gave[name])
    for name in norms:
        if same(got[value], got[block]) and same(got[name], got[block] + gave[output]):
            return "post", name, (got[name], gave[name])
    return "none", None, None


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_says_what_the_live_model_does(name, tmp_path):
    model, given = make(name)
    model.save_pretrained(tmp_path)
    live, disk = locate(model).layers[-1], locate(tmp_path).layers[-1]
    value, output = live.value_module[0], live.output_module[0]
    if model.config.model_type == "wavlm":  # its projections do not run: torch's own function takes their weights
        value = output = live.name
    position, norm, passed = seen(model, given, live.block, value, output)
    for layer in (live, disk):
        assert layer.norm_position == position
        if position == "pre":
            x, y = passed
            z = x - x.mean(-1, keepdim=True) if layer.norm.kind == "layer" else x
            z = z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.gamma
            z = z if layer.norm.beta is None else z + layer.norm.beta
            torch.testing.assert_close(z, y, rtol=1e-2, atol=1e-2)
    assert position != "pre" or live.norm.name == norm


# Files that do not say it


@pytest.fixture
def unknown(tmp_path):
    FAMILIES["Llama"].make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "brand_new"}))
    return tmp_path


def test_a_model_type_that_nobody_knows_has_an_unknown_norm(unknown):
    found = locate(unknown)
    assert {layer.norm_position for layer in found} == {"unknown"}
    assert {layer.norm for layer in found} == {None}
    (remark,) = found.remarks
    assert "not known from these files (model_type brand_new)" in remark
    assert "--norm" in remark
    assert set(layer_spectrum(found.layers[0]).joined) == {"raw"}
    assert remark in diagnose_weights("x", found).remarks
    live = FAMILIES["Llama"].make()
    live.config.model_type = "brand_new"
    assert locate(live).layers[0].norm_position == "pre"  # seen when it runs
    (unknown / "config.json").unlink()
    found = locate(unknown, heads=HEADS)
    assert found.layers[0].norm_position == "unknown"
    assert any("no model_type" in remark for remark in found.remarks)


def test_whoever_knows_the_norm_says_it(unknown):
    layer = locate(unknown, norm="pre").layers[0]
    assert (layer.norm_position, layer.norm.name) == ("pre", "layers.0.input_layernorm")
    assert set(layer_spectrum(layer).joined) == {"raw", "folded"}
    assert not locate(unknown, norm="pre").remarks
    assert locate(unknown, norm="post").layers[0].norm_position == "post"
    with pytest.raises(InputError, match="norm is 'unknown'"):
        locate(unknown, norm="unknown")


def test_the_command_says_and_takes_it(unknown, tmp_path, monkeypatch):
    monkeypatch.setenv("OVERSMOOTH_CACHE", str(tmp_path / "cache"))
    said = " ".join(CliRunner().invoke(app, ["spectrum", str(unknown)]).output.split())
    assert "the position of the norm is not known from these files" in said
    named = CliRunner().invoke(app, ["spectrum", str(unknown), "--norm", "pre"])
    assert named.exit_code == 0
    assert "not known" not in named.output


def test_norms_stored_with_old_names(tmp_path):
    """As in the first BERTs: gamma and beta."""
    model = FAMILIES["BERT"].make()
    model.config.save_pretrained(tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = {}
    for name, value in model.state_dict().items():
        ending = next((each for each in old if name.endswith(each)), None)
        state[name if ending is None else name.removesuffix(ending) + old[ending]] = value
    torch.save(state, tmp_path / "pytorch_model.bin")
    layer = locate(tmp_path).layers[1]
    norm = model.encoder.layer[1].attention.output.LayerNorm
    assert layer.norm_position == "post"
    assert torch.equal(layer.norm.gamma, norm.weight)
    assert torch.equal(layer.norm.beta, norm.bias)


def test_a_tower_has_a_type_of_its_own(tmp_path):
    """Gemma 3 with pictures: 1 + γ in the text, γ in the pictures, whatever the whole is called."""
    config = transformers.Gemma3Config(
        text_config=dict(**GQA, head_dim=8, model_type="gemma3_text"),
        vision_config=dict(**SIZES, image_size=28, patch_size=14, model_type="siglip_vision_model"),
        mm_tokens_per_image=4,
    )
    model = randomise(transformers.Gemma3Model(config))
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        words = locate(source, stack="language").layers[0].norm
        views = locate(source, stack="vision").layers[0].norm
        assert (words.kind, words.offset) == ("rms", 1.0)
        assert (views.kind, views.offset) == ("layer", 0.0)


def test_a_norm_before_the_mlp_is_not_attentions():
    """A live block of unknown type whose only norm is the MLP's."""
    block = nn.ModuleDict({"self_attn": nn.Module(), "post_attention_layernorm": nn.LayerNorm(WIDTH)})
    block["self_attn"].v_proj, block["self_attn"].o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    layer = locate(nn.ModuleList([block]), heads=HEADS).layers[0]
    assert (layer.norm_position, layer.norm) == ("none", None)


# The form of a live norm


class OnePlus(nn.Module):
    def __init__(self, layer: bool, loud: bool = False) -> None:
        super().__init__()
        self.weight, self.layer, self.loud = nn.Parameter(0.3 * torch.randn(WIDTH)), layer, loud

    def forward(self, x: Tensor) -> Tensor:
        if self.loud:
            raise RuntimeError("wants more than tokens")
        x = x - x.mean(-1, keepdim=True) if self.layer else x
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + self.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_norm_does_is_tried(dtype):
    torch.manual_seed(0)
    for norm, form in [
        (OnePlus(True), ("layer", 1.0)),
        (OnePlus(False), ("rms", 1.0)),
        (randomise(nn.LayerNorm(WIDTH)), ("layer", 0.0)),
        (randomise(nn.RMSNorm(WIDTH)), ("rms", 0.0)),
        (nn.BatchNorm1d(WIDTH), None),
        (OnePlus(True, loud=True), None),
        (nn.PReLU(WIDTH), None),
        (nn.Linear(WIDTH, WIDTH), None),
        (nn.LayerNorm(WIDTH, device="meta"), ("layer", 0.0)),  # known by its class
    ]:
        assert norm_form(norm.to(dtype)) == form, norm


def test_trying_a_norm_leaves_state_chance_and_hooks_alone():
    stateful = nn.BatchNorm1d(WIDTH)
    norm_form(stateful)
    assert int(stateful.num_batches_tracked) == 0
    norm, heard = OnePlus(True), []
    norm.register_forward_hook(lambda *_: heard.append(1))
    before = torch.get_rng_state()
    assert norm_form(norm) == ("layer", 1.0)
    assert torch.equal(before, torch.get_rng_state())
    assert not heard
