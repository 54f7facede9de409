"""`--quick` of what measures models: no model, no data and no network is needed."""

import pytest
from support.commands import refusal, run

COMMANDS = ("kernel", "energy", "cosine")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_models_that_come_with_the_package_are_measured(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    assert run(monkeypatch, "reproduce", "neutreno", command, "--quick", "--inputs", 1, "-o", "table.md") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("quick: ")
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    for name in ("ViT⁺", "ViT⁻", "ViT"):
        assert name in table
    assert table.count("\n| ") >= 12


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "no model is named"),
        (("model.safetensors", "--quick"), "--quick has models and data of its own"),
        (("--quick", "--data", "images"), "--quick has models and data of its own"),
    ],
)
def test_no_model_or_one_too_many_is_refused(monkeypatch, capsys, command, given, said):
    assert said in refusal(monkeypatch, capsys, "reproduce", "neutreno", command, *given)
