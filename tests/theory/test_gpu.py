"""What runs differently on a CUDA GPU gives the CPU's numbers. Runs where there is one."""

import pytest
import torch
from support.oracles import attention, normal, weights

from oversmooth.theory import SoftmaxAttention, attention_spectrum, dominance, simulate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_dominance(per_head, causal):
    A = attention(60, 3, 90, 90, causal=causal, dtype=torch.float32)
    W_V, W_O = (w.float() for w in weights(3, 24, 8, scale=0.3))
    exact = dominance(A.double(), W_V.double(), W_O.double(), per_head=per_head, limit=False)
    found = dominance(A.cuda(), W_V.cuda(), W_O.cuda(), per_head=per_head)
    assert found.rho_rough.is_cuda
    assert (found.rho_rough.cpu() - exact.rho_rough).abs().max() < 2e-3
    clear = exact.margin.abs() > 1e-3
    assert (found.smoothing.cpu() == exact.smoothing)[clear].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k", [6, 64])
def test_operator(dtype, masked, causal, k):
    q, key = normal(2, 3, 70, k).to(dtype), normal(2, 3, 70, k, seed=1).to(dtype)
    mask = torch.ones(2, 70, dtype=torch.bool)
    mask[0, :9] = not masked
    cpu = SoftmaxAttention(q, key, causal=causal, mask=mask if masked else None)
    gpu = SoftmaxAttention(q.cuda(), key.cuda(), causal=causal, mask=mask.cuda() if masked else None)
    v = normal(2, 3, 70, 5, seed=2).to(dtype)
    near = dict(rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((gpu @ v.cuda()).cpu(), cpu @ v, **near)
    torch.testing.assert_close(gpu.diagonal().cpu(), cpu.diagonal(), **near)
    torch.testing.assert_close(attention_spectrum(gpu).radius.cpu(), attention_spectrum(cpu).radius, rtol=0, atol=1e-3)


def test_simulation():
    A, (W_V, W_O), X = attention(2, 8, 8), weights(2, 6, 3), normal(8, 6)
    cpu = simulate(X, A, W_V, W_O, 50)
    gpu = simulate(X.cuda(), A.cuda(), W_V.cuda(), W_O.cuda(), 50)
    torch.testing.assert_close(gpu.log_hfc_lfc.cpu(), cpu.log_hfc_lfc)
