"""A diagnosis from end to end: forms of inputs, padding, special and massive tokens, wrappers, precision, errors."""

import copy
import itertools
import json
import math
from collections import UserDict

import pytest
import torch
from support import family_checks as checks
from support.families import FAMILIES, HEADS, WIDTH, HandBlock, Stack, randomise, run, text
from support.nightly import some
from support.oracles import centred_basis, dense_radii, streams
from torch import nn

from oversmooth import Diagnosis, InputError, diagnose, metrics
from oversmooth.anatomy import locate
from oversmooth.inputs.batches import Batch
from oversmooth.results.notes import Note

LLAMA, VIT, BERT = (FAMILIES[name] for name in ("Llama", "ViT", "BERT"))
VIT_TOKENS = 10
QUICK = dict(depth=0, joined=0, ranks=4)


def numbers(diagnosis):
    """Everything that was measured, without when and where."""
    found = json.loads(diagnosis.to_json())
    return {key: found[key] for key in ("layers", "extrapolation")}


# Forms of inputs


def test_forms_of_the_same_inputs():
    model, given = LLAMA.make(), text()
    expected = numbers(diagnose(model, given, **QUICK))
    for form in ([given], (given,), iter([given]), Batch(given), UserDict(given)):
        assert numbers(diagnose(model, form, **QUICK)) == expected
    apart = numbers(diagnose(model, [{k: v[i : i + 1] for k, v in given.items()} for i in range(2)], **QUICK))
    for a, b in zip(apart["layers"], expected["layers"], strict=True):
        assert a["tokens"] == pytest.approx(b["tokens"], rel=1e-5)


def test_tensors_and_what_data_loaders_give():
    family = FAMILIES["around nn.MultiheadAttention"]
    model, images = family.make(), family.inputs()
    expected = numbers(diagnose(model, images, **QUICK))
    labelled = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, torch.tensor([0, 1])), batch_size=2)
    assert numbers(diagnose(model, labelled, **QUICK)) == expected


def test_batches_of_several_lengths():
    model, ids = LLAMA.make(), text()["input_ids"]
    found = diagnose(model, [ids, ids[:1, :5]], joined=3, depth=0)
    assert found.provenance["inputs"] == 3
    assert found.provenance["tokens"] == [5, 8]
    one = diagnose(model, ids[:1, :5], depth=0)
    for both, alone in zip(found.layers[1:], one.layers[1:], strict=True):
        assert both.dominance.rho_rough_heads[2] == pytest.approx(alone.dominance.rho_rough_heads[0], rel=1e-5)
        assert both.dominance.joined_rho_rough[2] == pytest.approx(alone.dominance.joined_rho_rough[0], rel=1e-5)


def test_ranks_and_joined_of_the_first_inputs_only():
    model, ids = LLAMA.make(), text()["input_ids"]
    found = diagnose(model, [ids, ids.flip(0)], ranks=1, joined=3, depth=0)
    alone = diagnose(model, ids[:1], ranks=1, depth=0)
    for layer, other in zip(found.layers, alone.layers, strict=True):
        assert layer.tokens["effective_rank"] == pytest.approx(other.tokens["effective_rank"], rel=1e-5)
        assert layer.tokens["hfc_lfc"] != pytest.approx(other.tokens["hfc_lfc"], rel=1e-3)
    assert found.layers[1].dominance.joined_inputs == [0, 1, 2]
    assert (found.provenance["rank_inputs"], found.provenance["joined_inputs"]) == (1, 3)


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([], "there are no inputs"),
        ([["a", "b"]], "an input is a list"),
        ({**text(), "attention_mask": torch.tensor([[1] * 8, [0] * 8])}, "hides every token"),
        (text()["input_ids"][:, :1], "every input has fewer than two valid tokens; give longer ones"),
    ],
)
def test_inputs_of_the_wrong_kind(inputs, match):
    with pytest.raises(InputError, match=match):
        diagnose(LLAMA.make(), inputs)


@pytest.mark.parametrize("kept", [(), ("input_ids",)])
def test_lists_for_tensors_are_refused_or_taken(kept):
    """A tokenizer without return_tensors gives lists: leaving them out would count padding."""
    given = {k: v if k in kept else v.tolist() for k, v in text().items()}
    try:
        found = diagnose(LLAMA.make(), given, **QUICK)
    except InputError:
        return
    assert found.provenance["tokens"] == [5, 8]


def test_inputs_that_miss_the_stack():
    class TwoTowers(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = Stack(HandBlock()), Stack(HandBlock(), HandBlock())

        def forward(self, x):
            return self.used(x)

    with pytest.raises(InputError, match=r"ran without running idle\.blocks\.0"):
        diagnose(TwoTowers().eval(), torch.randn(1, 4, WIDTH))
    assert len(diagnose(TwoTowers().eval(), torch.randn(1, 4, WIDTH), stack="used", depth=0).layers) == 2


# Padding


def padded_and_alone(left):
    """One text with padding, and without."""
    ids = text()["input_ids"][1:, :5]
    empty = torch.full((1, 3), 9)
    mask = torch.tensor([[0] * 3 + [1] * 5 if left else [1] * 5 + [0] * 3])
    padded = torch.cat([empty, ids] if left else [ids, empty], 1)
    places = torch.tensor([[0] * 3 + list(range(5)) if left else list(range(8))])
    return {"input_ids": padded, "attention_mask": mask, "position_ids": places}, {"input_ids": ids}


def window(model, tokens):
    """Shorter than the padding: some queries of padding see nothing at all."""
    model.config.sliding_window = tokens
    for layer in model.layers:
        layer.self_attn.sliding_window = tokens
    return model


PADDED = ("Llama", "GPT-2", "BERT", "Mistral", "Gemma 2", "OPT", "GPT-NeoX (parallel)")


@pytest.mark.parametrize(
    ("name", "left", "attention"), some(itertools.product(PADDED, (False, True), ("sdpa", "eager")), 3)
)
def test_padding_changes_nothing(name, left, attention):
    if left and name == "BERT":
        pytest.skip("its positions are counted from the left")
    family = FAMILIES[name]
    model = family.make()
    model.set_attn_implementation("eager" if name == "Gemma 2" else attention)
    if name == "Mistral":
        window(model, 2)
    padded, alone = padded_and_alone(left)
    a, b = (diagnose(model, given, depth=0) for given in (padded, alone))
    assert a.provenance["tokens"] == b.provenance["tokens"] == [5, 5]
    for x, y in zip(a.layers, b.layers, strict=True):
        assert x.tokens == pytest.approx(y.tokens, abs=1e-4)
        if x.dominance is None:
            continue
        assert x.attention_out == pytest.approx(y.attention_out, abs=1e-4)
        if name != "BERT":
            assert x.spectrum.inverse_sigma == pytest.approx(y.spectrum.inverse_sigma, rel=1e-4)
        if family.gated:
            assert x.dominance.verdict_heads == [["undecided"] * 4]
            continue
        assert x.dominance.rho_rough_heads[0] == pytest.approx(y.dominance.rho_rough_heads[0], rel=1e-4)
        assert x.dominance.joined_rho_rough == pytest.approx(y.dominance.joined_rho_rough, rel=1e-4)


@pytest.mark.parametrize("left", [False, True])
def test_padding_does_not_change_the_extrapolation(left):
    padded, alone = padded_and_alone(left)
    a, b = (diagnose(LLAMA.make(), given, depth=4).extrapolation for given in (padded, alone))
    for x, y in zip(a, b, strict=True):
        assert x.real.log_hfc_lfc == pytest.approx(y.real.log_hfc_lfc, abs=1e-4)
    assert (a[0].rho_smooth, a[0].rho_rough) == pytest.approx((b[0].rho_smooth, b[0].rho_rough), rel=1e-4)


def test_special_tokens_are_not_counted_but_take_part():
    given = text()
    special = torch.zeros(2, 8, dtype=torch.bool)
    special[:, 0] = True
    model = BERT.make()
    found, whole = diagnose(model, Batch(given, special), depth=0), diagnose(model, given, depth=0)
    assert found.provenance["tokens"] == [4, 7]
    arrays = [checks.passages("BERT")[0].x, *(p.y for p in checks.passages("BERT"))]
    for layer, x, other in zip(found.layers, arrays, whole.layers, strict=True):
        rows = [checks.slow_metrics(x[i][keep & ~special[i]]) for i, keep in enumerate(BERT.rows())]
        for metric in rows[0].keys() & layer.tokens.keys():
            checks.near(layer.tokens[metric], sum(row[metric] for row in rows) / 2, metric)
        for metric in ("hfc_lfc", "cos"):
            checks.near(layer.tokens[f"{metric}_special"], other.tokens[metric], metric)
        for metric in {"first_norm", "sink_rate", "sink_attention"} & layer.tokens.keys():
            assert layer.tokens[metric] == other.tokens[metric]  # is of all tokens
        assert layer.dominance == other.dominance  # attention is over all of them
    counted = diagnose(model, Batch(given, special), special_tokens="count", **QUICK)
    assert counted.curve("hfc_lfc") == whole.curve("hfc_lfc")
    assert "hfc_lfc_special" not in counted.layers[0].tokens
    left = diagnose(model, Batch(given, special), special_tokens="leave", **QUICK)
    assert left.curve("hfc_lfc") == found.curve("hfc_lfc")
    assert "hfc_lfc_special" not in left.layers[0].tokens


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("blocks", [None, "layers.*"])
def test_tokens_that_the_caller_leaves_out(mask, blocks):
    """Token metrics are those of the other tokens; attention, and what follows from it, keeps all of them."""
    model, x, passages = VIT.make(), VIT.inputs(), checks.passages("ViT")
    n = passages[0].x.shape[1]
    special = [i in (0, 1, n - 1) for i in range(n)] if mask else [0, 1, -1]
    settings = dict(QUICK, joined=1, depth=2) if blocks is None else dict(blocks=blocks, spectra=False)
    usual, found = diagnose(model, x, **settings), diagnose(model, x, special=special, **settings)
    for layer, tokens in zip(found.layers, [passages[0].x, *(p.y for p in passages)], strict=True):
        rows = [checks.slow_metrics(row[2:-1]) for row in tokens]
        for metric in ("cos", "hfc_lfc", "effective_rank"):
            checks.near(layer.tokens[metric], sum(row[metric] for row in rows) / len(rows), metric)
    assert found.provenance["tokens"] == [n - 3] * 2
    assert found.provenance["left_out"] == [0, 1, n - 1 if mask else -1]
    assert [note.count for note in found.notes if note.kind == "left_out"] == [3]
    for one, other in zip(found.layers, usual.layers, strict=True):
        assert one.dominance == other.dominance
        assert one.spectrum is None or one.spectrum.joined["raw"] == other.spectrum.joined["raw"]
    for one, other in zip(found.extrapolation, usual.extrapolation, strict=True):
        assert (one.rho_rough, one.real) == (other.rho_rough, other.real)
        assert "special_counted" in [note.kind for note in one.notes]
    assert numbers(diagnose(model, x, special=[], **settings)) == numbers(usual)


@pytest.mark.parametrize(
    ("special", "match"),
    [
        ([40], r"special names token 40, but blocks receive \d+ tokens; give -"),
        (torch.ones(3, dtype=torch.bool), r"special is a mask of 3 tokens, but blocks receive \d+"),
        (list(range(VIT_TOKENS - 1)), "special leaves fewer than two of"),
        ("cls", "special is text; give token positions"),
        ([0.5], "special has shape .* dtype torch.float32; give token positions"),
    ],
)
def test_tokens_that_cannot_be_left_out(special, match):
    with pytest.raises(InputError, match=match):
        diagnose(VIT.make(), VIT.inputs(), special=special, **QUICK)


def test_an_input_whose_valid_tokens_are_all_left_out_is_skipped():
    """Not measured on the very tokens that the caller left out."""
    model, whole = BERT.make(), text()
    short = {name: x.clone() for name, x in whole.items()}
    short["attention_mask"][1] = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0])
    found = diagnose(model, short, special=[0, 1], **QUICK)
    alone = diagnose(model, {name: x[:1] for name, x in whole.items()}, special=[0, 1], **QUICK)
    for layer, other in zip(found.layers, alone.layers, strict=True):
        checks.near(layer.tokens["cos"], other.tokens["cos"], "the mean cosine")
    assert [note.count for note in found.notes if note.kind == "short_inputs"] == [1]


def test_inputs_of_special_tokens_alone_are_counted_whole():
    special = torch.ones(2, 8, dtype=torch.bool)
    found = diagnose(BERT.make(), Batch(text(), special), **QUICK)
    assert found.layers == diagnose(BERT.make(), text(), **QUICK).layers


# Massive tokens


@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_planted_massive_token_is_found(position):
    torch.manual_seed(1)
    model = randomise(Stack(HandBlock(), HandBlock(), HandBlock())).eval()
    x = torch.randn(3, 7, WIDTH)
    outputs = []
    first = model.blocks[0]

    def plant(_, __, out):
        out = out.clone()
        out[:, position] *= 100
        return out

    first.register_forward_hook(plant)
    model.blocks[1].register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    with torch.no_grad():
        model(x)
    entering = outputs[0]
    model.blocks[1]._forward_pre_hooks.clear()
    found = diagnose(model, x, **QUICK)
    # A hook acts after the block is left, so the next block is what shows it: blocks do not join up there.
    later = found.layers[2]
    assert found.layers[0].massive is None
    assert found.layers[0].without_massive is None
    keep = torch.arange(7) != position
    norms = entering.norm(dim=-1)
    assert (norms[:, position] / norms.median(-1).values > 20).all()
    with torch.no_grad():
        after = model.blocks[1](entering)
    ratio = after.norm(dim=-1) / after.norm(dim=-1).median(-1, keepdim=True).values
    assert later.massive == {
        "input_share": 1.0,
        "tokens": 3,
        "positions": {str(position): 3},
        "largest_ratio": pytest.approx(ratio.max().item(), rel=1e-4),
    }
    for found_there, arrays in ((later.without_massive, after[:, keep]), (later.tokens, after)):
        rows = [checks.slow_metrics(array) for array in arrays]
        for metric in ("hfc_lfc", "log_hfc_lfc", "log_hfc", "log_lfc", "cos", "abs_cos"):
            checks.near(found_there[metric], sum(row[metric] for row in rows) / 3, metric)
    assert found.curve("hfc_lfc", without_massive=True)[2] == later.without_massive["hfc_lfc"]
    assert any(str(position) in sentence for sentence in found.verdict if "assive" in sentence)


def test_massive_tokens_of_some_inputs_only():
    torch.manual_seed(1)
    x = torch.randn(4, 7, WIDTH)
    x[2, 5] *= 100
    found = diagnose(Stack(HandBlock()).eval(), x, **QUICK).layers[0]
    assert found.massive["input_share"] == 0.25
    assert found.massive["positions"] == {"5": 1}
    keep = [torch.arange(7) != (5 if i == 2 else -1) for i in range(4)]
    rows = [checks.slow_metrics(array[keep[i]]) for i, array in enumerate(x)]
    checks.near(found.without_massive["hfc_lfc"], sum(row["hfc_lfc"] for row in rows) / 4, "without it")


# How the norm enters


class _HiddenEps(nn.Module):
    """An RMSNorm that keeps its ε where nobody looks."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(0.5 + torch.rand(width))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


@pytest.mark.parametrize("norm", ["own", "hidden"])
@pytest.mark.parametrize("size", [1.0, 0.02, 0.003, 1e-4])
def test_the_norm_of_small_tokens_has_its_epsilon(size, norm):
    torch.manual_seed(0)
    model = LLAMA.make()
    if norm == "hidden":
        for block in model.layers:
            block.input_layernorm = _HiddenEps(WIDTH)
    for block in model.layers:
        block.input_layernorm.variance_epsilon = 1e-5 if norm == "own" else None
        block.self_attn.v_proj.weight.data *= 10
    model.embed_tokens.weight.data.normal_(0, size)
    ids = torch.randint(1, 60, (1, 7))
    found = diagnose(model, {"input_ids": ids}, variant="observed", depth=0)
    assert not [remark for remark in found.remarks if "norm" in remark]
    first = model.layers[0]
    x, gamma = model.embed_tokens(ids)[0].detach().double(), first.input_layernorm.weight.detach().double()
    V, out = (getattr(first.self_attn, name).weight.detach().double().T for name in ("v_proj", "o_proj"))
    group = out.shape[0] // V.shape[1]
    V = V.unflatten(1, (-1, WIDTH // HEADS)).repeat_interleave(group, 1).flatten(1)
    H = gamma[:, None] * V @ out * (x.square().mean(-1) + 1e-5).rsqrt().mean()
    wanted = (1 + torch.linalg.eigvals(H)).abs().max()
    assert found.layers[1].dominance.joined_rho_smooth[0] == pytest.approx(float(wanted), rel=1e-4)


@pytest.mark.parametrize("name", ["ViT", "Llama", "DINOv2"])
@pytest.mark.parametrize("variant", ["folded", "observed"])
def test_dominance_with_the_norm_in_H(name, variant):
    family = FAMILIES[name]
    found = diagnose(family.make(), family.inputs(), variant=variant, joined=2, depth=0)
    for layer, got, passage in zip(locate(family.make()), found.layers[1:], checks.passages(name), strict=True):
        C = torch.eye(WIDTH, dtype=torch.float64) - (1 / WIDTH if layer.norm.kind == "layer" else 0.0)
        folded, W_O = C @ torch.diag(layer.norm.gamma.double()) @ layer.W_V.double(), layer.W_O.double()
        for i, keep in enumerate(family.rows()):
            x = passage.x[i][keep]
            square = x.var(-1, unbiased=False) if layer.norm.kind == "layer" else x.square().mean(-1)
            V = folded * square.rsqrt().mean() if variant == "observed" else folded
            A = passage.A[i] if isinstance(keep, slice) else passage.A[i][:, keep][:, :, keep]
            smooth, rough = dense_radii(A, V, W_O)
            checks.near(got.dominance.joined_rho_smooth[i], smooth, "rho_smooth")
            checks.near(got.dominance.joined_rho_rough[i], rough, "rho_rough")
            basis = centred_basis(A.shape[-1])
            for h in range(HEADS):
                t, lam = torch.linalg.eigvals(basis.T @ A[h] @ basis), torch.linalg.eigvals(W_O[h] @ V[h])
                value = (1 + torch.outer(t, lam)).abs().max()
                checks.near(got.dominance.rho_rough_heads[i][h], value, f"head {h}")


@pytest.mark.parametrize("name", ["ViT", "Llama", "BERT"])
def test_the_rule_of_real_parts(name):
    family = FAMILIES[name]
    found = diagnose(family.make(), family.inputs(), rule="real", depth=0)
    assert "real parts" in found.provenance["counting_rule"]
    for layer, got, passage in zip(locate(family.make()), found.layers[1:], checks.passages(name), strict=True):
        for i, keep in enumerate(family.rows()):
            A = passage.A[i] if isinstance(keep, slice) else passage.A[i][:, keep][:, :, keep]
            basis = centred_basis(A.shape[-1])
            for h in range(HEADS):
                t = torch.linalg.eigvals(basis.T @ A[h] @ basis).real
                lam = torch.linalg.eigvals(layer.W_O[h].double() @ layer.W_V[h].double()).real
                smooth, rough = (1 + lam).abs().max(), (1 + torch.outer(t, lam)).abs().max()
                checks.near(got.dominance.rho_smooth_heads[h], smooth, f"rho_smooth of head {h}")
                checks.near(got.dominance.rho_rough_heads[i][h], rough, f"rho_rough of head {h}")
                assert got.dominance.verdict_heads[i][h] == ("smooth" if smooth > rough else "rough")


# Wrappers, modes and precision


@pytest.mark.parametrize("name", some(["ViT", "Llama", "torch encoder (Pre-LN, batch first)"], 3))
def test_a_compiled_model(name):
    family = FAMILIES[name]
    inside = family.make()
    model = torch.compile(inside, backend="eager")
    found = diagnose(model, family.inputs(), **QUICK)
    assert found.notes[0] == Note("wrapped", what="OptimizedModule")
    assert numbers(found) == numbers(diagnose(inside, family.inputs(), **QUICK))
    with torch.no_grad():
        expected = checks.tensors(run(family.make(), family.inputs()))
        checks.same_bits(checks.tensors(checks.observed(inside, family.inputs())), expected)
        checks.same_bits(checks.tensors(run(model, family.inputs())), expected)
    checks.check_untouched(inside)


def test_compiled_blocks_inside_a_model():
    model = VIT.make()
    expected = numbers(diagnose(model, VIT.inputs(), **QUICK))["layers"]
    for place in range(2):
        model.layers[place] = torch.compile(model.layers[place], backend="eager")
    with torch.no_grad():
        run(model, VIT.inputs())
    assert numbers(diagnose(model, VIT.inputs(), **QUICK))["layers"] == expected


def test_data_parallel():
    found = diagnose(nn.DataParallel(LLAMA.make()), text(), **QUICK)
    assert found.notes[0] == Note("wrapped", what="DataParallel")


def test_a_model_dispatched_by_accelerate():
    accelerate = pytest.importorskip("accelerate")
    expected = numbers(diagnose(LLAMA.make(), text(), **QUICK))
    parts = ("embed_tokens", "layers.0", "layers.1", "norm", "rotary_emb")
    model = accelerate.dispatch_model(LLAMA.make(), dict.fromkeys(parts, "cpu"), force_hooks=True)
    before = {name: module.__dict__.get("forward") for name, module in model.named_modules()}
    assert any(before.values())
    with torch.no_grad():
        plain = run(model, text())[0]
        assert torch.equal(checks.observed(model, text())[0], plain)
    assert numbers(diagnose(model, text(), **QUICK)) == expected
    assert {name: module.__dict__.get("forward") for name, module in model.named_modules()} == before


def test_offloaded_weights():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(LLAMA.make())
    assert model.embed_tokens.weight.is_meta
    assert numbers(diagnose(model, text(), **QUICK)) == numbers(diagnose(LLAMA.make(), text(), **QUICK))
    with pytest.raises(InputError, match="not in memory"):
        diagnose(LLAMA.make().to("meta"), text())


def test_train_mode_is_said_and_kept():
    model = LLAMA.make()
    checks.with_dropout(model)
    model.layers[0].eval()
    torch.manual_seed(0)
    found = diagnose(model, text(), **QUICK)
    assert Note("train_mode_with_dropout") in found.notes
    assert found.model["training"]
    assert found.verdict[1].startswith("Train mode: dropout is active")
    named = diagnose(model, text(), blocks="layers.*", spectra=False)
    assert named.verdict[1] == found.verdict[1] == Diagnosis.from_json(found.to_json()).verdict[1]
    assert [model.training, model.layers[0].training, model.layers[1].training] == [True, False, True]
    checks.check_untouched(model)


@pytest.mark.parametrize("family", ["Llama", "ViT", "torch encoder (Pre-LN)"])
def test_train_mode_without_dropout_is_not_said_to_drop(family):
    model = FAMILIES[family].make().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    found = diagnose(model, FAMILIES[family].inputs(), **QUICK)
    assert Note("train_mode") in found.notes
    assert not any("dropout" in said for said in found.verdict)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_other_precisions(dtype, tolerance):
    expected, found = diagnose(LLAMA.make(), text(), **QUICK), diagnose(LLAMA.make(dtype), text(), **QUICK)
    assert found.model["dtype"] == str(dtype).removeprefix("torch.")
    for a, b in zip(found.layers, expected.layers, strict=True):
        assert a.tokens == pytest.approx(b.tokens, rel=tolerance, abs=tolerance)
        if a.dominance is not None:
            for x, y in zip(a.dominance.rho_rough_heads, b.dominance.rho_rough_heads, strict=True):
                assert x == pytest.approx(y, rel=tolerance)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_what_is_measured_under_autocast():
    expected = diagnose(VIT.make(), VIT.inputs(), **QUICK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = diagnose(VIT.make(), VIT.inputs(), **QUICK)
    for a, b in zip(found.layers, expected.layers, strict=True):
        assert a.tokens["hfc_lfc"] == pytest.approx(b.tokens["hfc_lfc"], rel=2e-2)
        if a.dominance is not None:  # of weights alone: as exact as ever
            assert a.dominance.rho_smooth_heads == pytest.approx(b.dominance.rho_smooth_heads, rel=1e-5)
            assert a.spectrum.rho_smooth == pytest.approx(b.spectrum.rho_smooth, rel=1e-5)
            assert a.spectrum.joined["raw"].real == pytest.approx(b.spectrum.joined["raw"].real, rel=1e-4)


@pytest.mark.parametrize("name", ["Llama", "BERT", "around nn.MultiheadAttention"])
def test_without_spectra(name):
    family = FAMILIES[name]
    whole, found = (diagnose(family.make(), family.inputs(), depth=0, spectra=s) for s in (True, False))
    assert all(layer.dominance is None for layer in found.layers)
    assert not found.extrapolation
    assert found.smoothing_share is None
    for a, b in zip(found.layers, whole.layers, strict=True):
        of_attention = {name: b.tokens[name] for name in b.tokens if name.startswith("sink")}
        assert ({**a.tokens, **of_attention}, a.attention_out, a.changes) == (b.tokens, b.attention_out, b.changes)
        assert a.spectrum is None


def test_the_same_twice_and_what_is_the_callers_is_left_alone():
    model, given = VIT.make(), VIT.inputs()
    kept, state = copy.deepcopy(given), torch.get_rng_state()
    assert numbers(diagnose(model, given, depth=2)) == numbers(diagnose(model, given, depth=2))
    assert given.keys() == kept.keys()
    assert all(torch.equal(given[k], kept[k]) for k in kept)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_said_of_the_model():
    found = diagnose(LLAMA.make(), text(), name="mine", **QUICK)
    assert found.name == "mine"
    said = {k: found.model[k] for k in ("class", "layers", "width", "heads", "kv_heads", "head_dim", "causal", "norm")}
    assert said == {
        "class": "LlamaModel", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "causal": True,
        "norm": "pre",
    }  # fmt: skip
    assert found.model["parameters"] == sum(p.numel() for p in LLAMA.make().parameters())
    assert found.provenance["inputs"] == 2
    assert not found.model["training"]
    assert math.isclose(found.smoothing_share, sum(layer.dominance.smoothing_share for layer in found.layers[1:]) / 2)


def test_progress_counts_inputs_and_blocks():
    calls = []
    diagnose(LLAMA.make(), [text(), text()], progress=lambda done, _, step: calls.append((done, step)), **QUICK)
    blocks = [f"block {call + 1} of {len(LLAMA.runs)}" for call in range(len(LLAMA.runs))]
    observing = [(2, "observing"), (4, "observing")]
    assert calls == [*((0, step) for step in blocks), observing[0], *((2, step) for step in blocks), observing[1]]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_either_stack_of_an_encoder_and_decoder(stack):
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=48, vocab_size=64, decoder_start_token_id=0
    )
    model = randomise(transformers.T5Model(config)).eval()
    given = {**text(), "decoder_input_ids": text()["input_ids"]}
    if stack == "encoder":
        given.pop("decoder_input_ids")
    _, *caught = streams(getattr(model, stack).block, lambda: (model.encoder if stack == "encoder" else model)(**given))
    found = diagnose(model, given, stack=stack, depth=2)
    assert found.model["stack"].startswith(stack)
    assert found.model["causal"] == (stack == "decoder")
    assert any("cross-attention" in remark for remark in found.remarks)
    parts = ["attention", "mlp" if stack == "encoder" else "cross-attention and mlp"]
    assert [change.part for change in found.layers[1].changes] == parts
    mask = given["attention_mask"].bool()
    if stack == "decoder":  # the mask is the encoder's: the decoder was given none
        mask = torch.ones_like(mask)
    for layer, x in zip(found.layers[1:], caught, strict=True):
        rows = [checks.slow_metrics(array[keep]) for array, keep in zip(x, mask, strict=True)]
        checks.near(layer.tokens["hfc_lfc"], sum(row["hfc_lfc"] for row in rows) / 2, "after the block")


def test_a_mask_of_pairs_as_long_as_the_batch():
    family = FAMILIES["torch encoder (Pre-LN, batch first)"]
    x, later = torch.randn(4, 4, WIDTH), torch.ones(4, 4, dtype=torch.bool).triu(1)
    found = diagnose(family.make(), {"src": x, "mask": later}, **QUICK)
    assert found.model["causal"]
    assert found.provenance["inputs"] == 4


class _WeightsFirst(nn.Module):
    """A block that gives its attention weights before its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attn, self.mlp = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)

    def forward(self, x):
        h = self.norm1(x)
        a, weights = self.attn(h, h, h, average_attn_weights=False)
        x = x + a
        return weights, x + self.mlp(self.norm2(x))


class _Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_WeightsFirst(), _WeightsFirst()])

    def forward(self, x):
        arrays = [x]
        for block in self.blocks:
            _, x = block(x)
            arrays.append(x)
        self.arrays = arrays
        return x


def test_tokens_are_told_from_attention_weights_by_their_shape():
    torch.manual_seed(0)
    model, x = _Chain().eval(), torch.randn(2, 5, 8)
    found = diagnose(model, x, depth=1)
    model(x)
    expected = [metrics.input_convergence(array).mean().item() for array in model.arrays]
    assert found.curve("hfc_lfc") == pytest.approx(expected, rel=1e-5)
    assert found.extrapolation[0].real is not None


@pytest.mark.parametrize("blocks", [None, "encoder.layers.*"])
def test_a_model_in_train_mode_is_left_as_it_is(blocks):
    class Averages(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder, self.norm = torch.nn.TransformerEncoder(layer, 2), torch.nn.BatchNorm1d(16)

        def forward(self, x):
            return self.norm(self.encoder(x).mean(1))

    torch.manual_seed(0)
    model, x = Averages().train(), torch.randn(4, 5, 16)
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    diagnose(model, x, blocks=blocks, spectra=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_tokens_alone_need_no_eigenvalues(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("eigenvalues were computed")

    for name in ("eigvals", "eig", "svdvals"):
        monkeypatch.setattr(torch.linalg, name, refused)
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    found = diagnose(encoder.eval(), torch.randn(2, 5, 16), spectra=False, ranks=0)
    assert [layer.spectrum for layer in found.layers] == [None] * 3
    assert found.curve("cos")[0] is not None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_the_inputs(bad):
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(2, 5, 16)
    x[1, 3, 4:6] = bad
    with pytest.raises(InputError, match="the input has 2 of 160 numbers that are NaN or infinite"):
        diagnose(encoder, x)
    with pytest.raises(InputError, match="src has 2 of 160 numbers that are NaN or infinite"):
        diagnose(encoder, {"src": x})


def test_a_decoder_without_tokens_of_its_own():
    from transformers import T5Config, T5Model

    model = T5Model(T5Config(vocab_size=20, d_model=16, d_kv=8, num_heads=2, num_layers=2, d_ff=32)).eval()
    ids = torch.randint(1, 20, (2, 5))
    with pytest.raises(InputError, match="its decoder needs tokens of its own"):
        diagnose(model, {"input_ids": ids}, stack="decoder")
    found = diagnose(model, {"input_ids": ids, "decoder_input_ids": ids}, stack="decoder", joined=0, depth=0)
    assert len(found.layers) == 3


def test_joined_spectra_of_wide_weights_are_left_out(monkeypatch):
    from oversmooth.diagnosis import weights

    monkeypatch.setattr(weights, "LARGE", 8)
    found, exact = (diagnose(LLAMA.make(), text(), **QUICK, exact=exact) for exact in (False, True))
    assert "joined_weights_skipped" in [note.kind for note in found.notes]
    assert all(layer.spectrum.joined["raw"].real for layer in exact.layers[1:])
    for layer, other in zip(found.layers[1:], exact.layers[1:], strict=True):
        assert layer.spectrum.heads == other.spectrum.heads
        assert not layer.spectrum.joined["raw"].real
        assert layer.spectrum.negative_share is None
