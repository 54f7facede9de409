"""Spectra of weights stored as 8-bit floats, against scales that are applied entry by entry."""

import json

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families import FAMILIES

from oversmooth import InputError
from oversmooth.anatomy import locate
from oversmooth.cli.spectrum import spectra_of

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
