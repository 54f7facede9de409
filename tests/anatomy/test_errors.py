"""What anatomy says when it cannot find, or must not read."""

import itertools
import json
import os
import pickle
import re
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from support.families import FAMILIES, HEADS, WIDTH, Stack, run
from support.oracles import mean_metric
from torch import nn

from oversmooth import InputError, diagnose
from oversmooth.anatomy import layouts, locate, register
from oversmooth.anatomy.layouts import LAYOUTS


@pytest.fixture
def saved(tmp_path):
    FAMILIES["Llama"].make().save_pretrained(tmp_path)
    return tmp_path


class Odd(nn.Module):
    """Attention with names nobody has, with or without the stream it is added to."""

    def __init__(self, residual=False):
        super().__init__()
        self.heads, self.residual = HEADS, residual
        self.ask, self.key, self.give = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.merge = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.ask, self.key, self.give))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.residual * x + self.merge(mixed.transpose(1, 2).flatten(2))


class OddBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = Odd()

    def forward(self, x):
        return x + self.mix(x)


@pytest.fixture
def odd():
    return Stack(OddBlock(), OddBlock()).eval()


@pytest.fixture
def taught(request):
    """The layout of these weights."""
    return register("odd", value=f"{request.param}.weight", output="merge.weight")


def test_an_unknown_model_is_told_how_to_register(odd):
    with pytest.raises(
        InputError, match=r"no attention found in this Stack: blocks\.0\.mix has ask\.weight .*anatomy\.register"
    ):
        locate(odd)


class FusedKeysAndValues(nn.Module):
    """Attention whose keys and values come from one Linear, as some vision models have it."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.proj = (nn.Linear(WIDTH, width) for width in (WIDTH, 2 * WIDTH, WIDTH))

    def forward(self, x):
        k, v = self.kv(x).chunk(2, -1)
        return x + self.proj((self.q(x) @ k.mT / WIDTH**0.5).softmax(-1) @ v)


def test_tokens_can_be_measured_where_no_layout_describes_attention():
    model, x = Stack(FusedKeysAndValues(), FusedKeysAndValues()).eval(), torch.randn(2, 6, WIDTH)
    with pytest.raises(InputError, match=r"kv\.weight 64 × 32.*diagnose\(model, x, blocks='blocks\.\*', spectra=False"):
        diagnose(model, x)
    result = diagnose(model, x, blocks="blocks.*", spectra=False)
    assert result.curve("cos")[-1] == pytest.approx(mean_metric("cos", model(x).detach()), abs=1e-5)


@pytest.mark.parametrize("taught", ["give"], indirect=True)
def test_a_layout_of_ones_own(odd, taught):
    found = locate(odd)
    assert [layer.name for layer in found] == ["blocks.0.mix", "blocks.1.mix"]
    assert [layer.block for layer in found] == ["blocks.0", "blocks.1"]
    assert found.layers[1].layout is taught
    torch.testing.assert_close(found.layers[1].W_V[2], odd.blocks[1].mix.give.weight[16:24].T)
    torch.testing.assert_close(found.layers[1].W_O[2], odd.blocks[1].mix.merge.weight[:, 16:24].T)
    result = diagnose(odd, torch.randn(2, 6, WIDTH), depth=2)
    assert len(result.layers) == 3
    assert result.model["layout"] == "odd"
    alone = diagnose(Stack(Odd(True), Odd(True)).eval(), torch.randn(2, 6, WIDTH), depth=2)  # the block is attention
    assert [change.part for change in alone.layers[1].changes] == ["attention"]
    assert alone.layers[1].dominance is not None


def test_attention_that_is_the_whole_model(tmp_path):
    model = nn.MultiheadAttention(WIDTH, HEADS)
    nn.init.normal_(model.in_proj_bias)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    for found in (locate(model), locate(tmp_path / "a.safetensors", heads=HEADS)):
        (layer,) = found
        assert torch.equal(layer.W_V[1], model.in_proj_weight[2 * WIDTH + 8 : 2 * WIDTH + 16].T)
        assert torch.equal(layer.value_bias.flatten(), model.in_proj_bias[2 * WIDTH :])
        assert torch.equal(layer.output_bias, model.out_proj.bias)


@pytest.mark.parametrize("taught", ["ask"], indirect=True)
def test_a_layout_that_does_not_describe_the_model(odd, taught):
    with pytest.raises(InputError, match=rf"blocks\.0\.mix.*off what it returned.*'{taught.name}'.*register another"):
        diagnose(odd, torch.randn(1, 6, WIDTH))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (dict(value="", output="o.weight"), "value is ''"),
        (dict(value="v.weight", output=None), "output is None"),
        (dict(value="v.weight", output="o.weight", value_bias=3), "value_bias is 3"),
        (dict(value="v.weight", output="o.weight", norm=""), "norm is ''"),
        (dict(value="v.weight", output="o.weight", transposed="both"), "transposed is 'both'"),
        (dict(value="v.weight", output="o.weight", heads=0), "heads is 0"),
        (dict(value="v.weight", output="o.weight", packing="spiral"), "packing is 'spiral'"),
    ],
)
def test_layouts_that_cannot_be(settings, match):
    before = list(LAYOUTS)
    with pytest.raises(InputError, match=match):
        register("x", **settings)
    assert before == LAYOUTS


def test_partial_matches_are_listed():
    block = nn.ModuleDict({"v_proj": nn.Linear(8, 8), "elsewhere": nn.Linear(8, 8)})
    with pytest.raises(InputError, match=r"0\.v_proj\.weight looks like attention's values.*o_proj\.weight"):
        locate(nn.ModuleList([block]))
    model = FAMILIES["Llama"].make()
    model.extra = nn.ModuleList([block])
    (remark,) = locate(model).remarks
    assert "extra.0.v_proj.weight" in remark
    assert "left out" in remark


@pytest.mark.parametrize("heads", [2, 8])
def test_heads_other_than_the_model_says(heads, tmp_path):
    model = FAMILIES["Llama"].make()
    said = rf"says that .*layers\.0\.self_attn has {HEADS} heads, not {heads}; leave heads= \(--heads\) out"
    with pytest.raises(InputError, match=said):
        locate(model, heads=heads)
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=said):
        locate(tmp_path, heads=heads)
    assert locate(tmp_path, heads=HEADS).layers[0].heads == HEADS


@pytest.mark.parametrize("heads", [2, 8])
def test_wrong_heads_are_noticed_when_the_model_runs(heads, monkeypatch):
    family = FAMILIES["Llama"]
    monkeypatch.setattr(layouts, "HEADS", ())
    monkeypatch.setattr(layouts, "HEAD_DIM", ())
    with pytest.raises(InputError, match=r"layers\.0\.self_attn.*heads"):
        diagnose(family.make(), family.inputs(), heads=heads)


def test_weights_without_a_configuration_need_heads(tmp_path):
    family = FAMILIES["ViT"]
    torch.save(family.make().state_dict(), tmp_path / "weights.pt")
    attention = re.escape(family.block.format(0) + ".attention")
    with pytest.raises(InputError, match=rf"does not say how many heads {attention} has .*; give heads="):
        locate(tmp_path / "weights.pt")
    with pytest.raises(InputError, match=rf"{attention}: .*5 heads"):  # which do not divide its features
        locate(tmp_path / "weights.pt", heads=5)
    assert locate(tmp_path / "weights.pt", heads=HEADS).layers[0].heads == HEADS
    for outer, inner in itertools.product(("state_dict", "model", "model_state_dict"), repeat=2):
        torch.save({outer: {inner: family.make().state_dict()}, "step": torch.ones(1)}, tmp_path / "nested.pt")
        assert locate(tmp_path / "nested.pt", heads=HEADS).layers[0].heads == HEADS


def test_a_stack_that_is_not_there():
    with pytest.raises(InputError, match=r"there is no stack 'vision'; choose one of encoder\.layers.*decoder\.layers"):
        locate(FAMILIES["Whisper (encoder)"].make(), stack="vision")
    assert locate(FAMILIES["Whisper (encoder)"].make(), stack="decoder").stack == "decoder.layers.*.self_attn"


@pytest.mark.parametrize(
    ("place", "role", "read"),
    [
        ("self.value.weight", "value weight", "W_V"),
        ("output.dense.weight", "output weight", "W_O"),
        ("self.value.bias", "value bias", "value_bias"),
    ],
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_with_nan_are_named(place, role, read, bad, tmp_path):
    model = FAMILIES["BERT"].make()
    model.get_parameter(f"encoder.layer.1.attention.{place}").data.view(-1)[3] = bad
    model.save_pretrained(tmp_path)
    for found in (locate(model), locate(tmp_path)):
        getattr(found.layers[0], read)  # the other layer is fine
        with pytest.raises(
            InputError, match=rf"encoder\.layer\.1\.attention.*: the {role} has NaN or infinity in 1 of"
        ):
            getattr(found.layers[1], read)
    with pytest.raises(InputError, match=rf"encoder\.layer\.1\.attention\.{place} has NaN or infinity in 1 of"):
        diagnose(model, FAMILIES["BERT"].inputs())


def test_weights_that_are_not_in_memory():
    with pytest.raises(InputError, match=r"layers\.0\.self_attn: the value weight is not in memory \(meta device\)"):
        _ = locate(FAMILIES["Llama"].make().to("meta")).layers[0].W_V


def test_quantized_weights():
    model = FAMILIES["Llama"].make()
    weight = model.layers[0].self_attn.v_proj.weight.data.mul(100).to(torch.int8)
    model.layers[0].self_attn.v_proj.weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(InputError, match=r"layers\.0\.self_attn: the value weight has dtype torch\.int8"):
        _ = locate(model).layers[0].W_V


# Files


def weights(**arrays):
    whole = {f"layers.0.self_attn.{name}_proj.weight": torch.eye(8) for name in "qkvo"}
    return whole | {name.replace("__", "."): value for name, value in arrays.items()}


def _packed(folder):
    torch.save(weights(x=torch.zeros(10**6)), folder / "plain.pt")
    with zipfile.ZipFile(folder / "plain.pt") as plain, zipfile.ZipFile(folder / "bomb.pt", "w") as bomb:
        for member in plain.infolist():
            bomb.writestr(member.filename, plain.read(member), zipfile.ZIP_DEFLATED)


def _missing(folder):
    FAMILIES["Llama"].make().save_pretrained(folder, max_shard_size="12KB")
    sorted(folder.glob("*.safetensors"))[1].unlink()


def _safe(arrays):
    return lambda folder: save_file(arrays, folder / "model.safetensors")


def _torch(content):
    return lambda folder: torch.save(content, folder / "a.pt")


def _listed(name):
    def write(folder):
        (folder / name).write_text("hello")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    return write


FILES = {
    "nothing there": ("nowhere", lambda _: None, "nowhere does not exist"),
    "a directory without weights": (
        "",
        lambda folder: (folder / "config.json").write_text("{}"),
        r"has no weights; it needs one of model\.safetensors",
    ),
    "text": ("notes.txt", lambda folder: (folder / "notes.txt").write_text("hello"), r"ends in '\.txt'"),
    "a bomb": ("bomb.pt", _packed, r"bomb.pt has [\d,]+ bytes and unpacks to 4,[\d,]+; fetch it again"),
    "a missing shard": ("", _missing, r"index\.json names model-00002.*, which is not in"),
    "a shard that is no file of weights": (
        "",
        _listed("notes.txt"),
        "names 'notes.txt', which is no weights file by its",
    ),
    "a name of thousands of digits": (
        "",
        _safe(weights() | {f"layers.{'9' * 5000}.a.weight": torch.eye(8)}),
        "has a weight whose name is 5,016 letters long; fetch it again",
    ),
    "more layers than any model has": (
        "",
        _safe({f"layers.{i}.self_attn.{name}_proj.weight": torch.ones(1, 1) for i in range(4097) for name in "vo"}),
        "has 4,097 layers; the limit is 4,096",
    ),
    # Four bytes with strides of zero are as many numbers as one likes.
    "arrays larger than what is stored": (
        "a.pt",
        _torch(weights(layers__0__self_attn__v_proj__weight=torch.zeros(1).expand(10**6, 10**6))),
        r"v_proj\.weight claims the shape \(1000000, 1000000\) and has 4 bytes",
    ),
    "sparse arrays": ("a.pt", _torch(weights(x=torch.eye(4).to_sparse())), "x is not stored as plain numbers"),
    "a whole module": ("a.pt", _torch(nn.Linear(2, 2)), "holds more than arrays"),
    "no arrays": ("a.pt", _torch({"epoch": 3, "notes": ["a"]}), "holds no named arrays; give a state_dict"),
}


@pytest.mark.parametrize(("path", "write", "says"), FILES.values(), ids=FILES)
def test_files_that_are_refused(tmp_path, path, write, says):
    write(tmp_path)
    with pytest.raises(InputError, match=says):
        locate(tmp_path / path, heads=2)


def test_several_files_without_an_index(saved):
    (saved / "model.safetensors").rename(saved / "a.safetensors")
    assert len(locate(saved)) == 2  # one is unmistakable
    (saved / "b.safetensors").write_bytes((saved / "a.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"2 \.safetensors files without an index"):
        locate(saved)


def test_shards_in_a_folder_inside_are_read(saved):
    (saved / "parts").mkdir()
    (saved / "model.safetensors").rename(saved / "parts" / "one.safetensors")
    index = {"weight_map": {"layers.0.self_attn.v_proj.weight": "parts/one.safetensors"}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(locate(saved)) == 2


def test_a_place_of_any_number_costs_nothing(tmp_path):
    """10^12 by its name: counted, and no list of that length is made."""
    more = {f"layers.{10**12}.self_attn.{name}_proj.weight": torch.eye(8) for name in "qkvo"}
    save_file(weights() | more, tmp_path / "model.safetensors")
    found = locate(tmp_path, heads=2)
    assert len(found) == 2
    assert any("in 999,999,999,999 places (1, 2, 3, 4, 5, 6, 7, 8)" in remark for remark in found.remarks)


@pytest.mark.parametrize("depth", [10**9, 0, -5])
def test_a_shared_layer_that_runs_a_billion_times(tmp_path, depth):
    FAMILIES["ALBERT"].make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": depth}))
    if depth < 1:
        assert len(locate(tmp_path)) == 1
    else:
        with pytest.raises(InputError, match=r"has 1,000,000,000 layers; the limit is 4,096"):
            locate(tmp_path)


class Malice:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch '{self.place}'",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("kind", "name"), [("zip", "pytorch_model.bin"), ("legacy", "weights.pt"), ("pickle", "weights.ckpt")]
)
def test_code_in_a_file_is_refused_and_not_run(tmp_path, kind, name):
    trace, file = tmp_path / "ran", tmp_path / name
    content = {"layers.0.self_attn.v_proj.weight": torch.ones(2, 2), "x": Malice(trace)}
    if kind == "pickle":
        file.write_bytes(pickle.dumps(content["x"]))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(
        InputError, match=rf"{name} holds more than arrays.* refused: save its state_dict as safetensors"
    ):
        locate(file if name != "pytorch_model.bin" else tmp_path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Malice(trace)))  # as it would have, had it been unpickled
    assert trace.exists()


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_weights_one_level_down_beside_an_array(tmp_path, key):
    family = FAMILIES["Llama"]
    torch.save({"epoch": 3, "step": torch.tensor(3), key: family.make().state_dict()}, tmp_path / "model.pt")
    found = locate(tmp_path / "model.pt", heads=HEADS)
    assert torch.equal(found.layers[1].W_V, locate(family.make()).layers[1].W_V)


def test_locating_runs_and_changes_nothing():
    family = FAMILIES["Llama"]
    model = family.make()
    before = {name: p.clone() for name, p in model.named_parameters()}
    for layer in locate(model):
        layer.W_V.mul(2), layer.W_O.mul(2)
    with torch.no_grad():
        assert torch.equal(run(model, family.inputs())[0], run(family.make(), family.inputs())[0])
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
