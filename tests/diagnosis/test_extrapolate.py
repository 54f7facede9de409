"""More depth of frozen attention, against a loop in numpy that shares nothing with the package."""

import copy

import numpy as np
import pytest
import torch
from support import frozen_stack
from support.nightly import some

from oversmooth import diagnose, steer
from oversmooth.anatomy import locate
from oversmooth.steering import FeatScale, NeuTRENO

transformers = pytest.importorskip("transformers")


def vit(seed, biases=True):
    """Four layers of 16 features with every parameter drawn again: models start with biases of 0, which hide errors."""
    settings = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2)
    settings |= dict(image_size=12, patch_size=4, num_labels=3)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_((0.3 if p.ndim > 1 else 0.5) * torch.randn(p.shape, generator=generator))
            if "norm" in name and name.endswith("weight"):
                p.add_(1.0)
            if not biases and name.endswith("bias"):
                p.zero_()
    return model.eval(), torch.randn(1, 3, 12, 12, generator=generator)


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("seed", some(range(3), 3))
def test_the_frozen_stack_has_its_constants(seed, biases):
    model, image = vit(seed, biases)
    last, stack = diagnose(model, image, ranks=0, joined=0, depth=4).extrapolation
    layers, X = frozen_stack.freeze(copy.deepcopy(model), image)
    for entry, own in ((last, layers[-1:]), (stack, layers)):
        expected = frozen_stack.course(own, X, int(entry.simulated.depth[-1]))
        at = [int(depth) for depth in entry.simulated.depth]
        assert entry.simulated.log_hfc_lfc == pytest.approx([expected[i] for i in at], abs=2e-4), entry.what
        without = frozen_stack.course(own, X, at[-1], constants=False)
        shown = max(abs(expected[i] - without[i]) for i in at)
        assert (shown > 0.05) if biases else (shown == 0)  # the constants matter, where there are any


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
    assert last.predicted_rate == pytest.approx(1 / last.rho_smooth, rel=1e-4)
    # As it runs: w is what the norm leaves of the identity.
    w = (last.rho_smooth - 1) / (1 - strength)
    A = np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    X = first = np.random.default_rng(0).standard_normal((6, 8))
    course = []
    for _ in range(80):
        X = X + w * (A @ X - strength * X + strength * first)
        course.append(frozen_stack.log_ratio(X))
    assert np.exp(course[-1] - course[-2]) == pytest.approx(last.predicted_rate, rel=1e-3)


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_featscale_before_a_norm_on_the_stream(strength):
    """The norm takes the mean of scaled features away: H is raw, and with gains of 1 that of the plain model."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    ids = torch.arange(6)[None]
    W = [(layer.W_V.double(), layer.W_O.double()) for layer in locate(model).layers]
    found = diagnose(steer(model, FeatScale(strength, strength)), ids, ranks=0, joined=0, depth=2)
    (last,) = found.extrapolation
    assert last.variant == "raw"
    assert "FeatScale" in last.note
    H = (1 + strength) * (W[-1][0] @ W[-1][1]).sum(0)
    assert last.rho_smooth == pytest.approx(float((1 + torch.linalg.eigvals(H)).abs().max()), rel=1e-4)
    assert len(last.real.log_hfc_lfc) == 3
