"""What a look says, against plain loops in numpy that share no code with it."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import watched
from support.oracles import token_metrics
from torch import nn

import oversmooth
from oversmooth.monitor import MonitorWarning
from oversmooth.monitor.reduced import band_norms
from oversmooth.results.notes import Note
from oversmooth.safety.errors import InputError
from oversmooth.steering import NeuTRENO, Spectral, ramp, steer
from oversmooth.theory.weights import joined_asymmetry
from oversmooth.trace import DepthMetrics, valid


def by_hand(x):
    found = token_metrics(torch.as_tensor(x))
    return found["hfc_lfc"], found["cos"], found["effective_rank"]


def token_numbers(x, mask=None):
    """Means of log HFC/LFC and of the cosine, as snapshots have them."""
    depths = DepthMetrics(ranks=0, absolute=False)
    depths.numbers.update(0, x, mask)
    depths.finish()
    means = depths.means(("log_hfc_lfc", "cos"))
    return means["log_hfc_lfc"][0], means["cos"][0]


def streams(model, x):
    """The tokens at every depth, by running the blocks by hand."""
    arrays = [model.bn(x.mT).mT]
    for layer in model.layers:
        arrays.append(layer(arrays[-1]))
    return [array.detach() for array in arrays]


def test_a_probe_against_loops():
    torch.manual_seed(1)
    model, x = watched.Own().eval(), watched.probe()
    row = oversmooth.Monitor(model, probe=x, blocks="layers.*").snapshot(1)
    for depth, tokens in enumerate(streams(model, x)):
        ratios, cosines, ranks = zip(*(by_hand(one) for one in tokens), strict=True)
        assert row["hfc_lfc"][depth] == pytest.approx(math.exp(sum(map(math.log, ratios)) / len(ratios)), rel=1e-5)
        assert row["cos"][depth] == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)
        assert row["effective_rank"][depth] == pytest.approx(sum(ranks) / len(ranks), rel=1e-5)


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_the_passing_batch_against_loops(n, batch, seed):
    x = torch.randn(batch, n, 4, generator=torch.Generator().manual_seed(seed)) + 0.5
    log_ratio, cos = token_numbers(x)
    ratios, cosines, _ = zip(*(by_hand(one) for one in x), strict=True)
    assert log_ratio == pytest.approx(sum(map(math.log, ratios)) / batch, abs=1e-4)
    assert cos == pytest.approx(sum(cosines) / batch, abs=1e-5)


@given(st.integers(-43, 37), st.integers(0, 100))
def test_numbers_do_not_depend_on_the_size_of_tokens_and_gradients(power, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, 4, generator=generator).clamp(-3, 3) + 0.5
    sizes = 10.0 ** torch.randint(-3, 4, (5, 1), generator=generator)  # of each token
    scaled = (x.double() * sizes * 10.0**power).clamp(-3e38, 3e38).float()
    if power < -35:  # denormal numbers have few digits: those that are left are the tokens
        scaled = scaled * (scaled.abs() > 1e-38)
    exact = scaled.double().numpy()
    if not all((np.linalg.norm(one, axis=-1) > 0).all() for one in exact):
        return
    ratios, cosines, _ = zip(*(by_hand(torch.from_numpy(one)) for one in exact), strict=True)
    log_ratio, cos = token_numbers(scaled)
    assert log_ratio == pytest.approx(sum(map(math.log, ratios)) / 3, abs=1e-3)
    assert cos == pytest.approx(sum(cosines) / 3, abs=1e-4)
    norm, share = band_norms(scaled, None)
    total = math.fsum(exact.flatten() ** 2)
    if math.sqrt(total) < 3e38:
        assert float(norm) == pytest.approx(math.sqrt(total), rel=1e-4)
    high = math.fsum(((exact - exact.mean(1, keepdims=True)) ** 2).flatten())
    assert float(share) == pytest.approx(high / total, abs=1e-4)


@pytest.mark.parametrize("padding", [0, 3, 11])
def test_padding_is_in_no_band_of_the_gradient(padding):
    G = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([G, torch.zeros(3, padding, 4)], dim=1)
    mask = (torch.arange(5 + padding) < 5).expand(3, -1)
    expected = [float(value) for value in band_norms(G, None)]
    assert [float(value) for value in band_norms(padded, mask)] == pytest.approx(expected, rel=1e-5)
    assert [float(value) for value in band_norms(torch.zeros(1, 2, 2), None)] == [0.0, 0.0]


@pytest.mark.parametrize("way", ["probe", "passing"])
def test_an_input_of_one_token_is_in_no_figure(way):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x, hidden = watched.probe(3), torch.tensor([[0, 1, 1, 1, 1], [0] * 5, [0, 0, 0, 0, 1]]).bool()

    def row(x, hidden):
        given = {"src": x, "src_key_padding_mask": hidden}
        if way == "probe":
            return oversmooth.Monitor(model, probe=given, ranks=3).snapshot(1)
        monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, ranks=3)
        model(**given)
        monitor.step()
        monitor.close()
        return monitor.history.rows[0]

    seen, without = row(x, hidden), row(x[1:], hidden[1:])
    for name in ("hfc_lfc", "cos", "effective_rank"):
        assert seen[name] == pytest.approx(without[name], rel=1e-4)
    given = {"src": x, "src_key_padding_mask": hidden}
    for settings in ({}, {"blocks": "layers.*", "spectra": False}):
        found = oversmooth.diagnose(model, given, ranks=3, **settings)
        assert found.curve("cos") == pytest.approx(without["cos"], rel=1e-4)
        assert found.curve("effective_rank") == pytest.approx(without["effective_rank"], rel=1e-4)
        assert Note("short_inputs", 1, 3) in found.notes


def test_inputs_that_have_one_token_alone_have_no_figure():
    torch.manual_seed(0)
    model, x = watched.Known(), watched.probe(3, 1)
    for settings in ({}, {"blocks": "encoder.layers.*", "spectra": False}):
        with pytest.raises(InputError, match="every input has fewer than two valid tokens; give longer ones"):
            oversmooth.diagnose(model, x, **settings)
    monitor = oversmooth.Monitor(model, probe=x)
    with pytest.warns(MonitorWarning, match="every input has fewer than two valid tokens"):
        assert monitor.snapshot(1) is None


def test_the_gradient_of_a_probe_against_finite_differences():
    torch.manual_seed(0)
    model, x = watched.Own(depth=2).double().eval(), watched.probe(2, 3).double()
    monitor = oversmooth.Monitor(
        model, probe=x, blocks="layers.*", gradients=1, loss=lambda out, _: out.square().sum(), ranks=0, tokens=("cos",)
    )
    row = monitor.snapshot(1)
    first = streams(model, x)[1]

    def loss(tokens):
        with torch.no_grad():
            return float(model.head(model.layers[1](tokens).mean(1)).square().sum())

    gradient, step = np.zeros(first.shape), 1e-6
    for index in np.ndindex(*first.shape):
        up, down = first.clone(), first.clone()
        up[index] += step
        down[index] -= step
        gradient[index] = (loss(up) - loss(down)) / (2 * step)
    assert row["gradient_norm"][0] == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
    centred = gradient - gradient.mean(1, keepdims=True)
    assert row["gradient_hfc"][0] == pytest.approx((centred**2).sum() / (gradient**2).sum(), rel=1e-4)
    assert all(p.grad is None for p in model.parameters())


@given(st.integers(1, 3), st.integers(2, 5), st.integers(1, 3), st.integers(0, 10_000))
def test_asymmetry_against_loops(heads, d, k, seed):
    generator = torch.Generator().manual_seed(seed)
    V, O = torch.randn(heads, d, k, generator=generator), torch.randn(heads, k, d, generator=generator)  # noqa: E741
    H = sum(np.asarray(v, dtype=np.float64) @ np.asarray(o, dtype=np.float64) for v, o in zip(V, O, strict=True)).T
    expected = math.sqrt(sum((H[i, j] - H[j, i]) ** 2 for i in range(d) for j in range(d)) / (H**2).sum())
    assert float(joined_asymmetry(V, O)) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert float(joined_asymmetry(V, V.mT)) == pytest.approx(0, abs=1e-6)


def test_spectra_against_a_dense_decomposition():
    torch.manual_seed(0)
    model = watched.Known()
    row = oversmooth.Monitor(model, probe=watched.probe(), spectra=1).snapshot(1)
    for index, layer in enumerate(model.encoder.layers):
        attention = layer.self_attn
        W_V = attention.in_proj_weight.detach().double().numpy()[32:]  # q, k, v stacked, (out, in)
        W_O = attention.out_proj.weight.detach().double().numpy()
        values = []
        for head in range(2):
            rows = slice(8 * head, 8 * head + 8)
            values += list(np.linalg.eigvals(W_V[rows] @ W_O[:, rows]))
        values = np.array(values)
        assert row["negative_share"][index] == pytest.approx((values.real < 0).mean())
        assert row["rho_smooth"][index] == pytest.approx(np.abs(1 + values).max(), rel=1e-4)
        H = W_O @ W_V
        assert row["asymmetry"][index] == pytest.approx(np.linalg.norm(H - H.T) / np.linalg.norm(H), rel=1e-5)


def test_parts_and_dominance_are_those_of_a_diagnosis():
    torch.manual_seed(0)
    model, x = watched.Known().eval(), watched.probe()
    row = oversmooth.Monitor(model, probe=x, parts=1, dominance=1).snapshot(1)
    diagnosis = oversmooth.diagnose(model, x, depth=0)
    for index, layer in enumerate(diagnosis.layers[1:]):
        assert row["change_attention"][index] == pytest.approx(layer.change("attention"), abs=1e-5)
        assert row["change_mlp"][index] == pytest.approx(layer.change("mlp"), abs=1e-5)
        assert row["smoothing_share"][index] == layer.dominance.smoothing_share
        assert [row[name][index] for name in ("sink_rate", "sink_attention")] == [
            layer.tokens["sink_rate"],
            layer.tokens["sink_attention"],
        ]
    assert row["cos"] == pytest.approx(diagnosis.curve("cos"), abs=1e-5)
    assert row["effective_rank"] == pytest.approx(diagnosis.curve("effective_rank"), rel=1e-5)


def test_a_steered_model_shows_its_strength_its_room_and_whether_promises_hold():
    model = watched.Known(depth=3).eval()
    steer(model, NeuTRENO(0.0))
    rising = ramp(model, to=0.5, steps=2)
    monitor = oversmooth.Monitor(model, probe=watched.probe(), every=1)
    for _ in range(2):
        rising.step()
        monitor.step()
    strengths = [row["strength"] for row in monitor.history.rows]
    assert strengths == [[None, 0.25, 0.25], [None, 0.5, 0.5]] or strengths == [[0.25] * 3, [0.5] * 3]
    sharp = watched.Known(depth=2).eval()
    steer(sharp, Spectral("sharpen", bounded=True))
    row = oversmooth.Monitor(sharp, probe=watched.probe()).snapshot(1)
    assert row["verified"] == 1.0
    assert all(0 < room <= 1 for room in row["room"])
    rooms = [check.margin for check in oversmooth.steering.verify(sharp).layers]
    assert row["room"] == pytest.approx(rooms, rel=1e-5)
    assert "strength" not in oversmooth.Monitor(sharp, probe=watched.probe(), steering=False).snapshot(1)


def test_promises_are_looked_at_every_so_often_and_strengths_always():
    sharp, soft = (watched.Known(depth=2).eval() for _ in range(2))
    steer(sharp, Spectral("sharpen"))
    steer(soft, NeuTRENO(0.4))
    rare = oversmooth.Monitor(sharp, probe=watched.probe(), every=1, steering=3)
    assert ["room" in rare.snapshot(step) for step in range(1, 8)] == [True, False, False, True, False, False, True]
    rare = oversmooth.Monitor(soft, probe=watched.probe(), every=1, steering=3)
    assert all("strength" in rare.snapshot(step) for step in range(1, 5))


class InTurn(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for run in range(4):
            x = self.layers[run % len(self.layers)](x)
        return x


@pytest.mark.filterwarnings("ignore::oversmooth.monitor.warning.MonitorWarning")
@pytest.mark.parametrize("listed", [1, 4])
@pytest.mark.parametrize("how", [{}, {"blocks": "layers.*"}])
def test_a_shared_block_is_as_many_depths_as_it_runs(listed, how):
    """Listed once or each time: like copies, by a probe; of the training batch it is said that runs are not known."""
    torch.manual_seed(0)
    one, x = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True), torch.randn(3, 5, 16)
    shared, copies = InTurn([one] * listed).eval(), InTurn([copy.deepcopy(one) for _ in range(4)]).eval()
    expected = oversmooth.Monitor(copies, probe=x, **how).snapshot(1)["cos"]
    assert oversmooth.Monitor(shared, probe=x, **how).snapshot(1)["cos"] == pytest.approx(expected, abs=1e-6)
    found = oversmooth.diagnose(shared, x, spectra=not how, **how)
    assert found.curve("cos") == pytest.approx(expected, abs=1e-6)
    assert found.model["shared"]
    monitor = oversmooth.Monitor(shared, use_training_batch=True, every=1, **how)
    shared.train()(x)
    monitor.step()
    assert "layers.0 runs several times in a pass" in monitor.failures[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["allowed", "added", "opened"])
@pytest.mark.parametrize("passing", [False, True])
def test_a_mask_of_pairs_says_what_is_padding_too(causal, form, passing):
    """Of left-padded texts: as the mask of tokens, which the model is given in the other run."""
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    still = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = LlamaModel(LlamaConfig(**sizes)) if causal else BertModel(BertConfig(**sizes, **still))
    tokens = torch.ones(3, 9, dtype=torch.long)
    tokens[0, :4], tokens[2, :2] = 0, 0
    pairs = tokens.bool()[:, None, None, :].expand(3, 1, 9, 9)
    pairs = pairs.tril() if causal else pairs
    if form == "opened":  # rows that see nothing see all, as kernels need it
        pairs = pairs | ~pairs.any(-1, keepdim=True)
    mask = pairs if form == "allowed" else torch.where(pairs, 0.0, torch.finfo(torch.float32).min)
    ids, places = torch.randint(0, 50, (3, 9)), (tokens.cumsum(-1) - 1).clamp(min=0)
    rows = []
    for either in (tokens, mask):
        batch = {"input_ids": ids, "attention_mask": either, "position_ids": places}
        monitor = oversmooth.Monitor(model, probe=None if passing else batch, every=1, use_training_batch=passing)
        model.train()(**batch)
        monitor.step()
        rows.append(monitor.history.rows[-1])
        monitor.close()
    for name in ("cos", "hfc_lfc") if passing else ("cos", "hfc_lfc", "effective_rank"):
        assert rows[1][name] == pytest.approx(rows[0][name], rel=1e-4)


@pytest.mark.parametrize("sides", ["left", "right", "none"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["allowed", "added", "opened"])
def test_compiled_code_counts_the_same_tokens(sides, causal, form):
    tokens = torch.ones(3, 7, dtype=torch.bool)
    if sides != "none":
        tokens[0, :3], tokens[2, :1] = False, False
    tokens = tokens.flip(-1) if sides == "right" else tokens
    pairs = tokens[:, None, None, :].expand(3, 1, 7, 7)
    pairs = pairs.tril() if causal else pairs
    pairs = pairs | ~pairs.any(-1, keepdim=True) if form == "opened" else pairs
    mask = pairs if form == "allowed" else torch.where(pairs, 0.0, -torch.inf)
    compiled = torch.compile(valid.valid_tokens, backend="eager", fullgraph=True)(mask)
    assert torch.equal(compiled, valid.valid_tokens(mask))
    assert torch.equal(compiled, tokens)


def test_hfc_lfc_is_the_geometric_mean_where_a_diagnosis_has_the_arithmetic_one():
    """Of left-padded inputs of different lengths, so that the two differ."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaModel(LlamaConfig(vocab_size=50, intermediate_size=48, **sizes)).eval()
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, :4], mask[2, :2] = 0, 0
    given = {"input_ids": torch.randint(0, 50, (3, 9)), "attention_mask": mask}
    seen = oversmooth.Monitor(model, probe=given, every=1).snapshot(1)["hfc_lfc"]
    tokens = [layer.tokens for layer in oversmooth.diagnose(model, given, depth=0, spectra=False).layers]
    assert seen == pytest.approx([math.exp(one["log_hfc_lfc"]) for one in tokens], rel=1e-5)
    assert all(one["hfc_lfc"] > value * 1.001 for one, value in zip(tokens, seen, strict=True))


def test_inputs_of_one_token_are_left_out_in_whichever_pass_they_come():
    torch.manual_seed(0)
    model, x = watched.Known().eval(), watched.probe(2)
    given = {"blocks": "encoder.layers.*", "spectra": False}
    alone = oversmooth.diagnose(model, [x], **given)
    for inputs in ([x, x[:1, :1]], [x[:1, :1], x]):
        found = oversmooth.diagnose(model, inputs, **given)
        assert found.curve("hfc_lfc") == pytest.approx(alone.curve("hfc_lfc"), rel=1e-6)
        assert found.curve("cos") == pytest.approx(alone.curve("cos"), rel=1e-6)


def test_the_gradient_of_one_token_alone_is_in_no_share():
    G, mask = torch.randn(2, 5, 4), torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
    share = float(band_norms(G, mask)[1])
    assert share == pytest.approx(float(band_norms(G[:1, :3], None)[1]), rel=1e-5)
    assert math.isnan(float(band_norms(G[:, :1], None)[1]))


def test_a_block_that_keeps_one_token_has_no_figure_and_the_others_have():
    """Depths differ in tokens where a model pools on the way."""

    class Pools(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x).mean(1, keepdim=True))

    torch.manual_seed(0)
    model = Pools()
    x = torch.randn(3, 5, 4)
    with torch.no_grad():
        ratios, cosines, _ = zip(*(by_hand(one) for one in model.blocks[0](x)), strict=True)
    expected = math.exp(sum(map(math.log, ratios)) / 3), sum(cosines) / 3
    row = oversmooth.Monitor(model, probe=x, blocks="blocks.*").snapshot(1)
    found = oversmooth.diagnose(model, x, blocks="blocks.*", spectra=False)
    for hfc_lfc, cos in ((row["hfc_lfc"], row["cos"]), (found.curve("hfc_lfc"), found.curve("cos"))):
        assert cos[1] == pytest.approx(expected[1], rel=1e-4)
        assert (hfc_lfc[2], cos[2]) == (None, None)
    assert row["hfc_lfc"][1] == pytest.approx(expected[0], rel=1e-4)
