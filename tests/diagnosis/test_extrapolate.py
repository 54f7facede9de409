"""More depth, against a loop in numpy that shares nothing with the package."""

import numpy as np
import pytest
import torch

from oversmooth import diagnose, steer
from oversmooth.anatomy import locate
from oversmooth.steering import FeatScale, NeuTRENO

transformers = pytest.importorskip("transformers")


def test_a_source_keeps_tokens_apart_at_a_rate_of_one():
    """NeuTRENO with ρ_rough < 1 < ρ_smooth: V⁰ differs between tokens and stays, so HFC/LFC falls by 1/ρ_smooth."""
    settings = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
    settings |= dict(num_key_value_heads=2, vocab_size=11, max_position_embeddings=16)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                p.zero_()  # A_ij = 1/i
            elif name.endswith(("v_proj.weight", "o_proj.weight")):
                p.copy_(torch.eye(8))
            elif "embed_tokens" in name:
                p.normal_(generator=torch.Generator().manual_seed(0))
    strength = 0.6
    steer(model, NeuTRENO(strength))
    last = diagnose(model, torch.arange(6)[None], ranks=0, joined=0, depth=1).extrapolation[0]
    assert last.rho_rough < 1 < last.rho_smooth
    assert last.verdict == "smooth"
    # As it runs: w is what the norm leaves of the identity.
    w = (last.rho_smooth - 1) / (1 - strength)
    A = np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    X = first = np.random.default_rng(0).standard_normal((6, 8))
    course = []
    for _ in range(80):
        X = X + w * (A @ X - strength * X + strength * first)
        course.append(np.log(np.linalg.norm(X - X.mean(0)) / np.linalg.norm(np.tile(X.mean(0), (6, 1)))))
    assert np.exp(course[-1] - course[-2]) == pytest.approx(1 / last.rho_smooth, rel=1e-3)


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_featscale_before_a_norm_on_the_stream(strength):
    """The norm takes the mean of scaled features away: H is raw, and with gains of 1 that of the plain model."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    ids = torch.arange(6)[None]
    W = [(layer.W_V.double(), layer.W_O.double()) for layer in locate(model).layers]
    found = diagnose(steer(model, FeatScale(strength, strength)), ids, ranks=0, joined=0, depth=2)
    last, stack = found.extrapolation
    assert last.variant == "raw"
    assert "FeatScale" in last.note
    H = (1 + strength) * (W[-1][0] @ W[-1][1]).sum(0)
    assert last.rho_smooth == pytest.approx(float((1 + torch.linalg.eigvals(H)).abs().max()), rel=1e-4)
    assert len(last.real.log_hfc_lfc) == len(stack.real.log_hfc_lfc) == 3


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_repeats_beyond_those_that_run_are_predicted(precision):
    """The last block 400 times: the first sixteen are the block itself, the rest within the error that is stated."""
    torch.manual_seed(0)
    settings = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
    model = transformers.ViTModel(transformers.ViTConfig(**settings, image_size=12, patch_size=4)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    pixels = torch.randn(1, 3, 12, 12)
    found = diagnose(model.to(precision), pixels.to(precision), ranks=0, joined=0, depth=400).extrapolation[0]
    assert found.real.depth == list(range(17))
    assert found.predicted.depth == [16, 32, 64, 128, 256, 400]
    blocks = [module for module in model.modules() if type(module).__name__ == "ViTLayer"]
    inside = []
    hook = blocks[-1].register_forward_hook(
        lambda _module, _args, out: inside.append(out if torch.is_tensor(out) else out[0])
    )
    with torch.no_grad():
        model(pixels.to(precision))
        hook.remove()
        x, ratios = inside[0], []
        for _ in range(401):
            y = x[0].double().numpy()
            ratios.append(np.log(np.linalg.norm(y - y.mean(0)) / np.linalg.norm(np.tile(y.mean(0), (len(y), 1)))))
            x = blocks[-1](x)
            x = x if torch.is_tensor(x) else x[0]
    assert found.real.log_hfc_lfc == pytest.approx(ratios[:17], abs=1e-3)
    if precision == torch.float32:  # bfloat16 adds nothing to tokens 256 times as large as a step
        assert abs(found.predicted.log_hfc_lfc[-1] - ratios[400]) <= found.error + 0.02
        assert found.growth > 0


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_rate_of_nearly_equal_tokens(precision):
    """A BERT whose attention is uniform: differences change by the Jacobian of its two norms and its MLP alone."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "weight" in name and "LayerNorm" not in name:
                parameter.normal_(0, 0.5)
    last = diagnose(model.to(precision), torch.arange(6)[None], ranks=0, joined=0, depth=16).extrapolation[0]
    if precision == torch.bfloat16:
        assert (last.equal_rate, last.equal_reason.kind) == (None, "half_precision")
        return
    layer, x = model.double().encoder.layer[0], torch.randn(1, 1, 8).double()
    x, step = x.expand(1, 6, 8), lambda x: layer(x)[0] if isinstance(layer(x), tuple) else layer(x)
    with torch.no_grad():
        for _ in range(500):
            x = step(x)
    J = torch.autograd.functional.jacobian(step, x).reshape(48, 48).numpy()
    P = np.kron(np.eye(6) - 1 / 6, np.eye(8))
    assert last.equal_rate == pytest.approx(np.log(np.abs(np.linalg.eigvals(P @ J @ P)).max()), abs=0.02)
