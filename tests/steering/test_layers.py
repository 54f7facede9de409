"""Which layers, which methods together, and everything that is refused: the model is left as it was."""

import copy

import pytest
import torch
from support import conformance
from support.blocks import Stack
from support.conformance_methods import free_parameters, make, outputs
from support.families import FAMILIES
from support.oracles import streams
from torch import nn

from oversmooth import InputError, fold, steering, unsteer
from oversmooth.steering import steer, steering_of, verify

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # processors without bfloat16


def steered_layers(layers, name="BERT", method=None):
    model = steer(make(name), method or steering.Laplacian(0.5), layers=layers)
    return steering_of(model).layers


def _plain(value):
    """An id that is the same in every process."""
    return type(value).__name__ if callable(value) or hasattr(value, "gi_code") else str(value)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", [0, 1]),
        ("first half", [0]),
        ("last half", [1]),
        ("first-half", [0]),
        ("last_half", [1]),
        ([1], [1]),
        ([-1], [1]),
        ([-2, 1], [0, 1]),
        ([1, 1, -1], [1]),
        (range(2), [0, 1]),
        ((i for i in (1, 0)), [0, 1]),
        (lambda _index, layer: layer.name.endswith("layer.1.attention"), [1]),
        (lambda _index, layer: layer.heads == 4, [0, 1]),
    ],
    ids=_plain,
)
def test_which_layers(layers, expected):
    assert steered_layers(layers) == expected


def test_halves_of_an_odd_depth():
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, norm_first=True)
    for word, expected in (("first half", [0, 1]), ("last half", [2, 3, 4])):
        model = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
        assert steering_of(steer(model, steering.Laplacian(0.5), layers=word)).layers == expected


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([2], "layer 2 does not exist; encoder.layer.*.attention has the layers 0 to 1"),
        ([-3], "layer -3 does not exist"),
        ([0, 7], "layer 7 does not exist"),
        (["one"], "layer 'one' does not exist"),
        ([0.0], "layer 0.0 does not exist"),
        ([True], "layer True does not exist"),
        ([], "no layer was chosen of the 2"),
        (lambda _index, _layer: False, "no layer was chosen"),
        ("some", "layers is 'some'; choose 'all', 'first half' or 'last half'"),
    ],
    ids=_plain,
)
def test_layers_that_are_not_there(untouched, layers, says):
    with pytest.raises(InputError) as error:
        steer(untouched, [steering.Spectral(), steering.NeuTRENO(0.5)], layers=layers)
    assert says in str(error.value)


def test_runs_of_a_shared_layer_go_together():
    for layers in ([0], [0, 1, 2, 3], "first half", [-1]):
        model = make("ALBERT")
        before = conformance.snapshot(model)
        with pytest.raises(InputError, match=r"are one module .* that runs again; choose all of its runs or none"):
            steer(model, steering.NeuTRENO(0.5), layers=layers)
        conformance.same_snapshot(conformance.snapshot(model), before)
    assert steered_layers("all", "ALBERT", steering.NeuTRENO(0.5)) == list(range(12))
    assert steered_layers("last half", "ALBERT (2 groups)", steering.NeuTRENO(0.5)) == [2, 3]
    assert steered_layers([0, 1], "ALBERT (2 groups)", steering.NeuTRENO(0.5)) == [0, 1]


@pytest.mark.parametrize(
    "method",
    [steering.Spectral(), steering.NeuTRENO(0.6), steering.FeatScale(0.3, 0.2), steering.ValueResidual(0.4)],
    ids=str,
)
def test_other_layers_are_left_alone(method):
    """With only the last layer steered the first block gives what it gave, and the last does not."""
    model, plain, family = make("BERT"), make("BERT"), FAMILIES["BERT"]
    steer(model, method, layers=[-1])
    arrays = [streams(m.encoder.layer, lambda m=m: outputs(m, family)) for m in (model, plain)]
    _, first, last = (torch.equal(*both) for both in zip(*arrays, strict=True))
    assert (first, last) == (True, False)
    assert all("layer.1." in name for name in free_parameters(model, family))


def test_first_values_come_from_the_first_layer_even_if_it_is_not_steered():
    """Layer 1 alone, and both layers: the first is never changed, so they are the same."""
    family = FAMILIES["BERT"]
    for method in (steering.NeuTRENO(0.6), steering.ValueResidual(0.4)):
        a, b = make("BERT"), make("BERT")
        steer(a, method, layers=[1])
        steer(b, method)
        for x, y in zip(outputs(a, family), outputs(b, family), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("method", [steering.NeuTRENO(0.6), steering.ValueResidual(0.4)], ids=str)
def test_the_first_layer_alone_has_nothing_to_add(untouched, method):
    with pytest.raises(InputError, match="but the first"):
        steer(untouched, method, layers=[0])


# Methods together

PLACES = {
    "weights": (steering.Spectral(), steering.Spectral("smooth")),
    "attention": (steering.NeuTRENO(0.5), steering.AttnScale(), steering.Centred(), steering.Laplacian()),
    "output": (steering.FeatScale(), steering.ContraNorm()),
    "values": (steering.ValueResidual(),),
}


@pytest.mark.parametrize("place", PLACES)
def test_two_methods_in_one_place_are_refused(untouched, place):
    for one in PLACES[place]:
        for other in PLACES[place]:
            with pytest.raises(InputError, match="and their order would matter; use one of them"):
                steer(untouched, [one, other])


def test_methods_in_different_places_go_together():
    model = make("BERT")
    before = conformance.snapshot(model)
    methods = [
        steering.Spectral(),
        steering.ValueResidual(0.3, learned=True),
        steering.NeuTRENO(0.5, learned=True),
        steering.FeatScale(),
    ]
    steer(model, methods)
    assert steering_of(model).methods == methods
    expected = outputs(model, FAMILIES["BERT"])
    outputs(model, FAMILIES["BERT"])[0].sum().backward()
    model.zero_grad()
    assert len(free_parameters(model, FAMILIES["BERT"])) >= 2 * 2 + 2 * 2 + 2
    assert torch.equal(outputs(model, FAMILIES["BERT"])[0], expected[0])
    unsteer(model)
    conformance.same_snapshot(conformance.snapshot(model), before)


# A model that cannot, or is steered already


def test_a_model_around_a_steered_one_is_steered_already():
    inner = steer(make("BERT"), steering.NeuTRENO(0.5))
    whole = nn.Sequential(inner)
    with pytest.raises(InputError, match="is already steered"):
        steer(whole, steering.FeatScale())
    assert steering_of(whole) is steering_of(inner)
    unsteer(whole)
    assert steering_of(inner) is None


@pytest.mark.parametrize("verb", [unsteer, fold, verify], ids=lambda v: v.__name__)
def test_a_model_that_is_not_steered(untouched, verb):
    with pytest.raises(InputError, match="is not steered"):
        verb(untouched)


def test_a_model_with_NaN_weights_is_named():
    model = make("BERT")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"encoder\.layer\.1\.attention: the value weight has NaN"):
        steer(model, steering.Spectral())
    assert steering_of(model) is None
    assert not hasattr(model.encoder.layer[0].attention.self.value, "parametrizations")


def test_layers_of_different_shape():
    """V⁰ must fit; weights of different shapes are computed group by group."""

    class Block(nn.Module):
        def __init__(self, heads, dim_head):
            super().__init__()
            self.heads, self.dim_head = heads, dim_head
            self.norm1, self.mlp = nn.LayerNorm(16), nn.Linear(16, 16)
            self.to_qkv, self.to_out = nn.Linear(16, 3 * heads * dim_head), nn.Linear(heads * dim_head, 16)

        def forward(self, x):
            q, k, v = (
                p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.to_qkv(self.norm1(x)).chunk(3, -1)
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return x + self.to_out(mixed)

    torch.manual_seed(0)
    model, x = Stack(Block(2, 8), Block(2, 4), Block(4, 2)), torch.randn(2, 5, 16)
    with pytest.raises(InputError, match="so the first layer's values do not fit"):
        steer(model, steering.NeuTRENO(0.5))
    steer(model, [steering.Spectral("smooth"), steering.Centred(0.5)])
    assert model(x).isfinite().all()
    assert verify(model), verify(model)
    assert [layer.attention.head_dim for layer in steering_of(model).reparametrized] == [8, 4, 2]
    unsteer(model)
    with pytest.raises(InputError, match="so the first layer's values do not fit"):
        steer(model, steering.ValueResidual(0.5), layers=[2])


def test_a_T5_whose_heads_fit_takes_a_spectrum():
    """The one in the table is wider inside than its tokens."""
    from transformers import T5Config, T5EncoderModel

    model = T5EncoderModel(T5Config(d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=48, vocab_size=64)).eval()
    steer(model, [steering.Spectral(bounded=True), steering.NeuTRENO(0.5)])
    assert model(torch.arange(6)[None]).last_hidden_state.isfinite().all()
    assert verify(model), verify(model).problems
    with pytest.raises(InputError, match=r"its 4 value heads of 12 features exceed the 32 of a token"):
        steer(make("T5 (encoder)"), steering.Spectral())


# Folding


def test_what_cannot_be_folded_keeps_what_could():
    model = steer(make("BERT"), [steering.Spectral(), steering.Laplacian(0.5)])
    before = conformance.snapshot(model)
    with pytest.raises(InputError, match=r"taking a token's own value away .*call oversmooth\.unsteer"):
        fold(model)
    conformance.same_snapshot(conformance.snapshot(model), before)


def test_what_is_off_folds_away():
    model = make("BERT")
    before = conformance.snapshot(model)
    fold(steer(model, [steering.NeuTRENO(0), steering.FeatScale(learned=False)]))
    conformance.same_snapshot(conformance.snapshot(model), before)


def test_folding_what_has_NaN():
    for form in ("symmetric", "general"):
        model = steer(make("BERT"), steering.Spectral(form=form))
        with torch.no_grad():
            steering_of(model).reparametrized[1].psi[0, 0] = torch.nan
        with pytest.raises(InputError, match=r"layer 1 \(encoder\.layer\.1\.attention\): ψ has NaN"):
            fold(model)
        assert steering_of(model) is not None


def test_folding_a_V_that_is_not_there():
    model = steer(make("BERT"), steering.Spectral(form="general"))
    with torch.no_grad():
        theta = steering_of(model).reparametrized[1].theta
        theta[:, 1] = theta[:, 0]
    with pytest.raises(InputError, match=r"layer 1 \(encoder\.layer\.1\.attention\)"):
        fold(model)
    assert steering_of(model) is not None


@pytest.mark.parametrize(("form", "value"), [("symmetric", torch.nan), ("general", torch.nan), ("general", 0.0)])
def test_a_model_gone_wrong_can_still_be_unsteered(form, value):
    model = make("BERT")
    before = conformance.snapshot(model)
    steer(model, [steering.Spectral(form=form), steering.NeuTRENO(0.5)])
    with torch.no_grad():
        steering_of(model).reparametrized[0].theta.fill_(value)
    unsteer(model)
    conformance.same_snapshot(conformance.snapshot(model), before)


def test_unsteer_follows_the_model_to_another_precision():
    model, family = make("BERT"), FAMILIES["BERT"]
    steer(model, [steering.Spectral(), steering.NeuTRENO(0.5, learned=True)])
    unsteer(model.bfloat16())
    plain = make("BERT").bfloat16()
    for a, b in zip(outputs(model, family), outputs(plain, family), strict=True):
        assert torch.equal(a, b)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_frozen_weights_stay_frozen():
    model = make("BERT").requires_grad_(False)
    steer(model, steering.Spectral())
    assert not [name for name, p in model.named_parameters() if p.requires_grad]
    fold(model)
    assert not [name for name, p in model.named_parameters() if p.requires_grad]


@pytest.mark.parametrize(
    "method", [steering.NeuTRENO(0.5), steering.AttnScale(0.5), steering.FeatScale(0.3, 0.2)], ids=str
)
def test_one_block_under_two_names_is_steered_as_its_copy_is(method):
    shared, copied = make("BERT"), make("BERT")
    for model, layer in ((shared, shared.encoder.layer[0]), (copied, copy.deepcopy(copied.encoder.layer[0]))):
        model.encoder.layer[1] = layer
        steer(model, method)
    ids = torch.arange(5)[None]
    torch.testing.assert_close(shared(ids).last_hidden_state, copied(ids).last_hidden_state)


def test_one_attention_in_two_blocks_is_refused_and_left_as_it_is():
    for method in (steering.Spectral(), steering.NeuTRENO(0.5)):
        model = make("BERT")
        model.encoder.layer[1].attention = model.encoder.layer[0].attention
        before = conformance.snapshot(model)
        with pytest.raises(InputError, match="layers 0 and 1 are one module under two names"):
            steer(model, method)
        conformance.same_snapshot(conformance.snapshot(model), before)


@pytest.mark.parametrize("weight", ["attention.self.value", "attention.output.dense"])
@pytest.mark.parametrize("form", [nn.utils.parametrizations.orthogonal, nn.utils.parametrizations.weight_norm])
def test_a_weight_that_is_parametrized_is_refused_and_left_as_it_is(weight, form):
    model = make("BERT")
    form(model.encoder.layer[1].get_submodule(weight))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match=rf"{weight}\.weight of layer 1 is computed from other weights"):
        steer(model, steering.Spectral())
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("method", [steering.Spectral(), steering.NeuTRENO(0.5)], ids=str)
def test_layers_that_share_a_module_may_be_left_alone(method):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    model.layers[3] = model.layers[2]
    x, before = torch.randn(2, 5, 16), [p.clone() for p in model.parameters()]
    plain = model(x)
    steer(model, method, layers=[0, 1])
    assert not torch.allclose(model(x), plain)
    unsteer(model)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
