"""Spectra of H by weights alone, live and from disk, against dense eigenvalues in float64."""

import dataclasses
import threading
from pathlib import Path

import pytest
import torch
from adversary.numbers.family_cases import CASES
from hypothesis import given
from hypothesis import strategies as st
from support import family_checks as checks
from support import timm_models
from support.families import FAMILIES, HEADS, usable
from support.nightly import some
from support.oracles import normal, same_spectrum, weights

from oversmooth import Diagnosis, InputError, Monitor, diagnose, steer
from oversmooth.anatomy import locate
from oversmooth.anatomy.layer import Anatomy, AttentionLayer, Norm
from oversmooth.anatomy.layouts import Layout
from oversmooth.diagnosis import weights as spectra
from oversmooth.diagnosis.finished import Finished, question
from oversmooth.diagnosis.weights import diagnose_weights, layer_spectrum, observed
from oversmooth.results.parts import Spectrum
from oversmooth.safety.files import cache_folder
from oversmooth.steering import LayerNormScaling
from oversmooth.theory.reasons import Reason


class Arrays:
    def __init__(self, **arrays):
        self.arrays = arrays
        self.shapes = {name: tuple(value.shape) for name, value in arrays.items()}

    def read(self, name, rows=None):
        return self.arrays[name] if rows is None else self.arrays[name][rows]


def layer_of(W_V, W_O, gamma=None, kind="layer"):
    """A layer whose weights are these, (heads, d, k) and (heads, k, d)."""
    heads, d, k = W_V.shape
    arrays = {"a.v.weight": W_V.mT.reshape(heads * k, d), "a.o.weight": W_O.reshape(heads * k, d).T}
    if gamma is not None:
        arrays["n.weight"] = gamma
    source = Arrays(**arrays)
    norm = None if gamma is None else Norm("n", kind, 0.0, source)
    position = "none" if gamma is None else "pre"
    return AttentionLayer(
        "a", "", heads, heads, k, d, None, position, norm, None, Layout("x", "v.weight", "o.weight"), source
    )


def values(spectrum):
    return torch.complex(torch.tensor(spectrum.real).double(), torch.tensor(spectrum.imag).double())


@given(
    st.integers(1, 4),
    st.integers(2, 7),
    st.integers(1, 4),
    st.sampled_from([None, "layer", "rms"]),
    st.integers(0, 10_000),
)
def test_dense_eigenvalues(heads, d, k, kind, seed):
    W_V, W_O = weights(heads, d, k, seed=seed)
    gamma = None if kind is None else 1 + 0.3 * normal(d, seed=seed)
    layer = layer_of(W_V, W_O, gamma, kind or "layer")
    found = layer_spectrum(layer) if kind is None else observed(layer_spectrum(layer), layer, 1.7)
    variants = {"raw": W_V}
    if kind is not None:
        C = torch.eye(d).double() - (1 / d if kind == "layer" else 0.0)
        variants["folded"] = C @ torch.diag(gamma) @ W_V
        variants["observed"] = 1.7 * variants["folded"]
    assert set(found.joined) == set(found.heads) == set(variants)
    for name, V in variants.items():
        whole = checks.largest((V @ W_O).sum(0), heads * k)
        assert same_spectrum(values(found.joined[name]), whole, 1e-4)
        everything = torch.linalg.eigvals((V @ W_O).sum(0))
        assert found.joined[name].rho_smooth == pytest.approx((1 + everything).abs().max().item(), rel=1e-4)
        assert found.joined[name].mean_real == pytest.approx(whole.real.mean().item(), rel=1e-4, abs=1e-4)
        for h in range(heads):
            assert same_spectrum(values(found.heads[name][h]), checks.largest(V[h] @ W_O[h], k), 1e-4)
    assert list(found.joined["raw"].real) == sorted(found.joined["raw"].real)


DECIMALS = st.builds("{}e{}".format, st.integers(-(10**7), 10**7), st.integers(-30, 30)).map(float)
SPECIAL = [0.0, -0.0, 5e-324, 1.7e308, 1e5, 999999.5, 999999.4999, 0.9999995, 1e22, 1e-17, 1.000005, 2.5e-5, 1234565.0]


@given(st.lists(st.one_of(st.floats(), st.floats(-2, 2), DECIMALS, st.sampled_from(SPECIAL)), max_size=30))
def test_rounding_is_that_of_text(numbers):
    found = spectra._rounded(torch.tensor([numbers, numbers[::-1]], dtype=torch.float64))
    expected = [float(f"{value:.6g}") for value in numbers]
    assert list(map(repr, found[0])) == list(map(repr, expected))  # -0.0 is not 0.0, and NaN is NaN
    assert list(map(repr, found[1])) == list(map(repr, expected[::-1]))


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e4])
def test_many_numbers_near_ties_are_rounded_as_text(size):
    whole = torch.randint(100_000, 999_999, (20_000,), dtype=torch.float64)
    ties = (whole + 0.5) / 1e5 * size
    numbers = torch.cat([ties, ties.nextafter(ties + 1), ties.nextafter(ties - 1), whole / 1e5 * size])
    assert spectra._rounded(numbers) == [float(f"{value:.6g}") for value in numbers.tolist()]


@given(st.integers(1, 4), st.integers(2, 7), st.integers(1, 4), st.integers(0, 10_000))
def test_share_of_negative_eigenvalues(heads, d, k, seed):
    W_V, W_O = weights(heads, d, k, seed=seed)
    found = layer_spectrum(layer_of(W_V, W_O))
    whole = checks.largest((W_V @ W_O).sum(0), heads * k)
    assert found.negative_share == pytest.approx((whole.real < 0).double().mean().item(), abs=1e-6)


def test_zeros_of_heads_that_do_not_span_all_features():
    """They are not counted in shares, and count in ρ_smooth, where they are eigenvalues 1 of the update."""
    W_V, _ = weights(2, 9, 2)
    found = layer_spectrum(layer_of(W_V, -0.01 * W_V.mT))  # all others are between -1 and 0
    assert len(found.joined["raw"].real) == 4
    assert found.negative_share == 1
    assert found.rho_smooth == 1
    assert all(head.rho_smooth < 1 for head in found.heads["raw"])


@given(st.integers(1, 3), st.integers(2, 3), st.integers(4, 9), st.integers(1, 3), st.integers(0, 10_000))
def test_shared_value_heads(shared, group, d, k, seed):
    W_V, W_O = weights(shared * group, d, k, seed=seed)
    W_V = W_V[:shared]
    arrays = {"a.v.weight": W_V.mT.reshape(shared * k, d), "a.o.weight": W_O.reshape(shared * group * k, d).T}
    layer = dataclasses.replace(layer_of(*weights(shared * group, d, k)), kv_heads=shared, weights=Arrays(**arrays))
    whole = checks.largest((W_V.repeat_interleave(group, 0) @ W_O).sum(0), shared * k)
    found = layer_spectrum(layer)
    assert same_spectrum(values(found.joined["raw"]), whole, 1e-4)
    assert found.negative_share == pytest.approx(
        (whole.real < -1e-6 * whole.abs().max()).double().mean().item(), abs=1e-6
    )


def test_latent_attention_has_as_many_eigenvalues_as_latent_features():
    """DeepSeek-V3's is 512 of 7,168; zeros of rounding, of either sign, were counted too."""
    model = CASES["DeepSeek-V3"].make()
    model.requires_grad_(False)
    for p in model.parameters():
        p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    for layer in locate(model):
        rank = layer.latent_rank
        assert rank < min(layer.width, layer.kv_heads * layer.head_dim)
        found = observed(layer_spectrum(layer), layer, 1.7)
        H = (layer.W_V.double() @ layer.W_O.double()).sum(0)
        folded = layer.norm.gamma.double()[:, None] * H
        for name, whole in (("raw", H), ("folded", folded), ("observed", 1.7 * folded)):
            largest = checks.largest(whole, rank)
            assert same_spectrum(values(found.joined[name]), largest, 1e-4)
            share = (largest.real < 0).double().mean().item()
            assert found.joined[name].negative_share == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_exact_once_stored(dtype):
    W_V, W_O = (W.to(dtype) for W in weights(2, 6, 3))
    found = layer_spectrum(layer_of(W_V, W_O))
    assert same_spectrum(values(found.joined["raw"]), torch.linalg.eigvals((W_V.double() @ W_O.double()).sum(0)), 1e-4)


@pytest.mark.parametrize("name", some([n for n in usable() if checks.has_config(n)], 3))
def test_from_disk_as_from_memory(name, tmp_path):
    model = FAMILIES[name].make()
    model.save_pretrained(tmp_path)
    live, disk = (diagnose_weights(name, locate(source)) for source in (model, tmp_path))
    assert [layer.spectrum for layer in live.layers] == [layer.spectrum for layer in disk.layers]
    assert len(live.layers) == 1 + len(FAMILIES[name].runs)
    assert live.negative_share == disk.negative_share
    for layer, found in zip(locate(model), live.layers[1:], strict=True):
        assert len(found.spectrum.heads["raw"]) == HEADS
        assert len(found.spectrum.joined["raw"].real) == spectra.joined_size(layer)
        assert layer_spectrum(layer, verdicts=True) == found.spectrum
        assert len(found.spectrum.verdicts) == (0 if layer.on_branch else HEADS)
    assert Diagnosis.from_json(live.to_json()) == live


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", some(usable(), 3))
def test_weights_decide_nothing_that_a_run_leaves_open(name):
    family = FAMILIES[name]
    model = family.make()
    seen = diagnose(model, family.inputs(), depth=0, joined=0, example=False)
    alone = diagnose_weights(name, locate(model))
    for one, other in zip(alone.layers[1:], seen.layers[1:], strict=True):
        assert (one.spectrum.rho_smooth is None) == (other.dominance.undecided_share == 1)


_SMALL = dict(
    vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0
)


@pytest.mark.parametrize(
    ("model", "output", "settings"),
    [
        ("Gemma2", "self_attn.o_proj", dict(num_key_value_heads=2, head_dim=6)),
        ("Gemma3Text", "self_attn.o_proj", dict(num_key_value_heads=2, head_dim=6)),
        ("Glm4", "self_attn.o_proj", dict(num_key_value_heads=2, head_dim=6)),
        ("Olmo2", "self_attn.o_proj", {}),
        ("BitNet", "self_attn.v_proj", dict(num_key_value_heads=4)),
    ],
)
def test_where_a_norm_takes_a_factor_away_weights_give_no_radius(model, output, settings, tmp_path):
    """A thousandfold weight leaves the model as it is, so no radius of H is the model's."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{model}Config")(**{**_SMALL, **settings}, rms_norm_eps=1e-12)
    net = getattr(transformers, f"{model}Model")(config).eval()
    ids = torch.randint(5, 60, (2, 7))
    before = net(ids).last_hidden_state
    for block in net.layers:
        block.get_submodule(output).weight.data *= 1e3
    assert torch.allclose(net(ids).last_hidden_state, before, atol=1e-4)
    net.save_pretrained(tmp_path)
    for source in (net, tmp_path):
        found = diagnose_weights(model, locate(source))
        assert (found.notes[-1].kind, found.notes[-1].count, found.notes[-1].total) == ("undecided_layers", 2, 2)
        for layer in found.layers[1:]:
            assert layer.spectrum.rho_smooth is None
            assert layer.spectrum.verdicts == []
            assert all(entry.rho_smooth is None for row in layer.spectrum.heads.values() for entry in row)
    row = Monitor(net, probe=ids, every=1, spectra=1).snapshot(1)
    assert row["rho_smooth"] == [None, None]
    assert None not in row["negative_share"]


@pytest.mark.parametrize("clip", [None, 0.05, 1.0])
def test_clipped_values_are_no_product_of_weights(clip, tmp_path):
    from transformers import MptConfig, MptModel

    config = MptConfig(vocab_size=64, d_model=24, n_layers=2, n_heads=4, max_seq_len=32, attn_config={"clip_qkv": clip})
    net = MptModel(config).eval()
    net.save_pretrained(tmp_path)
    for source in (net, tmp_path):
        radii = [layer.spectrum.rho_smooth for layer in diagnose_weights("MPT", locate(source)).layers[1:]]
        assert all((radius is None) == (clip is not None) for radius in radii)


def vit_of_timm(**settings):
    timm_models.timm()
    from timm.models.vision_transformer import VisionTransformer

    sizes = dict(img_size=12, patch_size=4, embed_dim=24, depth=2, num_heads=2, num_classes=5)
    return VisionTransformer(**sizes, **settings).eval()


@pytest.mark.skipif(not timm_models.available(), reason="timm is not there")
@pytest.mark.parametrize("normed", [False, True])
def test_a_norm_inside_attention_of_timm(normed):
    model = vit_of_timm(scale_attn_norm=normed)
    found = diagnose_weights("ViT", locate(model))
    assert all((layer.spectrum.rho_smooth is None) == normed for layer in found.layers[1:])
    if normed:
        with pytest.raises(InputError, match="off what it returned"):
            diagnose(model, torch.randn(2, 3, 12, 12))


@pytest.mark.skipif(not timm_models.available(), reason="timm is not there")
def test_blocks_of_timm_that_norm_what_attention_gives():
    timm_models.timm()
    from timm.models.vision_transformer import ResPostBlock

    model, x = vit_of_timm(block_fn=ResPostBlock, init_values=None), torch.randn(2, 3, 12, 12)
    found, seen = diagnose_weights("ViT", locate(model)), diagnose(model, x, depth=0)
    for alone, layer in zip(found.layers[1:], seen.layers[1:], strict=True):
        assert alone.spectrum.rho_smooth is None
        assert layer.dominance.undecided_share == 1
    with pytest.raises(InputError, match="it has no norm before attention that is known"):
        steer(model, LayerNormScaling())


def remembered(folder):
    return Finished(folder, "spectrum", b"key", Spectrum)


def test_a_stopped_run_goes_on(tmp_path, monkeypatch):
    """Finished layers are remembered, whole lines only, and forgotten at the end."""
    anatomy = locate(FAMILIES["Llama"].make())
    memory = remembered(tmp_path)
    expected = diagnose_weights("x", anatomy).layers

    def stop(_done, total):
        assert total == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose_weights("x", anatomy, memory=memory, progress=stop)
    assert memory.read() == {"layers.0.self_attn": expected[1].spectrum}
    with memory.path.open("a") as lines:
        lines.write('{"layers.1.self_attn": {"nega')
    assert list(memory.read()) == ["layers.0.self_attn"]
    computed = []
    monkeypatch.setattr(
        spectra, "layer_spectrum", lambda layer, **k: computed.append(layer) or layer_spectrum(layer, **k)
    )
    again = diagnose_weights("x", anatomy, memory=memory)
    assert [layer.name for layer in computed] == ["layers.1.self_attn"]
    assert again.layers == expected
    assert not memory.path.exists()


DAMAGED = [b"\xff\xfe\x00", b"[" * 100_000, b"{", b"5", b'{"a": {}}', b'{"a": null}', b"1" * 5000]


def test_an_interruption_does_not_wait_for_what_is_read_meanwhile():
    go_on = threading.Event()
    layers = spectra._one_ahead(lambda layer: layer if layer != 2 else go_on.wait(20), [1, 2, 3])
    assert next(layers) == 1
    threading.Timer(10, go_on.set).start()
    layers.close()  # as an interruption ends it
    assert not go_on.is_set()
    go_on.set()


def test_a_damaged_memory_is_dropped_and_what_is_left_of_it_used(tmp_path):
    anatomy = locate(FAMILIES["ViT"].make())
    memory = remembered(tmp_path)
    for layer in anatomy:
        memory.add(layer.name, layer_spectrum(layer, verdicts=True))
    whole, lines = memory.read(), memory.path.read_bytes().split(b"\n")
    assert len(whole) == 2
    for damage in DAMAGED:
        memory.path.write_bytes(b"\n".join([lines[1], damage, b""]))
        assert list(memory.read()) == [anatomy.layers[0].name]
    found = diagnose_weights("x", anatomy, memory=memory)
    assert [layer.spectrum for layer in found.layers[1:]] == list(whole.values())
    assert not memory.path.exists()


def test_where_nothing_can_be_remembered_the_work_goes_on(tmp_path, monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    for name in ("OVERSMOOTH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cache").write_text("a file where a folder should be")
    for memory in (remembered(cache_folder()), remembered(tmp_path / "cache")):
        assert len(diagnose_weights("x", locate(FAMILIES["ViT"].make()), memory=memory).layers) == 3
        assert memory.read() == {}


def test_memory_is_of_these_files_and_this_question(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = question([file], "joined", True)
    assert first == question([file], "joined", True)
    assert first != question([file], "joined", False)
    file.write_bytes(b"other")
    assert first != question([file], "joined", True)


def test_without_the_joined_spectrum():
    layer = locate(FAMILIES["Llama"].make()).layers[0]
    found = layer_spectrum(layer, joined=False)
    assert found.negative_share is None
    assert found.joined["raw"].real == []
    assert found.heads == layer_spectrum(layer).heads


def test_factors_on_the_branch_and_on_the_stream():
    """αx + β f(x): the eigenvalues of H with β, and ρ_smooth about α."""
    W_V, W_O = weights(2, 6, 3, seed=1)
    layer = dataclasses.replace(layer_of(W_V, W_O), factor=0.7, keep=3.5)
    dense = torch.linalg.eigvals(0.7 * (W_V @ W_O).sum(0).double())
    found = layer_spectrum(layer).joined["raw"]
    got = torch.complex(torch.tensor(found.real).double(), torch.tensor(found.imag).double())
    assert same_spectrum(got, dense, 1e-4)
    assert found.rho_smooth == pytest.approx(float((3.5 + dense).abs().max()), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (dict(leak="sinks"), Reason("rows_below_one", detail="sinks")),
        (dict(values_normed=True), Reason("values_normed")),
    ],
)
def test_layers_that_the_theorem_does_not_describe(change, why):
    plain = layer_of(*weights(2, 6, 3, seed=1))
    odd = dataclasses.replace(plain, **change)
    assert layer_spectrum(plain, verdicts=True).verdicts
    assert layer_spectrum(odd, verdicts=True).verdicts == []
    found, usual = layer_spectrum(odd).joined["raw"], layer_spectrum(plain).joined["raw"]
    assert (found.real, found.imag) == (usual.real, usual.imag)
    assert found.rho_smooth is None
    (note,) = diagnose_weights("x", Anatomy((plain, odd), "a")).notes
    assert (note.kind, note.count, note.total, note.reason) == ("undecided_layers", 1, 2, why)
