"""Tokens by role in a diagnosis: found in the model, by special tokens, or given."""

import pytest
import torch
from support.commands import refusal, run
from torch import nn

from oversmooth import Diagnosis, InputError, diagnose
from oversmooth.anatomy.roles import Roles
from oversmooth.demo import vits
from oversmooth.inputs.batches import Batch


def test_the_roles_of_an_image_model_and_of_special_tokens():
    model, images = vits.example("plain", 3)
    found = diagnose(model, images, spectra=False, example=False)
    for layer in found.layers:
        assert set(layer.roles) == {"cls", "patches"}
        assert layer.roles["cls"]["hfc_lfc"] is None
    alone = diagnose(model, images, special=[0], spectra=False, example=False)
    for layer, other in zip(found.layers, alone.layers, strict=True):
        for metric in ("hfc_lfc", "cos"):
            assert layer.roles["patches"][metric] == pytest.approx(other.tokens[metric], rel=1e-4)
    special = torch.zeros(3, 50, dtype=torch.bool)
    special[:, :2] = True
    text = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))).eval()
    batch = Batch({"input": torch.randn(3, 50, 8)}, special=special)
    layers = diagnose(text, [batch], spectra=False, example=False).layers
    assert [set(layer.roles) for layer in layers] == [{"special", "text"}] * 3
    assert layers[2].roles["text"]["hfc_lfc"] == pytest.approx(layers[2].tokens["hfc_lfc"], rel=1e-4)


def test_parameters_name_the_tokens_in_front():
    class Model(nn.Module):
        def __init__(self, **sizes):
            super().__init__()
            for name, size in sizes.items():
                self.register_parameter(name, nn.Parameter(torch.zeros(1, size, 4)))

    found = Roles.found(Model(register_tokens=3, cls_token=1))
    assert found == Roles({"cls": (0,), "registers": (1, 2, 3)}, "patches")
    assert Roles.found(Model(mask_token=1)) is None
    model = Model(cls_token=1)
    model.num_prefix_tokens = 0  # it is pooled in another way
    assert Roles.found(model) is None


def test_roles_on_the_command_line(monkeypatch, capsys, tmp_path, gpt):
    arguments = ["diagnose", gpt, "--inputs", 2, "--length", 16, "--no-spectra", "--json", tmp_path / "d.json"]
    assert run(monkeypatch, *arguments, "--role", "prefix=0-3", "--role", "end=14,15") == 0
    assert "Tokens by role" in capsys.readouterr().out
    assert set(Diagnosis.load(tmp_path / "d.json").layers[1].roles) == {"prefix", "end", "others"}
    for given in ("prefix", "=1", "prefix=a", "prefix=1-2-3"):
        assert "give a name and positions" in refusal(monkeypatch, capsys, *arguments, "--role", given)
    assert "role 'x' names token 40" in refusal(monkeypatch, capsys, *arguments, "--role", "x=40")


@pytest.mark.parametrize("roles", ["cls", {"cls": "0"}, {"cls": []}, {"cls": [0.5]}, {"": [0]}])
def test_roles_that_mean_nothing_are_refused(roles):
    with pytest.raises(InputError, match="role"):
        Roles.given(roles)
