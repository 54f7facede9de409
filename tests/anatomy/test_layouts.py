"""Packing, factors and gates of families that have ways of their own, and families that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from adversary.numbers import family_oracle
from adversary.numbers.family_cases import CASES, REFUSED
from support.families import FAMILIES, GQA, HEADS, SIZES, WIDTH, Family, run
from torch import nn

from oversmooth import InputError
from oversmooth.anatomy import locate

PACKED = [name for name, case in CASES.items() if case.library == "transformers" and case.on_disk and not case.product]
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def layers(name: str, dtype: torch.dtype = torch.float32) -> list:
    return locate(CASES[name].make(dtype), **CASES[name].settings).layers


def changed(name: str, **settings: object) -> Family:
    """A family whose model has other settings."""

    def build() -> nn.Module:
        model = CASES[name].build()
        for key, value in settings.items():
            setattr(model.config, key, value)
        return type(model)(model.config)

    return replace(CASES[name], build=build)


@pytest.mark.parametrize("name", [name for name in PACKED if name not in FAMILIES])
@pytest.mark.parametrize("dim", [0, -1])
def test_join_is_the_inverse_of_split(name, dim):
    layer = layers(name)[0]
    W = layer.weights.read(f"{layer.name}.{layer.layout.value}")
    W = W if dim == 0 else W.mT
    rest, values = layer.split(W, dim)
    assert values.shape[dim - 1 if dim else 0] == layer.kv_heads
    assert torch.equal(layer.join(rest, values, dim), W)
    _, twice = layer.split(layer.join(rest, values * 2, dim), dim)
    assert torch.equal(twice, values * 2)


def test_values_of_latent_attention_are_a_product_and_cannot_be_split():
    layer = layers("DeepSeek-V3")[0]
    assert layer.values_normed
    assert layer.W_V.shape == (HEADS, WIDTH, 8)
    assert torch.linalg.matrix_rank(layer.W_V.transpose(0, 1).flatten(1)) == 16
    with pytest.raises(InputError, match="a product of several"):
        layer.split(torch.ones(20, WIDTH))
    assert "product" in layer.cannot_steer
    assert "outside" in layers("DeBERTa")[0].cannot_steer
    assert layers("Phi")[0].cannot_steer is None


def test_latent_attention_with_biases(tmp_path):
    case = changed("DeepSeek-V3", attention_bias=True)
    model = case.make()
    model.save_pretrained(tmp_path)
    located = (locate(model).layers[1], locate(tmp_path).layers[1])
    heard = family_oracle.listen(case, model)
    run(model, case.inputs())
    x, both = (heard[1].heard[each] for each in ("in:" + case.value, "out:layers.{}.self_attn.kv_b_proj"))
    V = both.unflatten(-1, (HEADS, -1))[..., -case.head_dim :].transpose(1, 2)
    for layer in located:
        torch.testing.assert_close(layer.values(x), V, rtol=1e-4, atol=1e-4)
        assert torch.equal(layer.output_bias, model.layers[1].self_attn.o_proj.bias)


def test_latent_attention_in_half_precision_is_multiplied_in_single():
    exact, half = (layers("DeepSeek-V3", dtype)[0] for dtype in (torch.float64, torch.bfloat16))
    assert half.W_V.dtype == torch.float32
    assert float((half.W_V - exact.W_V).norm() / exact.W_V.norm()) < 5e-3


def test_a_gate_beside_the_queries(tmp_path):
    """Qwen3-Next: linear attention in other layers, and a gate that takes a share of every row."""
    model = CASES["Qwen3-Next (linear, then full)"].make()
    model.save_pretrained(tmp_path)
    for found in (locate(model), locate(tmp_path)):
        (layer,) = found
        attention = model.layers[1].self_attn
        assert torch.equal(layer.W_V[2], attention.v_proj.weight[8:16].T)
        assert torch.equal(layer.W_O[2], attention.o_proj.weight[:, 16:24].T)
        assert layer.leak == "a gate"
        assert (layer.norm_position, layer.norm.kind, layer.norm.offset) == ("pre", "rms", 1.0)
        assert any("no attention of a known layout in 1 " in remark for remark in found.remarks)


def test_sinks_take_a_share_of_every_row():
    assert {layer.leak for layer in layers("GPT-OSS")} == {"sinks"}
    assert {layer.leak for layer in layers("Granite")} == {None}


def test_the_linear_attention_of_other_layers_is_left_out():
    found = locate(CASES["MiniMax (linear, then full)"].make())
    assert any("no attention of a known layout in 1 of 2 blocks (first: layers.0)" in r for r in found.remarks)
    assert list(found.blocks.items()) == [("layers.0", None), ("layers.1", found.layers[0])]


def test_linear_attention_with_the_names_of_others_is_none():
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.ModuleDict({"attn": own_attention()}) for _ in range(2))})
    assert len(locate(model, heads=HEADS)) == 2
    model.layers[0].attn.A_log = nn.Parameter(torch.zeros(HEADS))  # as in Olmo's hybrids
    assert [layer.name for layer in locate(model, heads=HEADS)] == ["layers.1.attn"]


def test_what_else_a_list_of_ones_own_holds_is_no_block():
    """Only of transformers' models is it known that a list of blocks holds nothing else."""
    blocks = [
        nn.ModuleDict({"attn": own_attention()}),
        nn.Linear(WIDTH, WIDTH),
        nn.ModuleDict({"attn": own_attention()}),
    ]
    found = locate(nn.ModuleDict({"layers": nn.ModuleList(blocks)}), heads=HEADS)
    assert list(found.blocks) == ["layers.0", "layers.2"]


def own_attention():
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in names})


# Factors


def test_a_factor_before_attention(tmp_path):
    """Falcon H1: what values get is multiplied, beside what attention gives."""
    reads = "layers.{}.input_layernorm"
    case = replace(changed("FalconH1", attention_in_multiplier=0.5), also=(reads,))
    model = case.make()
    model.save_pretrained(tmp_path)
    located = (locate(model).layers[1], locate(tmp_path).layers[1])
    passage = family_oracle.listen(case, model)
    run(model, case.inputs())
    normed, values_from = passage[1].heard["out:" + reads], passage[1].heard["in:" + case.value]
    torch.testing.assert_close(values_from, 0.5 * normed)
    for layer in located:
        assert (layer.feed, layer.factor) == (0.5, 0.3)
        assert layer.cannot_steer is not None
        torch.testing.assert_close(normed[:, None] @ layer.W_V, values_from[:, None] @ layer.raw_W_V)


def test_a_factor_that_depends_on_the_depth(tmp_path):
    model = CASES["Granite"].make()
    model.config.residual_multiplier = 1.0
    model.config.scale_depth = 1.4
    model.save_pretrained(tmp_path)
    assert locate(tmp_path).layers[0].factor == pytest.approx(1.4 / 2**0.5)


def test_a_tower_has_factors_of_its_own(tmp_path):
    """Granite's text beside a vision tower, which has none."""
    config = transformers.LlavaConfig(
        text_config=dict(**GQA, model_type="granite", residual_multiplier=0.22),
        vision_config=dict(**SIZES, image_size=12, patch_size=4, model_type="clip_vision_model"),
        image_token_index=3,
    )
    model = transformers.LlavaModel(config)
    model.save_pretrained(tmp_path)
    for source in (model, tmp_path):
        assert locate(source, stack="language").layers[0].factor == 0.22
        assert locate(source, stack="vision").layers[0].factor is None


def test_gates_of_their_own():
    class Gated(nn.Module):
        def __init__(self, name: str, rows: int) -> None:
            super().__init__()
            self.num_heads = HEADS
            self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.add_module(name, nn.Linear(WIDTH, rows))

    for name, rows, leak in (("gate_proj", WIDTH, "a gate"), ("g_proj", HEADS, "a gate"), ("gate_proj", 48, None)):
        assert locate(nn.ModuleList([Gated(name, rows)])).layers[0].leak == leak


def test_plain_models_have_no_factors():
    for name in ("Phi", "Falcon (parallel, one key and value)", "GPT-OSS", "Nemotron"):
        for layer in layers(name):
            assert (layer.factor, layer.keep, layer.feed, layer.scale) == (None, 1.0, 1.0, None)


# Refused


BUILD = {model.name: model.build for model in REFUSED}
SAYS = {
    "Swin": "not one sequence", "I-BERT": "quantized weights", "Gemma 3n": "several streams",
    "Longformer": "values of their own", "LongCat Flash": "two attention layers", "Zamba 2": "beside its embedding",
}  # fmt: skip


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("how", ["live", "disk", "without a configuration"])
def test_families_that_the_theory_does_not_describe(name, how, tmp_path):
    model, says = BUILD[name](), SAYS[name]
    model.save_pretrained(tmp_path)
    if how == "without a configuration":
        (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match=says) as caught:
        locate(model if how == "live" else tmp_path, heads=HEADS if how == "without a configuration" else None)
    assert "\n" not in str(caught.value)
    assert "register" not in str(caught.value)
    assert str(caught.value).count(". ") == 0


def test_only_the_stack_that_is_looked_at_decides():
    """An encoder that is refused does not keep one from its decoder."""
    encoder, decoder = BUILD["Swin"](), CASES["Phi"].make()
    both = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    assert locate(both, stack="decoder").stack == "decoder.layers.*.self_attn"
    with pytest.raises(InputError, match="Swin"):
        locate(both, stack="encoder")
