"""The kernels of models: symmetric where queries are keys, against attention written out by hand."""

import pytest
import torch
from support.commands import run

from oversmooth.models import load
from oversmooth.safety.errors import InputError
from oversmooth_papers.tables.neutreno import kernel
from oversmooth_papers.tables.neutreno.energy import energies
from oversmooth_papers.tables.neutreno.kernel import CAUSAL, kernels


def by_hand(model, pixels):
    """Attention scores of the first layer of a ViT."""
    layer = model.vit.layers[0]
    with torch.no_grad():
        x = layer.layernorm_before(model.vit.embeddings(pixels))
        q, k = (
            module(x).unflatten(-1, (model.config.num_attention_heads, -1)).transpose(1, 2).double()
            for module in (layer.attention.q_proj, layer.attention.k_proj)
        )
    return q @ k.mT / q.shape[-1] ** 0.5


def test_queries_that_are_keys_make_a_symmetric_kernel(vit):
    loaded = load(str(vit))
    for layer in loaded.model.vit.layers:
        layer.attention.k_proj.load_state_dict(layer.attention.q_proj.state_dict())
    for layer in kernels(loaded, loaded.inputs(count=2, batch=1)):
        assert layer.figures["asymmetry"] < 1e-6
        assert layer.figures["step"] < 1e-6
        assert layer.figures["least"] > -1e-9  # exp of a Gram matrix
        assert layer.cases == 2 * loaded.model.config.num_attention_heads


def test_against_attention_by_hand(vit):
    loaded = load(str(vit))
    inputs = loaded.inputs(count=2, batch=1).kept()
    steps, asymmetries = [], []
    for batch in inputs:
        for S in by_hand(loaded.model, batch.inputs["pixel_values"])[0]:
            K, A = S.exp(), S.softmax(-1)
            both = (K + K.T) / (K + K.T).sum(-1, keepdim=True)
            steps.append(float((both - A).norm() / A.norm()))
            pi = torch.linalg.matrix_power(A, 2**12)[0]
            flow, size = pi[:, None] * A, (pi[:, None] * pi).sqrt()
            asymmetries.append(float(((flow - flow.T) / size).norm() / ((flow + flow.T) / size).norm()))
    first = kernels(loaded, inputs)[0].figures
    assert first["step"] == pytest.approx(sum(steps) / len(steps), rel=1e-4)
    assert first["asymmetry"] == pytest.approx(sum(asymmetries) / len(asymmetries), rel=1e-3)


@pytest.mark.parametrize(
    ("command", "heading", "said"),
    [("kernel", "| model | block | asymmetry |", "asymmetry"), ("energy", "| model | block | J | G |", "Euler")],
)
def test_the_command_writes_its_table(vit, gpt, tmp_path, monkeypatch, capsys, command, heading, said):
    assert run(monkeypatch, "reproduce", "neutreno", command, vit, gpt, "--inputs", 1, "-o", tmp_path / "t.md") == 0
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines[0].startswith(heading)
    assert len(lines) == 2 + 2 + 2
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert CAUSAL in lines[-1]
    assert said in capsys.readouterr().out


def test_a_model_that_cannot_be_read_stops_all_before_any_runs(vit, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "reproduce", "neutreno", "kernel", vit, tmp_path / "nowhere", "--inputs", 1) == 2
    shown = capsys.readouterr()
    assert "nowhere" in shown.err
    assert "asymmetry" not in shown.out


def test_inputs_in_batches_of_several_are_refused_not_left_out(vit):
    loaded = load(str(vit))
    for measure in (kernels, energies):
        with pytest.raises(InputError, match="3 inputs come in 2 batches; give them one by one, with batch=1"):
            measure(loaded, loaded.inputs(count=3, batch=2))


def test_the_conclusion_is_that_of_the_largest_asymmetry():
    layers = [kernel.Layer(2, {"asymmetry": value}) for value in (0.002, 0.004)]
    assert kernel.conclusion(layers).endswith("0.002 to 0.004 in 2 blocks: the assumption nearly holds.")
    wider = [*layers, kernel.Layer(2, {"asymmetry": 0.5}), kernel.Layer(2, {})]
    assert kernel.conclusion(wider).endswith("0.002 to 0.500 in 3 blocks: the assumption does not hold.")
    assert "causal" in kernel.conclusion([kernel.Layer(2, {})])
