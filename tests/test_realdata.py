"""Trained models on real data: figures that are known from elsewhere, and each once more by a slow route.

Needs what OVERSMOOTH_DATA, or the folder ``shared`` beside the repository, holds: weights/ and data/.
"""

import functools

import pytest
import torch
from support.family_checks import slow_metrics
from support.nightly import nightly
from support.oracles import centred_basis, streams
from support.places import DATA

from oversmooth import diagnose, models
from oversmooth.anatomy import locate

ROOT = DATA
DEIT, STORIES = ROOT / "weights" / "deit-tiny", ROOT / "weights" / "stories15m"
IMAGES, WIKITEXT = ROOT / "data" / "imagenet-val-1k", ROOT / "data" / "wikitext-2"

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not (DEIT.is_dir() and IMAGES.is_dir()), reason="no real data here: set OVERSMOOTH_DATA"),
]


@pytest.fixture(scope="module")
def deit():
    return models.load(str(DEIT))


@pytest.fixture(scope="module")
def stories():
    return models.load(str(STORIES))


@pytest.fixture(scope="module")
def seen(deit):
    """Six images, with ranks and the spectra of heads."""
    return diagnose(deit.model, deit.inputs(IMAGES, count=6), ranks=6, joined=0, depth=0)


@pytest.fixture(scope="module")
def read(stories):
    return diagnose(stories.model, stories.inputs(WIKITEXT, count=6, length=64), ranks=6, joined=0, depth=0)


@nightly
def test_images_are_recognised(deit):
    """Published 72.2; 70.7 for these rounded weights on all 1,000."""
    found = diagnose(deit.model, deit.inputs(IMAGES, count=100, batch=50), spectra=False, ranks=0)
    assert found.provenance["inputs"] == 100
    assert 0.62 <= found.provenance["top1"] <= 0.78


@nightly
def test_shares_of_an_image_model(seen):
    """77 % of the eigenvalues negative, the smoothing one dominates in 60 % of cases."""
    assert 0.70 <= seen.negative_share <= 0.84
    assert 0.50 <= seen.smoothing_share <= 0.70


def test_curves_of_an_image_model(seen):
    """HFC/LFC 1.27, up to 1.72 after block 4, back to 1.45 after block 11; effective rank 74, 106, 92."""
    ratio, rank = seen.curve("hfc_lfc"), seen.curve("effective_rank")
    assert len(ratio) == 13
    assert ratio[0] == pytest.approx(1.27, rel=0.15)
    assert ratio[4] == pytest.approx(1.72, rel=0.15)
    assert ratio[11] == pytest.approx(1.45, rel=0.2)
    assert ratio[4] > max(ratio[0], ratio[11])
    assert rank[0] == pytest.approx(74, rel=0.15)
    assert max(rank) == pytest.approx(106, rel=0.15)
    assert rank[11] == pytest.approx(92, rel=0.15)


def test_radius_with_the_norm_folded_in(seen):
    """THEORY §4, on layer 3: 1.60 raw, 1.81 with centring and γ, 2.57 with 1/σ too."""
    joined = seen.layers[4].spectrum.joined
    found = [joined[name].rho_smooth for name in ("raw", "folded", "observed")]
    assert found == pytest.approx([1.60, 1.81, 2.57], rel=0.05)


def test_shares_of_a_language_model(read):
    assert 0.38 <= read.negative_share <= 0.52
    assert read.model["causal"]


@pytest.mark.parametrize("which", ["deit", "stories"])
def test_every_figure_by_a_slow_route(which):
    """Two inputs with attention computed step by step, singular values and all eigenvalues dense, in float64."""
    loaded = models.load(str(DEIT if which == "deit" else STORIES), dtype="float32")
    inputs = loaded.inputs(IMAGES, count=2) if which == "deit" else loaded.inputs(WIKITEXT, count=2, length=48)
    (batch,) = list(inputs)
    found = diagnose(loaded.model, inputs, depth=0, joined=0)
    slow = models.load(str(DEIT if which == "deit" else STORIES), dtype="float64").model
    slow.set_attn_implementation("eager")
    counted = _counted(batch)
    blocks = slow.vit.layers if which == "deit" else slow.model.layers
    given = {k: v.double() if v.is_floating_point() else v for k, v in batch.inputs.items()}
    outs = []
    arrays = streams(blocks, lambda: outs.append(slow(**given, output_attentions=True)))
    (out,) = outs
    near = dict(rel=1e-4, abs=1e-4)
    for layer, x in zip(found.layers, arrays, strict=True):
        rows = [slow_metrics(array if keep is None else array[keep]) for array, keep in zip(x, counted, strict=True)]
        for metric in rows[0].keys() & layer.tokens.keys():
            expected = sum(row[metric] for row in rows) / len(rows)
            assert layer.tokens[metric] == pytest.approx(expected, **near), (layer.name, metric)
        norms = x.norm(dim=-1)
        assert layer.tokens["first_norm"] == pytest.approx(
            float((norms[:, 0] / norms.median(-1).values).mean()), **near
        )
    smooth = total = negative = values = 0
    mask = batch.inputs.get("attention_mask")
    for layer, seen, A in zip(locate(slow), found.layers[1:], out.attentions, strict=True):
        W_V, W_O = layer.W_V.double(), layer.W_O.double()
        whole = torch.linalg.eigvals((W_V @ W_O).sum(0))
        to_first = A[..., 0].mean(-1)
        assert seen.tokens["sink_attention"] == pytest.approx(float(to_first.mean()), **near)
        assert seen.tokens["sink_rate"] == pytest.approx(float((to_first > 0.3).double().mean()), **near)
        assert seen.spectrum.rho_smooth == pytest.approx((1 + whole).abs().max().item(), rel=1e-4)
        negative, values = negative + int((whole.real < 0).sum()), values + len(whole)
        for i in range(2):
            a = A[i].double() if mask is None else A[i].double()[:, mask[i].bool()][:, :, mask[i].bool()]
            basis = centred_basis(a.shape[-1])
            for h in range(layer.heads):
                # Causal: the diagonal has all eigenvalues, exactly; dense ones of a triangle are far off.
                t = a[h].diagonal()[1:] + 0j if which == "stories" else torch.linalg.eigvals(basis.T @ a[h] @ basis)
                lam = torch.linalg.eigvals(W_O[h] @ W_V[h])
                even, rough = (1 + lam).abs().max().item(), (1 + torch.outer(t, lam)).abs().max().item()
                assert seen.dominance.rho_smooth_heads[h] == pytest.approx(even, rel=1e-4)
                # Arnoldi stops at a residual of 1e-4, which bounds the error of a normal matrix only.
                assert seen.dominance.rho_rough_heads[i][h] == pytest.approx(rough, rel=3e-4)
                smooth, total = smooth + (even > rough), total + 1
    assert found.negative_share == pytest.approx(negative / values, abs=1e-4)
    assert found.smoothing_share == pytest.approx(smooth / total, abs=1e-4)


@nightly
def test_a_causal_stack_is_known_by_its_diagonals(stories):
    """Token by token, dense: 1.238 a layer. Arnoldi on the whole product, far from normal, said 1.294."""
    batch = next(iter(stories.inputs(WIKITEXT, count=2, length=48, batch=1)))
    (_, stack) = diagnose(stories.model, {k: v[:1] for k, v in batch.inputs.items()}, depth=1).extrapolation
    slow = models.load(str(STORIES), dtype="float64").model
    slow.set_attn_implementation("eager")
    outs = []
    call = lambda: outs.append(slow(**{k: v[:1] for k, v in batch.inputs.items()}, output_attentions=True))  # noqa: E731
    *inside, _ = streams(slow.model.layers, call)
    (out,) = outs
    blocks = []
    for layer, A, x in zip(locate(slow), out.attentions, inside, strict=True):
        sigma = (x[0].square().mean(-1) + slow.config.rms_norm_eps).rsqrt().mean()
        folded = layer.norm.gamma.double()[:, None] * layer.W_V.double() * sigma
        diagonal = A[0].double().diagonal(dim1=-2, dim2=-1)[:, 1:]
        eye = torch.eye(layer.width, dtype=torch.float64)
        blocks.append(eye + torch.einsum("hi,hdk,hke->ide", diagonal, folded, layer.W_O.double()))
    product = functools.reduce(torch.matmul, blocks)
    rough = torch.linalg.eigvals(product).abs().max().item() ** (1 / len(blocks))
    assert stack.rho_rough == pytest.approx(rough, rel=1e-4)
    assert rough == pytest.approx(1.238, abs=5e-3)


def _counted(batch):
    """The tokens that count in each input: neither padding nor special."""
    mask = batch.inputs.get("attention_mask")
    if mask is None and batch.special is None:
        return [None, None]
    keep = torch.ones_like(batch.special, dtype=torch.bool) if mask is None else mask.bool()
    return list(keep if batch.special is None else keep & ~batch.special)
