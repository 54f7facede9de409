"""Training with the monitor is, bit for bit, training without it: losses, weights, and the random numbers after it."""

import copy
import threading

import pytest
import torch
from support import watched
from support.nightly import some
from torch import nn

import oversmooth
from oversmooth.monitor import MonitorWarning
from oversmooth.trace import Plan, Trace

WAYS = {
    "probe": lambda model: oversmooth.Monitor(
        model, probe=watched.probe(), every=2, blocks="layers.*", gradients=1, loss=lambda out, _: out.square().mean()
    ),
    "passing": lambda model: oversmooth.Monitor(
        model, use_training_batch=True, every=2, blocks="layers.*", gradients=1
    ),
}
KNOWN = {
    "probe": lambda model: oversmooth.Monitor(
        model, probe=watched.probe(), every=2, parts=1, spectra=1, dominance=2, tokens=("hfc_lfc", "abs_cos", "cos")
    ),
    "passing": lambda model: oversmooth.Monitor(model, use_training_batch=True, every=2, spectra=1),
}


def freeze(model):
    for name, p in model.named_parameters():
        p.requires_grad_("layers.0" not in name and "bn" not in name)
    model.layers[1].eval()  # one part stays in eval mode while the rest trains
    return model


def plainly(model):
    return model


SETTINGS = {
    "dropout and augmentation": {},
    "autocast": {"autocast": "plain"},
    "a look inside autocast": {"autocast": "look inside"},
    "GradScaler": {"scaler": True, "autocast": "plain"},
    "accumulation": {"accumulate": 3},
    "checkpointing": {"make": lambda: watched.Own(checkpointing=False)},
    "reentrant checkpointing": {"make": lambda: watched.Own(checkpointing=True)},
    "partly frozen": {"prepare": freeze},
    "double precision": {"prepare": lambda model: model.double(), "wrap": lambda model: lambda x: model(x.double())},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad", "ignore:a GradScaler may scale")
def test_bit_for_bit(setting, way):
    settings = SETTINGS[setting]
    if setting == "a look inside autocast" and way == "passing":
        pytest.skip("a look at the passing batch is no pass")
    losses, model, _ = watched.trained(**settings)
    seen_losses, seen_model, monitor = watched.trained(watch=WAYS[way], **settings)
    assert seen_losses == losses
    assert watched.same(model, seen_model)
    unknown = "autocast" in settings and way == "passing"  # whether a scale is used, so that the norm is left out
    assert ["GradScaler may scale" in failure for failure in monitor.failures] == [True] * unknown
    assert {1, 2, 4} <= set(monitor.history.steps)
    assert all(len(row["cos"]) == 4 and None not in row["cos"] for row in monitor.history.rows)
    assert [m.training for m in model.modules()] == [m.training for m in seen_model.modules()]
    if way == "probe":
        assert all(m._forward_hooks == {} and m._forward_pre_hooks == {} for m in seen_model.modules())
    assert all(p.grad is None for p in seen_model.parameters())
    monitor.close()
    assert all(m._forward_hooks == {} and m._forward_pre_hooks == {} for m in seen_model.modules())


@pytest.mark.parametrize("way", KNOWN)
def test_bit_for_bit_with_all_that_known_attention_shows(way):
    losses, model, _ = watched.trained(watched.Known)
    seen_losses, seen_model, monitor = watched.trained(watched.Known, KNOWN[way])
    assert seen_losses == losses
    assert watched.same(model, seen_model)
    assert monitor.failures == []
    assert {"negative_share", "rho_smooth", "asymmetry"} <= set(monitor.history.metrics)


def test_a_look_between_forward_and_backward_leaves_every_grad():
    torch.manual_seed(0)
    model = watched.Own().train()
    x = watched.probe()
    twin = copy.deepcopy(model)
    states = torch.get_rng_state()
    for one in (model, twin):
        torch.set_rng_state(states)
        loss = one(x).square().sum()
        if one is model:
            watch = WAYS["probe"](model)
            assert watch.snapshot(3) is not None
            assert watch.failures == []
        loss.backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)


def test_what_modules_count_is_put_back():
    """In buffers and outside: a length that was seen, a tensor, a generator of its own, as position encodings have."""

    class Counts(watched.Own):
        def __init__(self):
            super().__init__()
            self.passes, self.longest, self.sums = 0, torch.zeros(()), torch.zeros(3)
            self.generator = torch.Generator().manual_seed(0)
            self.register_buffer("counted", torch.zeros(()))

        def forward(self, x):
            self.passes, self.counted = self.passes + 1, self.counted + 1
            self.longest = torch.maximum(self.longest, torch.tensor(float(x.shape[1])))
            self.sums += 1
            return super().forward(x + 0.1 * torch.rand(1, generator=self.generator))

    losses, plain, _ = watched.trained(Counts)
    seen, model, monitor = watched.trained(
        Counts, lambda model: oversmooth.Monitor(model, watched.probe(tokens=9), every=2, blocks="layers.*")
    )
    assert seen == losses
    assert watched.same(model, plain)
    assert (model.passes, float(model.counted), float(model.longest)) == (5, 5.0, 5.0)
    assert model.sums.tolist() == [5.0] * 3
    assert torch.equal(model.generator.get_state(), plain.generator.get_state())
    assert len(monitor.history) == 3


def test_attributes_that_cannot_be_copied_or_that_a_pass_makes_are_left_alone():
    """Sparse tensors, views of memory that was given back, weights that are made when they are first needed."""

    class Odd(watched.Own):
        def __init__(self):
            super().__init__()
            self.sparse, self.freed, self.grows = torch.eye(3).to_sparse(), torch.zeros(4), torch.zeros(2)
            self.freed.untyped_storage().resize_(0)
            self.built = False

        def forward(self, x):
            if not self.built:
                self.last, self.built = nn.Linear(4, 4), True
            self.grows.resize_(3).fill_(1)
            return self.last(super().forward(x))

    model = Odd()
    monitor = oversmooth.Monitor(model, watched.probe(), blocks="layers.*")
    assert monitor.snapshot(0) is not None
    assert monitor.failures == []
    assert model.grows.tolist() == [0, 0]
    made = model.last
    assert model.built
    model(watched.probe())
    assert model.last is made


def test_checkpointing_counts_no_batch_twice():
    plain = watched.trained(watch=WAYS["passing"])[2]
    again = watched.trained(lambda: watched.Own(checkpointing=False), WAYS["passing"])[2]
    assert [row["cos"] for row in again.history.rows] == [row["cos"] for row in plain.history.rows]
    assert [row["gradient_norm"] for row in again.history.rows] == [row["gradient_norm"] for row in plain.history.rows]


def test_an_exception_inside_a_look_warns_once_and_the_training_goes_on():
    def broken(model):
        return oversmooth.Monitor(model, probe=watched.probe(width=7), every=1, blocks="layers.*")

    losses, model, _ = watched.trained()
    with pytest.warns(MonitorWarning, match="does not run on the probe") as caught:
        seen, seen_model, monitor = watched.trained(watch=broken)
    assert len(caught) == 1
    assert seen == losses
    assert watched.same(model, seen_model)
    assert len(monitor.history) == 0
    assert len(monitor.failures) == 1


def test_where_warnings_are_errors_the_training_goes_on_too(capsys):
    def broken(model):
        return oversmooth.Monitor(
            model, probe=watched.probe(), every=1, blocks="layers.*", sinks=[lambda _step, _values: 1 / 0]
        )

    assert watched.trained(watch=broken)[2].failures == ["a logger failed: division by zero"]
    assert "division by zero" in capsys.readouterr().err


def counted(watch, backend):
    """What dynamo counted in a compiled training."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    training = watched.trained(watched.Known, watch, wrap=lambda m: torch.compile(m, backend=backend, fullgraph=True))
    return training, counters["stats"]["unique_graphs"], dict(counters["graph_break"]), dict(counters["recompiles"])


COMPILED = [("passing", "aot_eager"), ("probe", "aot_eager"), ("passing", "inductor"), ("probe", "inductor")]


@pytest.mark.parametrize(("way", "backend"), some(COMPILED, 4))
def test_compiled_there_is_one_graph_no_break_and_no_recompilation(way, backend):
    (losses, model, _), graphs, *breaks = counted(None, backend)
    (seen, seen_model, monitor), seen_graphs, *seen_breaks = counted(KNOWN[way], backend)
    assert (graphs, seen_graphs) == (1, 1)
    assert breaks == seen_breaks == [{}, {}]
    assert seen == losses
    assert watched.same(model, seen_model)
    assert monitor.failures == []
    if backend == "inductor":  # which drops out other entries
        return
    eager = watched.trained(watched.Known, KNOWN[way])[2]
    for row, other in zip(monitor.history.rows, eager.history.rows, strict=True):
        assert row["cos"] == pytest.approx(other["cos"], rel=1e-3, abs=1e-4)
        assert row["effective_rank" if way == "passing" else "hfc_lfc"] == pytest.approx(
            other["effective_rank" if way == "passing" else "hfc_lfc"], rel=1e-3
        )


def test_the_passing_batch_of_a_compiled_model_is_refused_in_one_sentence():
    for compiled in (torch.compile(watched.Known(), backend="eager"), watched.Known()):
        if isinstance(compiled, watched.Known):
            compiled.compile(backend="eager")
        with pytest.raises(oversmooth.InputError, match="compiled already; make the monitor before"):
            oversmooth.Monitor(compiled, use_training_batch=True)


def test_a_model_that_is_compiled_or_wrapped_later_is_still_the_one_that_is_watched():
    monitor = oversmooth.Monitor(inner := watched.Known(), probe=watched.probe(), every=1)
    outer = torch.compile(inner, backend="eager")
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    for _ in range(4):
        outer(watched.probe()).square().sum().backward()
        optimizer.step()
        monitor.step()
    assert monitor.failures == []
    assert len({tuple(row["cos"]) for row in monitor.history.rows}) == 4


def test_a_copy_that_is_trained_instead_is_noticed():
    model = watched.Known()
    monitor = oversmooth.Monitor(model, probe=watched.probe(), every=1)
    monitor.step()
    monitor.step()
    with pytest.warns(MonitorWarning, match="have not changed in three snapshots"):
        monitor.step()


def test_a_block_that_does_not_report_is_named():
    class Skips(watched.Own):
        def forward(self, x):
            for layer in self.layers[:2]:
                x = layer(x)
            return self.head(x.mean(1))

    with pytest.warns(MonitorWarning, match=r"1 of 4 depths did not report from the training batch, layers\.2 first"):
        _, _, monitor = watched.trained(Skips, WAYS["passing"])
    assert len(monitor.history) == 0
    with pytest.warns(MonitorWarning, match=r"1 of 3 blocks did not run on the probe, layers\.2 first"):
        watched.trained(Skips, lambda m: oversmooth.Monitor(m, probe=watched.probe(), blocks="layers.*"))


def test_lora():
    peft = pytest.importorskip("peft")
    import transformers

    def make():
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
        )
        model = transformers.BertForSequenceClassification(config)
        return peft.get_peft_model(model, peft.LoraConfig(target_modules=["query", "value"], lora_dropout=0.1))

    class Texts(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = make()

        def forward(self, x):
            return nn.functional.pad(self.bert(input_ids=(x.sum(-1).abs() * 3).long() % 20).logits, (0, 2))

    def probe(model):
        return oversmooth.Monitor(model, probe=watched.probe(), every=2)

    losses, model, _ = watched.trained(Texts)
    for watch in (probe, lambda m: oversmooth.Monitor(m, use_training_batch=True, every=2)):
        seen, seen_model, monitor = watched.trained(Texts, watch)
        assert seen == losses
        assert watched.same(model, seen_model)
        assert monitor.failures == []
        assert len(monitor.history.curve("cos")) == 3


def test_a_weight_that_is_normed_by_its_spectrum_stays_as_it_is():
    """Computing such a weight in train mode is a step of its power iteration."""

    def make(watch):
        torch.manual_seed(0)
        model = watched.Known()
        for layer in model.encoder.layers:
            nn.utils.parametrizations.spectral_norm(layer.linear2)
            nn.utils.parametrizations.spectral_norm(layer.self_attn.out_proj)
        torch.manual_seed(1)
        monitor = oversmooth.Monitor(model, probe=watched.probe(), every=1, spectra=1) if watch else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(2, 5, 16)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor is not None:
                monitor.step()
        return model.state_dict()

    plain, seen = make(watch=False), make(watch=True)
    assert all(torch.equal(plain[name], seen[name]) for name in plain)


def test_a_hook_half_put_on_breaks_no_pass_of_another_thread():
    """Torch notes that a hook takes keywords after it has put it on, and a pass may come between."""
    model = watched.Known().eval()
    plan = Plan.of_names({"encoder.layers.0": None, "encoder.layers.1": None})
    passes = []
    with Trace(model, plan, []):
        model(watched.probe(2))
        for module in model.modules():
            module._forward_hooks_with_kwargs.clear()
            module._forward_pre_hooks_with_kwargs.clear()
        thread = threading.Thread(target=lambda: passes.append(model(watched.probe(2)).shape))
        thread.start()
        thread.join()
    assert passes


@pytest.mark.filterwarnings("ignore:the recorded weights have not changed")
def test_a_pass_of_another_thread_is_none_of_a_looks_business():
    model = watched.Known().eval()
    monitor, x, broken, passes = oversmooth.Monitor(model, probe=watched.probe()), watched.probe(2), [], []
    ended = threading.Event()

    def other():
        while not ended.is_set():
            try:
                with torch.no_grad():
                    passes.append(model(x).shape)
            except Exception as error:
                broken.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    rows = [monitor.snapshot(step) for step in range(1, 31)]
    ended.set()
    thread.join()
    assert passes
    assert broken == []
    assert None not in rows
    assert {tuple(row["cos"]) for row in rows} == {tuple(rows[0]["cos"])}


def test_one_pass_in_inference_mode_leaves_the_others_to_be_seen():
    model, x = watched.Known(), watched.probe()
    monitor = oversmooth.Monitor(model, use_training_batch=True, every=1)
    with torch.inference_mode():
        model(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(x).sum().backward()
        optimizer.step()
        monitor.step()
    assert monitor.failures == []
    assert len(monitor.history.rows) == 3


def test_a_loss_that_fails_is_told_how_it_is_called():
    monitor = oversmooth.Monitor(watched.Known(), probe=watched.probe(), gradients=1, loss=lambda out: out.sum())
    with pytest.warns(MonitorWarning, match=r"loss failed \(TypeError: .* called as loss\(what the model returns"):
        monitor.snapshot(1)
