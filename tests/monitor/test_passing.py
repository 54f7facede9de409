"""The passing batch of models that do not behave: nothing reaches the training, and no number is wrong."""

import copy
import io
import pickle

import pytest
import torch
from support import watched
from support.oracles import mean_metric
from torch import nn

import oversmooth
from oversmooth.monitor import MonitorWarning


def centred(x):
    return x - x.mean(0)


def cosine(x, counted=None):
    """The mean over inputs of the mean cosine between tokens that count."""
    return mean_metric("cos", x.detach(), counted)


class Net(nn.Module):
    """Blocks in a list, and a mask that the head uses."""

    def __init__(self, blocks):
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x, attention_mask=None):
        for layer in self.layers:
            x = layer(x)
        return x if attention_mask is None else x * attention_mask[..., None]


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net([watched.Block(dropout=0.0) for _ in range(2)])

    def forward(self, x, counted):
        return self.net(x, counted)


class Shrinks(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(x[:, ::2])


class Transposes(nn.Module):
    """Attention that takes (n, batch, d) inside a block that takes (batch, n, d)."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2)

    def forward(self, x):
        y = x.transpose(0, 1)
        return x + self.attention(y, y, y, need_weights=False)[0].transpose(0, 1)


class Straight(Transposes):
    """The same attention in a block that takes (n, batch, d) itself."""

    def forward(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]


def net(depth=2):
    return Net([watched.Block(dropout=0.0) for _ in range(depth)])


def passed(model, *batch, monitor=None, **settings):
    """The look at one passing batch."""
    monitor = monitor or oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*", **settings)
    out = model(*batch)
    if out.requires_grad:
        out.square().sum().backward()
    monitor.step()
    return monitor.history.rows[-1] if monitor.history.rows else None


def test_a_mask_of_the_training_is_never_written_to():
    masks = [torch.rand(4, 6, generator=torch.Generator().manual_seed(seed)) > 0.3 for seed in range(3)]
    before, model = [mask.clone() for mask in masks], net()
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*")
    for mask in masks:
        mask[:, :2] = before[0][:, :2] = True
        passed(model, torch.randn(4, 6, 16), mask, monitor=monitor)
    for mask, old in zip(masks, before, strict=True):
        assert torch.equal(mask[:, 2:], old[:, 2:])


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [([Shrinks(), Shrinks()], "returns nothing of that shape"), ([nn.Linear(16, 16)] * 1, r"shape \(8, 16\)")],
)
def test_a_hook_that_cannot_see_says_so_at_the_look_and_not_in_the_forward(blocks, sentence):
    model = Net(blocks)
    x = torch.randn(8, 16) if len(blocks) == 1 else torch.randn(2, 8, 16)
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*")
    assert model(x).shape[-1] == 16
    with pytest.warns(MonitorWarning, match=sentence):
        monitor.step()
    assert len(monitor.history) == 0
    with pytest.warns(MonitorWarning, match=sentence):
        oversmooth.Monitor(model, probe=x, blocks="layers.*").snapshot(1)


def test_a_mask_that_is_no_tensor_is_passed_by():
    class Kinds(Net):
        def forward(self, x, attention_mask=None):
            assert attention_mask == {"full": None}
            return super().forward(x)

    assert len(passed(Kinds([watched.Block()]), torch.randn(2, 4, 16), {"full": None})["cos"]) == 2


def test_a_copy_of_a_watched_model_can_be_saved_and_tells_nobody():
    torch.manual_seed(0)
    model, x = net(), torch.randn(3, 5, 16)
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*")
    teacher, file = copy.deepcopy(model), io.BytesIO()
    torch.save(model, file)
    assert pickle.loads(pickle.dumps(model)) is not model
    with torch.no_grad():
        for p in teacher.parameters():
            p.add_(1.0)
    expected = cosine(model.layers[1](model.layers[0](x)))
    model(x)
    teacher(x)
    monitor.step()
    assert monitor.history.curve("cos")[-1] == pytest.approx(expected, abs=1e-5)


def test_what_is_not_a_number_is_none():
    for bad in (torch.nan, torch.inf):
        x = torch.randn(2, 4, 16)
        x[0, 1] = bad
        row = passed(net(), x)
        assert row["cos"] == row["hfc_lfc"] == [None] * 3
    alone = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]])
    row = passed(net(), torch.randn(2, 4, 16), alone)
    assert row["cos"] == row["hfc_lfc"] == [None] * 3
    model = net()
    with torch.no_grad():
        model.layers[0].mlp[2].bias.fill_(torch.nan)
    row = passed(model, torch.randn(2, 4, 16))
    assert row["cos"][0] is not None
    assert row["cos"][1:] == row["hfc_lfc"][1:] == [None, None]


@pytest.mark.parametrize(("block", "first"), [(Transposes, True), (Straight, False)])
def test_which_axis_is_the_batch_is_the_blocks_own(block, first):
    torch.manual_seed(0)
    model, x = Net([block(), block()]).eval(), torch.randn(3, 6, 16) + 2 * torch.randn(3, 1, 16)
    given = x if first else x.transpose(0, 1)
    out = model(given)
    expected = [cosine(x), cosine(out if first else out.transpose(0, 1))]
    row = oversmooth.Monitor(model, probe=given, blocks="layers.*").snapshot(1)
    assert [row["cos"][0], row["cos"][-1]] == pytest.approx(expected, abs=1e-5)
    diagnosis = oversmooth.diagnose(model, given, blocks="layers.*", spectra=False)
    assert diagnosis.curve("cos")[0] == pytest.approx(expected[0], abs=1e-5)
    with pytest.raises(oversmooth.InputError, match=r"layers\.0 holds a module with batch_first=False"):
        oversmooth.Monitor(model, use_training_batch=True, blocks="layers.*")
    for layer in model.layers:
        layer.batch_first = first
    assert passed(model.train(), given)["cos"][0] == pytest.approx(expected[0], abs=1e-5)
    with pytest.warns(MonitorWarning, match="may be the batch or the tokens"):
        oversmooth.Monitor(Net([block()]), probe=torch.randn(4, 4, 16), blocks="layers.*").snapshot(1)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder_with_padding_and_its_gradients(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)
    x, hidden = torch.randn(3, 6, 16), torch.arange(6) >= torch.tensor([[6], [4], [2]])
    given = x if batch_first else x.transpose(0, 1).contiguous()
    probe = oversmooth.Monitor(
        model, probe={"src": given, "src_key_padding_mask": hidden}, gradients=1, loss=lambda out, _: out.pow(3).sum()
    ).snapshot(1)
    padded = {"src": given, "src_key_padding_mask": hidden}
    diagnosis = oversmooth.diagnose(model, padded, blocks="layers.*", spectra=False)
    assert diagnosis.curve("cos") == pytest.approx(probe["cos"], abs=1e-5)
    monitor = oversmooth.Monitor(model.train(), use_training_batch=True, every=1, gradients=1)
    arrays = []
    for one in model.layers:
        one.register_forward_hook(lambda _module, _args, out: (out.retain_grad(), arrays.append(out))[0])
    model(given, src_key_padding_mask=hidden).pow(3).sum().backward()
    monitor.step()
    row = monitor.history.rows[-1]
    for depth, array in enumerate(arrays, 1):
        y, G = (one if batch_first else one.transpose(0, 1) for one in (array, array.grad))
        for seen in (probe, row):
            assert seen["cos"][depth] == pytest.approx(cosine(y, ~hidden), abs=1e-4)
            assert seen["gradient_norm"][depth - 1] == pytest.approx(float(G.norm()), rel=1e-4)
            kept = [one[~out] for one, out in zip(G, hidden, strict=True)]
            high, total = (sum(float(part.square().sum()) for part in parts) for parts in (map(centred, kept), kept))
            share = high / total
            assert seen["gradient_hfc"][depth - 1] == pytest.approx(share, rel=1e-4)


def test_the_mask_is_that_of_the_innermost_module_that_gets_one_also_by_position():
    torch.manual_seed(0)
    model, x, counted = Outer(), torch.randn(2, 5, 16), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="net.layers.*")
    assert passed(model, x, counted, monitor=monitor)["cos"][0] == pytest.approx(cosine(x, counted), abs=1e-5)
    probe = oversmooth.Monitor(model.net, probe=(x, counted), blocks="layers.*").snapshot(1)
    assert probe["cos"][0] == pytest.approx(cosine(x, counted), abs=1e-5)


def test_a_decoder_has_its_own_padding():
    import transformers

    config = transformers.BartConfig(
        vocab_size=30, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, dropout=0.0,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BartModel(config)
    ids, own = torch.randint(5, 30, (2, 6)), torch.tensor([[1] * 3 + [0] * 3, [1] * 6])
    batch = dict(input_ids=ids, attention_mask=own.flip(0), decoder_input_ids=ids.flip(1), decoder_attention_mask=own)
    arrays = []
    handle = model.decoder.layers[-1].register_forward_hook(
        lambda _module, _args, out: arrays.append(out[0] if isinstance(out, tuple) else out)
    )
    model(**batch)
    handle.remove()
    seen = oversmooth.Monitor(model, probe=batch, stack="decoder").snapshot(1)
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, stack="decoder")
    model(**batch)
    monitor.step()
    for row in (seen, monitor.history.rows[-1]):
        assert row["cos"][-1] == pytest.approx(cosine(arrays[0], own), abs=1e-4)


class Again(Net):
    def forward(self, x):
        for _ in range(3):
            x = super().forward(x)
        return x


class Backwards(Net):
    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        return x


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_block_that_runs_several_times_is_refused(backend):
    model = Again([watched.Block()])
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*")
    run = model if backend is None else torch.compile(model, backend=backend)
    run(torch.randn(2, 4, 16))
    with pytest.warns(MonitorWarning, match=r"layers\.0 runs several times in a pass"):
        monitor.step()
    fine = net()
    monitor = oversmooth.Monitor(fine, use_training_batch=True, every=1, blocks="layers.*")
    run = fine if backend is None else torch.compile(fine, backend=backend)
    for _ in range(3):  # gradients are accumulated
        run(torch.randn(2, 4, 16)).sum().backward()
    monitor.step()
    assert monitor.failures == []


def test_depths_are_in_the_order_of_running():
    torch.manual_seed(0)
    model, x = Backwards([watched.Block(dropout=0.0) for _ in range(3)]), torch.randn(2, 4, 16)
    probe = oversmooth.Monitor(model, probe=x, every=1, blocks="layers.*")
    probe.step()
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*")
    assert passed(model, x, monitor=monitor)["cos"] == pytest.approx(probe.history.curve("cos"), abs=1e-5)
    for one in (probe, monitor):
        assert one.history.about["blocks"] == ["layers.2", "layers.1", "layers.0"]


def test_a_look_when_nothing_passed_shows_nothing_old():
    model = net()
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=10, blocks="layers.*")
    passed(model, torch.randn(2, 4, 16), monitor=monitor)
    with pytest.warns(MonitorWarning, match="no training batch was recorded since the last snapshot"):
        assert monitor.snapshot() is None
    assert monitor.history.steps == [1]


def test_the_scale_of_a_gradscaler_is_divided_out_or_the_norm_left_out():
    torch.manual_seed(0)
    model, x = net(), torch.randn(2, 4, 16)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    rows = {}
    for name, settings, scale in (("given", {"scaler": scaler}, scaler.scale), ("unknown", {}, scaler.scale),
                                  ("none", {"scaler": False}, lambda loss: loss)):  # fmt: skip
        monitor = oversmooth.Monitor(
            model, use_training_batch=True, every=1, blocks="layers.*", gradients=1, **settings
        )
        with torch.autocast("cpu", torch.bfloat16):
            scale((y := model(x)).square().sum()).backward()
        if settings:
            monitor.step()
        else:
            with pytest.warns(MonitorWarning, match="a GradScaler may scale gradients"):
                monitor.step()
        rows[name] = monitor.history.rows[-1]
        monitor.close()
    for name in ("given", "none"):
        assert rows[name]["gradient_norm"][-1] == pytest.approx(float((2 * y.detach()).norm()), rel=1e-5)
    assert "gradient_norm" not in rows["unknown"]
    assert rows["unknown"]["gradient_hfc"] == pytest.approx(rows["given"]["gradient_hfc"], rel=1e-5)


def test_gradients_of_compiled_code_are_left_out_with_a_sentence_and_a_probe_has_them():
    def loss(out, _):
        return out.square().sum()

    torch.manual_seed(0)
    model, x = net(), torch.randn(2, 4, 16)
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*", gradients=1)
    compiled = torch.compile(model, backend="aot_eager")
    loss(compiled(x), x).backward()
    with pytest.warns(MonitorWarning, match="not seen in compiled code .give a probe that comes with a loss"):
        monitor.step()
    (row,) = monitor.history.rows
    assert len(row["cos"]) == 1 + len(model.layers)
    assert "gradient_norm" not in row
    monitor.close()
    probed = oversmooth.Monitor(compiled, probe=x, every=1, blocks="layers.*", gradients=1, loss=loss)
    probed.step()
    assert probed.failures == []
    arrays = []
    handles = [layer.register_forward_hook(lambda *given: arrays.append(given[-1])) for layer in model.layers]
    gradients = torch.autograd.grad(loss(model.eval()(x), x), arrays)
    for handle in handles:
        handle.remove()
    norms = probed.history.rows[0]["gradient_norm"]
    assert norms == pytest.approx([float(g.norm()) for g in gradients], rel=1e-4)


def test_frozen_blocks_have_no_gradient_and_the_others_have():
    torch.manual_seed(0)
    model, x = net(), torch.randn(2, 4, 16)
    for parameter in model.layers[0].parameters():
        parameter.requires_grad_(False)
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1, blocks="layers.*", gradients=1)
    model(x).square().sum().backward()
    monitor.step()
    norms = monitor.history.rows[0]["gradient_norm"]
    assert norms[0] is None
    assert all(value > 0 for value in norms[1:])
    model.requires_grad_(False)
    model(x)
    with pytest.warns(MonitorWarning, match="no block had a gradient in the training batch"):
        monitor.step()
    assert "gradient_norm" not in monitor.history.rows[1]


def test_ranks_are_of_the_batch_that_passed_last():
    torch.manual_seed(0)
    model = net()
    monitor = oversmooth.Monitor(
        model, every=1, use_training_batch=True, blocks="layers.*", tokens=("cos", "stable_rank")
    )
    for length in (6, 9, 6):
        model(torch.randn(5, 7, 16)).sum().backward()  # gradients are accumulated
        x = torch.randn(5, length, 16)
        model(x).sum().backward()
        monitor.step()
        row = monitor.history.rows[-1]
        assert row["stable_rank"][0] == pytest.approx(mean_metric("stable_rank", x[:4]), rel=1e-5)
        assert row["cos"][0] == pytest.approx(cosine(x), abs=1e-5)


def test_a_captured_graph_is_refused(monkeypatch):
    model = net()
    monitor = oversmooth.Monitor(model, every=1, use_training_batch=True, blocks="layers.*")
    monkeypatch.setattr("oversmooth.monitor.training_batch.is_captured", lambda _x: True)
    model(torch.randn(2, 4, 16))
    with pytest.warns(MonitorWarning, match="a CUDA graph was captured"):
        monitor.step()
    with pytest.warns(MonitorWarning, match="replays a CUDA graph of its own"):
        monitor.step()
