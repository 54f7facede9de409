"""A custom reducer, against plain hooks; a plan fitted to the beginning of a text, against one fitted to all of it."""

import dataclasses

import pytest
import torch
from support import family_checks as checks
from support.blocks import SelfAttention
from support.families import FAMILIES, run, usable
from support.nightly import some
from torch import nn

import oversmooth
from oversmooth import InputError, steer, trace
from oversmooth.anatomy.steered import steered_as
from oversmooth.inputs.batches import Batch
from oversmooth.steering import NeuTRENO
from oversmooth.theory.reasons import Reason
from oversmooth.trace.feed import SHORT, Runner, mover

TEXTS = [name for name in usable() if set(FAMILIES[name].inputs()) == {"input_ids", "attention_mask"}]


class Kept(trace.Reducer):
    """Every array, as it was."""

    def __init__(self):
        self.arrays, self.begun = {}, []

    def begin(self, start, inputs):
        self.begun.append((start, inputs))

    def site(self, site, x, mask):
        assert mask is None
        self.arrays.setdefault(str(site), []).append(x.clone())

    def finish(self, facts):
        self.result = {name: torch.cat(parts) for name, parts in self.arrays.items()}, facts


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Linear(4, 16), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)).eval()


def test_sites_are_what_hooks_see():
    model, batches = encoder(), [torch.randn(2, 5, 4), torch.randn(3, 5, 4)]
    plan = trace.plan(model, batches)
    assert [str(site) for site in plan.sites] == [
        f"{call}.{part}" for call in range(3) for part in ("enter", "attention", "mlp")
    ]
    assert str(plan).count("\n") == 2
    kept = Kept()
    found = trace.run(model, batches, plan, [kept])
    arrays, facts = kept.result
    assert found.facts is facts
    assert (facts.inputs, facts.lengths.tolist(), kept.begun) == (5, [5] * 5, [(0, 2), (2, 3)])
    seen: dict[str, list] = {}

    def keep(name, x):
        seen.setdefault(name, []).append(x)

    for call, layer in enumerate(model[1].layers):
        layer.register_forward_pre_hook(lambda _, args, call=call: keep(f"{call}.enter", args[0]))
        layer.norm2.register_forward_pre_hook(lambda _, args, call=call: keep(f"{call}.attention", args[0]))
        layer.register_forward_hook(lambda _, __, out, call=call: keep(f"{call}.mlp", out))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    assert arrays.keys() == seen.keys()
    for name, parts in seen.items():
        torch.testing.assert_close(arrays[name], torch.cat(parts), rtol=1e-5, atol=1e-6, msg=name)


def test_the_two_norms_of_post_ln_have_names_of_their_own():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=False)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 5, 16)
    plan = trace.plan(model, x)
    names = [str(site) for site in plan.sites]
    assert names == [f"{call}.{part}" for call in range(2) for part in ("enter", "attention", "norm", "mlp", "norm2")]
    trace.run(model, x, plan, [kept := Kept()])
    arrays, _ = kept.result
    with torch.no_grad():
        torch.testing.assert_close(arrays["1.norm2"], model(x))


def test_blocks_by_name_are_read_at_their_ends():
    model, x = encoder(), torch.randn(2, 5, 4)
    plan = trace.plan(model, x, blocks="1.layers.*")
    assert [(str(site), site.depth) for site in plan.sites if site.depth is not None] == [
        ("0.enter", 0),
        ("0.block", 1),
        ("1.block", 2),
        ("2.block", 3),
    ]
    kept = Kept()
    trace.run(model, [x, x[:1]], plan, [kept, depths := trace.DepthMetrics(ranks=0)])
    with torch.no_grad():
        stream = model[0](x)
        for call, block in enumerate(model[1].layers):
            stream = block(stream)
            found = kept.result[0][f"{call}.block"]
            torch.testing.assert_close(found, torch.cat([stream, stream[:1]]), rtol=1e-5, atol=1e-6)
    assert depths.means(["cos"])["cos"][3] == pytest.approx(
        float(oversmooth.metrics.cosine(torch.cat([stream, stream[:1]])).mean()), abs=1e-5
    )
    with pytest.raises(InputError, match="made without attention"):
        trace.run(model, x, plan, [trace.HeadSpectra(plan)])


def test_blocks_whose_attention_is_not_explained_have_no_verdict():
    model, x = encoder(), torch.randn(2, 5, 4)
    plan = trace.plan(model, x, attention=True)
    known, partly = trace.HeadSpectra(plan), trace.HeadSpectra(plan.with_undecided([1], why := Reason("unexplained")))
    trace.run(model, x, plan, [known])
    trace.run(model, x, partly.plan, [partly])
    assert partly.result.verdict[1] == [["undecided"] * 2] * 2
    assert (partly.result.certified[1], partly.result.undecided_because[1]) == ([0, 0], [why])
    assert partly.result.rho_rough[1].isnan().all()
    for call in (0, 2):
        assert torch.equal(partly.result.rho_rough[call], known.result.rho_rough[call])
        assert partly.result.certified[call] == known.result.certified[call]


@pytest.mark.parametrize(
    ("first", "rest", "given", "moved"),
    [
        (torch.uint8, torch.float32, torch.float32, torch.float32),
        (torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float32, torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32, torch.bfloat16),
        (torch.float32, torch.float32, torch.bfloat16, torch.float32),
        (torch.float16, torch.float16, torch.int64, torch.int64),
    ],
)
def test_inputs_come_in_the_precision_the_model_runs_in(first, rest, given, moved):
    """Packed weights before the others are no precision of arrays."""
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(2).to(d), requires_grad=False) for d in (first, rest))
    assert mover(model)(torch.ones(3).to(given)).dtype is moved


def test_layers_that_wait_for_others_find_what_they_do_alone():
    """All heads jointly, of all layers at once or one by one; and the weights' spectra once for two batches."""
    model, x = encoder(), torch.randn(4, 5, 4)
    plan = trace.plan(model, x, attention=True)
    settings = trace.SpectraSettings(joined=2)
    found = []
    for most in (0, 2**31):
        trace.run(model, [x[:1], x[1:]], plan, [reducer := trace.HeadSpectra(plan, settings, most_waiting=most)])
        found.append(reducer.result)
        assert [row[0] for row in reducer.result.joined[1]] == [0, 1]
    one, other = found
    assert one.joined == other.joined
    assert one.verdict == other.verdict
    trace.run(model, x[1:], plan, [later := trace.HeadSpectra(plan, settings)])
    for call, radii in later.result.rho_smooth.items():
        torch.testing.assert_close(other.rho_smooth[call][1:], radii)
        torch.testing.assert_close(other.rho_rough[call][1:], later.result.rho_rough[call])


def test_what_waits_is_no_view_of_the_model():
    """As where weights are sharded: they are gone, or others', once their block has run."""
    model, x = encoder(), torch.randn(2, 5, 4)
    steer(model, NeuTRENO(0.3, learned=True))
    plan = trace.plan(model, x, attention=True)

    class Spoils(trace.Reducer):
        def finish(self, _facts):
            for parameter in model.parameters():
                parameter.data.fill_(5.0)

    found = []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for others in ([], [Spoils()]):
        trace.run(
            model,
            x,
            plan,
            [*others, reducer := trace.HeadSpectra(plan, steering=steered_as(model), most_waiting=2**31)],
        )
        found.append(reducer.result.joined)
        model.load_state_dict(before)
    assert found[0] == found[1]


def test_several_reducers_share_a_pass_and_one_that_fails_leaves_nothing_behind():
    class Fails(trace.Reducer):
        def site(self, *_):
            raise ArithmeticError("on purpose")

    model, x = encoder(), torch.randn(2, 5, 4)
    plan = trace.plan(model, x)
    first, second = Kept(), Kept()
    trace.run(model, x, plan, [first, second])
    for name, value in first.result[0].items():
        assert torch.equal(value, second.result[0][name])
    with pytest.raises(ArithmeticError, match="on purpose"):
        trace.run(model, x, plan, [Fails()])
    for module in model.modules():
        assert "forward" not in module.__dict__
        assert not {**module._forward_hooks, **module._forward_pre_hooks}


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_first_input_of_a_batch(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    run, few = Runner(model, oversmooth.anatomy.locate(model)), 1 if batch_first else 3
    x, mask = torch.randn(3, 3, 4), torch.zeros(3, 3).bool()
    assert torch.equal(run.first_input(x), x[:few])  # where tokens may come first, all inputs
    one = run.first_input(Batch({"src": x, "src_key_padding_mask": mask}))
    assert torch.equal(one.inputs["src"], x[:few])
    assert one.inputs["src_key_padding_mask"].shape == (few, 3)


def test_what_is_refused():
    model = encoder()
    with pytest.raises(InputError, match="there are no inputs"):
        trace.plan(model, [])
    plan = trace.plan(model, torch.randn(1, 5, 4))
    with pytest.raises(InputError, match="there are no inputs"):
        trace.run(model, [], plan, [Kept()])
    with pytest.raises(InputError, match=r"made without attention.*attention=True"):
        trace.run(model, torch.randn(1, 5, 4), plan, [trace.HeadSpectra(plan)])


@pytest.mark.parametrize("name", some(TEXTS, 6))
def test_the_beginning_of_a_text_shows_what_all_of_it_does(name):
    """One row, repeated until it is longer than the sample."""
    family = FAMILIES[name]
    model = family.make()
    ids = family.inputs()["input_ids"][:1].repeat(1, 20)[:, : SHORT + 8]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    try:
        run(model, given)
    except (IndexError, RuntimeError, ValueError):
        pytest.skip("its positions end before")
    seen = []
    first = dict(model.named_modules())[family.block.format(family.runs[0])]
    handle = first.register_forward_hook(lambda _, __, out: seen.append(checks.tensors(out)[0].shape[1]))
    short = trace.plan(model, given)
    handle.remove()
    assert seen == [SHORT]
    with torch.no_grad():
        whole = trace.study(model, oversmooth.anatomy.locate(model), lambda: model(**given), attention=False).plan
    for one, other in zip(short.blocks, whole.blocks, strict=True):
        for field in dataclasses.fields(one):
            if field.name not in ("layer", "branch"):
                assert getattr(one, field.name) == getattr(other, field.name), field.name
        assert one.layer.keep == other.layer.keep


class Unlike(nn.Module):
    """A block of one of several kinds, which keeps what it leaves after attention and at its end."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.attn = kind, SelfAttention(32, 4)
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        if kind == "idle":
            for parameter in self.attn.proj.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x):
        if self.kind == "parallel":
            y = self.norm1(x)
            self.middle = x + self.attn(y)
            self.end = self.middle + self.mlp(y)
        else:
            self.middle = x + (0.5 if self.kind == "halved" else 1.0) * self.attn(self.norm1(x))
            self.end = self.middle + self.mlp(self.norm2(self.middle))
        return self.end


def test_blocks_unlike_the_one_before_are_accounted_for_by_themselves():
    """What was found in one block is tried first in the next, and must not be taken for it."""
    torch.manual_seed(1)
    kinds = ["plain", "plain", "parallel", "plain", "halved", "plain", "idle", "parallel", "parallel", "halved"]
    model, x = nn.Sequential(*map(Unlike, kinds)).eval(), torch.randn(3, 90, 32)
    kept = Kept()
    trace.run(model, x, trace.plan(model, x), [kept])
    for call, block in enumerate(model):
        for part, expected in (("attention", block.middle), ("mlp", block.end)):
            found = kept.result[0][f"{call}.{part}"]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=f"{call} {block.kind}: {part}")


def test_parallel_branches_with_factors_of_their_own():
    """The stream after attention is no array of the model: it is the sum that attention's branch alone makes."""
    torch.manual_seed(1)

    class Scaled(Unlike):
        def forward(self, x):
            y = self.norm1(x)
            self.middle = x + 0.5 * self.attn(y)
            return x + 0.5 * self.attn(y) + 0.25 * self.mlp(y)

    model, x = nn.Sequential(Scaled("parallel"), Scaled("parallel")).eval(), torch.randn(3, 20, 32)
    kept = Kept()
    trace.run(model, x, trace.plan(model, x), [kept])
    for call, block in enumerate(model):
        torch.testing.assert_close(kept.result[0][f"{call}.attention"], block.middle, rtol=1e-5, atol=1e-5)


def test_shortcuts_are_named_with_their_errors():
    torch.manual_seed(0)
    model, x = nn.Sequential(Unlike("plain")).eval(), torch.randn(1, 4200, 32) + 0.3
    told = [one for one in oversmooth.diagnose(model, x, spectra=False, example=False).remarks if "exact=True" in one]
    assert len(told) == 1
    assert told[0].startswith("mean |cos| is sampled, with an error of about 0.00")
    exact = oversmooth.diagnose(model, x, spectra=False, example=False, exact=True, ranks=0)
    assert not any("exact=True" in one for one in exact.remarks)
