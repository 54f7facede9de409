"""Spectra of weights stored as 8-bit floats, against scales that are applied entry by entry."""

import importlib.util
import json
import types

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families import FAMILIES, GQA, hf, text

from oversmooth import InputError, diagnose
from oversmooth.anatomy import locate
from oversmooth.anatomy.quantised import _whole_numbers, of_module
from oversmooth.cli.spectrum import spectra_of
from oversmooth.models import load

ROWS, COLUMNS = 12, 20  # of a block: neither divides the shape of every weight
KINDS = {
    "blocks": ("_scale_inv", lambda n, d: (-(-n // ROWS), -(-d // COLUMNS)), {"weight_block_size": [ROWS, COLUMNS]}),
    "blocks of compressed-tensors": (
        "_scale", lambda n, d: (-(-n // ROWS), -(-d // COLUMNS)),
        {"config_groups": {"group_0": {"weights": {"block_structure": [ROWS, COLUMNS]}}}},
    ),
    "rows": ("_scale", lambda n, _: (n, 1), {}),
    "tensor": ("_scale", lambda *_: (), {}),
}  # fmt: skip


def by_hand(weight, scale):
    """Each entry times the scale of its block."""
    out, scale = weight.float().numpy().copy(), scale.numpy()
    for i, j in numpy.ndindex(*out.shape):
        if scale.ndim == 2:
            out[i, j] *= scale[i if len(scale) == len(out) else i // ROWS, 0 if scale.shape[1] == 1 else j // COLUMNS]
        else:
            out[i, j] *= scale
    return torch.from_numpy(out)


@pytest.fixture(params=KINDS)
def folders(request, tmp_path):
    """A checkpoint in 8 bits, and what it stands for."""
    ending, shape, settings = KINDS[request.param]
    FAMILIES["Llama"].make().save_pretrained(tmp_path / "eight")
    FAMILIES["Llama"].make().save_pretrained(tmp_path / "plain")
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    eight = {}
    for name, weight in plain.items():
        eight[name] = weight
        if name.endswith("_proj.weight"):
            source = torch.Generator().manual_seed(len(name))
            scale = 0.5 + torch.rand(shape(*weight.shape), generator=source)
            eight |= {name: weight.to(torch.float8_e4m3fn), f"{name}{ending}": scale}
            plain[name] = by_hand(eight[name], scale)
    for folder, weights in (("eight", eight), ("plain", plain)):
        save_file(weights, tmp_path / folder / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "eight" / "config.json").read_text())
    (tmp_path / "eight" / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return tmp_path


def test_spectra_are_those_of_what_weights_stand_for(folders):
    for one, other in zip(locate(folders / "eight"), locate(folders / "plain"), strict=True):
        assert torch.equal(one.W_V, other.W_V)
        assert torch.equal(one.W_O, other.W_O)
    eight, plain = (spectra_of(str(folders / name)) for name in ("eight", "plain"))
    assert [layer.spectrum for layer in eight.layers] == [layer.spectrum for layer in plain.layers]
    layer = next(iter(locate(folders / "eight")))
    name = "layers.0.self_attn.v_proj.weight"
    assert torch.equal(layer.weights.read(name, slice(3, 9)), layer.weights.read(name)[3:9])


@pytest.mark.parametrize("folders", ["blocks"], indirect=True)
def test_blocks_of_another_size_are_one_sentence(folders):
    config = json.loads((folders / "eight" / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [5, 5]
    (folders / "eight" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="which blocks of 5 do not explain for a weight of shape"):
        spectra_of(str(folders / "eight"))


def packed(numbers, bits):
    """Whole numbers below and above zero, 32 bits together, written bit by bit."""
    rows, columns = numbers.shape
    words = numpy.zeros((rows, -(-columns * bits // 32)), dtype=numpy.uint32)
    for i, j in numpy.ndindex(rows, columns):
        words[i, j * bits // 32] |= numpy.uint32(int(numbers[i, j]) + 2 ** (bits - 1)) << numpy.uint32(j * bits % 32)
    return torch.from_numpy(words.view(numpy.int32))


def compressed(name, shape, draw, bits, zeros, order):
    """As compressed-tensors packs: its arrays, and what they stand for."""
    size, half = 16, 2 ** (bits - 1)
    groups = shape[1] // size
    numbers, scale = draw.integers(-half, half, shape), 0.01 + draw.random((shape[0], groups), dtype=numpy.float32)
    shift = draw.integers(-half, half, (shape[0], groups)) if zeros else numpy.zeros((shape[0], groups), int)
    which = draw.permutation(shape[1]) // size if order else numpy.arange(shape[1]) // size
    true = numpy.zeros(shape, dtype=numpy.float32)
    for i, j in numpy.ndindex(*shape):
        true[i, j] = (numbers[i, j] - shift[i, which[j]]) * scale[i, which[j]]
    arrays = {"weight_packed": packed(numbers, bits), "weight_scale": torch.from_numpy(scale)}
    arrays["weight_shape"] = torch.tensor(shape)
    if zeros:
        arrays["weight_zero_point"] = packed(shift.T, bits).T.contiguous()
    if order:
        arrays["weight_g_idx"] = torch.from_numpy(which.astype(numpy.int32))
    return {f"{name.removesuffix('weight')}{key}": value for key, value in arrays.items()}, true


def eight_bits(name, shape, draw):
    """As bitsandbytes stores them: the largest of each row is 127."""
    numbers, largest = draw.integers(-127, 128, shape), draw.random(shape[0], dtype=numpy.float32)
    true = numpy.array([[n * most / 127 for n in row] for row, most in zip(numbers, largest, strict=True)])
    arrays = {name: torch.from_numpy(numbers.astype(numpy.int8))}
    return arrays | {f"{name.removesuffix('weight')}SCB": torch.from_numpy(largest)}, true


def four_bits(name, shape, draw, nested):
    """As bitsandbytes stores them: a table, and the largest of each 64 numbers, in 8 bits again if nested."""
    table, codes = numpy.sort(draw.standard_normal(16)).astype(numpy.float32), draw.integers(0, 16, shape)
    blocks = -(-codes.size // 64)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": shape}
    arrays = {"": torch.from_numpy((16 * codes.flat[::2] + codes.flat[1::2]).astype(numpy.uint8)[:, None])}
    arrays["quant_map"], most = torch.from_numpy(table), draw.random(blocks, dtype=numpy.float32)
    if nested:
        state |= {"nested_blocksize": 5, "nested_dtype": "float32", "nested_offset": 0.25}
        few, of_few = draw.integers(0, 256, blocks), draw.random(-(-blocks // 5), dtype=numpy.float32)
        wide = numpy.linspace(-1, 1, 256, dtype=numpy.float32)
        most = numpy.array([wide[few[i]] * of_few[i // 5] + 0.25 for i in range(blocks)], numpy.float32)
        arrays |= {"nested_quant_map": torch.from_numpy(wide), "nested_absmax": torch.from_numpy(of_few)}
    arrays["absmax"] = torch.from_numpy(few.astype(numpy.uint8) if nested else most)
    arrays["quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    true = numpy.array([table[code] * most[i // 64] for i, code in enumerate(codes.flat)]).reshape(shape)
    return {f"{name}.{key}".rstrip("."): value for key, value in arrays.items()}, true


WAYS = {
    "packed 4 bits": lambda *given: compressed(*given, 4, False, False),
    "packed 8 bits, with zeros": lambda *given: compressed(*given, 8, True, False),
    "packed 4 bits, 8 elsewhere": lambda *given: compressed(*given, 4 if "self_attn" in given[0] else 8, False, False),
    "packed 4 bits, with zeros, in another order": lambda *given: compressed(*given, 4, True, True),
    "bitsandbytes 8 bits": eight_bits,
    "bitsandbytes 4 bits": lambda *given: four_bits(*given, False),
    "bitsandbytes 4 bits, nested": lambda *given: four_bits(*given, True),
}


@pytest.mark.parametrize("way", WAYS)
def test_packed_weights_stand_for_numbers_found_by_hand(way, tmp_path):
    FAMILIES["Llama"].make().save_pretrained(tmp_path)
    stored, true, draw = {}, {}, numpy.random.default_rng(1)
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        arrays, true[name] = WAYS[way](name, tuple(weight.shape), draw)
        stored |= arrays
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    sizes = {"packed 4 bits, 8 elsewhere": (8, 4)}.get(way, (8,) if "8" in way else (4,))
    groups = {f"group_{i}": {"weights": {"num_bits": bits, "group_size": 16}} for i, bits in enumerate(sizes)}
    config["quantization_config"] = {"config_groups": groups}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for index, layer in enumerate(locate(tmp_path)):
        values, outputs = (torch.tensor(true[f"layers.{index}.self_attn.{p}_proj.weight"]).float() for p in "vo")
        torch.testing.assert_close(layer.W_V, values.unflatten(0, (2, 8)).mT.repeat_interleave(2, 0), rtol=1e-5, atol=0)
        torch.testing.assert_close(layer.W_O, outputs.T.unflatten(0, (4, 8)), rtol=1e-5, atol=0)
    spectra_of(str(tmp_path))


class PackedLinear(torch.nn.Module):
    """As compressed-tensors' modules: the arrays of the files, and no weight."""

    def __init__(self, arrays, weight):
        super().__init__()
        for name, value in arrays.items():
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        self.forward = lambda x: x @ weight.T


@pytest.mark.parametrize("zeros", [False, True])
def test_modules_that_hold_packed_weights(zeros):
    model, plain, draw = FAMILIES["Llama"].make(), FAMILIES["Llama"].make(), numpy.random.default_rng(1)
    for name, module in plain.named_modules():
        if name.endswith("_proj"):
            arrays, true = compressed(f"{name}.weight", tuple(module.weight.shape), draw, 4, zeros, zeros)
            module.weight.data = torch.from_numpy(true)
            arrays = {key.rpartition(".")[2]: value for key, value in arrays.items()}
            model.set_submodule(name, PackedLinear(arrays, module.weight.data))
    groups = {"group_0": {"weights": {"num_bits": 4, "group_size": 16}}}
    model.config.quantization_config = {"quant_method": "compressed-tensors", "config_groups": groups}
    found, expected = (diagnose(one, text(), depth=0) for one in (model, plain))
    assert [layer.tokens for layer in found.layers] == [layer.tokens for layer in expected.layers]
    for one, other in zip(found.layers[1:], expected.layers[1:], strict=True):
        assert one.spectrum.rho_smooth == pytest.approx(other.spectrum.rho_smooth, rel=1e-5)
        assert one.dominance.rho_rough == pytest.approx(other.dominance.rho_rough, rel=1e-5)


def test_packed_weights_are_unpacked_on_their_device():
    assert _whole_numbers(torch.zeros(2, 3, dtype=torch.int32, device="meta"), 4).shape == (2, 24)


def test_a_bias_beside_weights_in_eight_bits_is_as_it_stands():
    """bitsandbytes keeps the scale of a layer's rows in its module."""
    layer = torch.nn.Linear(3, 2)
    numbers, largest = torch.tensor([[1, -127, 5], [0, 64, 127]], dtype=torch.int8), torch.tensor([0.5, 2.0])
    layer.state = types.SimpleNamespace(SCB=largest)
    assert of_module(layer, layer.bias) is layer.bias
    expected = [[n * most / 127 for n in row] for row, most in zip(numbers.tolist(), (0.5, 2.0), strict=True)]
    torch.testing.assert_close(of_module(layer, numbers), torch.tensor(expected))


def test_formats_that_are_not_read_are_one_sentence(tmp_path):
    FAMILIES["Llama"].make().save_pretrained(tmp_path)
    file, name = tmp_path / "model.safetensors", "layers.0.self_attn.v_proj.weight"
    weights = load_file(file)
    save_file(weights | {name.replace("weight", "qweight"): torch.zeros(4, 4, dtype=torch.int32)}, file)
    with pytest.raises(InputError, match="quantised by GPTQ or AWQ, whose weights are not read; give the model"):
        locate(tmp_path)
    save_file(weights | {f"{name}_packed": torch.zeros(4, 4, dtype=torch.int32)}, file)
    with pytest.raises(InputError, match=r"v_proj\.weight_packed is packed in unknown bits, and 2, 4 and 8 are read"):
        locate(tmp_path)
    state = torch.tensor(list(b"{}"), dtype=torch.uint8)
    save_file(weights | {f"{name}.quant_state.bitsandbytes__nf4": state}, file)
    with pytest.raises(InputError, match="the description of its 4-bit weights is damaged"):
        locate(tmp_path)


def test_a_quantised_model_without_its_library_is_one_sentence(tmp_path):
    if importlib.util.find_spec("optimum"):
        pytest.skip("it is installed")
    FAMILIES["Llama"].make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"is missing, or another version .* requires optimum .*\); install what"):
        load(tmp_path)


def by_blocks(weight):
    """Q8_0 written by hand: 32 numbers share a scale in half precision; the bytes, and what they stand for."""
    blocks = weight.float().numpy().reshape(-1, 32)
    scale = (numpy.abs(blocks).max(1, keepdims=True) / 127).astype(numpy.float16)
    numbers = numpy.round(blocks / scale.astype(numpy.float32)).clip(-127, 127).astype(numpy.int8)
    stored = numpy.concatenate([scale.view(numpy.uint8), numbers.view(numpy.uint8)], 1)
    return stored.reshape(len(weight), -1), (numbers * scale.astype(numpy.float32)).reshape(weight.shape)


@pytest.fixture
def gguf_file(tmp_path):
    """Llama as llama.cpp stores it, values and outputs by blocks; and what those stand for."""
    gguf = pytest.importorskip("gguf")
    writer, true = gguf.GGUFWriter(tmp_path / "a.gguf", "llama"), {}
    writer.add_head_count(4)
    writer.add_embedding_length(32)
    names = {"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm"}
    for name, weight in FAMILIES["Llama"].make().state_dict().items():
        layer, _, part = name.removeprefix("layers.").removesuffix(".weight").partition(".")
        if (as_named := names.get(part)) is None:
            continue
        if weight.ndim == 1:
            writer.add_tensor(f"blk.{layer}.{as_named}.weight", weight.numpy())
            continue
        stored, true[as_named, int(layer)] = by_blocks(weight)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"blk.{layer}.{as_named}.weight", stored, raw_shape=stored.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "a.gguf", true


def test_spectra_of_a_gguf_file(gguf_file):
    path, true = gguf_file
    model = FAMILIES["Llama"].make()
    for index, layer in enumerate(locate(path)):
        values, outputs = (torch.tensor(true[name, index]) for name in ("attn_v", "attn_output"))
        assert torch.equal(layer.W_V, values.unflatten(0, (2, 8)).mT.repeat_interleave(2, 0))
        assert torch.equal(layer.W_O, outputs.T.unflatten(0, (4, 8)))
        assert torch.equal(layer.norm.gamma, model.layers[index].input_layernorm.weight)
        assert (layer.causal, layer.norm_position, layer.norm.kind) == (True, "pre", "rms")
    assert torch.equal(layer.weights.read("blk.1.attn_v.weight", slice(3, 9)), torch.tensor(true["attn_v", 1][3:9]))
    assert spectra_of(str(path)).model["heads"] == 4


def test_a_gguf_file_that_cannot_be_read_is_one_sentence(gguf_file, monkeypatch):
    path, _ = gguf_file
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"a\.gguf cannot be read .*; fetch it again"):
        locate(path)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(InputError, match=r"needs gguf, which is not installed; install oversmooth\[gguf\]"):
        locate(path)


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_itself(bits, tmp_path):
    """Weights are those that its own modules multiply by, in memory and in a file of its own. 64 wide: of narrower
    weights in 4 bits its CPU kernel takes the scales of other blocks."""
    library = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    model = hf("Llama", **GQA | dict(hidden_size=64, num_key_value_heads=4))().eval()
    for layer in model.layers:
        for name in ("v_proj", "o_proj"):
            old = getattr(layer.self_attn, name)
            columns, rows = old.in_features, old.out_features
            if bits == 4:
                new = library.nn.Linear4bit(columns, rows, False, compress_statistics=True, quant_type="nf4")
            else:
                new = library.nn.Linear8bitLt(columns, rows, False, has_fp16_weights=False)
            new.load_state_dict(old.state_dict())
            setattr(layer.self_attn, name, new.to("cpu"))
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()))
    eye = torch.eye(64)
    for live, stored in zip(locate(model), locate(tmp_path), strict=True):
        attention = model.get_submodule(live.name)
        values = attention.v_proj(eye).unflatten(-1, (4, 16)).movedim(1, 0)
        torch.testing.assert_close(live.W_V, values, rtol=0.03 if bits == 8 else 1e-5, atol=0.03 if bits == 8 else 1e-6)
        torch.testing.assert_close(stored.W_V, live.W_V)
        torch.testing.assert_close(stored.W_O, live.W_O)
    found = diagnose(model, text(), joined=0, depth=0, ranks=0)
    assert all(layer.spectrum for layer in found.layers[1:])
